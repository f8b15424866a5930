"""Blocks that came again: each gets its first answer once it is committed (and applied)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.fetches import Fetches
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.proposals import Answer, Checked, Refuse
from quorumlog.sessions.entries import SessionEntry
from quorumlog.sessions.producer_table import AppendedBlock
from quorumlog.topics.produced_batch import ProducedBatch

_FORGOTTEN = "executed as entries {} to {}; what the results were is not known any more"


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A block that a client has sent again, until its first answer can be given."""

    entry: Checked
    appended: AppendedBlock
    answer: Answer
    deadline_ms: int


class RepeatedBlocks:
    """The repeated blocks that a leader has not answered yet. `refuse` answers one that fails.

    `waiting` are those that are not committed (or applied) yet.
    """

    def __init__(
        self, context: ReplicaContext, machine: MachineState, fetches: Fetches, refuse: Refuse
    ) -> None:
        self._context = context
        self._machine = machine
        self._fetches = fetches
        self._refuse = refuse
        self.waiting: list[_Repeated] = []
        self.lookups = 0

    def __len__(self) -> int:
        """How many are not answered."""
        return len(self.waiting) + self.lookups

    def wait(
        self, entry: Checked, appended: AppendedBlock, answer: Answer, deadline_ms: int
    ) -> None:
        """Give a block that came again its first answer, once it is committed."""
        self._context.counters.blocks_repeated += 1
        self.waiting.append(_Repeated(entry, appended, answer, deadline_ms))
        self.answer_committed()

    def answer_committed(self) -> None:
        """Answer those that are committed (and applied) now."""
        waiting, applied = self.waiting, self._machine.applied_index
        self.waiting = [item for item in waiting if item.appended.last_index > applied]
        for item in waiting:
            appended = item.appended
            if appended.last_index > applied:
                continue
            if isinstance(item.entry, ProducedBatch):
                self._answer(item, [])  # an offset says where it is
            else:
                self.lookups += 1
                located: Callable[[list[tuple[int, int]]], None] = partial(self._located, item)
                self._fetches.locate(appended.index, appended.last_index, located)

    def _located(self, item: _Repeated, positions: list[tuple[int, int]]) -> None:
        self.lookups -= 1
        self._answer(item, positions)

    def _answer(self, item: _Repeated, positions: list[tuple[int, int]]) -> None:
        core, machine, appended = self._context.core, self._machine, item.appended
        results: Sequence[bytes] | None = ()
        entry = item.entry
        if isinstance(entry, SessionEntry) and entry.keeps_results and machine.machine is not None:
            results = machine.results.find(entry.producer_id, appended.index)
        if results is None:
            text = _FORGOTTEN.format(appended.index + 1, appended.last_index)
            self._refuse(item.answer, ResponseCode.RESULTS_FORGOTTEN, text)
            return
        response = AppendResponse(
            leader_id=core.leader_id,
            term=self._term_of(appended),
            first_index=appended.index,
            last_index=appended.last_index,
            positions=positions,
        )
        item.answer(response, results)

    def _term_of(self, appended: AppendedBlock) -> int:
        """Return the term of a block, which all its entries share; -1: they were removed."""
        log = self._context.log
        inside = log.before_begin_index < appended.last_index <= log.end_index
        return self._context.core.term_at(appended.last_index) if inside else -1

    def fail_beyond(self, committed_index: int, code: ResponseCode, text: str) -> None:
        """Refuse those that are not committed; the others are answered once they are applied."""
        waiting = self.waiting
        self.waiting = [item for item in waiting if item.appended.last_index <= committed_index]
        for item in waiting:
            if item.appended.last_index > committed_index:
                self._refuse(item.answer, code, text)

    def expire(self, now_ms: int, why_late: Callable[[int], tuple[ResponseCode, str]]) -> None:
        """Refuse those whose time is over; `why_late` says why, by their last index."""
        expired = [item for item in self.waiting if item.deadline_ms <= now_ms]
        if expired:
            self.waiting = [item for item in self.waiting if item.deadline_ms > now_ms]
            for item in expired:
                self._refuse(item.answer, *why_late(item.appended.last_index))

    def next_deadline_ms(self) -> int:
        """When the first one expires."""
        return min((item.deadline_ms for item in self.waiting), default=NEVER_MS)
