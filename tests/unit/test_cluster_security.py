"""Users, ACLs and quotas in the state of `__cluster`: what each command does, and its bounds."""

import io
import json
from base64 import b64decode
from pathlib import Path

import pytest

from cluster_commands import TERM, Coordinated
from quorumlog.auth.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.verifiers import verifier_of_salted
from quorumlog.machine.cluster import security
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterQuotas,
    AlterUsers,
    Envelope,
    QuotaChange,
    UserChange,
    encode,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import Entry

SAVED = Path(__file__).parents[1] / "fixtures" / "cluster.json"
"""What the last release that knew no users made of a log of `__cluster`."""
SHA256, SHA512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
OK, FULL = ResponseCode.SUCCESS, ResponseCode.CLUSTER_FULL
ONE = verifier_of_salted(b"1" * 32, SHA256, b"salt-of-tests", 4096)
OTHER = verifier_of_salted(b"2" * 32, SHA256, b"salt-of-tests", 4096)
LONG = verifier_of_salted(b"3" * 64, SHA512, b"salt-of-tests", 4096)
ROOT = "User:root", "192.0.2.1:5000"
ALICE = (("user", "alice"),)


def acl(name="flights", principal="User:alice", **fields):
    given = {
        "resource_type": ResourceType.TOPIC,
        "pattern": PatternType.LITERAL,
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
    }
    return Acl(name=name, principal=principal, **given | fields)


class Cluster(Coordinated):
    @property
    def view(self):
        return self.machine.view.security

    def users(self, *changes):
        return [code for code, _ in self.do(AlterUsers(*ROOT, list(changes))).outcomes]

    def acls(self, added=(), removed=()):
        result = self.do(AlterAcls(*ROOT, list(added), list(removed)))
        return [code for code, _ in result.outcomes]

    def quotas(self, *changes):
        return [code for code, _ in self.do(AlterQuotas(*ROOT, list(changes))).outcomes]


@pytest.fixture
def cluster():
    return Cluster()


# -- users --------------------------------------------------------------------------------------


def removed(name):
    return UserChange(name, {}, exists=True, replaces=True)


def test_a_user_is_added_gets_another_password_and_is_removed(cluster):
    assert not cluster.view.has_users
    both = {SHA256: ONE, SHA512: LONG}
    assert cluster.users(UserChange("alice", both, exists=False)) == [OK]
    assert cluster.view.has_users
    assert cluster.view.verifier("alice", SHA256) == ONE
    assert cluster.users(UserChange("alice", {SHA256: OTHER}, True, replaces=True)) == [OK]
    assert cluster.view.verifier("alice", SHA256) == OTHER
    assert cluster.view.verifier("alice", SHA512) is None, "the old password counts no more"
    assert cluster.users(removed("alice")) == [OK]
    assert cluster.view.verifier("alice", SHA256) is None
    assert cluster.users(removed("alice")) == [ResponseCode.UNKNOWN_USER]


def test_a_user_may_have_a_password_for_each_mechanism(cluster):
    cluster.users(UserChange("alice", {SHA256: ONE}), UserChange("alice", {SHA512: LONG}))
    assert cluster.users(UserChange("alice", {SHA256: None})) == [OK]
    assert cluster.view.verifier("alice", SHA512) == LONG
    assert cluster.users(UserChange("alice", {SHA256: None})) == [ResponseCode.UNKNOWN_USER]
    assert cluster.users(UserChange("alice", {SHA512: None})) == [OK]
    assert not cluster.view.has_users


