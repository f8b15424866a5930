"""Reads for clients: committed entries only. Whatever may wait for a disk is read on a thread."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from quorumlog.log_events import describe_error
from quorumlog.model.block import (
    HEADER_SIZE,
    INDEX_RECORD_SIZE,
    Buffer,
    headers,
    position_of,
)
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import (
    CorruptionError,
    OutOfDescriptorsError,
    RequestError,
    StorageError,
)
from quorumlog.model.histogram import Histogram
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import FetchRequest, FetchResponse, StoreLocation
from quorumlog.node.replica.channel_reads import (
    SCAN_BYTES,
    SCAN_BYTES_IN_MEMORY,
    entries_on_channel,
    last_on_channels,
)
from quorumlog.node.replica.fetch_waiters import FetchAnswer, FetchWaiters
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.raft.core import RaftCore
from quorumlog.sessions.transaction_table import Range
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.log.interface import Log

REJECTED_PER_FETCH_MAX = 4_096
"""Runs of rejected entries in one answer; it ends before the next run."""
LOCATE_BYTES = 16 * 1024 * 1024
"""Entries that are located at a time."""
RUNS_PER_READ_MAX = 256
"""Runs gathered into one answer or push (each is one buffer of a scatter-gather write)."""


def gather(log: Log, first_index: int, last_index: int, bytes_max: int) -> list[EntryRun]:
    """Return consecutive runs from first_index on, at most bytes_max (but at least one entry).

    If the first run comes from memory, it stops before the first run that does not.
    """
    runs: list[EntryRun] = []
    room = bytes_max
    index = first_index
    while index <= last_index and room > 0 and len(runs) < RUNS_PER_READ_MAX:
        if runs and runs[0].from_memory and not log.is_in_memory(index):
            break
        run = log.read(index, last_index, room)
        if runs and len(run.data) > room:
            break
        runs.append(run)
        room -= len(run.data)
        index = run.last_index + 1
    return runs


class View(msgspec.Struct, frozen=True):
    """The state of a replica that an answer to a fetch reports."""

    role: Role
    term: int
    leader_id: str | None
    committed_index: int
    is_ready: bool = True
    """Whether this is a leader that knows of everything that is committed."""
    durable_index: int = -1
    """Index up to which entries are in the replica's files."""


def view_of(core: RaftCore) -> View:
    """Return what answers to clients report about a replica."""
    known = (core.role, core.term, core.leader_id, core.committed_index, core.is_ready)
    return View(*known, core.durable_index)


class Transactions(Protocol):
    """The outcome of transactions, as far as it is committed."""

    @property
    def as_of(self) -> int:
        """Index up to which the outcomes are known."""
        ...

    @property
    def stable_index(self) -> int:
        """Index up to which every transaction has ended."""
        ...

    @property
    def complete_from(self) -> int:
        """First index from which rejected entries are known."""
        ...

    def rejected_within(self, first: int, last: int, most: int) -> list[Range]:
        """Return the first `most` runs of rejected entries that touch first … last."""
        ...


