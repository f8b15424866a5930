"""The coordinator of all transactions: the broker whose node leads `__cluster`.

It judges what producers ask by the records in `__cluster`, and has these changed by commands that
count only in its term and for the record that it has seen. Nothing is in its memory but when it saw
transactions first: one that takes longer than its producer has said is aborted.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.expiry import ExpiryClock
from quorumlog.kafka.producer_ids import ProducerIds
from quorumlog.machine.cluster.commands import (
    NO_GENERATION,
    AddToTransaction,
    AddTransactionOffsets,
    DecideTransaction,
    ForgetSinks,
    ForgetTransactions,
    GroupsChanged,
    InitTransaction,
    OffsetToCommit,
)
from quorumlog.machine.cluster.consumer_groups import Partition
from quorumlog.machine.cluster.sinks import NO_BATCH, sink_of, used_sinks
from quorumlog.machine.cluster.transactions import TransactionRecord
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError
from quorumlog.model.topic_configs import (
    TRANSACTION_TIMEOUT_MAX,
    TRANSACTIONAL_ID_EXPIRATION,
    cluster_default,
)

TICK_S: Final = 0.5
"""Pause between two looks for transactions that take too long."""
SAVE_MS: Final = 5_000
"""How long a command may take, as in Kafka (transaction.state.log.write.timeout.ms)."""
COMPLETE_MS: Final = 1_000
"""How long a producer waits for markers to be written before it is told to come again."""
EXPIRE_EVERY_MS: Final = 3_600_000
"""Pause between two looks for transactional ids that nobody has used for long, as in Kafka."""
ABORTED_MAX: Final = 100
"""Transactions that took too long and are being aborted at a time."""
FORGOTTEN_MAX: Final = 1_000
"""Transactional ids, or sinks, that are forgotten with one command."""
EPOCH_MAX: Final = 32_765
"""The highest epoch that a producer gets: then it gets another id. One more is left to fence it."""
NO_PRODUCER: Final = -1
Found = TypeVar("Found")
_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.INCONSISTENT_TERM: ErrorCode.CONCURRENT_TRANSACTIONS,
    ResponseCode.CLUSTER_FULL: ErrorCode.POLICY_VIOLATION,
    ResponseCode.CONSUMER_FENCED: ErrorCode.ILLEGAL_GENERATION,
    ResponseCode.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Producer(NamedTuple):
    """Who a producer says it is: its transactional id, its producer id and its epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


class GroupMember(NamedTuple):
    """A member of a consumer group: its generation, or its epoch if it has an id that counts."""

    generation: int = NO_GENERATION
    member_id: str = ""


NO_MEMBER: Final = GroupMember()
"""Instead of a member, if the producer does not say which one it is."""


