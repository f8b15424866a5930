"""Any commands, in any order: the state of `__cluster` agrees with a simple model of topics."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.machine.cluster.commands import (
    AddGroups,
    AllocateProducerIds,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Envelope,
    GroupsLed,
    MorePartitions,
    NewGroup,
    NewTopic,
    PartitionsLost,
    PartitionsOpened,
    RegisterBroker,
    ReplaceGroup,
    TopicToDelete,
    decode_result,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterState, group_name
from quorumlog.model.codes import ResponseCode
from quorumlog.model.retention_classes import MIXED, UNLIMITED

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c", "../x", ""])
IDS = st.integers(1, 6).map(lambda number: bytes([number]) * 16)
COUNTS = st.integers(-1, 5)
GROUPS = st.integers(0, 5).map(group_name)
NEW_GROUPS = st.builds(
    NewGroup,
    st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True),
    st.just(""),
    st.just({}),
    st.integers(MIXED, UNLIMITED),
)
CONFIGS = st.sampled_from([{}, {"retention.ms": "60000"}, {"cleanup.policy": "compact"}])
NEW_TOPICS = st.builds(NewTopic, NAMES, IDS, COUNTS, configs=CONFIGS)
CHANNELS = st.lists(st.integers(1, 12), max_size=5)
COMMANDS = st.one_of(
    st.builds(
        RegisterBroker,
        *[st.sampled_from(["n0", "n1", "x1", "y"])] * 3,
        st.just(1),
        *[st.just("r")] * 2,
    ),
    st.builds(AddGroups, st.integers(0, 4), st.lists(NEW_GROUPS, max_size=2)),
    st.builds(ReplaceGroup, GROUPS, NEW_GROUPS),
    st.builds(GroupsLed, st.lists(GROUPS, max_size=2)),
    st.builds(PartitionsOpened, GROUPS, CHANNELS),
    st.builds(PartitionsLost, GROUPS, CHANNELS, st.integers(-1, 9)),
    st.builds(CreateTopics, st.lists(NEW_TOPICS, max_size=3), st.booleans()),
    st.builds(DeleteTopics, st.lists(st.builds(TopicToDelete, NAMES), max_size=2)),
    st.builds(DeleteTopics, st.lists(st.builds(TopicToDelete, st.just(""), IDS), max_size=2)),
    st.builds(CreatePartitions, st.lists(st.builds(MorePartitions, NAMES, COUNTS), max_size=2)),
    st.builds(AllocateProducerIds, st.integers(1, 9)),
)


class Model:
    """Topics by name with their ids and numbers of partitions, and all channels ever given."""

    def __init__(self):
        self.topics = {}
        self.given = Counter()
        self.producer_ids = 0

    def did(self, command, result):
        """Take over what a command says that it has done."""
        if isinstance(command, CreateTopics):
            for new, outcome in zip(command.topics, result.topics, strict=True):
                fails = outcome.code is not ResponseCode.SUCCESS
                if new.name in ("../x", "") or new.name in self.topics:
                    assert fails
                if not fails and not command.validate_only:
                    self.topics[new.name] = new.topic_id, outcome.partitions
        elif isinstance(command, DeleteTopics):
            for outcome in result.topics:
                if outcome.code is ResponseCode.SUCCESS:
                    assert self.topics.pop(outcome.name)[0] == outcome.topic_id
        elif isinstance(command, CreatePartitions):
            for outcome in result.topics:
                if outcome.code is ResponseCode.SUCCESS:
                    topic_id, before = self.topics[outcome.name]
                    assert outcome.partitions > before
                    self.topics[outcome.name] = topic_id, outcome.partitions
        elif isinstance(command, AllocateProducerIds):
            assert result.first == self.producer_ids
            self.producer_ids += command.count

    def check(self, before, view):
        found = {one.name: (one.topic_id, len(one.partitions)) for one in view.topics.values()}
        assert found == self.topics
        assert {one.topic_id: one.name for one in view.topics_by_id.values()} == {
            topic_id: name for name, (topic_id, _) in found.items()
        }
        assert view.partition_count == sum(count for _, count in found.values())
        places = [
            (one.group, one.channel, topic.name, one.number, one.is_open)
            for topic in view.topics.values()
            for one in topic.partitions
        ]
        assigned = [
            (group, channel, one.topic, one.number, one.is_open)
            for group, channels in view.assignments.items()
            for channel, one in channels.items()
        ]
        assert sorted(places) == sorted(assigned), "each partition is on a channel of its own"
        for topic in view.topics.values():
            assert [one.number for one in topic.partitions] == list(range(len(topic.partitions)))
        for group, channel, *_ in places:
            assert channel < view.groups[group].next_channel
        known = {(group, at) for group, found in before.assignments.items() for at in found}
        for group, channel in {(group, at) for group, at, *_ in places} - known:
            self.given[group, channel] += 1
            assert self.given[group, channel] == 1, "a channel is given once"


@given(st.lists(COMMANDS, max_size=30))
def test_the_state_agrees_with_a_model_and_with_its_own_copy(commands):
    state, model, view = ClusterState(), Model(), EMPTY_VIEW
    for number, command in enumerate([AddGroups(0, [NewGroup([0], "", {})]), *commands]):
        envelope = Envelope(number.to_bytes(16), number, command)
        copied = ClusterState.decode(state.encode())
        answer = execute(state, envelope)
        assert execute(copied, envelope) == answer
        assert copied.encode() == state.encode()
        assert execute(state, envelope) == answer, "it comes again"
        assert copied.encode() == state.encode()
        before, view = view, state.view(view)
        model.did(command, decode_result(answer))
        model.check(before, view)