class Fetches:
    """Answers fetch requests of one replica.

    `view` returns the replica's present state, `transactions` the outcomes of transactions.
    `run_cold` runs a read that may touch the disk; `damage_found` takes entries that cannot be
    read; `defer` calls a function in the next turn of the loop. `location` says where the log's
    files are, for readers on the same machine. `seconds` gets how long reading entries took by
    `now_us`.
    """

    def __init__(  # noqa: PLR0913
        self,
        log: Log,
        limits: Limits,
        view: Callable[[], View],
        transactions: Transactions,
        run_cold: Callable[
            [
                Callable[[], list[EntryRun]],
                Callable[[list[EntryRun]], None],
                Callable[[Exception], None],
                object,
            ],
            None,
        ],
        damage_found: Callable[[CorruptionError], None],
        *,
        defer: Callable[[Callable[[], None]], object],
        timers: PartTimers,
        location: StoreLocation | None = None,
        now_us: Callable[[], int],
        seconds: Histogram,
    ) -> None:
        self._log = log
        self._limits = limits
        self._view = view
        self._transactions = transactions
        self._run_cold = run_cold
        self._damage_found = damage_found
        self._location = location
        self._now_us = now_us
        self._seconds = seconds
        self._waiters = FetchWaiters(self._fetch, defer, self._channels_in)
        self._timer = timers.new(self.expire)
        self.entries_served = 0
        self.bytes_served = 0
        self.entries_located = 0
        self.damaged_reads = 0

    def fetch(
        self, request: FetchRequest, answer: FetchAnswer, client: object, now_ms: int
    ) -> None:
        """Answer a client at once, or wait for the first entry to be committed."""
        wait_ms = min(request.wait_ms, self._limits.fetch_wait_ms_max)
        self._fetch(request, answer, client, now_ms + wait_ms if wait_ms > 0 else None)

    def fetch_linearizable(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        client: object,
        now_ms: Callable[[], int],
        code: ResponseCode,
        text: str,
        index: int,
    ) -> None:
        """Answer a linearizable fetch: everything up to index is committed here now."""
        known_until = self._transactions.as_of
        if code is ResponseCode.SUCCESS and request.read_committed and known_until < index:
            # its answer would end before that index, and leave out what was acknowledged after it
            code = ResponseCode.DISK_ERROR
            text = f"not all entries after {known_until} can be read here; ask another replica"
        if code is ResponseCode.SUCCESS:
            now = now_ms()
            fetch = partial(self.fetch, request, answer, client, now)
            self._waiters.answer(fetch, client, now)
        else:
            self.refuse(answer, code, text)

    def _fetch(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        client: object,
        deadline_ms: int | None = None,
    ) -> None:
        """Answer, or wait until a deadline if there is one."""
        view = self._view()
        if request.leader_only and view.role is not Role.LEADER:
            text = f"not the leader of {request.group}"
            answer(self._response(view, ResponseCode.NOT_LEADER, text), [])
            return
        if request.leader_only and not view.is_ready:
            text = f"{request.group} has a new leader, which is finding out what is committed"
            answer(self._response(view, ResponseCode.LEADER_NOT_READY, text), [])
            return
        begin = self._begin(request)
        if request.begin_index < begin:
            text = f"index {request.begin_index} is below the first index kept, {begin}"
            code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            answer(self._response(view, code, text), [])
        elif request.begin_index <= self._limit(request, view):
            self._read(request, answer, client, view, deadline_ms)
        elif deadline_ms is None:
            self._answer_empty(request, answer, view)
        elif len(self._waiters) >= self._limits.fetch_waiters_max:
            # after an empty answer the reader would ask again at once
            text = f"{len(self._waiters)} fetches of {request.group} wait; try again later"
            answer(self._response(view, ResponseCode.LEADER_PENDING_FULL, text), [])
        else:
            limit = self._limit(request, view)
            self._waiters.add(request, answer, client, deadline_ms, limit)
            self._timer.set_earlier(deadline_ms)

    def _begin(self, request: FetchRequest) -> int:
        """Return the first index that a request may see."""
        begin = self._log.before_begin_index + 1
        return max(begin, self._transactions.complete_from) if request.read_committed else begin

    def _limit(self, request: FetchRequest, view: View) -> int:
        """Return the last index that a request may see."""
        if request.read_committed:
            return min(view.committed_index, self._transactions.stable_index)
        return view.committed_index

    def forget(self, client: object) -> None:
        """Drop the fetches of a client that has disconnected."""
        self._waiters.forget(client)

    def refuse(self, answer: FetchAnswer, code: ResponseCode, text: str) -> None:
        """Answer that a fetch cannot be served, and why."""
        answer(self._response(self._view(), code, text), [])

    def _answer_empty(self, request: FetchRequest, answer: FetchAnswer, view: View) -> None:
        """Answer without entries: a single entry does not exist, or a range has nothing yet."""
        if request.end_index == request.begin_index and request.channel < 0:
            text = (
                f"index {request.begin_index} is beyond the last committed index, "
                f"{self._limit(request, view)}"
            )
            answer(self._response(view, ResponseCode.INDEX_OUT_OF_RANGE, text), [])
        else:
            found = self._response(view, ResponseCode.SUCCESS, "", request)
            if request.channel >= 0:
                looked_until = request.begin_index - 1
                found = msgspec.structs.replace(found, looked_until=looked_until)
            answer(found, [])

    def committed(self) -> None:
        """The committed index rose, or leadership changed: serve or refuse waiting fetches."""
        if not len(self._waiters):
            return
        view = self._view()
        if view.role is not Role.LEADER:
            self._waiters.dismiss()
        stable = min(view.committed_index, self._transactions.stable_index)
        self._waiters.reached(view.committed_index, stable)

    def role_changed(self) -> None:
        """Refuse what only a leader serves."""
        self.committed()

    def expire(self, now_ms: int) -> None:
        """Answer fetches whose time has passed with no entries."""
        self._waiters.expire(now_ms)
        self._timer.set(self._waiters.next_deadline_ms())

    def _read(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        client: object,
        view: View,
        deadline_ms: int | None,
    ) -> None:
        last = self._limit(request, view)
        if request.end_index >= 0:
            last = min(last, request.end_index)
        if last < request.begin_index:
            text = f"end index {request.end_index} is below begin index {request.begin_index}"
            answer(self._response(view, ResponseCode.UNEXPECTED_ARGUMENT, text), [])
            return
        rejected: list[Range] = []
        if request.read_committed:
            most = REJECTED_PER_FETCH_MAX
            rejected = self._transactions.rejected_within(request.begin_index, last, most + 1)
            if len(rejected) > most:
                last = rejected.pop()[0] - 1
        if self._may_locate(request, view):
            count = min(last, view.durable_index) - request.begin_index + 1
            self.entries_located += count
            answer(self._answered(request, count, rejected, self._location), [])
            return
        limits, room = self._limits, self._limits.block_bytes_max
        if request.index_records:  # a frame must hold the records of the smallest entries, too
            frame = limits.frame_bytes_max - limits.message_bytes_max
            room = min(room, frame * HEADER_SIZE // (HEADER_SIZE + INDEX_RECORD_SIZE))
        bytes_max = max(1, min(request.bytes_max, room))
        if request.channel >= 0:
            self._read_channel(request, answer, client, last, rejected, bytes_max, deadline_ms)
            return
        log, started_us = self._log, self._now_us()

        def read() -> list[EntryRun]:
            return gather(log, request.begin_index, last, bytes_max)

        def deliver(runs: list[EntryRun]) -> None:
            self._seconds.observe((self._now_us() - started_us) / 1_000_000)
            self._deliver(request, answer, runs, rejected)

        def fail(error: Exception) -> None:
            self._fail(answer, error)

        if log.is_in_memory(request.begin_index):
            deliver(read())
            return
        try:
            # a job for a thread, which takes the interpreter from the loop, costs more than this
            run = log.read_resident(request.begin_index, last, bytes_max)
        except (StorageError, RequestError) as error:
            fail(error)
            return
        if run is not None:
            deliver([run])
        else:
            self._run_cold(read, deliver, fail, client)

    def _channels_in(self, first: int, last: int) -> dict[int, int] | None:
        """See `ChannelsIn`."""
        log, found = self._log, dict[int, int]()
        while first <= last:
            if not log.is_in_memory(first):
                return None
            runs = gather(log, first, last, SCAN_BYTES_IN_MEMORY)
            found |= last_on_channels(runs)
            first = runs[-1].last_index + 1
        return found

    def _read_channel(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        client: object,
        last: int,
        rejected: list[Range],
        bytes_max: int,
        deadline_ms: int | None,
    ) -> None:
        """Look through some entries for those of one channel, and wait on if there are none."""
        log, looked, started_us = self._log, [request.begin_index - 1], self._now_us()
        is_in_memory = log.is_in_memory(request.begin_index)
        scan_bytes = SCAN_BYTES_IN_MEMORY if is_in_memory else SCAN_BYTES

        def read() -> list[EntryRun]:
            runs = gather(log, request.begin_index, last, scan_bytes)
            found, looked[0] = entries_on_channel(runs, request.channel, rejected, bytes_max)
            return found

        def deliver(found: list[EntryRun]) -> None:
            following = looked[0] + 1
            is_over = looked[0] == request.end_index or deadline_ms is None
            if not found and not is_over and following > self._limit(request, self._view()):
                later = msgspec.structs.replace(request, begin_index=following)
                self._fetch(later, answer, client, deadline_ms)
            else:
                self._seconds.observe((self._now_us() - started_us) / 1_000_000)
                self._deliver(request, answer, found, [], looked_until=looked[0])

        def fail(error: Exception) -> None:
            self._fail(answer, error)

        if is_in_memory:
            deliver(read())
        else:
            self._run_cold(read, deliver, fail, client)

    def _deliver(
        self,
        request: FetchRequest,
        answer: FetchAnswer,
        runs: list[EntryRun],
        rejected: list[Range],
        *,
        looked_until: int = -1,
    ) -> None:
        count = sum(run.count for run in runs)
        attachments: list[Buffer] = []
        if request.index_records:
            attachments += [run.records for run in runs]
        if request.headers_only:
            attachments += [headers(run.block()).tobytes() for run in runs]
        else:
            attachments += [run.data for run in runs]
        self.entries_served += count
        self.bytes_served += sum(len(run.data) for run in runs)
        answer(self._answered(request, count, rejected, looked_until=looked_until), attachments)

    def _may_locate(self, request: FetchRequest, view: View) -> bool:
        """Whether a reader may read the entries, or the first of them, from the files itself."""
        location = self._location
        is_here = location is not None and request.machine == location.machine
        is_here = is_here and request.channel < 0
        in_files = request.begin_index <= view.durable_index
        # a read through the node has damage repaired, a read of the files does not
        return is_here and in_files and not self._log.damaged

    def _answered(
        self,
        request: FetchRequest,
        count: int,
        rejected: list[Range],
        location: StoreLocation | None = None,
        *,
        looked_until: int = -1,
    ) -> FetchResponse:
        view, has_records = self._view(), request.index_records and location is None
        return FetchResponse(
            leader_id=view.leader_id,
            term=view.term,
            begin_index=self._begin(request),
            committed_index=self._limit(request, view),
            first_index=request.begin_index,
            count=count,
            index_bytes=count * INDEX_RECORD_SIZE if has_records else 0,
            rejected=[one for one in rejected if one[0] < request.begin_index + count],
            location=location,
            looked_until=looked_until,
        )

    def locate(
        self, first_index: int, last_index: int, done: Callable[[list[tuple[int, int]]], None]
    ) -> None:
        """Return where committed entries lie: (first index, position) of each contiguous run.

        (first_index, -1) if that is not known any more.
        """

        def read() -> list[EntryRun]:
            runs, index = [], first_index
            while index <= last_index:
                runs.append(self._log.read(index, last_index, LOCATE_BYTES))
                index = runs[-1].last_index + 1
            return runs

        def found(runs: list[EntryRun]) -> None:
            done([(run.first_index, position_of(run.records)) for run in runs])

        def unknown(error: Exception) -> None:
            done([(first_index, -1)])

        if not self._log.is_in_memory(first_index):
            self._run_cold(read, found, unknown, None)
            return
        try:
            runs = read()
        except (StorageError, RequestError) as error:
            unknown(error)
        else:
            found(runs)

    def _fail(self, answer: FetchAnswer, error: Exception) -> None:
        code, text = ResponseCode.INTERNAL_ERROR, describe_error(error)
        if isinstance(error, RequestError):
            code, text = error.code, str(error)
        elif isinstance(error, OutOfDescriptorsError):  # readable, but not at this moment
            code, text = ResponseCode.LEADER_PENDING_FULL, f"{error}; try again later"
        elif isinstance(error, CorruptionError):
            self.damaged_reads += 1
            self._damage_found(error)
            code, text = ResponseCode.DISK_ERROR, str(error)
        answer(self._response(self._view(), code, text), [])

    def _response(
        self, view: View, code: ResponseCode, text: str, request: FetchRequest | None = None
    ) -> FetchResponse:
        return FetchResponse(
            code=code,
            text=text,
            leader_id=view.leader_id,
            term=view.term,
            begin_index=self._log.before_begin_index + 1
            if request is None
            else self._begin(request),
            committed_index=view.committed_index if request is None else self._limit(request, view),
        )