def test_changes_that_cannot_be_made_do_not_hinder_others(cluster):
    cluster.users(UserChange("alice", {SHA256: ONE}))
    assert cluster.users(
        UserChange("alice", {SHA256: OTHER}, exists=False),
        UserChange("alice", {SHA256: OTHER, SHA512: None}),
        UserChange("bob", {SHA256: OTHER}, exists=True),
        UserChange("bob", {SHA512: ONE}),
        UserChange("carol", {SHA256: ONE}),
    ) == [
        ResponseCode.USER_EXISTS,
        ResponseCode.UNKNOWN_USER,
        ResponseCode.UNKNOWN_USER,
        ResponseCode.UNEXPECTED_ARGUMENT,
        OK,
    ]
    assert cluster.view.verifier("alice", SHA256) == ONE
    assert set(cluster.view.users) == {"alice", "carol"}


def test_the_secret_of_those_who_are_no_users_is_the_first_that_comes_with_a_change(cluster):
    def alter(secret, *changes):
        cluster.do(AlterUsers(*ROOT, list(changes), secret))
        return cluster.view.decoys.secret

    assert alter(b"nothing was changed", removed("alice")) == b""
    assert alter(b"first", UserChange("alice", {SHA256: ONE})) == b"first"
    assert alter(b"second", UserChange("alice", {SHA256: OTHER})) == b"first"
    assert alter(b"third", removed("alice")) == b"first"


def test_who_is_no_user_is_like_most_users(cluster):
    long = verifier_of_salted(b"4" * 32, SHA256, b"s" * 26, 8_192)
    assert cluster.view.decoys.parameters == {}
    cluster.users(UserChange("alice", {SHA256: ONE, SHA512: LONG}))
    cluster.users(*(UserChange(name, {SHA256: long}) for name in ("bob", "carol")))
    assert cluster.view.decoys.parameters == {SHA256: (8_192, 26), SHA512: (4_096, 13)}
    cluster.users(removed("bob"), removed("carol"))
    assert cluster.view.decoys.parameters[SHA256] == (4_096, 13)


# -- views --------------------------------------------------------------------------------------


def test_a_view_stays_what_it_was(cluster):
    cluster.acls([acl()])
    before = cluster.view
    cluster.acls([acl("other")], [acl()])
    cluster.users(UserChange("alice", {SHA256: ONE}))

    assert list(before.acls_of(AclFilter())) == [acl()]
    assert list(cluster.view.acls_of(AclFilter(principal="User:alice"))) == [acl("other")]
    assert list(cluster.view.acls_of(AclFilter(principal="User:bob"))) == []
    assert not before.has_users
    assert before.version < cluster.view.version


def test_rights_do_not_count_as_changes_of_what_clients_are_told_of_topics(cluster):
    before = cluster.machine.view
    cluster.acls([acl()])
    after = cluster.machine.view
    assert (after.version, after.topics) == (before.version, before.topics)
    assert after.security.version > before.security.version


def test_what_changes_nothing_makes_no_other_view(cluster):
    cluster.acls([acl()])
    before = cluster.view
    assert cluster.acls([acl()], [acl("unknown")]) == [OK, OK]
    assert cluster.view is before


# -- bounds and formats -------------------------------------------------------------------------


def test_numbers_of_users_acls_and_quotas_are_bounded(cluster, monkeypatch):
    for name in ("USERS_MAX", "PRINCIPAL_ACLS_MAX", "ENTITIES_MAX"):
        monkeypatch.setattr(security, name, 1)
    monkeypatch.setattr(security, "ACLS_MAX", 2)
    assert cluster.users(UserChange("a", {SHA256: ONE}), UserChange("b", {SHA256: ONE})) == [
        OK,
        FULL,
    ]
    assert cluster.acls([acl(), acl("second")]) == [OK, FULL]
    assert cluster.acls([acl(principal="User:b"), acl(principal="User:c")]) == [OK, FULL]
    assert cluster.acls([acl(principal="User:c")], [acl()]) == [OK, OK]
    rate = "producer_byte_rate"
    assert cluster.quotas(
        QuotaChange(ALICE, rate, 5.0),
        QuotaChange(ALICE, "consumer_byte_rate", 5.0),
        QuotaChange((("user", None),), rate, 5.0),
    ) == [OK, OK, FULL]


