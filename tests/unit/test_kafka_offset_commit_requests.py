"""OffsetCommit: which offsets are committed, and what its client is answered, and when."""

import asyncio
from types import SimpleNamespace

import pytest

from cluster_commands import ORDERS
from kafka_peer import cut, sent
from quorumlog.kafka.context import ELEMENTS_PER_TURN, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.offset_commits import OffsetCommits
from quorumlog.kafka.handlers.offset_commit import OffsetCommit, start_offset_commit
from quorumlog.kafka.offset_commit import offset_commit_answer
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.machine.cluster.commands import (
    OFFSET_METADATA_MAX,
    CommitTogether,
    GroupsChanged,
    OffsetsCommitted,
)
from quorumlog.model.codes import ResponseCode

PARTITIONS = 10_000
OK, NONE = ResponseCode.SUCCESS, ErrorCode.NONE
HEADER = RequestHeader(ApiKey.OFFSET_COMMIT, 9, 7, "c", 1, is_flexible=True)


class Group:
    """A group with members, of which none commits without an epoch."""

    def may_commit(self, member_id, instance_id, epoch, now_ms):
        return ErrorCode.UNKNOWN_MEMBER_ID if epoch < 0 else NONE


class Coordinator:
    term = 3

    def __init__(self):
        self.groups = {}

    def is_current(self):
        return True

    def has_members(self, name):
        return name in self.groups

    def find(self, name):
        return self.groups.get(name)

    def now_ms(self):
        return 0


class Node:
    """A coordinator whose commands are applied when the test says so."""

    def __init__(self):
        self.orders, self.noted, self.threads, self.answers = [], [], [], []
        topic = SimpleNamespace(topic_id=ORDERS, partitions=range(PARTITIONS))
        self.services = SimpleNamespace(
            broker=SimpleNamespace(topics={"orders": topic}, consumer_groups={}),
            coordinator=Coordinator(),
            commits=OffsetCommits(self, lambda: 0),
            lines=SimpleNamespace(warn=lambda *_, **where: self.noted.append(where["error"])),
            executor=self,
            now=lambda: 0.0,
        )

    def order(self, command, timeout_ms, done):
        self.orders.append((command, done))

    def run(self, work, done, failed, client=None):
        self.threads.append(lambda: done(work()))

    def ask(self, topics, epoch=-1, group="g", answer=None, failed=None):
        asked = SimpleNamespace(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id="m",
            group_instance_id=None,
            topics=topics,
        )
        context = RequestContext(self.services, HEADER, "h:1", self)
        done = self.answers.append if answer is None else answer
        return OffsetCommit(context, asked, done, failed).start()

    def carry_out(self, number=-1, code=OK):
        """Carry a command out, and answer it; with another code none of it is."""
        command, done = self.orders[number]
        is_one = not isinstance(command, CommitTogether)
        commits = [command] if is_one else command.commits
        results = [
            GroupsChanged(code, codes=[OK] * len(one.offsets) if code is OK else [])
            for one in commits
        ]
        done(OK, "", results[0] if is_one else OffsetsCommitted(results))


@pytest.fixture
def node():
    return Node()


def topic(name, *offsets):
    """Return offsets of the first partitions of a topic."""
    return SimpleNamespace(
        name=name, partitions=[place(number, one) for number, one in enumerate(offsets)]
    )


def place(number, offset, metadata=None):
    return SimpleNamespace(
        partition_index=number,
        committed_offset=offset,
        committed_leader_epoch=5,
        committed_metadata=metadata,
    )


def test_offsets_are_answered_as_they_were_asked_for_once_they_are_committed(node):
    mixed = SimpleNamespace(
        name="orders",
        partitions=[place(7, 70, "x"), place(PARTITIONS, 1), place(-1, 1), place(2, 20)],
    )
    large = SimpleNamespace(
        name="orders", partitions=[place(3, 1, "x" * (OFFSET_METADATA_MAX + 1))]
    )
    assert node.ask([mixed, topic("none", 1), large]) is None
    assert node.answers == [], "nothing is committed yet"
    (command, _), *more = node.orders
    assert not more
    assert (command.term, command.group, command.generation, command.member_id) == (3, "g", -1, "")
    assert [
        (one.partition, one.offset, one.leader_epoch, one.metadata) for one in command.offsets
    ] == [
        (7, 70, 5, "x"),
        (2, 20, 5, ""),
    ]
    node.carry_out()
    unknown, too_large = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    )
    assert node.answers == [
        [
            ("orders", [(7, NONE), (PARTITIONS, unknown), (-1, unknown), (2, NONE)]),
            ("none", [(0, unknown)]),
            ("orders", [(3, too_large)]),
        ]
    ]
    assert sorted(node.noted) == sorted([unknown.name] * 3 + [too_large.name])


def test_a_commit_of_nothing_is_answered_at_once(node):
    node.ask([])
    assert node.answers == [[]]
    assert node.orders == []


def test_a_client_that_is_no_member_commits_only_while_there_are_none(node):
    node.ask([topic("orders", 5)])
    node.carry_out()
    node.services.coordinator.groups["g"] = Group()
    node.ask([topic("orders", 5)])
    node.ask([topic("orders", 6)], epoch=4)
    node.carry_out()
    outcomes = [found[0][1][0][1] for found in node.answers]
    assert outcomes == [NONE, ErrorCode.UNKNOWN_MEMBER_ID, NONE]
    node.ask([topic("orders", 5)], epoch=4, group="of nobody")
    assert node.answers[-1] == [("orders", [(0, ErrorCode.ILLEGAL_GENERATION)])]
    assert [command.generation for command, _ in node.orders] == [-1, 4]


def test_commits_of_several_clients_are_answered_whatever_becomes_of_one_of_them(node):
    def broken(outcomes):
        raise RuntimeError("its answer cannot be written")

    failures = []
    node.ask([topic("orders", 1)])
    node.ask([topic("orders", 2)], answer=broken, failed=failures.append)
    node.ask([topic("orders", 3)])
    node.carry_out()
    node.carry_out()
    assert [str(one) for one in failures] == ["its answer cannot be written"]
    assert node.answers == [[("orders", [(0, NONE)])]] * 2


def test_a_command_that_is_refused_is_so_for_all_its_offsets(node):
    node.ask([topic("orders", 1, 2)])
    node.carry_out(code=ResponseCode.NOT_LEADER)
    gone = ErrorCode.NOT_COORDINATOR
    assert node.answers == [[("orders", [(0, gone), (1, gone)])]]


async def test_a_long_request_gives_others_their_turn_and_is_answered_by_a_thread(node):
    offsets = [{"partition_index": one, "committed_offset": 5} for one in range(PARTITIONS)]
    raw = sent(
        ApiKey.OFFSET_COMMIT,
        9,
        {"group_id": "g", "topics": [{"name": "orders", "partitions": offsets}]},
    )
    frame, header = cut(raw)
    owner = SimpleNamespace(answered=node.answers.append, failed=None, changed=lambda: None)
    request = PendingRequest(owner, frame, RequestContext(node.services, header, "h:1", node))
    start_offset_commit(request)
    node.threads.pop()()  # it is read
    turns = 0
    while not node.orders:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= PARTITIONS // ELEMENTS_PER_TURN
    done = 0
    while done < len(node.orders):
        node.carry_out(done)
        done += 1
    assert not node.answers
    node.threads.pop()()
    assert node.answers == [request]
    expected = [("orders", [(number, NONE) for number in range(PARTITIONS)])]
    assert request.answer == [offset_commit_answer(header, expected)]
