"""`quorumlog cert` as its users see it."""

import json
import os
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest

from quorumlog.cli.main import main
from quorumlog.pki.authority import AuthorityDirectory
from quorumlog.pki.files import pair_in
from quorumlog.pki.names import node_subject, user_subject

NOW = datetime.now(UTC).replace(microsecond=0)
OTHER = "M7xT0123456789_-abcdef"


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


class Certs:
    """A directory with an authority, made at any time."""

    def __init__(self, directory, cluster="K3xT0123456789_-abcdef", now=NOW):
        self.directory, self.cluster, self.now = directory, cluster, now
        self.at(now).make(cluster, "ec-p256", 3_650, force=False)

    def at(self, now):
        return AuthorityDirectory(self.directory, now, os.urandom)

    def node(self, name="n0", hosts=("127.0.0.1", "localhost"), now=None, days=365):
        pair = pair_in(self.directory, name)
        subject = node_subject(name, self.cluster, hosts)
        return self.at(now or self.now).issue(subject, pair, "ec-p256", days, force=False).pair

    def user(self, name="alice", now=None, days=365):
        pair = pair_in(self.directory, name)
        subject = user_subject(name, self.cluster)
        return self.at(now or self.now).issue(subject, pair, "ec-p256", days, force=False).pair


@pytest.fixture
def certs(tmp_path):
    return Certs(tmp_path / "certs")


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_from_an_authority_to_certificates_that_accept_each_other(run, tmp_path):
    at = ("--dir", tmp_path / "certs")
    status, out, err = run("cert", "ca", *at)
    assert (status, err) == (0, "")
    assert "which stays here and which nobody else may read" in out
    for name in ("n0", "n1"):
        assert run("cert", "node", name, "--host", name, "--host", "127.0.0.1", *at)[0] == 0
    status, out, _ = run("cert", "client", "alice", *at)
    assert status == 0
    assert "user alice, until " in out
    status, out, _ = run("cert", "check", tmp_path / "certs")
    assert status == 0
    assert out.splitlines()[-1] == "all accept each other"
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["alice", "n0", "n1"]


def test_what_is_there_is_kept(run, certs):
    certs.node()
    before = (certs.directory / "n0.key").read_bytes()
    status, out, err = run("cert", "node", "n0", "--host", "h", "--dir", certs.directory)
    assert (status, out) == (1, "")
    assert "n0.key exists and is kept" in err or "n0.pem exists and is kept" in err
    assert (certs.directory / "n0.key").read_bytes() == before


def test_show_says_what_each_part_of_a_file_is(run, certs):
    pair = certs.node()
    status, out, _ = run("cert", "show", pair.certificate, certs.directory / "ca.pem", pair.key)
    assert status == 0
    text = " ".join(out.split())
    for said in (
        "is certificate whose node n0 cluster K3xT0123456789_-abcdef hosts localhost, 127.0.0.1",
        "used as server and client",
        "(in 365 days)",
        f"key EC P-256, in {pair.key}",
        "is certificate authority",
        "signed by itself",
        "is private key",
    ):
        assert said in text


def test_show_as_json(run, certs):
    pair = certs.user()
    run("cert", "revoke", "user/alice", "--dir", certs.directory)
    (shown,) = objects(run("cert", "show", pair.certificate, "--json")[1])
    assert shown["what"] == "certificate"
    assert shown["subject"] == "user alice"
    assert shown["usages"] == ["client"]
    assert 364 * 86_400 < shown["expires_seconds"] <= 365 * 86_400
    assert datetime.fromisoformat(shown["expires"]) == NOW + timedelta(days=365)
    (listed,) = objects(run("cert", "show", certs.directory / "ca.crl", "--json")[1])
    assert listed["revoked"] == [shown["serial"]]


