"""Which sinks the coordinator forgets, and when, and which tasks it lets write."""

import asyncio

from cluster_commands import ORDERS, TERM, Coordinated
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.coordinator import EXPIRE_EVERY_MS, TransactionCoordinator
from quorumlog.kafka.transactions.sinks import SinkBatch, SinkCoordinator
from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    BeginSinkRun,
    EndSinkBatch,
    InitTransaction,
)
from quorumlog.machine.cluster.sinks import EARLIER_RUNS_MAX, attempt_id

WEEK_MS = 7 * 24 * 3_600_000
TIMEOUT_MS = 2 * WEEK_MS
OK = ErrorCode.NONE


class World(Coordinated):
    """A cluster whose commands are applied at once, and its coordinator."""

    def __init__(self):
        super().__init__()
        self.time_ms, self.wrong_ms = WEEK_MS, 0
        self.coordinator_term = TERM
        self.defaults = {}
        self.coordinator = TransactionCoordinator(
            self, None, self.now, self.wall, lambda seconds, call: None, KafkaCounters()
        )
        self.coordinator.is_current()

    def now(self):
        return self.time_ms

    def wall(self):
        return self.time_ms + self.wrong_ms

    @property
    def transactions(self):
        return self.machine.view.transactions

    @property
    def sinks(self):
        return self.machine.view.sinks

    def order(self, command, timeout_ms, done):
        self.do(command, self.time_ms)

    async def barrier(self, timeout_ms):
        return True

    async def execute(self, command, timeout_ms):
        return self.do(command, self.time_ms)

    def begin(self, sink):
        self.do(BeginSinkRun(TERM, sink, 0, "run"), self.time_ms)

    def take_id(self, sink):
        key = attempt_id(sink, "0.0")
        self.do(InitTransaction(TERM, key, 0, 7, 0, TIMEOUT_MS, False), self.time_ms)
        return key

    def write(self, sink):
        self.do(AddToTransaction(TERM, self.take_id(sink), 1, [(ORDERS, 0)]), self.time_ms)

    def commit(self, sink, *, batch=0, attempts=(), is_last=False):
        command = EndSinkBatch(TERM, sink, "run", batch, True, list(attempts), is_last)
        return self.do(command, self.time_ms)

    def after(self, milliseconds):
        self.time_ms += milliseconds
        self.coordinator.tick()
        return set(self.sinks)


def test_sinks_that_are_over_or_never_wrote_a_batch_go_after_an_hour_and_others_after_a_week():
    world = World()
    for sink in ("idle", "over", "query", "writing"):
        world.begin(sink)
    world.commit("over", is_last=True)
    world.commit("query")
    world.write("writing")
    assert world.after(EXPIRE_EVERY_MS) == {"idle", "over", "query", "writing"}
    assert world.after(EXPIRE_EVERY_MS + 1) == {"query", "writing"}
    assert world.after(WEEK_MS) == {"writing"}


def test_a_sink_that_begins_a_batch_after_a_long_pause_is_not_forgotten():
    world = World()
    for sink in ("writing", "beginning", "query"):
        world.begin(sink)
        world.commit(sink)
    world.after(WEEK_MS - EXPIRE_EVERY_MS)
    world.time_ms += EXPIRE_EVERY_MS - 1
    world.write("writing")
    world.take_id("beginning")
    assert world.after(EXPIRE_EVERY_MS // 2) == {"writing", "beginning"}
    ended = world.commit("writing", batch=1, attempts=[("0.0", 7, 0)])
    assert (ended.last_batch, ended.committed) == (1, 1)
    assert world.after(EXPIRE_EVERY_MS) == {"writing"}


def test_a_coordinator_whose_clock_is_set_forward_forgets_no_sink_until_it_has_gone_evenly():
    world = World()
    world.begin("query")
    world.commit("query")
    assert world.after(EXPIRE_EVERY_MS) == {"query"}
    world.wrong_ms = 2 * WEEK_MS
    assert world.after(EXPIRE_EVERY_MS) == {"query"}
    assert world.after(EXPIRE_EVERY_MS) == set()


def test_a_task_that_stalled_for_more_runs_than_are_known_does_not_abort_the_present_batch():
    world = World()
    sinks = SinkCoordinator(world, KafkaCounters())
    last = EARLIER_RUNS_MAX + 1
    for number in range(last + 1):  # each batch of `foreachBatch` is a run of its own
        assert asyncio.run(sinks.join(SinkBatch("s", f"run {number}", number), None)).error is OK
        if number < last:
            world.do(EndSinkBatch(TERM, "s", f"run {number}", number, True, []))
    assert "run 0" not in world.sinks["s"].earlier_runs
    world.write("s")
    answer = asyncio.run(sinks.join(SinkBatch("s", "run 0", 0), None))
    assert (answer.error, answer.last_batch) == (OK, last - 1)
    assert world.sinks["s"].run_id == f"run {last}"
    assert world.transactions.records[attempt_id("s", "0.0")].state == "Ongoing"
