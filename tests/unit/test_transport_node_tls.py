"""What a node makes of its TLS files: at its start, when they change, and of those who connect."""

import asyncio
import logging
import os
import ssl
import time

import msgspec
import pytest

from certificates import BOTH, DAY, OTHER_CLUSTER_ID, Authority
from group_machine import Now
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.errors import ConfigError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.executor import ThreadExecutor
from quorumlog.transport import node_tls as node_tls_module
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls import IncomingTls, OutgoingTls
from quorumlog.transport.tls_contexts import client_context, server_context
from tls_ends import End, files_of, outgoing, pump


@pytest.fixture
def pki(tmp_path):
    made = Authority(tmp_path)
    for name in ("n0", "n1"):
        made.node(name)
    made.user("alice")
    return made


def config_of(pki, name="n0", **options):
    certificate, key = files_of(pki, name)
    return TlsConfig(certificate=certificate, key=key, ca=str(pki.file), **options)


def node_tls(pki, name="n0", self_id="n0", now=time.time, **options):
    return NodeTls(config_of(pki, name, **options), self_id, now)


async def met(tls, incoming):
    """Let somebody connect; return both ends, ended."""
    client, server = End(tls), End(incoming)
    server.start()
    client.start()
    await pump(client, server)
    for end in (client, server):
        end.wire.end()
    return client.app, server.app


# -- at the start ---------------------------------------------------------------------------------


def test_a_node_does_not_start_with_the_certificate_of_somebody_else(pki, tmp_path):
    with pytest.raises(ConfigError, match=r"n1\.pem: the certificate of node n1 .* for node n0"):
        node_tls(pki, "n1")
    pki.issue("plain", "DNS:n0", usage=BOTH)
    with pytest.raises(ConfigError, match=r"quorumlog://CLUSTER-ID/node/n0"):
        node_tls(pki, "plain")
    pki.issue("user", f"URI:quorumlog://{pki.cluster_id}/user/n0")
    with pytest.raises(ConfigError, match=r"a user's certificate \(n0\)"):
        node_tls(pki, "user")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"end": -DAY / 2}, "has expired"),
        ({"begin": DAY}, "not valid yet"),
        ({"usage": BOTH[:1]}, "not for this use"),
        ({"usage": BOTH[1:]}, "not for this use"),
    ],
)
def test_a_node_does_not_start_with_a_certificate_that_its_peers_would_refuse(pki, options, why):
    pki.node("n0", **options)
    with pytest.raises(ConfigError, match=f"peers would refuse it: .*{why}"):
        node_tls(pki)


def test_a_node_does_not_start_with_a_certificate_of_another_authority(pki, tmp_path):
    other = Authority(tmp_path, "other")
    with pytest.raises(ConfigError, match="authority that is not trusted here"):
        node_tls(pki, peer_ca=str(other.file))


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o601])
def test_a_key_that_others_may_read_is_refused_with_what_to_do(pki, bits):
    path = pki.directory / "n0.key"
    path.chmod(bits)
    with pytest.raises(ConfigError, match=f"rights {bits:04o}.: chmod 600 {path}"):
        server_context(config_of(pki))
    with pytest.raises(ConfigError, match="chmod 600"):
        client_context(str(pki.file), *files_of(pki, "n0"))