class InitAnswer(NamedTuple):
    """The answer to a producer that begins: its producer id and epoch, or why it has none."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER
    epoch: int = -1


class _Begun(NamedTuple):
    """A transaction that is ongoing, and when this coordinator saw it first."""

    number: int
    seen_ms: int


class TransactionCoordinator:
    """All transactions of a cluster, on the node that leads `__cluster`.

    `now_ms` reads a clock that never goes back, `wall_ms` Unix time; `later` calls a function after
    some seconds, on the event loop's thread, on which all methods run. `counters` gets the number
    of transactions that have ended.
    """

    def __init__(
        self,
        broker: BrokerView,
        producer_ids: ProducerIds,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
        counters: KafkaCounters,
    ) -> None:
        self._counters = counters
        self._broker = broker
        self._producer_ids = producer_ids
        self._now_ms = now_ms
        self.wall_ms = wall_ms
        self._expiry = ExpiryClock(now_ms, wall_ms)
        self._later = later
        self._term = -1
        self._turns: dict[str, list[asyncio.Future[None]]] = {}
        """Requests about an id of which one is under way: those that wait for their turn."""
        self._begun: dict[str, _Begun] = {}
        self._aborting: set[str] = set()
        """Ids whose transaction takes too long, and is about to be aborted."""
        self._expire_ms = 0
        self._is_ticking = False
        self._has_ended = False

    # -- who coordinates ----------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether this node coordinates now."""
        term = self._broker.coordinator_term
        if term != self._term:
            self._term, self._begun = term, {}
            self._expire_ms = self._now_ms() + EXPIRE_EVERY_MS
            self._expiry.begin()
        if term >= 0 and not self._is_ticking and not self._has_ended:
            self._is_ticking = True
            self._later(TICK_S, self.tick)
        return term >= 0

    def end(self) -> None:
        """Look no more: the node stops."""
        self._has_ended = True

    # -- producers ----------------------------------------------------------------------------

    async def init(self, asked: Producer, timeout_ms: int) -> InitAnswer:
        """Give a transactional id to a producer; one that had it before can do nothing any more.

        What that one had begun is aborted first. A producer that says who it is goes on with its
        producer id, and is refused if another has taken the id since.
        """
        if not 0 < timeout_ms <= self._timeout_max_ms():
            return InitAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        name = asked.transactional_id
        async with self._turn(name):
            refused = await self._proved(lambda: self._fault_of_init(asked))
            if refused is not None:
                return refused if isinstance(refused, InitAnswer) else InitAnswer(refused)
            record = self._broker.transactions.records.get(name)
            is_same = asked.producer_id != NO_PRODUCER
            if record is None:
                return await self._give(name, timeout_ms, is_same=False)
            is_fenced = record.state == "Ongoing"
            if is_fenced:
                error = await self._decide(record, record.epoch + 1, commits=False, is_same=is_same)
                if error is not ErrorCode.NONE:
                    return InitAnswer(error)
            if not await self._is_complete(name):
                return InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
            ended = self._broker.transactions.records.get(name)
            expected = record.producer_id, record.epoch + is_fenced, record.number
            if ended is None or (ended.producer_id, ended.epoch, ended.number) != expected:
                return InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)  # another had it meanwhile
            if is_same and is_fenced and ended.epoch <= EPOCH_MAX:
                return self._as_it_is(ended)  # that the old epoch was fenced gave it a new one
            return await self._give(name, timeout_ms, is_same=is_same)

    def _fault_of_init(self, asked: Producer) -> InitAnswer | None:
        """Return the answer to a producer that says who it is, unless it gets a new epoch."""
        record = self._broker.transactions.records.get(asked.transactional_id)
        if record is None or asked.producer_id == NO_PRODUCER:
            return None
        known = asked.producer_id, asked.epoch
        is_last = known == (record.last_producer_id, record.last_epoch)
        if is_last and record.epoch <= EPOCH_MAX:
            return self._as_it_is(record)  # its answer was lost
        is_its_own = is_last or known == (record.producer_id, record.epoch)
        return None if is_its_own else InitAnswer(ErrorCode.PRODUCER_FENCED)

    def _as_it_is(self, record: TransactionRecord) -> InitAnswer:
        if record.is_open:
            return InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        return InitAnswer(ErrorCode.NONE, record.producer_id, record.epoch)

    async def _give(self, name: str, timeout_ms: int, *, is_same: bool) -> InitAnswer:
        record = self._broker.transactions.records.get(name)
        if record is None or record.epoch >= EPOCH_MAX:
            try:
                producer_id, epoch = await self._producer_ids.take(), 0
            except RequestError:
                return InitAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            producer_id, epoch = record.producer_id, record.epoch + 1
        version = 0 if record is None else record.version
        command = InitTransaction(
            self._term, name, version, producer_id, epoch, timeout_ms, is_same
        )
        error, _ = await self._execute(command)
        if error is ErrorCode.POLICY_VIOLATION:
            self._expire()  # old ids make room
        if error is not ErrorCode.NONE:
            return InitAnswer(error)
        return InitAnswer(ErrorCode.NONE, producer_id, epoch)

    async def add(
        self, asked: Producer, partitions: Sequence[Partition], groups: Sequence[str] = ()
    ) -> ErrorCode:
        """Take partitions, and consumer groups, into the transaction, which begins if none has."""
        name = asked.transactional_id

        def answer() -> ErrorCode | None:
            record = self._record_of(asked)
            if isinstance(record, ErrorCode):
                return record
            if record.state != "Ongoing":
                return None
            there = set(record.partitions)
            is_known = all(one in there for one in partitions)
            is_known = is_known and all(one in record.offsets for one in groups)
            return ErrorCode.NONE if is_known else None

        async with self._turn(name):
            error = await self._proved(answer)
            if error is not None:
                return error
            if not await self._is_complete(name):
                return ErrorCode.CONCURRENT_TRANSACTIONS
            record = self._record_of(asked)
            if isinstance(record, ErrorCode):
                return ErrorCode.CONCURRENT_TRANSACTIONS  # it comes again, and is told why
            version = record.version
            command = AddToTransaction(self._term, name, version, list(partitions), list(groups))
            found, _ = await self._execute(command)
            return found

    async def add_offsets(
        self,
        asked: Producer,
        group: str,
        offsets: Iterable[OffsetToCommit],
        member: GroupMember = NO_MEMBER,
    ) -> list[ErrorCode] | ErrorCode:
        """Note offsets that are committed if the transaction is; return the error of each.

        `member`: who consumed up to them; refused if it has been succeeded (KIP-447).
        """
        name = asked.transactional_id

        def answer() -> ErrorCode | None:
            record = self._record_of(asked)
            if isinstance(record, ErrorCode):
                return record
            is_taken = record.state == "Ongoing" and group in record.offsets
            return None if is_taken else ErrorCode.INVALID_TXN_STATE

        async with self._turn(name):
            fault = await self._proved(answer)
            if fault is not None:
                return fault
            version = self._broker.transactions.records[name].version
            command = AddTransactionOffsets(
                self._term, name, version, group, list(offsets), *member
            )
            error, codes = await self._execute(command)
            return error if error is not ErrorCode.NONE else codes

    async def finish(self, asked: Producer, *, commits: bool) -> ErrorCode:
        """Commit or abort a transaction; its markers are written then, unless that takes long."""
        name = asked.transactional_id

        def answer() -> ErrorCode | None:
            record = self._record_of(asked)
            if isinstance(record, ErrorCode):
                return record
            if record.state == "Ongoing":
                return None
            is_done = record.state != "Empty" and record.commits == commits
            return ErrorCode.NONE if is_done else ErrorCode.INVALID_TXN_STATE

        async with self._turn(name):
            error = await self._proved(answer)
            if error is None:
                record = self._broker.transactions.records[name]
                error = await self._decide(record, record.epoch, commits=commits)
            if error is ErrorCode.NONE:
                await self._is_complete(name)
            return error

    async def _decide(
        self, record: TransactionRecord, epoch: int, *, commits: bool, is_same: bool = False
    ) -> ErrorCode:
        name, version = record.transactional_id, record.version
        command = DecideTransaction(self._term, name, version, commits, epoch, is_same)
        error, _ = await self._execute(command)
        if error is ErrorCode.NONE:
            self._counters.transactions_committed += commits
            self._counters.transactions_aborted += not commits
        return error

    # -- inside -------------------------------------------------------------------------------

    def _timeout_max_ms(self) -> int:
        return int(cluster_default(TRANSACTION_TIMEOUT_MAX, self._broker.defaults))

    def _record_of(self, asked: Producer) -> TransactionRecord | ErrorCode:
        """Return the record of a producer, or why it is not its own (any more)."""
        record = self._broker.transactions.records.get(asked.transactional_id)
        if record is None or record.producer_id != asked.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if record.epoch != asked.epoch:
            return ErrorCode.PRODUCER_FENCED
        return record

    async def _proved(self, answer: Callable[[], Found | None]) -> Found | ErrorCode | None:
        """Return the answer that the records lead to, or None: a command is to be applied.

        Another node may coordinate without this one knowing yet. Its commands would change nothing
        then, but what it answers without one must be proved.
        """
        if answer() is None:
            return None
        if not await self._broker.barrier(SAVE_MS):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return answer()

    async def _is_complete(self, name: str) -> bool:
        """Wait for the markers of a transaction, but not long; return whether it has them."""
        broker = self._broker
        return await broker.until_committed(
            lambda: name not in broker.transactions.prepared, COMPLETE_MS
        )

    async def _execute(self, command: Any) -> tuple[ErrorCode, list[ErrorCode]]:
        """Have a command applied; return what came of it, and of each of its items."""
        if command.term < 0:
            return ErrorCode.NOT_COORDINATOR, []  # it has ceased to be, while it waited
        try:
            result = await self._broker.execute(command, SAVE_MS)
        except RequestError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        if not isinstance(result, GroupsChanged):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = _ERRORS.get(result.code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return error, [_ERRORS[code] for code in result.codes]

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Have one request about an id after the other."""
        waiting = self._turns.get(name)
        if waiting is None:
            self._turns[name] = []
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:  # the client has gone
                if turn in waiting:
                    waiting.remove(turn)
                elif not turn.cancelled():
                    self._next_turn(name)  # it had its turn
                raise
        try:
            yield
        finally:
            self._next_turn(name)

    def _next_turn(self, name: str) -> None:
        waiting = self._turns[name]
        if waiting:
            turn = waiting.pop(0)
            if turn.cancelled():
                self._next_turn(name)
            else:
                turn.set_result(None)
        else:
            del self._turns[name]

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Abort what takes too long, and forget what is not used, as long as this node leads."""
        self._is_ticking = False
        if self._has_ended or not self.is_current():
            return
        now_ms, records = self._now_ms(), self._broker.transactions.records
        room = ABORTED_MAX - len(self._aborting)
        begun: dict[str, _Begun] = {}
        for name, record in records.items():
            if record.state != "Ongoing":
                continue
            seen = self._begun.get(name)
            if seen is None or seen.number != record.number:
                seen = _Begun(record.number, now_ms)
            begun[name] = seen
            is_late = now_ms - seen.seen_ms >= record.timeout_ms
            if is_late and name not in self._aborting and room > 0:
                room -= 1
                self._abort_in_turn(record)
        self._begun = begun
        if now_ms >= self._expire_ms:
            self._expire_ms = now_ms + EXPIRE_EVERY_MS
            self._expire()

    def _abort_in_turn(self, record: TransactionRecord) -> None:
        """Abort a transaction that takes too long, before requests that wait for their turn."""
        name, number = record.transactional_id, record.number
        self._aborting.add(name)
        waiting = self._turns.get(name)
        if waiting is None:
            self._abort(record, lambda: None)
            return

        def begin(turn: asyncio.Future[None]) -> None:
            found = self._broker.transactions.records.get(name)
            is_same = found is not None and found.number == number and found.state == "Ongoing"
            if found is None or not is_same or self._has_ended or not self.is_current():
                self._aborting.discard(name)
                self._next_turn(name)
            else:
                self._abort(found, lambda: self._next_turn(name))

        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(begin)
        waiting.insert(0, turn)

    def _abort(self, record: TransactionRecord, ended: Callable[[], None]) -> None:
        """Have a transaction aborted that takes too long; its producer is fenced."""
        name = record.transactional_id

        def done(code: ResponseCode, text: str, result: Any) -> None:
            self._aborting.discard(name)
            ended()
            is_done = isinstance(result, GroupsChanged) and result.code is ResponseCode.SUCCESS
            self._counters.transactions_timed_out += is_done

        command = DecideTransaction(self._term, name, record.version, False, record.epoch + 1)
        self._broker.order(command, SAVE_MS, done)

    def _expire(self) -> None:
        """Forget ids and sinks that nobody has used for long.

        Attempts of sinks lose nothing by it, and sinks that are over, or never committed a batch,
        are needed no more: an hour is enough for them, so that jobs that were killed do not fill
        the tables. No sink is forgotten that is writing a batch: its record may be old, as a run
        that is known begins one without a change.
        """
        expiration_ms = int(cluster_default(TRANSACTIONAL_ID_EXPIRATION, self._broker.defaults))
        before_ms = self._expiry.limit_ms(expiration_ms)
        soon_ms = self._expiry.limit_ms(min(expiration_ms, EXPIRE_EVERY_MS))
        if before_ms is None or soon_ms is None:
            return
        ids, soon_ids = list[str](), list[str]()
        records = self._broker.transactions.records
        for name, record in records.items():
            if record.is_open:
                continue
            if record.changed_ms < before_ms:
                ids.append(name)
            elif record.changed_ms < soon_ms and sink_of(name) is not None:
                soon_ids.append(name)
        sinks, soon_sinks = list[str](), list[str]()
        used = used_sinks(records, soon_ms)
        for name, sink in self._broker.sinks.items():
            if name in used:
                continue
            if sink.changed_ms < before_ms:
                sinks.append(name)
            elif (sink.is_over or sink.last_batch == NO_BATCH) and sink.changed_ms < soon_ms:
                soon_sinks.append(name)
        for command, old, since_ms in (
            (ForgetTransactions, ids, before_ms),
            (ForgetTransactions, soon_ids, soon_ms),
            (ForgetSinks, sinks, before_ms),
            (ForgetSinks, soon_sinks, soon_ms),
        ):
            if len(old) > FORGOTTEN_MAX:
                self._expire_ms = self._now_ms()  # the others next time
            if old:
                found = command(self._term, old[:FORGOTTEN_MAX], since_ms)
                self._broker.order(found, SAVE_MS, lambda code, text, result: None)
