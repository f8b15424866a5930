"""Node heartbeats between two nodes: what they report, which groups quiesce, what wakes them up."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import UNCONFIRMED_MAX, NodeHeartBeat, NodeHeartBeatResponse
from quorumlog.node.liveness import CHANGES_MAX, UNKNOWN_GROUPS_MAX, NodeLiveness
from quorumlog.raft.events import Quiesced

PEERS = "a-sim:1;b-sim:2;c-sim:3"


def config(group):
    return GroupConfig(group=group, peers=PEERS)


class Replica:
    """A replica that quiesces and wakes up as told; `events` are those that it got."""

    def __init__(self, node, group, leader_id, term=1):
        self.config = config(group)
        self.node = node
        self.events = []
        role = Role.LEADER if leader_id == node.name else Role.FOLLOWER
        self.core = SimpleNamespace(
            role=role,
            term=term,
            leader_id=leader_id,
            is_quiescent=False,
            is_ready=role is Role.LEADER,
            membership=SimpleNamespace(ids=node.world.members),
            membership_index=0,
            confirming_peers=lambda: ("b",),
        )

    def step(self, event):
        self.events.append(event)
        self.core.is_quiescent = isinstance(event, Quiesced)
        self.node.liveness.state_changed(self)

    def becomes(self, **fields):
        vars(self.core).update(fields)
        self.node.liveness.state_changed(self)


class Node:
    def __init__(self, world, name, run):
        self.world, self.name = world, name
        self.replicas = {}
        self.liveness = NodeLiveness(
            name,
            self.replicas,
            self,
            lambda: world.now,
            lambda deadline: None,
            run=run,
            groups=[config("g")],
        )
        self.liveness.start()

    def send(self, peer_id, message):
        self.world.sent.append(message)
        if not self.world.drop(message):
            self.world.nodes[peer_id].liveness.received(message)
        return True


class World:
    """Nodes a, which leads, and others, which follow; messages arrive at once."""

    def __init__(self, *groups, members=("a", "b")):
        self.now, self.members = 1_000, members
        self.sent = []
        self.drop = lambda message: False
        self.nodes = {}
        for name in members:
            self.start(name, 1, groups)

    def start(self, name, run, groups):
        node = self.nodes[name] = Node(self, name, run)
        for group in groups:
            node.replicas[group] = Replica(node, group, "a")

    def replica(self, name, group="g"):
        return self.nodes[name].replicas[group]

    def pass_beats(self, count, *, asks=True):
        self.sent.clear()
        for _ in range(count):
            self.now += 100
            for node in self.nodes.values():
                node.liveness.tick()
                if asks:
                    for replica in node.replicas.values():
                        if replica.core.role is Role.LEADER:
                            node.liveness.quiesce(replica)

    @property
    def is_quiescent(self):
        return [self.replica(name, "g").core.is_quiescent for name in ("a", "b")]


@pytest.fixture
def world():
    made = World("g")
    made.pass_beats(3)
    assert made.is_quiescent == [True, True]
    return made


def test_a_change_that_was_acknowledged_is_not_sent_again(world):
    world.pass_beats(10)
    beats = [message for message in world.sent if isinstance(message, NodeHeartBeat)]
    assert len(beats) == 10
    assert not any(beat.changes for beat in beats)
    assert {beat.version for beat in beats} == {beats[0].base}


def test_a_node_that_leads_nothing_sends_nothing(world):
    world.replica("a").becomes(role=Role.FOLLOWER, leader_id="b", is_quiescent=False)
    world.pass_beats(3)
    assert sum(isinstance(message, NodeHeartBeat) for message in world.sent) == 1
    assert not world.replica("b").core.is_quiescent


def test_silence_of_the_leaders_node_is_noticed_before_any_time_out(world):
    world.pass_beats(1)
    heard = world.now
    world.drop = lambda message: isinstance(message, NodeHeartBeat)
    world.pass_beats(4, asks=False)
    world.now += 1
    world.nodes["b"].liveness.tick()
    assert world.now - heard < 500
    assert world.replica("b").events[-1].last_contact_ms == heard
    assert not world.replica("b").core.is_quiescent


def test_silence_of_a_peer_wakes_the_leader(world):
    world.drop = lambda message: isinstance(message, NodeHeartBeatResponse)
    world.pass_beats(6, asks=False)
    assert world.is_quiescent == [False, True], "the leader lives: its beats are heard"
    world.pass_beats(5)
    assert not world.replica("a").core.is_quiescent
    world.drop = lambda message: False
    world.pass_beats(2)
    assert world.is_quiescent == [True, True]


def test_a_follower_that_does_not_follow_wakes_the_leader_until_it_does(world):
    world.replica("b").becomes(leader_id=None, role=Role.CANDIDATE, is_quiescent=False)
    world.pass_beats(2)
    assert world.is_quiescent == [False, False]
    world.replica("b").becomes(leader_id="a", role=Role.FOLLOWER)
    world.pass_beats(2)
    assert world.is_quiescent == [True, True]


def test_another_term_must_be_said_before_anyone_rests_in_it(world):
    world.replica("a").becomes(term=5, is_quiescent=False)
    world.pass_beats(3)
    assert world.is_quiescent == [False, False]
    world.replica("b").becomes(term=5)
    world.pass_beats(2)
    assert world.replica("b").events[-1] == Quiesced("a", 5)
    assert world.is_quiescent == [True, True]


def test_another_membership_is_another_claim(world):
    world.replica("a").becomes(membership_index=9, is_quiescent=False)
    world.now += 100
    world.nodes["a"].liveness.tick()
    assert not world.replica("b").core.is_quiescent


def test_a_peer_that_starts_again_is_told_everything(world):
    world.start("b", 2, ["g"])
    world.pass_beats(1, asks=False)
    assert world.is_quiescent == [False, False]
    world.pass_beats(3)
    assert world.is_quiescent == [True, True]


def test_a_leaders_node_that_starts_again_is_another(world):
    world.start("a", 2, ["g"])
    world.replica("a").becomes(role=Role.FOLLOWER, leader_id=None)
    world.pass_beats(6)
    assert world.is_quiescent == [False, False]


def test_old_and_repeated_beats_change_nothing(world):
    world.pass_beats(1)
    old = next(message for message in world.sent if isinstance(message, NodeHeartBeat))
    world.replica("a").becomes(role=Role.FOLLOWER, leader_id="b", is_quiescent=False)
    world.pass_beats(1)
    assert not world.replica("b").core.is_quiescent
    world.nodes["b"].liveness.received(old)
    assert not world.replica("b").core.is_quiescent


def test_what_changed_while_answers_were_lost_is_still_said(world):
    world.drop = lambda message: isinstance(message, NodeHeartBeatResponse)
    world.replica("a").becomes(role=Role.FOLLOWER, leader_id="b", is_quiescent=False)
    world.pass_beats(1)
    assert not world.replica("b").core.is_quiescent
    world.replica("a").becomes(role=Role.LEADER, leader_id="a")
    world.pass_beats(2)
    assert world.replica("b").core.is_quiescent


def test_many_groups_go_into_several_messages():
    names = [f"g{number}" for number in range(CHANGES_MAX * 2 + 5)]
    world = World("g", *names)
    world.pass_beats(1)
    world.pass_beats(1)
    beats = [message for message in world.sent if isinstance(message, NodeHeartBeat)]
    assert [len(beat.changes) for beat in beats] == [CHANGES_MAX, CHANGES_MAX, 6]
    assert [beat.more for beat in beats] == [True, True, False]
    world.pass_beats(2)
    assert (
        world.nodes["a"].liveness.quiescent_count
        == world.nodes["b"].liveness.quiescent_count
        == len(names) + 1
    )


def test_more_unconfirmed_groups_than_fit_into_a_response_wake_all():
    names = [f"g{number}" for number in range(UNCONFIRMED_MAX + 10)]
    world = World("g", *names)
    world.pass_beats(4)
    for name in names:
        world.replica("b", name).becomes(leader_id=None, is_quiescent=False)
    world.pass_beats(2)
    assert world.nodes["a"].liveness.quiescent_count == 0
    assert world.is_quiescent == [False, True]


def test_a_pause_of_my_own_is_no_silence_of_others(world):
    world.now += 5_000
    world.nodes["b"].liveness.tick()
    assert world.replica("b").core.is_quiescent


def test_a_peer_that_is_silent_while_its_node_answers_keeps_the_leader_awake():
    """Found by the simulator (seed 8600321): nobody would have asked it where it is."""
    world = World("g", members=("a", "b", "c"))
    world.pass_beats(5)
    assert world.is_quiescent == [False, True], "c was not heard from, its node is"
    world.drop = lambda message: "c" in (message.local_id, message.remote_id)
    world.pass_beats(10)
    assert world.is_quiescent == [True, True], "its node is silent, too"
    world.drop = lambda message: False
    world.pass_beats(2, asks=False)
    assert world.is_quiescent == [False, True], "back, it may need something"


def test_who_claims_more_groups_than_are_here_is_believed_nothing_and_takes_no_memory(world):
    beats = world.nodes["b"].liveness
    for part in range(UNKNOWN_GROUPS_MAX // CHANGES_MAX + 2):
        begin = part * CHANGES_MAX
        changes = [(f"x{number}", 1) for number in range(begin, begin + CHANGES_MAX)]
        beat = NodeHeartBeat(
            local_id="a",
            remote_id="b",
            run=9,
            number=part + 1,
            base=begin,
            version=begin + CHANGES_MAX,
            interval_ms=100,
            changes=changes,
        )
        beats.received(beat)
        assert len(beats._remote_leaders["a"].claims) <= UNKNOWN_GROUPS_MAX + 1
    assert world.sent[-1].version == 0, "everything is to be said again"
