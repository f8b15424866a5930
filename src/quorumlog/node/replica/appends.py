"""Appends of clients: admitted or refused, staged with others, answered when they are committed.

With a state machine an append is answered once the machine has applied it, with its results.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quorumlog.model.block import Block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role, WriteLevel
from quorumlog.model.errors import check
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.deferred_refusals import DeferredRefusals
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.fetches import Fetches
from quorumlog.node.replica.hooked_proposals import HookedProposals
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.proposals import (
    Answer,
    Batch,
    PendingAppend,
    PendingAppends,
    Proposal,
    ProposalQueue,
    refusal,
)
from quorumlog.node.replica.tables import Tables
from quorumlog.node.replica.write_levels import WriteLevels
from quorumlog.raft.effects import AppendProposal, FailPending, RefuseProposal
from quorumlog.raft.events import Proposed
from quorumlog.sessions.entries import SessionEntry, SystemEntry, TimeMark, is_transactional
from quorumlog.sessions.producer_table import AppendedBlock

_UNKNOWN_OUTCOME = "leadership ended before a majority answered; the append may or may not be kept"
_ACK_TIMEOUT = "no majority answered in {} ms; the append may still be committed"
_NO_TRANSACTIONS = "a group with a state machine takes no transactions"
_NOT_COMMITTED = "a producer's block is answered at replication or all, not at {}"
_FORGOTTEN = "executed as entries {} to {}; what the results were is not known any more"


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A block that a client has sent again, until its first answer can be given."""

    entry: SystemEntry
    appended: AppendedBlock
    answer: Answer
    deadline_ms: int


