"""Commits of offsets go into `__cluster` in their order, together if they come at once."""

import pytest

from cluster_commands import ORDERS
from quorumlog.kafka.groups import offset_commits
from quorumlog.kafka.groups.offset_commits import COMMIT_MS, OffsetCommits
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    CommitTogether,
    GroupsChanged,
    OffsetsCommitted,
    OffsetToCommit,
)
from quorumlog.model.codes import ResponseCode

OK = ResponseCode.SUCCESS


class Case:
    """A broker that applies commands when it is told to, and the commits of a coordinator."""

    def __init__(self):
        self.time_ms, self.orders, self.told = 0, [], []
        self.commits = OffsetCommits(self, lambda: self.time_ms)

    def order(self, command, timeout_ms, done):
        self.orders.append((command, done))

    def commit(self, offset, term=3, metadata=""):
        command = CommitOffsets(term, "g", -1, [OffsetToCommit(ORDERS, 0, offset, -1, metadata)])

        def done(code, text, result):
            self.told.append((offset, code if result is None else result.code))

        self.commits.commit(command, done)

    def ordered(self):
        """Return the offsets of each command that was given."""
        parts = [
            command.commits if isinstance(command, CommitTogether) else [command]
            for command, _ in self.orders
        ]
        return [[one.offsets[0].offset for one in some] for some in parts]

    def end(self, number, result=None, code=OK):
        command, done = self.orders[number]
        if result is None and code is OK:
            result = GroupsChanged(OK)
            if isinstance(command, CommitTogether):
                result = OffsetsCommitted([result] * len(command.commits))
        done(code, "", result)


@pytest.fixture
def case():
    return Case()


def test_commits_that_come_while_one_is_under_way_go_together_after_it(case):
    for offset in (1, 2, 3):
        case.commit(offset)
    assert case.ordered() == [[1]]
    case.end(0)
    assert case.ordered() == [[1], [2, 3]]
    assert case.told == [(1, OK)]
    case.commit(4)
    late = ResponseCode.INCONSISTENT_TERM
    case.end(1, OffsetsCommitted([GroupsChanged(late), GroupsChanged(OK)]))
    assert case.told == [(1, OK), (2, late), (3, OK)]
    case.end(2)
    assert case.ordered() == [[1], [2, 3], [4]]
    case.commit(5)
    assert case.ordered()[3:] == [[5]]


def test_b5_a_commit_that_is_sent_again_is_not_overtaken_by_a_later_one(case):
    case.commit(10)
    case.commit(20)
    assert case.ordered() == [[10]], "__cluster may have refused it for now, and take it later"
    case.end(0, code=ResponseCode.TIMEOUT)
    assert case.told == [(10, ResponseCode.TIMEOUT)]
    assert case.ordered() == [[10], [20]]


def test_commits_whose_commands_are_answered_at_once_are_all_answered(case, monkeypatch):
    monkeypatch.setattr(offset_commits, "TOGETHER_MAX", 1)
    for offset in range(3_000):
        case.commit(offset)
    refuse = ResponseCode.LEADER_PENDING_FULL
    monkeypatch.setattr(case, "order", lambda command, timeout_ms, done: done(refuse, "", None))
    case.end(0)
    assert [code for _, code in case.told] == [OK] + [refuse] * 2_999
    assert not len(case.commits)


def test_commits_of_different_terms_and_those_that_are_large_go_by_themselves(case, monkeypatch):
    monkeypatch.setattr(offset_commits, "TOGETHER_BYTES", 400)
    monkeypatch.setattr(offset_commits, "TOGETHER_MAX", 3)
    for offset in range(6):
        case.commit(offset, metadata="x" * 500 if offset == 3 else "")
    case.commit(6, term=4)
    for number in range(5):
        case.end(number)
    assert case.ordered() == [[0], [1, 2], [3], [4, 5], [6]]


def test_a_command_that_is_refused_is_so_for_all_its_commits(case):
    for offset in range(3):
        case.commit(offset)
    case.end(0)
    case.end(1, GroupsChanged(ResponseCode.NOT_LEADER))
    assert case.told[1:] == [(1, ResponseCode.NOT_LEADER), (2, ResponseCode.NOT_LEADER)]


def test_commits_that_waited_for_too_long_are_answered_and_not_sent(case):
    case.commit(1)
    case.commit(2)
    case.time_ms = COMMIT_MS - 1
    case.commit(3)
    case.time_ms = COMMIT_MS
    case.end(0, code=ResponseCode.TIMEOUT)
    assert case.told == [(1, ResponseCode.TIMEOUT), (2, ResponseCode.TIMEOUT)]
    assert case.ordered() == [[1], [3]]


def test_commits_wait_up_to_a_bound(case, monkeypatch):
    monkeypatch.setattr(offset_commits, "WAITING_BYTES_MAX", 250)
    for offset in range(5):
        case.commit(offset)
    full = ResponseCode.LEADER_PENDING_FULL
    assert case.told == [(3, full), (4, full)]
    case.end(0)
    case.end(1)
    assert case.told[2:] == [(0, OK), (1, OK), (2, OK)]
    case.commit(5)
    assert case.ordered()[2:] == [[5]]