def test_show_says_what_is_wrong(run, tmp_path):
    certs = Certs(tmp_path / "certs", now=NOW - timedelta(days=400))
    pair = certs.node()
    assert "expired 35 days ago" in run("cert", "show", pair.certificate)[1]
    pair.key.chmod(0o644)
    (shown,) = objects(run("cert", "show", pair.key, "--json")[1])
    assert shown["problem"] == f"others may read or write {pair.key}: 'chmod 600 {pair.key}'"


def test_show_of_what_is_no_certificate(run, tmp_path):
    path = tmp_path / "x.pem"
    path.write_bytes(b"\x00\xff")
    status, out, err = run("cert", "show", path)
    assert (status, out) == (1, "")
    assert "no file of certificates or keys" in err


# -- check ----------------------------------------------------------------------------------------


def found_in(run, *arguments):
    """Return the exit status of a check, and what it found, as `level about: text`."""
    status, out, _ = run("cert", "check", *arguments)
    levels = ("problem: ", "warning: ")
    return status, [line for line in out.splitlines() if line.startswith(levels)]


def test_certificates_of_two_authorities_do_not_accept_each_other_until_both_are_trusted(
    run, certs, tmp_path
):
    newer = Certs(tmp_path / "newer", certs.cluster)
    paths = (certs.node().certificate, newer.user().certificate)
    status, found = found_in(run, *paths)
    assert status == 1
    assert "problem: user alice at node n0: " in found[0]
    assert "signed by quorumlog CA" in found[0]
    both = tmp_path / "both.pem"
    both.write_bytes(
        (certs.directory / "ca.pem").read_bytes() + (newer.directory / "ca.pem").read_bytes()
    )
    assert found_in(run, *paths, "--ca", both) == (0, [])


def test_certificates_of_two_clusters(run, certs, tmp_path):
    other = Certs(tmp_path / "other", OTHER)
    status, found = found_in(run, certs.node().certificate, other.node("n1").certificate)
    assert status == 1
    (said,) = found
    assert "of different clusters" in said
    assert OTHER in said


@pytest.mark.parametrize(
    ("made", "status", "said"),
    [
        (NOW - timedelta(days=400), 1, "expired 35 days ago"),
        (NOW + timedelta(days=2), 1, "not valid before"),
        (NOW - timedelta(days=350), 0, "expires in 15 days: 'quorumlog cert renew'"),
    ],
)
def test_a_certificate_of_another_time(run, tmp_path, made, status, said):
    certs = Certs(tmp_path / "certs", now=min(made, NOW))
    certs.node(now=made)
    certs.user(now=NOW)
    found_status, found = found_in(run, certs.directory)
    assert found_status == status
    assert len(found) == 1
    assert said in found[0]


def test_a_key_that_does_not_fit_is_open_to_others_or_missing(run, certs):
    node, user = certs.node(), certs.user()
    node.key.chmod(0o640)
    assert "'chmod 600" in found_in(run, certs.directory)[1][0]
    user.key.replace(node.key)
    status, found = found_in(run, certs.directory)
    assert status == 1
    assert "its key is not here" in found[0]
    assert "is the key of another certificate" in found[1]


def test_a_certificate_that_is_revoked(run, certs):
    certs.node()
    certs.user()
    assert run("cert", "revoke", "user/alice", "--dir", certs.directory)[0] == 0
    status, found = found_in(run, certs.directory)
    assert status == 1
    (said,) = found
    assert "alice.pem is revoked" in said


@pytest.mark.parametrize(
    ("left", "status", "said"),
    [
        (-10, 1, "expired 10 days ago: whoever has it accepts no certificate of this authority"),
        (5, 0, "expires in 5 days: 'quorumlog cert crl'"),
    ],
)
def test_a_revocation_list_that_ends(run, certs, left, status, said):
    certs.node()
    certs.at(NOW - timedelta(days=30 - left)).write_crl(30)
    found_status, found = found_in(run, certs.directory)
    assert found_status == status
    assert said in found[0]