def test_files_that_cannot_be_used_are_named_with_the_reason(pki):
    key = pki.directory / "n0.key"
    garbage, encrypted = pki.directory / "garbage", pki.directory / "encrypted"
    garbage.write_text("x")
    encrypted.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
        "MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgkMTxVfeNPcQICCAAw\n"
        "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    for path in (garbage, encrypted):
        path.chmod(0o600)
    for options, text in {
        ("certificate", str(pki.directory / "none")): "cannot read the certificate .*none: No such",
        ("certificate", str(garbage)): "garbage: it is no certificate in PEM",
        ("certificate", str(pki.directory / "n1.pem")): f"{key}: it does not belong to the",
        ("key", str(pki.directory)): "key .* is no regular file",
        ("key", str(pki.directory / "none")): "key .*none cannot be read: No such file",
        ("key", str(garbage)): "garbage: it is no private key in PEM",
        ("key", str(encrypted)): "encrypted: it is",
        ("ca", str(garbage)): "cannot use the authority .*garbage",
        ("crl", str(pki.file)): r"revocation list .*ca.pem: it is none in PEM",
        ("crl", str(pki.directory / "none")): "cannot read the revocation list",
    }.items():
        values = {"certificate": str(pki.directory / "n0.pem"), "key": str(key)}
        values |= {"ca": str(pki.file), options[0]: options[1]}
        with pytest.raises(ConfigError, match=text):
            server_context(TlsConfig(**values))


def test_a_certificate_without_its_key_is_refused(pki):
    with pytest.raises(ConfigError, match="a certificate and its key are needed"):
        client_context(str(pki.file), certificate=str(pki.directory / "alice.pem"))


def test_contexts_speak_tls_1_3_and_give_no_tickets(pki):
    context = server_context(config_of(pki))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET
    assert client_context("system").check_hostname


# -- who connects ---------------------------------------------------------------------------------


async def test_whoever_shows_a_certificate_is_known_by_it(pki):
    tls = node_tls(pki)
    assert tls.current.own.principal == "Node:n0"
    for name, principal in (("alice", "User:alice"), ("n1", "Node:n1"), ("", "User:ANONYMOUS")):
        _, server = await met(outgoing(pki, name), tls.current.native)
        assert server.identity.principal == principal


async def test_a_certificate_of_another_authority_and_name_is_mapped_by_rules(pki):
    pki.issue("bob", "DNS:bob", common_name="Bob")
    rules = ["RULE:CN=(.*)/$1/L"]
    _, server = await met(outgoing(pki, "bob"), node_tls(pki, principal_rules=rules).current.kafka)
    assert server.identity[:2] == (None, "User:bob")


async def test_no_client_gets_a_name_where_certificates_are_not_asked_for(pki):
    state = node_tls(pki, client_auth="none").current
    for incoming in (state.native, state.kafka):
        _, server = await met(outgoing(pki, "alice"), incoming)
        assert server.identity[:2] == (None, "User:ANONYMOUS")
    _, server = await met(outgoing(pki, "n1"), state.native)
    assert server.identity.principal == "Node:n1"


async def test_a_node_is_no_kafka_client(pki):
    _, server = await met(outgoing(pki, "n1"), node_tls(pki).current.kafka)
    assert server.identity is None
    assert "node n1 was shown by a client" in str(server.error)


async def test_a_user_of_another_cluster_is_refused(pki):
    uri = f"URI:quorumlog://{OTHER_CLUSTER_ID}/user/alice"
    pki.issue("alice2", uri)
    state = node_tls(pki).current
    _, server = await met(outgoing(pki, "alice2"), state.native)
    assert server.identity.principal == "User:ANONYMOUS"
    assert f"is of cluster {OTHER_CLUSTER_ID}" in server.identity.refusal
    _, server = await met(outgoing(pki, "alice2"), state.kafka)
    assert f"is of cluster {OTHER_CLUSTER_ID}" in str(server.error)


