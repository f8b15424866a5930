"""When a node forgets verifiers of removed users and former passwords, and what shows them."""

from quorumlog.auth.verifiers import verifier_of_salted
from quorumlog.broker.former_verifiers import FORGET_MS, TRIES, TRY_MS, FormerVerifiers
from quorumlog.machine.cluster.commands import (
    AlterUsers,
    Envelope,
    UserChange,
    decode_envelope,
    encode,
    masked,
)
from quorumlog.machine.cluster.security import Security

SALTED = b"of the password, in 32 bytes .. "
SHA256 = "SCRAM-SHA-256"


class Node:
    """A node whose users change, and that notes up to where it was asked to forget."""

    def __init__(self):
        self.now_ms = self.verifiers_removed = 0
        self.index = 10
        self.asked = []
        self.is_done = True
        self.is_there = True
        self.former = FormerVerifiers(
            lambda: self.now_ms,
            lambda: self.verifiers_removed,
            lambda: self.index,
            lambda: self if self.is_there else None,
        )

    def forget(self, index):
        self.asked.append(index)
        return self.is_done

    def pass_ms(self, time_ms):
        self.now_ms += time_ms
        self.former.tick()


def test_a_verifier_that_was_taken_away_is_forgotten_at_once_and_others_a_minute_later():
    node = Node()
    node.pass_ms(FORGET_MS)
    assert node.asked == [], "there is nothing to be forgotten"
    node.verifiers_removed = 1
    node.pass_ms(0)
    assert node.asked == [10]
    node.verifiers_removed, node.index = 5, 20
    node.pass_ms(FORGET_MS - 1)
    assert node.asked == [10], "users may change their passwords as often as they like"
    node.pass_ms(1)
    node.pass_ms(FORGET_MS)
    assert node.asked == [10, 20]


def test_what_cannot_be_removed_yet_is_tried_again_soon_and_then_once_a_minute():
    node = Node()
    node.verifiers_removed, node.is_done = 1, False
    for _ in range(TRIES + 5):
        node.pass_ms(TRY_MS)
    assert node.asked == [10] * TRIES
    node.is_done = True
    node.pass_ms(FORGET_MS)
    node.pass_ms(FORGET_MS)
    assert node.asked == [10] * (TRIES + 1)


def test_a_replica_that_is_not_there_is_waited_for():
    node = Node()
    node.verifiers_removed, node.is_there = 1, False
    node.pass_ms(0)
    node.is_there = True
    node.pass_ms(0)
    assert node.asked == [10]


def body_of(command):
    return encode(Envelope(bytes(16), 5, command))


def test_a_change_of_users_is_shown_without_what_passwords_are_checked_by():
    kept = verifier_of_salted(SALTED, SHA256, b"salt of alice", 4_096)
    changes = [UserChange("alice", {SHA256: kept}, exists=False), UserChange("bob", {SHA256: None})]
    body = body_of(AlterUsers("User:root", "h:1", changes, b"secret of decoys"))
    shown = masked(body)
    for secret in (kept.salt, kept.stored_key, kept.server_key, b"secret of decoys"):
        assert secret in body
        assert secret not in shown
    command = decode_envelope(shown).command
    assert (command.actor, [one.name for one in command.changes]) == ("User:root", ["alice", "bob"])
    assert command.changes[0].verifiers[SHA256].salt == b"***"
    assert command.changes[1] == changes[1]


def test_everything_else_is_shown_as_it_is():
    for body in (b"", b"text", b"\x93\x01", bytes(100)):
        assert masked(body) == body


def test_after_a_restart_a_node_forgets_what_it_may_still_have_in_files():
    users = Security()
    node = Node()
    node.former = FormerVerifiers(
        lambda: node.now_ms,
        lambda: users.view().verifiers_removed,
        lambda: node.index,
        lambda: node,
    )
    users = Security.restored(users.saved())
    node.pass_ms(FORGET_MS)
    assert node.asked == [], "there have never been users"
    kept = verifier_of_salted(SALTED, SHA256, b"salt of alice", 4_096)
    change, gone = UserChange("alice", {SHA256: kept}), UserChange("alice", {SHA256: None})
    users.alter_users(AlterUsers("", "", [change, gone], b"secret of decoys"))
    users = Security.restored(users.saved())
    node.pass_ms(FORGET_MS)
    assert node.asked == [10]
    node.pass_ms(FORGET_MS)
    assert node.asked == [10], "once"