def test_without_a_revocation_list_of_its_authority_a_certificate_is_refused(run, certs, tmp_path):
    newer = Certs(tmp_path / "newer", certs.cluster)
    paths = (certs.node().certificate, newer.user().certificate)
    both = tmp_path / "both.pem"
    both.write_bytes(
        (certs.directory / "ca.pem").read_bytes() + (newer.directory / "ca.pem").read_bytes()
    )
    certs.at(NOW).write_crl(30)
    lists = tmp_path / "both.crl"
    lists.write_bytes((certs.directory / "ca.crl").read_bytes())
    status, found = found_in(run, *paths, "--ca", both)
    assert status == 1
    assert "there is no revocation list (crl) of its certificate's authority here" in found[0]
    newer.at(NOW).write_crl(30)
    lists.write_bytes(lists.read_bytes() + (newer.directory / "ca.crl").read_bytes())
    assert found_in(run, *paths, "--ca", both) == (0, [])


def test_a_user_is_no_server_and_two_nodes_have_no_common_name(run, certs, tmp_path):
    certs.node()
    other = Certs(tmp_path / "again", certs.cluster)
    again = other.node()
    both = tmp_path / "both.pem"
    both.write_bytes(
        (certs.directory / "ca.pem").read_bytes() + (other.directory / "ca.pem").read_bytes()
    )
    status, found = found_in(run, certs.directory, again.certificate, "--ca", both)
    assert status == 0
    assert found == [
        "warning: node n0: 2 of the certificates are of node n0: each node has a name of its own"
    ]


def test_what_cannot_be_read_is_a_problem_beside_the_others(run, certs, tmp_path):
    certs.node()
    status, found = found_in(
        run, certs.directory, tmp_path / "none.pem", certs.directory / "ca.pem"
    )
    assert status == 1
    assert "none.pem" in found[0]
    assert "it is an authority's" in found[1]


def test_check_as_json(run, certs):
    certs.node()
    certs.user()
    status, out, _ = run("cert", "check", certs.directory, "--json")
    assert status == 0
    user, node = objects(out)
    assert (user["whose"], node["whose"]) == ("user alice", "node n0")
    assert node["signed_by"].startswith("quorumlog CA ")


@pytest.mark.parametrize("arguments", [(), ("--servers", "127.0.0.1:1"), ("--ca", "x")])
def test_check_of_nothing_is_a_wrong_command_line(run, arguments):
    assert run("cert", "check", *arguments)[0] == 2


# -- servers --------------------------------------------------------------------------------------