async def test_only_the_peers_authority_makes_members(pki, tmp_path):
    """With authorities of their own, a certificate of the clients' one is no member's."""
    clients = Authority(tmp_path, "clients")
    clients.issue("n2", "DNS:n2.log.example", f"URI:quorumlog://{pki.cluster_id}/node/n2")
    clients.issue("n3", "DNS:n3.log.example")
    pki.issue("m0", "DNS:n0.log.example")
    pki.issue("m1", "DNS:n1.log.example")
    options = {"peer_ca": str(pki.file), "member_rule": r"DNS:(n[0-9])\.log\.example"}
    certificate, key = files_of(pki, "m0")
    config = TlsConfig(certificate=certificate, key=key, ca=str(clients.file), **options)
    state = NodeTls(config, "n0", time.time).current

    def shown(authority, name):
        context = client_context(str(pki.file), *files_of(authority, name))
        context.check_hostname = False
        return OutgoingTls(context)

    _, server = await met(shown(pki, "m1"), state.native)
    assert server.identity.certified.name == "n1"
    _, server = await met(shown(clients, "n2"), state.native)
    assert "node n2 is not of an authority in peerCa" in server.identity.refusal
    _, server = await met(shown(clients, "n3"), state.native)
    assert server.identity.certified is None


@pytest.mark.parametrize("of_peers", [True, False])
async def test_a_node_takes_and_dials_no_peer_but_of_the_peers_authority(pki, tmp_path, of_peers):
    """The authority of clients' certificates may name nodes as it likes: these are none."""
    clients = Authority(tmp_path, "clients")
    clients.node("n1", file="false-n1")
    both = tmp_path / "both.pem"
    both.write_bytes(clients.file.read_bytes() + pki.file.read_bytes())
    certificate, key = files_of(pki, "n0")
    config = TlsConfig(certificate=certificate, key=key, ca=str(both), peer_ca=str(pki.file))
    state = NodeTls(config, "n0", time.time).current
    certificate, key = files_of(pki, "n1" if of_peers else "false-n1")
    n1 = server_context(TlsConfig(certificate=certificate, key=key, ca=str(both)))
    client, _ = await met(state.to_peer("n1", None), IncomingTls(n1, state.native.identify_object))
    dialling = client_context(str(pki.file), certificate, key)
    dialling.check_hostname = False
    _, server = await met(OutgoingTls(dialling), state.native)
    if of_peers:
        assert client.identity is not None
        assert server.identity[1:] == ("Node:n1", "")
    else:
        assert client.identity is None
        assert "authority that is not trusted here" in str(client.error)
        assert "node n1 is not of an authority in peerCa" in server.identity.refusal
        assert server.identity.principal == "User:ANONYMOUS"


@pytest.mark.parametrize(
    ("dialled", "self_id", "why"),
    [
        ("n2", "n1", "node n1 was shown for node n2"),
        ("n1", "alice", "a user's certificate"),
    ],
)
async def test_whoever_is_dialled_has_to_be_there(pki, dialled, self_id, why):
    pki.issue("alice", f"URI:quorumlog://{pki.cluster_id}/user/alice", "DNS:localhost")
    incoming = node_tls(pki).current.native
    context = server_context(config_of(pki, self_id))
    there = IncomingTls(context, incoming.identify_object)
    client, _ = await met(node_tls(pki).current.to_peer(dialled, None), there)
    assert why in str(client.error)


def test_an_authority_of_clients_makes_no_members_by_a_rule(pki, tmp_path):
    """Else the certificate of a client with a node's name in it would be that node's."""
    other = Authority(tmp_path, "other")
    both = tmp_path / "both.pem"
    both.write_bytes(pki.file.read_bytes() + other.file.read_bytes())
    pki.issue("m0", "DNS:n0.log.example")
    certificate, key = files_of(pki, "m0")
    rule = r"DNS:(n[0-9])\.log\.example"
    for ca, peer_ca in ((pki.file, pki.file), (both, pki.file), (pki.file, both)):
        options = {"ca": str(ca), "peer_ca": str(peer_ca), "member_rule": rule}
        config = TlsConfig(certificate=certificate, key=key, **options)
        with pytest.raises(ConfigError, match="memberRule: an authority is in both ca and peerCa"):
            NodeTls(config, "n0", time.time)


