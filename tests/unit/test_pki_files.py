"""Files of an authority: rights, what is never overwritten, and commands that are killed."""

import json
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from quorumlog.pki import files
from quorumlog.pki.authority import AuthorityDirectory, cluster_id_beside, write_request
from quorumlog.pki.errors import PkiError
from quorumlog.pki.files import pair_in
from quorumlog.pki.issue import serial_text
from quorumlog.pki.names import node_subject, user_subject
from quorumlog.pki.pem import certificates_in, load_crl

CLUSTER = "K3xT0123456789_-abcdef"
NOW = datetime.now(UTC).replace(microsecond=0)


class Place:
    """An authority in a directory."""

    def __init__(self, directory):
        self.directory = directory
        self.at(NOW).make(CLUSTER, "ec-p256", 3_650, force=False)

    def at(self, now):
        return AuthorityDirectory(self.directory, now, os.urandom)

    def issue(self, name="alice", *, now=NOW, days=365, force=False, out=None):
        pair = pair_in(out or self.directory, name)
        return self.at(now).issue(user_subject(name, CLUSTER), pair, "ec-p256", days, force=force)

    def node(self, name="n0", hosts=("h0",)):
        pair = pair_in(self.directory, name)
        return self.at(NOW).issue(
            node_subject(name, CLUSTER, hosts), pair, "ec-p256", 365, force=False
        )

    def revoked(self):
        crl = load_crl((self.directory / "ca.crl").read_bytes(), "ca.crl")
        return {f"{one.serial_number:040x}" for one in crl}


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "certs")