@contextmanager
def serving(pair, ca):
    """Serve TLS as a node does that demands certificates of clients; yield its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(ca)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                plain, _ = listening.accept()
                with suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
                    connection.send(b"hello")
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_servers_show_which_certificate_and_authority_they_have(run, certs, tmp_path):
    node, user = certs.node(), certs.user()
    newer = Certs(tmp_path / "newer", certs.cluster)
    mallory = newer.user("mallory")
    ca = certs.directory / "ca.pem"
    with serving(node, ca) as address:
        status, out, _ = run("cert", "check", user.certificate, "--servers", address)
        assert status == 0
        assert f"{address}   node n0   in 365 days   " in out
        status, found = found_in(run, mallory.certificate, "--ca", ca, "--servers", address)
    assert status == 1
    said = f"does not trust the authority of the certificate {mallory.certificate}"
    assert any(said in one for one in found)


def test_servers_are_asked_without_a_certificate_that_cannot_be_used(run, certs):
    """What is wrong with it is said, and what the servers show."""
    node, user = certs.node(), certs.user()
    encrypted = (
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgkMTxVfeNPcQICCAAw\n"
        "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with serving(node, certs.directory / "ca.pem") as address:
        for content in (encrypted, node.key.read_text(), None):
            if content is None:
                user.key.unlink()
            else:
                user.key.write_text(content)
            status, out, _ = run("cert", "check", user.certificate, "--servers", address)
            assert status == 1
            assert f"{address}   node n0   in 365 days   " in out
            assert "problem: user alice: servers are asked without this certificate" in out
            assert out.count("problem: user alice: ") == 2
            assert f"problem: {address}" not in out


def test_without_whom_to_trust_it_is_said_what_cannot_be_read(run, tmp_path):
    arguments = ("cert", "check", tmp_path / "none.pem", "--servers", "127.0.0.1:1")
    status, out, _ = run(*arguments)
    assert status == 1
    assert f"problem: {tmp_path / 'none.pem'}" in out
    assert "give --ca" in out


def test_a_server_of_another_host_another_authority_or_none_at_all(run, certs, tmp_path, mute):
    node = certs.node(hosts=["h0.example.org"])
    other = Certs(tmp_path / "other", OTHER)
    ca = other.directory / "ca.pem"
    with serving(node, certs.directory / "ca.pem") as address:
        status, found = found_in(run, "--ca", ca, "--servers", address)
    text = "\n".join(found)
    assert status == 1
    assert "signed by quorumlog CA" in text
    assert f"it is of cluster {certs.cluster}, and trusted is {OTHER}" in text
    assert "does not name 127.0.0.1, only h0.example.org" in text
    gone = f"127.0.0.1:{mute.getsockname()[1]}"
    mute.close()
    status, out, _ = run("cert", "check", "--ca", ca, "--servers", gone, "--json")
    assert status == 1
    assert "Connection refused" in objects(out)[0]["failure"]


def test_a_server_that_speaks_no_tls_is_said_to(run, certs):
    listening = socket.create_server(("127.0.0.1", 0))

    def refuse():
        plain, _ = listening.accept()
        plain.sendall(b"QLOG this is no TLS at all")
        plain.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    ca = certs.directory / "ca.pem"
    status, found = found_in(run, "--ca", ca, "--servers", address)
    thread.join()
    listening.close()
    assert status == 1
    assert f"problem: {address}: no TLS there" in found[0]


# -- requests -------------------------------------------------------------------------------------


def test_a_request_is_signed_after_it_was_shown(run, certs, tmp_path, monkeypatch):
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "ca.pem").write_bytes((certs.directory / "ca.pem").read_bytes())
    status, out, _ = run("cert", "csr", "node", "n7", "--host", "h7", "--dir", machine)
    assert status == 0
    assert "n7.key, which stays here" in out
    sign = ("cert", "sign", machine / "n7.csr", "--dir", certs.directory)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    status, out, _ = run(*sign)
    assert status == 1
    assert "asks for: node n7, hosts h7" in out
    assert not (machine / "n7.pem").exists()
    assert run(*sign, "--yes")[0] == 0
    assert found_in(run, machine) == (0, [])
    assert run("cert", "csr", "client", "bob", "--host", "h", "--dir", machine)[0] == 2


def test_a_renewal_says_how_to_end_the_former_certificate(run, certs):
    node = certs.node()
    status, out, _ = run("cert", "renew", node.certificate, "--dir", certs.directory)
    assert status == 0
    _, *arguments = out.splitlines()[-1].split()
    serial = arguments[2]
    status, out, _ = run(*arguments)
    assert status == 0
    assert f"revoked node/n0, serial {serial}" in out
    assert found_in(run, certs.directory) == (0, [])
    status, out, _ = run("cert", "crl", "--dir", certs.directory)
    assert "1 certificate revoked in all" in out


def test_a_certificate_comes_with_the_authority_whom_it_is_checked_against(run, tmp_path):
    certs = Certs(tmp_path / "ca")
    status, out, _ = run(
        "cert", "client", "bob", "--dir", certs.directory, "--out", tmp_path / "bob"
    )
    assert (status, f"copied {tmp_path / 'bob' / 'ca.pem'}" in " ".join(out.split())) == (0, True)
    assert run("cert", "check", tmp_path / "bob")[0] == 0
    status, _, err = run("cert", "renew", tmp_path / "bob" / "bob.pem", "--dir", tmp_path / "none")
    assert (status, "give --dir DIR, the directory of the authority" in err) == (1, True)