async def test_an_authority_below_that_of_clients_is_enough_for_members(tmp_path):
    """Then peerCa is an intermediate authority without its root, which would let in clients."""
    root, nodes = Authority(tmp_path, "root"), Authority(tmp_path, "nodes")
    nodes.certify_by(root)
    root.issue("n2", f"URI:quorumlog://{root.cluster_id}/node/n2", "DNS:localhost")
    for name in ("n0", "n1"):
        nodes.node(name)
    certificate, key = files_of(nodes, "n0")
    config = TlsConfig(certificate=certificate, key=key, ca=str(root.file), peer_ca=str(nodes.file))
    state = NodeTls(config, "n0", time.time).current
    for name, principal in (("n1", "Node:n1"), ("n2", "User:ANONYMOUS")):
        context = client_context(str(nodes.file), *files_of(nodes, name))
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        _, server = await met(OutgoingTls(context), state.native)
        assert server.identity.principal == principal


@pytest.mark.parametrize("client_auth", ["none", "optional", "required"])
async def test_nobody_needs_a_certificate_at_the_admin_port(pki, client_auth):
    state = node_tls(pki, client_auth=client_auth).current
    _, server = await met(outgoing(pki, ""), state.admin)
    assert server.identity.principal == "User:ANONYMOUS"


async def test_a_resumed_session_is_no_way_around_an_end(pki):
    """With TLS 1.2 OpenSSL resumes sessions and verifies nothing again."""
    now = [time.time()]
    state = node_tls(pki, now=lambda: now[0], min_version="1.2").current
    tls = outgoing(pki, "alice")
    tls.context.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.context.maximum_version = ssl.TLSVersion.TLSv1_2

    class Resuming:
        """As the client, with the session of before."""

        session = None

        def __getattr__(self, name):
            return getattr(tls, name)

        def object_on(self, incoming, outgoing):
            self.made = tls.context.wrap_bio(incoming, outgoing, session=self.session)
            return self.made

    again = Resuming()
    _, server = await met(again, state.kafka)
    assert server.identity.principal == "User:alice"
    again.session = again.made.session
    _, server = await met(again, state.kafka)
    assert (again.made.session_reused, server.identity.principal) == (True, "User:alice")
    now[0] += 366 * DAY.total_seconds()
    _, server = await met(again, state.kafka)
    assert server.identity is None
    assert "resumed, but its certificate has expired" in str(server.error)


# -- newer files ----------------------------------------------------------------------------------


def issuer_of(pki):
    return ((("organizationName", pki.cluster_id),), (("commonName", pki.name),))


def lines_of(caplog):
    return [(r.levelno, r.getMessage(), getattr(r, EVENT_FIELDS)) for r in caplog.records]


async def test_newer_files_count_for_the_next_connection(pki, caplog):
    caplog.set_level(logging.INFO)
    tls = node_tls(pki, crl=str(pki.revoke()))
    before = tls.current
    _, server = await met(outgoing(pki, "alice"), tls.current.native)
    assert server.identity.principal == "User:alice"
    tls.check(Now().run)
    assert tls.current is before
    revoked, ended = pki.user("alice"), []
    tls.when_revoked.append(ended.append)
    pki.revoke(pki.user("bob"), revoked)
    tls.check(Now().run)
    assert tls.current is not before
    client, server = await met(outgoing(pki, "alice"), tls.current.native)
    assert server.identity is None
    assert "revoked" in str(client.error)
    shown = {"issuer": issuer_of(pki), "serialNumber": f"{revoked.value.serial_number:X}"}
    assert ended[0](shown)
    assert not ended[0]({**shown, "issuer": ((("commonName", "ca"),),)})
    assert not ended[0]({**shown, "serialNumber": "1"})
    pki.node("n0")
    tls.check(Now().run)
    assert tls.current.own.serial != before.own.serial
    assert [text for _, text, _ in lines_of(caplog)] == ["TLS files read again"] * 2


