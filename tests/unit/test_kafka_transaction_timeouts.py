"""Transactions that take longer than their producers said are aborted; epochs come to an end."""

import asyncio

from cluster_commands import ORDERS, TERM, Coordinated
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.coordinator import (
    EPOCH_MAX,
    InitAnswer,
    Producer,
    TransactionCoordinator,
)
from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    DecideTransaction,
    InitTransaction,
    MarkersWritten,
)

TIMEOUT_MS = 1_000


class Ids:
    """Gives producer ids."""

    async def take(self):
        return 8


class World(Coordinated):
    """A cluster whose commands take some turns of the loop, and its coordinator."""

    def __init__(self):
        super().__init__()
        self.time_ms, self.coordinator_term, self.defaults = 1_000, TERM, {}
        self.ordered, self.counters = [], KafkaCounters()
        self.coordinator = TransactionCoordinator(
            self, Ids(), self.now, self.now, lambda seconds, call: None, self.counters
        )

    def now(self):
        return self.time_ms

    @property
    def transactions(self):
        return self.machine.view.transactions

    @property
    def sinks(self):
        return self.machine.view.sinks

    def order(self, command, timeout_ms, done):
        self.ordered.append(command)
        asyncio.get_running_loop().call_soon(lambda: done(None, "", self.do(command, self.time_ms)))

    async def execute(self, command, timeout_ms):
        return self.do(command, self.time_ms)

    async def until_committed(self, is_so, timeout_ms):
        return is_so()

    async def barrier(self, timeout_ms):
        await asyncio.sleep(0)
        return True


async def ask_without_pause(world, errors):
    """Ask again and again, of two connections: one request waits while the other is under way."""
    asked = Producer("t", 7, 0)

    async def ask():
        while not errors or errors[-1] is ErrorCode.NONE:
            errors.append(await world.coordinator.add(asked, [(ORDERS, 0)]))

    clients = [asyncio.ensure_future(ask()) for _ in range(2)]
    for _ in range(40):
        await asyncio.sleep(0)
        world.time_ms += TIMEOUT_MS // 10
        world.coordinator.tick()
    for one in clients:
        one.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


def test_b3_a_client_that_asks_without_a_pause_does_not_keep_its_transaction_from_timing_out():
    world, errors = World(), []
    world.do(InitTransaction(TERM, "t", 0, 7, 0, TIMEOUT_MS, False), world.time_ms)
    world.do(AddToTransaction(TERM, "t", 1, [(ORDERS, 0)]), world.time_ms)
    asyncio.run(ask_without_pause(world, errors))
    record = world.transactions.records["t"]
    assert (record.state, record.epoch) == ("PrepareAbort", 1)
    assert errors[-1] is ErrorCode.PRODUCER_FENCED
    assert len(world.ordered) == world.counters.transactions_timed_out == 1


def test_b3_a_producer_that_lost_the_answer_of_its_last_epoch_gets_another_id():
    world = World()
    world.do(InitTransaction(TERM, "t", 0, 7, EPOCH_MAX, TIMEOUT_MS, False), world.time_ms)
    world.do(AddToTransaction(TERM, "t", 1, [(ORDERS, 0)]), world.time_ms)
    decided = DecideTransaction(TERM, "t", 2, False, EPOCH_MAX + 1, True)
    world.do(decided, world.time_ms)
    number = world.transactions.records["t"].number
    world.do(MarkersWritten([("t", number, [(ORDERS, 0)])], [7]), world.time_ms)
    assert world.transactions.records["t"].state == "CompleteAbort"
    world.coordinator.is_current()
    found = asyncio.run(world.coordinator.init(Producer("t", 7, EPOCH_MAX), TIMEOUT_MS))
    assert found == InitAnswer(ErrorCode.NONE, 8, 0), "no marker has a larger epoch"
