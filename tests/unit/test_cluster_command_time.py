"""Whether something was used lately is noted rightly also by a coordinator with a wrong clock."""

import io

import msgspec
import pytest

from cluster_commands import BILLS, ORDERS, Coordinated
from quorumlog.machine.cluster.command_time import EARLIEST_MS, STEP_MAX_MS, CommandTime
from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    BeginSinkRun,
    CommitOffsets,
    EndSinkBatch,
    ForgetGroups,
    ForgetSinks,
    ForgetTransactions,
    InitTransaction,
    OffsetToCommit,
    SaveConsumers,
    SaveGroup,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.model.codes import ResponseCode

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOW_MS = EARLIEST_MS + 600 * DAY_MS
RIGHT, SLOW, NEXT = 3, 4, 5
"""Terms: of a coordinator with a right clock, of one at whose node it is 1970, and of the next."""


class Cluster(Coordinated):
    """Things that are used in the first two terms, and forgotten in the third one."""

    def use(self, term, at_ms, number=0, name="a"):
        """Have a group, an id and a sink used."""
        view = self.machine.view
        groups, ids, sinks = view.consumer_groups, view.transactions.records, view.sinks
        self.do(
            CommitOffsets(term, f"{name}-commits", -1, [OffsetToCommit(ORDERS, 0, number)]),
            at_ms,
            term,
        )
        self.do(SaveGroup(term, f"{name}-classic", number + 1, "consumer", "", "", []), at_ms, term)
        known = groups.get(f"{name}-consumers")
        version = known.version if known else 0
        self.do(SaveConsumers(term, f"{name}-consumers", version, number + 1, []), at_ms, term)
        version = ids[name].version if name in ids else 0
        self.do(
            InitTransaction(term, name, version, 7 + len(name), number, 60_000, False), at_ms, term
        )
        version = sinks[name].version if name in sinks else 0
        self.do(BeginSinkRun(term, name, version, f"run {number}"), at_ms, term)
        self.do(EndSinkBatch(term, name, f"run {number}", number, True, []), at_ms, term)

    def forget(self, name="a"):
        """Have the next coordinator, whose clock is right, forget what is a week old."""
        groups = [f"{name}-commits", f"{name}-classic", f"{name}-consumers"]
        since_ms = NOW_MS - WEEK_MS
        commands = (
            ForgetGroups(NEXT, groups, since_ms),
            ForgetTransactions(NEXT, [name], since_ms),
            ForgetSinks(NEXT, [name], since_ms),
        )
        return [code for one in commands for code in self.do(one, NOW_MS, NEXT).codes]


KEPT = [ResponseCode.CHANGE_IN_PROGRESS] * 5


def test_what_was_used_lately_is_kept_though_the_coordinator_at_the_end_had_a_slow_clock():
    cluster = Cluster()
    cluster.use(RIGHT, NOW_MS)
    cluster.use(SLOW, 1_000, 1)
    assert cluster.forget() == KEPT
    assert cluster.machine.view.sinks["a"].last_batch == 1


def test_what_is_new_under_a_coordinator_with_a_slow_clock_is_kept_also_after_a_snapshot():
    cluster = Cluster()
    cluster.use(RIGHT, NOW_MS, name="other")
    kept = io.BytesIO()
    cluster.machine.save_snapshot(kept)
    cluster.machine = ClusterMachine()
    cluster.machine.load_snapshot(io.BytesIO(kept.getvalue()))
    cluster.use(SLOW, 1_000)
    assert cluster.forget() == KEPT


def test_what_nobody_has_used_is_forgotten():
    cluster = Cluster()
    cluster.use(RIGHT, NOW_MS - WEEK_MS - 1)
    assert cluster.forget() == [ResponseCode.SUCCESS] * 5


def test_a_transaction_that_a_coordinator_with_a_slow_clock_goes_on_with_was_used_lately():
    cluster = Cluster()
    cluster.use(RIGHT, NOW_MS)
    version = cluster.machine.view.transactions.records["a"].version
    cluster.do(AddToTransaction(SLOW, "a", version, [(BILLS, 0)]), 1_000, SLOW)
    assert cluster.machine.view.transactions.records["a"].changed_ms == NOW_MS


def test_a_snapshot_of_an_earlier_version_knows_no_time():
    state = ClusterState()
    state.time.stamp(NOW_MS, RIGHT)
    earlier = msgspec.msgpack.encode(msgspec.msgpack.decode(state.encode())[:12])
    assert ClusterState.decode(earlier).time == CommandTime()


def test_the_time_follows_a_clock_that_is_years_ahead_by_thirty_days_for_each_term():
    time = CommandTime()
    ahead_ms = NOW_MS + 3_650 * DAY_MS
    assert time.stamp(NOW_MS, 1) == NOW_MS
    assert time.stamp(ahead_ms, 2) == time.stamp(ahead_ms, 2) == ahead_ms
    assert time.stamp(NOW_MS, 3) == NOW_MS + STEP_MAX_MS
    assert time.stamp(NOW_MS + 31 * DAY_MS, 3) == NOW_MS + 31 * DAY_MS


@pytest.mark.parametrize("first_ms", [1_000, NOW_MS - 100 * DAY_MS])
def test_the_time_catches_up_with_right_clocks(first_ms):
    time = CommandTime()
    for term, at_ms in enumerate([first_ms, NOW_MS, NOW_MS, NOW_MS, NOW_MS, 1_000]):
        last = time.stamp(at_ms, term)
    assert last == NOW_MS