def test_files_that_cannot_be_used_change_nothing_until_they_can(pki, caplog):
    tls = node_tls(pki)
    before, key = tls.current, pki.directory / "n0.key"
    good = key.read_bytes()
    key.write_bytes(b"")
    os.utime(key, (1, 1))
    for _ in range(3):
        tls.check(Now().run)
    assert tls.current is before
    assert tls.has_failed
    ((level, text, fields),) = lines_of(caplog)
    assert (level, text) == (logging.ERROR, "TLS files cannot be used; those from before still are")
    assert "no private key" in fields["reason"]
    key.write_bytes(good)
    tls.check(Now().run)
    assert not tls.has_failed
    key.unlink()
    tls.check(Now().run)
    assert tls.has_failed


async def test_a_list_with_the_nodes_own_certificate_counts_for_everybody_else(pki, caplog):
    caplog.set_level(logging.INFO)
    own, alice = pki.node("n0"), pki.user("alice")
    crl, ended = pki.revoke(), []
    tls = node_tls(pki, crl=str(crl))
    tls.when_revoked.append(ended.append)
    pki.revoke(own, alice)
    for _ in range(3):
        tls.check(Now().run)
    assert not tls.has_failed
    (read, revoked) = lines_of(caplog)
    assert read[1] == "TLS files read again"
    assert revoked[:2] == (
        logging.ERROR, "this node's own certificate is revoked and has to be replaced",
    )  # fmt: skip
    assert revoked[2]["certificate"] == str(pki.directory / "n0.pem")
    assert ended[0]({"issuer": issuer_of(pki), "serialNumber": f"{alice.value.serial_number:X}"})
    for incoming in (tls.current.native, tls.current.kafka, tls.current.admin):
        client, server = await met(outgoing(pki, "alice"), incoming)
        assert server.identity is None
        assert "revoked" in str(client.error)
    incoming = IncomingTls(server_context(config_of(pki)), lambda ssl_object: None)
    client, _ = await met(tls.current.to_peer("n0", None), incoming)
    assert "its certificate is revoked" in str(client.error)
    with pytest.raises(ConfigError, match="peers would refuse it: its certificate is revoked"):
        node_tls(pki, crl=str(crl))
    pki.node("n0")
    tls.check(Now().run)
    assert not tls.current.is_own_revoked
    assert lines_of(caplog)[2:] == [(*read[:2], {**read[2], "serial": tls.current.own.serial})]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("expired", "has expired here"),
        ("of nobody", "there is no revocation list"),
        ("forged", "CRL signature failure"),
        ("own expired", "its certificate has expired"),
    ],
)
def test_a_list_with_the_nodes_own_certificate_has_to_be_good(pki, tmp_path, fault, why):
    own = pki.node("n0")
    tls = node_tls(pki, crl=str(pki.revoke()))
    before = tls.current
    if fault == "expired":
        pki.revoke(own, end=-DAY / 2)
    elif fault == "own expired":
        pki.revoke(pki.node("n0", end=-DAY / 2))
    else:
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other", "ca" if fault == "forged" else "other")
        other.revoke(own).replace(pki.directory / "crl.pem")
    tls.check(Now().run)
    assert tls.current is before
    assert why in tls._seen.failure


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ({"number": 2}, {"number": 1}),
        ({"number": 2, "begin": -2 * DAY}, {"number": 1, "begin": -DAY}),
        ({"begin": -DAY}, {"begin": -2 * DAY}),
        ({"begin": -DAY}, {"begin": -2 * DAY, "number": 3}),
    ],
)
async def test_an_older_list_counts_and_is_warned_of(pki, caplog, newer, older):
    alice = pki.user("alice")
    crl = pki.revoke(**older)
    tls = node_tls(pki, crl=str(crl))
    pki.revoke(alice, **newer)
    tls.check(Now().run)
    assert not lines_of(caplog)
    pki.revoke(**older)
    tls.check(Now().run)
    tls.check(Now().run)
    ((level, text, fields),) = lines_of(caplog)
    assert level == logging.WARNING
    assert text == "an older revocation list has taken the place of a newer one"
    assert fields["crl"] == str(crl)
    assert fields["text"] == "certificates that were revoked meanwhile count again"
    _, server = await met(outgoing(pki, "alice"), tls.current.native)
    assert server.identity.principal == "User:alice"