class Appends:
    """The part of a replica that takes appends of clients and answers them.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        tables: Tables,
        requests: PendingRequests,
        fetches: Fetches,
        space: DiskSpace,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._limits = context.limits
        self._machine = machine
        self._tables = tables
        self._pending_requests = requests
        self._fetches = fetches
        self._space = space
        hook = context.environment.append_hook
        propose: Callable[[Batch], None] = self._propose_batch
        if hook is not None:
            propose = HookedProposals(context, hook, self._register, self._refuse).propose
        self._proposals = ProposalQueue(context.limits, context.environment.defer, propose)
        self._batches: dict[int, Batch] = {}
        self._batch_numbers = itertools.count(1)
        self.pending = PendingAppends(context.config.max_wait_ack_time_ms)
        self._repeated: list[_Repeated] = []
        self._least_level = WriteLevel[context.config.min_write_level.upper()]
        self.levels = WriteLevels(context)
        self._deferred = DeferredRefusals()
        self._timer = context.timers.new(self.tick)
        self._lookups = 0
        """Appends that wait for a read of the log, or for a proof of leadership."""

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for an answer that may still come."""
        return not self._requests

    # -- in -----------------------------------------------------------------------------------

    def propose(
        self,
        block: Block,
        answer: Answer,
        entry: SystemEntry | None = None,
        level: WriteLevel = WriteLevel.REPLICATION,
    ) -> None:
        """Append a verified block; `answer` is called once, when it has reached its level.

        A block that starts with an `entry` of the system channel is appended once, however often
        the client sends it.
        """
        level = max(level, self._least_level)
        if level is not WriteLevel.REPLICATION:
            if level < WriteLevel.REPLICATION and entry is not None:
                text = _NOT_COMMITTED.format(level.word)
                self._refuse(answer, ResponseCode.UNEXPECTED_ARGUMENT, text)
                return
            answer = self.levels.answer_at(level, answer)
        refused = self._admission(len(block.data), entry)
        if refused is not None:
            self._refuse_or_defer(answer, len(block.data), *refused)
            return
        if entry is not None:
            if is_transactional(entry) and self._machine.machine is not None:
                self._refuse(answer, ResponseCode.UNEXPECTED_ARGUMENT, _NO_TRANSACTIONS)
                return
            if self._proposals.holds(entry):
                self._proposals.flush()  # what is queued of it counts
            result = self._tables.check(entry)
            if result.code is not ResponseCode.SUCCESS:
                self._refuse_confirmed(entry, answer)
                return
            if result.appended is not None:
                self._wait_for_first_answer(
                    _Repeated(entry, result.appended, answer, self._deadline_ms())
                )
                return
        self._proposals.add(Proposal(block, answer, self._environment.now_us(), entry))

    def _refuse_or_defer(
        self, answer: Answer, size_bytes: int, code: ResponseCode, text: str
    ) -> None:
        """Refuse an append; if the next leader is about to be known, wait until it is."""
        is_about_leader = code in (ResponseCode.LEADER_TRANSFERRING, ResponseCode.NOT_LEADER)
        core = self._context.core
        if not is_about_leader or not core.awaits_leader or self._is_full():
            self._refuse(answer, code, text)
            return
        due_ms = self._deferred.add(answer, size_bytes, code, text, self._environment.now_ms())
        self._timer.set_earlier(due_ms)

    def send_deferred_refusals(self) -> None:
        """Send the refusals that waited for a leader to be known, if one is known now."""
        if self._deferred and not self._context.core.awaits_leader:
            for answer, _, _ in self._deferred.take():
                self._refuse(answer, *self._who_leads())

    def _who_leads(self) -> tuple[ResponseCode, str]:
        core, group = self._context.core, self._context.config.group
        if core.role is Role.LEADER:
            text = "leadership was to be transferred, and was kept; send it again"
            return ResponseCode.LEADER_TRANSFERRING, text
        return ResponseCode.NOT_LEADER, f"not the leader of {group} any more"

    def _refuse_confirmed(self, entry: SystemEntry, answer: Answer) -> None:
        """Refuse a producer's block permanently only after this leader has confirmed that it still
        leads.

        A leader that was deposed and does not know it may lack what a newer one has appended since.
        """

        def read_index_confirmed(code: ResponseCode, text: str, index: int) -> None:
            self._lookups -= 1
            result = self._tables.check(entry)
            if code is not ResponseCode.SUCCESS:
                self._refuse(answer, code, text)
            elif result.code is not ResponseCode.SUCCESS:
                self._refuse(answer, result.code, result.text)
            else:
                text = "an earlier block of this producer came meanwhile; send this one again"
                self._refuse(answer, ResponseCode.OUT_OF_ORDER, text)

        self._lookups += 1
        self._pending_requests.read(read_index_confirmed)

    def _deadline_ms(self) -> int:
        return self._environment.now_ms() + self._context.config.max_wait_ack_time_ms

    def _wait_for_first_answer(self, repeated: "_Repeated") -> None:
        """Give a block that came again its first answer, once it is committed."""
        self._context.counters.blocks_repeated += 1
        self._repeated.append(repeated)
        self._timer.set_earlier(repeated.deadline_ms)
        self._answer_repeated_blocks()

    def _answer_repeated_blocks(self) -> None:
        """Answer repeated blocks that are committed (and applied) now."""
        waiting, applied = self._repeated, self._machine.applied_index
        self._repeated = [item for item in waiting if item.appended.last_index > applied]
        for item in waiting:
            appended = item.appended
            if appended.last_index <= applied:
                self._lookups += 1
                self._fetches.locate(
                    appended.index, appended.last_index, partial(self._answer_located, item)
                )

    def _answer_located(self, repeated: "_Repeated", positions: list[tuple[int, int]]) -> None:
        self._lookups -= 1
        core, machine, appended = self._context.core, self._machine, repeated.appended
        results: Sequence[bytes] | None = ()
        entry = repeated.entry
        if isinstance(entry, SessionEntry) and entry.keeps_results and machine.machine is not None:
            results = machine.results.find(entry.producer_id, appended.index)
        if results is None:
            text = _FORGOTTEN.format(appended.index + 1, appended.last_index)
            self._refuse(repeated.answer, ResponseCode.RESULTS_FORGOTTEN, text)
            return
        response = AppendResponse(
            leader_id=core.leader_id,
            term=self._term_of(appended),
            first_index=appended.index,
            last_index=appended.last_index,
            positions=positions,
        )
        repeated.answer(response, results)

    def _term_of(self, appended: AppendedBlock) -> int:
        """Return the term of a block, which all its entries share; -1: they were removed."""
        log = self._context.log
        inside = log.before_begin_index < appended.last_index <= log.end_index
        return self._context.core.term_at(appended.last_index) if inside else -1

    def _admission(
        self, size_bytes: int, entry: SystemEntry | None
    ) -> tuple[ResponseCode, str] | None:
        """Return why no append can be taken now, or None (spec 30 section 1, in its order)."""
        context = self._context
        if context.health_text:
            return ResponseCode.DISK_ERROR, f"replica is unhealthy: {context.health_text}"
        if context.core.role is not Role.LEADER:
            return ResponseCode.NOT_LEADER, f"not the leader of {self._context.config.group}"
        if context.core.is_transferring:
            return ResponseCode.LEADER_TRANSFERRING, "leadership is being transferred"
        if context.core.is_stopping and context.core.may_stop:
            return ResponseCode.LEADER_TRANSFERRING, "this node is stopping, and no other can lead"
        is_mark = isinstance(entry, TimeMark)  # without time marks nothing old could be removed
        if full := self._space.full_text(size_bytes, is_mark=is_mark):
            return ResponseCode.DISK_FULL, full
        if self._is_full():
            return (
                ResponseCode.LEADER_PENDING_FULL,
                f"{self._requests} appends ({self._size_bytes} bytes) wait for a majority; "
                "try again later",
            )
        if self._environment.disk.queued_bytes >= self._limits.disk_queue_bytes_max:
            return ResponseCode.LEADER_PENDING_FULL, "the disk has not caught up; try again later"
        return None

    @property
    def _requests(self) -> int:
        staged = len(self.pending) + len(self._proposals) + self.levels.held
        return staged + len(self._repeated) + len(self._deferred) + self._lookups

    @property
    def _size_bytes(self) -> int:
        waiting = self.pending.size_bytes + self._proposals.size_bytes + self._deferred.size_bytes
        return waiting + self.levels.held_bytes

    def _is_full(self) -> bool:
        """Whether as many appends wait as may wait."""
        limits = self._limits
        return (
            self._requests >= limits.pending_requests_max
            or self._size_bytes >= limits.pending_bytes_max
        )

    def _propose_batch(self, batch: Batch) -> None:
        number = next(self._batch_numbers)
        self._batches[number] = batch
        block = batch.block
        self._context.step(Proposed(number, block.count, len(block.data)))

    def _register(self, batch: Batch) -> Proposed:
        """Keep a batch until the core has decided; return its proposal."""
        number = next(self._batch_numbers)
        self._batches[number] = batch
        return Proposed(number, batch.block.count, len(batch.block.data))

    def stage(self, effect: AppendProposal) -> list[SystemEntry]:
        """Stamp and write a proposal's block, as the core decided; return its system entries."""
        context, batch = self._context, self._batches.pop(effect.proposal_id)
        plan, positions = context.log.append(batch.block, effect.term)
        leads = [member.entry for member in batch.members if member.entry is not None]
        self._tables.appended(batch.block, effect.first_index, has_system_entries=bool(leads))
        check(context.log.end_index == effect.last_index, "core and log agree on the end")
        self.pending.add(batch, effect.first_index, effect.term, positions)
        if self._timer.due_ms == NEVER_MS:  # else it is set for an append that came before
            self._set_timer()
        context.counters.append_requests += len(batch.members)
        context.histograms.observe_block(batch.block.count, len(batch.block.data))
        context.submit(effect.token, plan)
        if self.levels.unstaged:
            self.levels.staged(self.pending.newest(len(batch.members)))
        return leads

    # -- out ----------------------------------------------------------------------------------

    def applied(self, index: int, results_of: Callable[[int, int], list[bytes]]) -> None:
        """Answer the appends that lie at or below a committed and applied index.

        `results_of` returns the machine's results for a range of indexes.
        """
        now_us = self._environment.now_us()
        counters, latency = self._context.counters, self._context.histograms.append_seconds
        for pending in self.pending.pop_committed(index):
            proposal = pending.proposal
            count, size = proposal.block.count, len(proposal.block.data)
            counters.append_entries += count
            counters.append_bytes += size
            latency.observe((now_us - proposal.accepted_us) / 1_000_000)
            proposal.answer(
                AppendResponse(
                    leader_id=self._context.core.leader_id,
                    term=pending.term,
                    first_index=pending.first_index,
                    last_index=pending.last_index,
                    positions=pending.positions,
                ),
                results_of(pending.first_index + (proposal.entry is not None), pending.last_index),
            )
        if self._repeated:
            self._answer_repeated_blocks()

    def refused(self, effect: RefuseProposal) -> None:
        """Answer a proposal that the core refused as a whole."""
        text = f"refused by {self._context.config.group}: {effect.code.name}"
        for member in self._batches.pop(effect.proposal_id).members:
            self._refuse_or_defer(member.answer, len(member.block.data), effect.code, text)

    def fail(self, effect: FailPending) -> None:
        """Fail uncommitted appends: leadership ended, so this replica will not learn their outcome.

        Committed ones are answered once they are applied.
        """
        context = self._context
        # with a failed disk nothing is applied any more
        committed = -1 if context.health_text else context.core.committed_index
        for pending in self.pending.pop_beyond(committed):
            self._answer_failed(pending, effect.code, _UNKNOWN_OUTCOME)
        repeated = self._repeated
        self._repeated = [item for item in repeated if item.appended.last_index <= committed]
        for item in repeated:
            if item.appended.last_index > committed:
                self._refuse(item.answer, effect.code, _UNKNOWN_OUTCOME)
        self.levels.leadership_ended()

    def tick(self, now_ms: int) -> None:
        """Answer the appends that no majority acknowledged in time."""
        for pending in self.pending.pop_expired(now_ms):
            text = _ACK_TIMEOUT.format(self._context.config.max_wait_ack_time_ms)
            self._answer_failed(pending, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, text)
        for answer, code, text in self._deferred.take_due(now_ms):
            self._refuse(answer, code, text)
        expired = [item for item in self._repeated if item.deadline_ms <= now_ms]
        if expired:
            self._repeated = [item for item in self._repeated if item.deadline_ms > now_ms]
            for item in expired:
                text = _ACK_TIMEOUT.format(self._context.config.max_wait_ack_time_ms)
                self._refuse(item.answer, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, text)
        self._set_timer()

    def _set_timer(self) -> None:
        due_ms = min(self.pending.next_deadline_ms(), self._deferred.next_deadline_ms())
        self._timer.set(min([due_ms, *(item.deadline_ms for item in self._repeated)]))

    def _answer_failed(self, pending: PendingAppend, code: ResponseCode, text: str) -> None:
        self._refuse(pending.proposal.answer, code, text)

    def _refuse(self, answer: Answer, code: ResponseCode, text: str) -> None:
        context = self._context
        context.counters.count_refusal(code)
        answer(refusal(code, text, context.core.leader_id, context.core.term), ())