def test_commands_are_checked_where_they_are_applied(cluster):
    wrong = [acl(pattern=PatternType.MATCH), acl(operation=Operation.ANY)]
    assert set(cluster.acls(wrong)) == {ResponseCode.UNEXPECTED_ARGUMENT}
    assert cluster.quotas(QuotaChange((), "producer_byte_rate", 1.0)) == [
        ResponseCode.UNEXPECTED_ARGUMENT
    ]


def test_results_do_not_depend_on_the_version_of_python(cluster):
    """They are part of the state. Versions differ in Unicode and in which addresses they read."""
    name = "ka\N{LATIN SMALL LETTER SHARP S}e"
    text = cluster.do(AlterUsers(*ROOT, [removed(name)])).outcomes[0][1]
    assert text == "there is no user 'ka\\xdfe'"
    assert cluster.acls([acl(host="10.01.0.7")]) == [OK], "hosts are read by whoever is asked"


@pytest.fixture
def plain():
    """Commands that the last release without users was given, its snapshot and its digest."""
    saved = json.loads(SAVED.read_text())
    commands = [b64decode(body) for body in saved["commands"]]
    return commands, b64decode(saved["snapshot"]), b64decode(saved["digest"])


def test_without_users_the_state_is_that_of_releases_that_know_none(plain):
    commands, snapshot, digest = plain
    machine = ClusterMachine()
    machine.apply([Entry(index=0, term=TERM, pos=0, body=body) for body in commands])
    written = io.BytesIO()
    machine.save_snapshot(written)
    assert (written.getvalue(), machine.digest()) == (snapshot, digest)


def test_a_snapshot_of_a_release_without_users_is_loaded_and_has_its_digest(plain):
    cluster, (_, snapshot, digest) = Cluster(), plain
    cluster.machine.load_snapshot(io.BytesIO(snapshot))
    assert cluster.machine.digest() == digest
    assert set(cluster.machine.view.topics) == {"orders"}
    assert not cluster.view.has_users
    assert cluster.acls(removed=[acl()]) == [OK], "nothing changes"
    assert cluster.users(UserChange("alice", {SHA256: ONE})) == [OK]


def test_a_snapshot_has_users_acls_and_quotas(cluster):
    cluster.do(AlterUsers(*ROOT, [UserChange("alice", {SHA256: ONE})], b"secret"))
    cluster.acls([acl()])
    cluster.quotas(QuotaChange(ALICE, "producer_byte_rate", 5.0))
    written = io.BytesIO()
    cluster.machine.save_snapshot(written)
    written.seek(0)
    loaded = ClusterMachine()
    loaded.load_snapshot(written)
    assert loaded.digest() == cluster.machine.digest()
    found = loaded.view.security
    assert found.version == cluster.view.version
    assert (found.users, found.quotas) == (cluster.view.users, cluster.view.quotas)
    assert found.decoys == cluster.view.decoys == (b"secret", {SHA256: (4_096, 13)})
    assert list(found.acls_of(AclFilter())) == [acl()]


@pytest.mark.parametrize(
    ("command", "is_urgent"),
    [
        (AlterUsers(*ROOT, [removed("alice")]), True),
        (AlterUsers(*ROOT, [UserChange("alice", {SHA256: ONE})]), False),
        (AlterAcls(*ROOT, [], [acl()]), True),
        (AlterAcls(*ROOT, [acl()], [acl()]), False),
        (AlterQuotas(*ROOT, [QuotaChange(ALICE, "producer_byte_rate", None)]), True),
        (AlterQuotas(*ROOT, [QuotaChange(ALICE, "producer_byte_rate", 1.0)]), False),
    ],
)
def test_rights_are_taken_away_on_full_disks_too(cluster, command, is_urgent):
    body = encode(Envelope(bytes(16), 1, command))
    assert cluster.machine.releases(memoryview(body)) is is_urgent