def test_lists_are_compared_with_the_newest_of_the_same_authority(pki, tmp_path, caplog):
    other, crl = Authority(tmp_path, "other"), tmp_path / "both.pem"

    def write(*lists):
        crl.write_bytes(b"".join(path.read_bytes() for path in lists))

    second, first = pki.revoke(file="2", number=2), pki.revoke(file="1", number=1)
    write(first, second)
    tls = node_tls(pki, crl=str(crl))
    write(second, other.revoke(file="other", number=1))
    tls.check(Now().run)
    assert not lines_of(caplog)
    write(first, other.revoke(file="other", number=2))
    tls.check(Now().run)
    assert [level for level, _, _ in lines_of(caplog)] == [logging.WARNING]


def damage(path):
    """Give a revocation list a version that OpenSSL takes and `cryptography` does not."""
    pem = path.read_text().replace("X509 CRL", "CERTIFICATE")
    der = bytearray(ssl.PEM_cert_to_DER_cert(pem))
    der[der.index(b"\x02\x01\x01") + 2] = 0
    path.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)).replace("CERTIFICATE", "X509 CRL"))


def test_a_revocation_list_that_cannot_be_read_ends_no_node(pki, caplog):
    crl = pki.revoke()
    tls = node_tls(pki, crl=str(crl))
    before = tls.current
    damage(crl)
    for _ in range(2):
        tls.check(Now().run)
    assert tls.current is before
    assert tls.has_failed
    ((level, _, fields),) = lines_of(caplog)
    assert level == logging.ERROR
    assert f"cannot use the revocation list {crl}: InvalidVersion" in fields["reason"]
    with pytest.raises(ConfigError, match="cannot use the revocation list"):
        node_tls(pki, crl=str(crl))
    pki.revoke()
    tls.check(Now().run)
    assert not tls.has_failed


class Counted(bytes):
    """Counts the bytes in which somebody looks for others."""

    seen = 0

    def find(self, sub, start=0):
        found = super().find(sub, start)
        self.seen += (len(self) if found < 0 else found + len(sub)) - start
        return found


def test_every_list_in_a_file_is_found_and_nothing_is_looked_at_twice(pki):
    pem = pki.revoke().read_bytes().strip()
    data = Counted(b"x\n" + pem + b"\nbetween\n" + pem)
    assert node_tls_module._blocks_of(data, "crl") == [pem, pem]
    assert data.seen <= len(data)


def test_lists_that_begin_and_do_not_end_are_refused_at_once(pki):
    begins = Counted(b"-----BEGIN X509 CRL-----\n" * 10_000)
    with pytest.raises(ConfigError, match=r"cannot use the revocation list crl: .* has no end"):
        node_tls_module._lists_of(begins, "crl")
    assert begins.seen <= 2 * len(begins)
    crl = pki.revoke()
    crl.write_bytes(crl.read_bytes() + begins)
    with pytest.raises(ConfigError, match=r"cannot use the revocation list .*: a list in it has"):
        node_tls(pki, crl=str(crl))


def fifo(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(3 << 30)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (fifo, "is no regular file"),
        (endless, "is no regular file"),
        (huge, "has more than"),
        (os.mkdir, "is no regular file"),
    ],
)
@pytest.mark.parametrize("file", ["crl", "certificate", "key", "ca"])
def test_no_file_is_waited_for_or_read_without_end(pki, tmp_path, caplog, place, reason, file):
    named = config_of(pki, crl=str(pki.revoke()))
    odd = tmp_path / "odd"
    odd.symlink_to(getattr(named, file))
    tls = NodeTls(msgspec.structs.replace(named, **{file: str(odd)}), "n0", time.time)
    before = tls.current
    odd.unlink()
    place(odd)
    tls.check(Now().run)
    assert tls.current is before
    assert tls.has_failed
    told = lines_of(caplog)[-1][2]["reason"]
    assert str(odd) in told
    assert reason in told


