"""Which messages a node accepts from a connection that claims to be a peer's."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.group_records import IDENTITY_BYTES, GroupRecord
from quorumlog.model.membership import Member, Membership
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.cluster import ClusterCommand
from quorumlog.model.messages.groups import GroupInvitation
from quorumlog.model.messages.peer import (
    Introduction,
    NodeHeartBeat,
    PeerTurn,
    ReadIndexRequest,
)
from quorumlog.node.peer_handler import ConnectionEvents, PeerHandler, PeerHandlerCounters
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import Outgoing, runs_of


class NodeLiveness:
    def __init__(self):
        self.heard = []

    def received(self, message):
        self.heard.append(message)


@pytest.mark.parametrize("is_member", [False, True])
def test_beats_are_taken_from_members_only(is_member):
    """A stranger could have a node remember groups without end under names without end."""
    beats = NodeLiveness()
    hello = Hello(cluster="c", node_id="n9", role="control", address="127.0.0.1:1")
    events = ConnectionEvents(is_known=lambda peer_id: is_member and peer_id == "n9")
    inbox = PeerHandler("n0", {}, beats, hello, PeerHandlerCounters(), events)
    beat = NodeHeartBeat(
        local_id="n9",
        remote_id="n0",
        run=1,
        number=1,
        base=0,
        version=1,
        interval_ms=100,
        changes=[("x", 1)],
    )
    inbox.frame_received(None, Frame(1, beat, memoryview(b"")))
    assert beats.heard == ([beat] if is_member else [])


@pytest.mark.parametrize("may_invite", [False, True])
def test_only_nodes_that_may_invite_have_groups_made(may_invite, caplog):
    """The certificate of a node that was removed, or of none that ever was, is no membership."""
    made, refused = [], []
    connection = SimpleNamespace(send=lambda answer, correlation_id: refused.append(answer))
    hello = Hello(cluster="c", node_id="n9", role="control", address="127.0.0.1:1")
    events = ConnectionEvents(
        may_invite=lambda peer_id: may_invite and peer_id == "n9", groups_received=made.append
    )
    inbox = PeerHandler("n0", {}, NodeLiveness(), hello, PeerHandlerCounters(), events)
    record = GroupRecord(group="evil", identity=b"e" * IDENTITY_BYTES, peers="n0-a:1;n9-b:1")
    invitation = GroupInvitation(local_id="n9", remote_id="n0", record=record)
    for _ in range(2):
        inbox.frame_received(connection, Frame(1, invitation, memoryview(b"")))
    assert made == ([invitation] * 2 if may_invite else [])
    assert [one.code for one in refused] == [ResponseCode.UNKNOWN_MEMBER] * (2 - len(made))
    lines = [one.getMessage() for one in caplog.records]
    assert lines == ([] if may_invite else ["refuses an invitation"]), "once a connection"


@pytest.mark.parametrize("group", ["g", CLUSTER_GROUP])
def test_only_members_of_the_cluster_group_give_it_commands(group):
    """Members of other groups could make ACLs, and delete topics, past all rights."""
    taken = []
    hello = Hello(cluster="c", node_id="n9", role="control", address="127.0.0.1:1")
    events = ConnectionEvents(cluster_received=lambda message, attachment: taken.append(message))
    replicas = {group: Replica()}
    inbox = PeerHandler("n0", replicas, NodeLiveness(), hello, PeerHandlerCounters(), events)
    command = ClusterCommand(local_id="n9", remote_id="n0", number=1, timeout_ms=1_000)
    inbox.frame_received(None, Frame(1, command, memoryview(b"")))
    assert taken == ([command] if group == CLUSTER_GROUP else [])
    replicas[group].has_members(8, n1="127.0.0.1:1")
    inbox.frame_received(None, Frame(1, command, memoryview(b"")))
    assert len(taken) == (group == CLUSTER_GROUP), "n9 was removed"


class Replica:
    """A replica of group g whose newest membership is the one of index 7."""

    config = SimpleNamespace(group="g")

    def __init__(self):
        self.received = []
        self.core = SimpleNamespace(identity=b"i", given_identity=b"", committed_membership_index=7)
        self.has_members(7, n9="127.0.0.1:9")

    def has_members(self, index, **addresses):
        members = tuple(Member(name, address) for name, address in addresses.items())
        self.core.membership = Membership(members, tuple(addresses), identity=b"i")
        self.core.membership_index = index

    def receive(self, message, attachment):
        self.received.append(message)


class Peer:
    """The connection of n9 to n0."""

    def __init__(self, replica):
        hello = Hello(cluster="c", node_id="n9", role="control", address="")
        self.replica = replica
        self.refusals = []
        self.why_closed = ""
        counters = PeerHandlerCounters()
        self.inbox = PeerHandler("n0", {"g": replica}, NodeLiveness(), hello, counters)

    def send(self, response, *, correlation_id):
        self.refusals.append(response.code)

    def close(self, reason):
        self.why_closed = reason

    def introduces(self, identity=b"i", index=7, address="127.0.0.1:9", groups=("g",)):
        groups = [(group, identity, index) for group in groups]
        self.has_sent(Introduction(local_id="n9", remote_id="n0", address=address, groups=groups))

    def has_sent(self, message):
        self.inbox.frame_received(self, Frame(1, message, memoryview(b"")))

    def is_heard(self):
        before = len(self.replica.received)
        self.has_sent(
            ReadIndexRequest(group="g", term=1, local_id="n9", remote_id="n0", request_id=1)
        )
        return len(self.replica.received) > before


@pytest.fixture
def peer():
    """A peer that was heard, more than once."""
    made = Peer(Replica())
    made.introduces()
    assert made.is_heard()
    assert made.is_heard()
    return made


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"identity": b"other"}, ResponseCode.WRONG_CLUSTER),
        ({"address": "127.0.0.1:8"}, ResponseCode.UNEXPECTED_MEMBER),
    ],
)
def test_an_accepted_peer_is_checked_again_when_it_says_something_else(peer, said, code):
    peer.introduces(**said)
    assert not peer.is_heard()
    assert not peer.is_heard()
    assert peer.refusals == [code, code]
    peer.introduces()
    assert peer.is_heard()


def test_what_a_peer_said_of_groups_that_are_gone_is_forgotten_and_never_taken_for_granted(
    peer, monkeypatch
):
    monkeypatch.setattr("quorumlog.node.peer_handler.STATED_MAX", 8)
    for number in range(0, 40, 4):
        peer.introduces(groups=[f"gone{number + one}" for one in range(4)])
    assert len(peer.inbox._groups) <= 9
    assert {"g", "gone39"} <= peer.inbox._groups.keys()
    assert peer.is_heard()  # a group that is here is not forgotten
    assert not peer.why_closed
    peer.replica.config = SimpleNamespace(group="gone0")
    peer.inbox._replicas["gone0"] = peer.inbox._replicas.pop("g")
    peer.has_sent(asked("gone0", 1))
    assert "what n9 said of group gone0 is forgotten" in peer.why_closed
    peer.introduces(identity=b"other", groups=["gone0"])
    before = len(peer.replica.received)
    peer.has_sent(asked("gone0", 2))
    assert peer.replica.received[before:] == []
    assert peer.refusals == [ResponseCode.WRONG_CLUSTER]


def test_an_accepted_peer_is_checked_again_when_the_membership_changes(peer):
    peer.replica.has_members(9, n9="127.0.0.1:8")
    assert not peer.is_heard()
    assert peer.refusals == [ResponseCode.UNEXPECTED_MEMBER]
    peer.replica.has_members(11, n1="127.0.0.1:1")
    assert peer.is_heard()  # it knows the group's identity


def test_a_peer_with_a_newer_membership_is_accepted_until_that_is_known_here():
    peer = Peer(Replica())
    peer.introduces(index=9, address="127.0.0.1:8")
    assert peer.is_heard()
    peer.replica.core.committed_membership_index = peer.replica.core.membership_index = 9
    assert not peer.is_heard()


def test_while_a_membership_is_not_committed_each_message_is_checked():
    peer = Peer(Replica())
    peer.replica.core.identity, peer.replica.core.committed_membership_index = b"", -1
    peer.introduces(identity=b"other")
    assert peer.is_heard()
    peer.replica.core.identity, peer.replica.core.committed_membership_index = b"i", 7
    assert not peer.is_heard()


def asked(group, number, **ids):
    named = {"local_id": "n9", "remote_id": "n0", **ids}
    return ReadIndexRequest(group=group, term=1, request_id=number, **named)


def turn_of(*messages, **ids):
    (run,) = runs_of([Outgoing(message, [], 0) for message in messages], 1)
    return PeerTurn(**{"local_id": "n9", "remote_id": "n0", **ids}, parts=run.parts)


def test_each_part_of_a_turn_is_taken_as_if_it_had_come_by_itself(peer):
    before = len(peer.replica.received)
    peer.has_sent(turn_of(asked("g", 1), asked("elsewhere", 2), asked("g", 3)))
    assert peer.replica.received[before:] == [asked("g", 1), asked("g", 3)]
    assert peer.refusals == [ResponseCode.UNKNOWN_GROUP]
    assert peer.inbox._counters.unknown_group == 1


def test_a_malformed_part_is_dropped_alone_and_counted(peer):
    before = len(peer.replica.received)
    turn = turn_of(asked("g", 1), asked("g", 2), asked("g", 3))
    kind, number, _, size = turn.parts[1]
    turn.parts[1] = (kind, number, b"\xc1", size)
    peer.has_sent(turn)
    assert peer.replica.received[before:] == [asked("g", 1), asked("g", 3)]
    assert peer.refusals == [ResponseCode.UNEXPECTED_ARGUMENT]
    assert peer.inbox._counters.malformed_part == 1


@pytest.mark.parametrize("ids", [{"local_id": "n8"}, {"remote_id": "n1"}])
def test_a_turn_in_anothers_name_is_not_taken_nor_is_a_part(peer, ids):
    before = len(peer.replica.received)
    peer.has_sent(turn_of(asked("g", 1), asked("g", 2), **ids))
    assert peer.refusals == [ResponseCode.UNKNOWN_MEMBER]
    peer.has_sent(turn_of(asked("g", 1, **ids), asked("g", 2)))
    assert peer.refusals == [ResponseCode.UNKNOWN_MEMBER] * 2
    assert peer.replica.received[before:] == [asked("g", 2)]