def loads(pair):
    """Whether a node would take a pair."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.certificate, pair.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return False
        raise  # each is a whole file in any case
    return True


def started(what, place, name="n0"):
    """Start a process that does something with an authority once it reads a line."""
    program = "\n".join(
        [
            "import os, sys",
            "from datetime import UTC, datetime",
            "from pathlib import Path",
            "from quorumlog.pki.authority import AuthorityDirectory",
            "from quorumlog.pki.files import pair_in",
            "from quorumlog.pki.names import node_subject",
            "directory, cluster, name = Path(sys.argv[1]), *sys.argv[2:]",
            "authority = AuthorityDirectory(directory, datetime.now(UTC), os.urandom)",
            "pair = pair_in(directory, name)",
            "sys.stdin.readline()",
            what,
        ]
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(place.directory), CLUSTER, name],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_rights_are_those_of_keys_and_certificates_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        place = Place(tmp_path / "certs")
        made = place.issue(out=tmp_path / "elsewhere")
        place.at(NOW).revoke(["user/alice"], 30)
    finally:
        os.umask(before)
    assert mode(place.directory) == mode(tmp_path / "elsewhere") == 0o700
    assert mode(made.pair.key) == mode(place.directory / "ca.key") == 0o600
    for path in (made.pair.certificate, place.directory / "ca.pem", place.directory / "ca.crl"):
        assert mode(path) == 0o644


def test_what_is_there_is_kept_unless_it_is_to_be_replaced(place):
    made = place.issue()
    before = [path.read_bytes() for path in made.pair]
    with pytest.raises(PkiError, match=r"alice\.pem exists and is kept"):
        place.issue()
    assert [path.read_bytes() for path in made.pair] == before
    place.issue(force=True)
    assert made.pair.key.read_bytes() != before[1]
    assert loads(made.pair)
    with pytest.raises(PkiError, match=r"ca\.pem exists and is kept"):
        place.at(NOW).make(CLUSTER, "ec-p256", 1, force=False)


def test_a_key_alone_is_not_overwritten_nor_a_link_followed(place, tmp_path):
    target = tmp_path / "target"
    (place.directory / "alice.key").symlink_to(target)
    with pytest.raises(PkiError, match=r"alice\.key exists"):
        place.issue()
    assert not target.exists()


def test_a_key_that_others_may_read_is_not_used(place):
    (place.directory / "ca.key").chmod(0o640)
    with pytest.raises(PkiError, match=r"chmod 600 .*ca\.key"):
        place.issue()


@pytest.mark.parametrize(
    ("missing", "said"),
    [("ca.pem", "'quorumlog cert ca --dir .*certs' makes one"), ("ca.key", "cert csr")],
)
def test_a_missing_part_of_the_authority_is_told_with_what_to_do(place, missing, said):
    (place.directory / missing).unlink()
    with pytest.raises(PkiError, match=said):
        place.issue()


def test_a_key_of_another_authority_is_noticed(place, tmp_path):
    other = Place(tmp_path / "other")
    (other.directory / "ca.key").replace(place.directory / "ca.key")
    with pytest.raises(PkiError, match="none of its certificates belongs to the key"):
        place.issue()


def test_the_authority_may_have_others_beside_it_in_its_file(place, tmp_path):
    former = Place(tmp_path / "former").directory / "ca.pem"
    own = place.directory / "ca.pem"
    own.write_bytes(former.read_bytes() + own.read_bytes())
    made = place.issue()
    assert cluster_id_beside(place.directory) == CLUSTER
    assert loads(made.pair)


# -- renewal --------------------------------------------------------------------------------------


def test_a_renewal_keeps_names_and_takes_a_new_key(place):
    made = place.node(hosts=["h0", "10.0.0.10"])
    before = made.pair.key.read_bytes()
    renewed = place.at(NOW).renew(made.pair, None, None, 365)
    assert renewed.subject == made.subject
    assert renewed.former == made.certificate
    assert made.pair.key.read_bytes() != before
    assert loads(made.pair)
    assert (mode(made.pair.key), mode(made.pair.certificate)) == (0o600, 0o644)
    again = place.at(NOW).renew(made.pair, ["h9"], "ed25519", 365)
    assert again.subject.hosts == ("h9",)


def killed_at(monkeypatch, step):
    """Have a command end as by SIGKILL when it places its file number `step`."""
    places, place = [], files._place

    def dying(path, *, replace):
        places.append(path)
        if len(places) == step:
            raise KeyboardInterrupt
        place(path, replace=replace)

    monkeypatch.setattr(files, "_place", dying)


def test_a_renewal_that_is_killed_between_its_files_is_finished_by_the_next(place, monkeypatch):
    made = place.node()
    with monkeypatch.context() as patched:
        killed_at(patched, 3)  # the copy in issued/, the key, the certificate
        with pytest.raises(KeyboardInterrupt):
            place.at(NOW).renew(made.pair, None, None, 365)
    assert not loads(made.pair)  # a node that runs keeps the old pair, which it has in memory
    finished = place.at(NOW).renew(made.pair, None, None, 365)
    assert finished.finished
    assert loads(made.pair)
    assert finished.certificate.serial_number != made.certificate.serial_number
    assert not files.beside(made.pair.certificate).exists()
    assert not place.at(NOW).renew(made.pair, None, None, 365).finished


@pytest.mark.parametrize("step", [1, 2])
def test_a_renewal_that_is_killed_earlier_changes_nothing(place, monkeypatch, step):
    made = place.node()
    before = [path.read_bytes() for path in made.pair]
    with monkeypatch.context() as patched:
        killed_at(patched, step)
        with pytest.raises(KeyboardInterrupt):
            place.at(NOW).renew(made.pair, None, None, 365)
    assert [path.read_bytes() for path in made.pair] == before
    renewed = place.at(NOW).renew(made.pair, None, None, 365)
    assert not renewed.finished
    assert loads(made.pair)


@pytest.mark.parametrize("bytes_left", [0, 100, -40])
def test_a_renewal_in_which_the_power_failed_is_done_anew(place, bytes_left):
    """What was being written then may be empty, or cut off anywhere."""
    made = place.node()
    written = made.pair.certificate.read_bytes()
    for path in made.pair:
        files.beside(path).write_bytes(written[:bytes_left])
    renewed = place.at(NOW).renew(made.pair, None, None, 365)
    assert not renewed.finished
    assert loads(made.pair)
    assert renewed.certificate.serial_number != made.certificate.serial_number
    assert not files.beside(made.pair.certificate).exists()
    assert not files.beside(made.pair.key).exists()


def test_a_reader_finds_a_matching_pair_or_one_that_does_not_match_never_half_a_file(place):
    made = place.node()
    taken = 0
    with started("for _ in range(5): authority.renew(pair, None, None, 365)", place) as renewing:
        renewing.stdin.write("go\n")
        renewing.stdin.close()
        while renewing.poll() is None:
            taken += loads(made.pair)
        assert renewing.returncode == 0
    assert taken > 0
    assert loads(made.pair)


def test_a_pair_of_another_cluster_is_not_renewed(place, tmp_path):
    other = AuthorityDirectory(tmp_path / "other", NOW, os.urandom)
    other.make("M7xT0123456789_-abcdef", "ec-p256", 10, force=False)
    made = place.issue()
    with pytest.raises(PkiError, match="of no node or user of cluster M7xT"):
        other.renew(made.pair, None, None, 365)


# -- several at once ------------------------------------------------------------------------------


def test_of_two_that_make_the_same_pair_at_once_one_is_refused(place):
    make = "authority.issue(node_subject(name, cluster, ['h0']), pair, 'ec-p256', 365, force=False)"
    running = [started(make, place, name) for name in ("n0", "n0", "n1")]
    said = [one.communicate("go\n", timeout=60)[1] for one in running]
    codes = [one.returncode for one in running]
    assert sorted(codes[:2]) == [0, 1]
    assert codes[2] == 0
    assert "exists and is kept" in "".join(said)
    for name in ("n0", "n1"):
        assert loads(pair_in(place.directory, name))
    assert len(list((place.directory / "issued").iterdir())) == 2


def test_whoever_waits_too_long_for_another_command_says_so(place, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.0)
    with files.locked(place.directory), pytest.raises(PkiError, match="another command"):
        place.issue()


# -- revocation -----------------------------------------------------------------------------------


def test_all_certificates_of_a_name_are_revoked_and_stay_so(place):
    first = place.issue()
    second = place.at(NOW).renew(first.pair, None, None, 365)
    other = place.issue("bob")
    revoked = place.at(NOW).revoke(["user/alice"], 30)
    serials = {serial_text(first.certificate), serial_text(second.certificate)}
    assert {serial_text(one) for one in revoked} == serials == place.revoked()
    assert place.at(NOW).revoke(["user/alice"], 30) == []
    place.at(NOW).revoke([serial_text(other.certificate)], 30)
    assert place.revoked() == serials | {serial_text(other.certificate)}
    assert place.at(NOW + timedelta(days=60)).write_crl(10) == 3
    assert place.revoked() == serials | {serial_text(other.certificate)}


def test_a_certificate_is_revoked_by_its_file_also_without_the_copy(place):
    made = place.issue()
    for path in (place.directory / "issued").iterdir():
        path.unlink()
    place.at(NOW).revoke([str(made.pair.certificate)], 30)
    assert place.revoked() == {serial_text(made.certificate)}


def test_numbers_of_lists_rise_and_expired_certificates_leave_them_late(place):
    place.issue(days=1)
    place.at(NOW).revoke(["user/alice"], 30)
    assert place.at(NOW + timedelta(days=80)).write_crl(30) == 1
    assert place.at(NOW + timedelta(days=92)).write_crl(30) == 0
    content = json.loads((place.directory / "revoked.json").read_text())
    assert content["number"] == 3


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("user/alcie", "did you mean 'user/alice'"),
        ("node/alice", "no valid certificate of 'node/alice'"),
        ("nobody.pem", "neither a file"),
        ("00112233445566778899", "neither a file"),
    ],
)
def test_what_cannot_be_revoked_is_said_and_nothing_is_revoked(place, wanted, said):
    place.issue()
    with pytest.raises(PkiError, match=said):
        place.at(NOW).revoke(["user/alice", wanted], 30)
    assert not (place.directory / "ca.crl").exists()


def test_a_certificate_of_another_authority_is_not_revoked_here(place, tmp_path):
    other = Place(tmp_path / "other")
    foreign = other.issue("eve")
    with pytest.raises(PkiError, match="another authority has signed it"):
        place.at(NOW).revoke([str(foreign.pair.certificate)], 30)


def test_a_damaged_list_of_the_revoked_is_not_begun_anew(place):
    place.issue()
    (place.directory / "revoked.json").write_text("{}x")
    with pytest.raises(PkiError, match="get it back from a copy"):
        place.at(NOW).revoke(["user/alice"], 30)


# -- requests -------------------------------------------------------------------------------------


def test_a_key_never_leaves_the_machine_of_a_request(place, tmp_path):
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "ca.pem").write_bytes((place.directory / "ca.pem").read_bytes())
    cluster = cluster_id_beside(machine)
    pair = pair_in(machine, "n7")
    request = write_request(node_subject("n7", cluster, ["h7"]), pair, "ec-p256", force=False)
    authority = place.at(NOW)
    requested = authority.requested(request)
    assert requested.subject.hosts == ("h7",)
    made = authority.sign(requested, pair.certificate, 365, force=False)
    assert loads(pair)
    assert serial_text(made.certificate) in {
        serial_text(one)
        for path in (place.directory / "issued").iterdir()
        for one in certificates_in(path.read_bytes(), "issued")
    }
    with pytest.raises(PkiError, match=r"n7\.pem exists and is kept"):
        authority.sign(requested, pair.certificate, 365, force=False)
    with pytest.raises(PkiError, match=r"n7\.csr exists and is kept"):
        write_request(requested.subject, pair, "ec-p256", force=False)


def test_the_authority_must_be_beside_a_request(tmp_path):
    with pytest.raises(PkiError, match=r"copy ca\.pem from the machine of the authority"):
        cluster_id_beside(tmp_path)


def test_files_that_are_no_certificates_are_named(tmp_path):
    path = tmp_path / "x.pem"
    path.write_text("nonsense")
    with pytest.raises(PkiError, match=r"x\.pem: no file of certificates or keys"):
        certificates_in(path.read_bytes(), str(path))
    with pytest.raises(PkiError, match="No such file"):
        files.read(tmp_path / "missing")