def test_whatever_goes_wrong_with_newer_files_is_tried_again(pki, caplog):
    crl, failures = pki.revoke(), [RuntimeError("unexpected")]

    def end_revoked(is_revoked):
        if failures:
            raise failures.pop()

    tls = node_tls(pki, crl=str(crl))
    tls.when_revoked.append(end_revoked)
    pki.revoke(pki.user("bob"))
    tls.check(Now().run)
    assert tls.has_failed
    assert lines_of(caplog)[-1][2]["reason"] == "RuntimeError: unexpected"
    tls.check(Now().run)
    assert not tls.has_failed


def test_newer_files_may_be_read_elsewhere_one_reading_at_a_time(pki, caplog):
    caplog.set_level(logging.INFO)
    tls, begun = node_tls(pki), []
    run = lambda *calls: begun.append(calls)  # noqa: E731
    before = tls.current
    tls.check(run)
    assert not begun  # nothing has changed
    pki.node("n0")
    for _ in range(2):
        tls.check(run)
    ((read, done, _),) = begun
    state = read()
    assert tls.current is before
    pki.node("n0")  # while the files are read: they are looked at again
    done(state)
    assert tls.current is state
    tls.check(run)
    _, (_, _, failed) = begun
    failed(ConfigError("no use"))
    assert (tls.current, tls.has_failed) == (state, True)
    tls.check(Now().run)
    assert not tls.has_failed
    assert tls.current is not state
    told = [fields.get("reason", text) for _, text, fields in lines_of(caplog)]
    assert told == ["TLS files read again", "no use", "TLS files read again"]


async def test_a_stop_drops_what_is_read_meanwhile(pki):
    threads, tls = ThreadExecutor(asyncio.get_running_loop()), node_tls(pki)
    before = tls.current
    pki.node("n0")
    tls.check(threads.run)
    threads.stop()
    await asyncio.to_thread(threads.join)
    await asyncio.sleep(0)  # for what comes back of threads
    tls.check(threads.run)
    assert tls.current is before


@pytest.mark.parametrize("is_peer", [False, True])
async def test_a_handshake_is_judged_by_the_lists_at_its_end(pki, is_peer):
    """Whoever has begun it before a list was read is no less revoked."""
    tls = node_tls(pki, crl=str(pki.revoke()))
    revoked = pki.node("n1") if is_peer else pki.user("alice")
    if is_peer:
        incoming = IncomingTls(server_context(config_of(pki, "n1")), lambda ssl_object: None)
        began = tls.current.to_peer("n1", None), incoming
    else:
        began = outgoing(pki, "alice"), tls.current.kafka
    pki.revoke(revoked)
    tls.check(Now().run)
    client, server = await met(*began)
    judge = client if is_peer else server
    assert judge.identity is None
    assert "revoked during the handshake" in str(judge.error)


def test_what_expires_soon_is_said_once_a_day(pki, caplog):
    now = time.time()
    pki.node("n0", end=20 * DAY)
    tls = node_tls(pki, now=lambda: now, crl=str(pki.revoke(end=27 * DAY)))
    assert tls.seconds_left.keys() == {"certificate", "ca", "crl"}
    assert 19.9 < tls.seconds_left["certificate"] / 86_400 < 20.1
    assert 26.9 < tls.seconds_left["crl"] / 86_400 < 27.1
    tls.check(Now().run)
    ((_, text, fields),) = lines_of(caplog)
    assert text == "a TLS file expires soon"
    assert (fields["key"], round(fields["days_left"])) == ("certificate", 20)
    now += 21 * 86_400
    tls.check(Now().run)
    assert lines_of(caplog)[1][1] == "a TLS file has expired"
    assert lines_of(caplog)[2][2]["key"] == "crl"
