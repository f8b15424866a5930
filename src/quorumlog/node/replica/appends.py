"""Appends of clients: admitted or refused, staged with others, answered when they are committed.

With a state machine an append is answered once the machine has applied it, with its results.
"""

import itertools
import logging
from collections.abc import Callable
from typing import TypeGuard

from quorumlog.log_events import log_event
from quorumlog.model.block import Block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role, WriteLevel
from quorumlog.model.errors import check
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.wording import counted
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
    Checked,
    PendingAppend,
    PendingAppends,
    Proposal,
    ProposalQueue,
    refusal,
)
from quorumlog.node.replica.repeated_blocks import RepeatedBlocks
from quorumlog.node.replica.stamped_proposals import StampedProposals
from quorumlog.node.replica.tables import Tables
from quorumlog.node.replica.write_levels import WriteLevels
from quorumlog.raft.effects import AppendProposal, FailPending, RefuseProposal
from quorumlog.raft.events import Proposed
from quorumlog.sessions.entries import (
    LEADERS_ENTRIES,
    SystemEntry,
    is_transactional,
)
from quorumlog.topics.produced_batch import ProducedBatch

logger = logging.getLogger(__name__)

_UNKNOWN_OUTCOME = "leadership ended before a majority answered; the append may or may not be kept"
_ACK_TIMEOUT = "no majority answered in {} ms; the append may still be committed"
_NOT_APPLIED = "committed, but the state machine did not execute it within {} ms; ask again"
_NEVER_APPLIED = "committed, but not executed here: {}"
_NO_TRANSACTIONS = "a group with a state machine takes no transactions"
_NOT_COMMITTED = "a producer's block is answered at replication or all, not at {}"
_PARTITIONS_ONLY = "group {} holds partitions of topics; produce to them by the Kafka protocol"
_NO_PARTITIONS = "group {} holds no partitions of topics"


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
        self._holds_partitions = context.config.kind == "partitions"
        propose: Callable[[Batch], None] = self._propose_batch
        if self._holds_partitions:
            propose = StampedProposals(context, tables, self._register, self._refuse).propose
        elif hook is not None:
            propose = HookedProposals(context, hook, self._register, self._refuse).propose
        self._proposals = ProposalQueue(context.limits, context.environment.defer, propose)
        self._batches: dict[int, Batch] = {}
        self._batch_numbers = itertools.count(1)
        self.pending = PendingAppends(context.config.max_wait_ack_time_ms)
        self._repeated = RepeatedBlocks(context, machine, fetches, self._refuse)
        self._least_level = WriteLevel[context.config.min_write_level.upper()]
        self.levels = WriteLevels(context)
        self._deferred = DeferredRefusals()
        self._timer = context.timers.new(self.tick)
        self._lookups = 0
        """Appends that wait for a proof of leadership."""

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for an answer that may still come."""
        return not self._waiting()[0]

    # -- in -----------------------------------------------------------------------------------

    def propose(
        self,
        block: Block,
        answer: Answer,
        entry: Checked | None = None,
        level: WriteLevel = WriteLevel.REPLICATION,
    ) -> None:
        """Append a verified block; `answer` is called once, when it has reached its level.

        A block that starts with an `entry` of the system channel is appended once, however often
        the client sends it; so is one that is the record batch of an idempotent producer, which
        then says where it is.
        """
        is_batch = isinstance(entry, ProducedBatch)
        if is_batch is not self._holds_partitions and self._is_misplaced(entry):
            text = _PARTITIONS_ONLY if self._holds_partitions else _NO_PARTITIONS
            text = text.format(self._context.config.group)
            self._refuse(answer, ResponseCode.UNEXPECTED_ARGUMENT, text)
            return
        level = max(level, self._least_level)
        if level is not WriteLevel.REPLICATION:
            if level < WriteLevel.REPLICATION and entry is not None and not is_batch:
                text = _NOT_COMMITTED.format(level.word)
                self._refuse(answer, ResponseCode.UNEXPECTED_ARGUMENT, text)
                return
            answer = self.levels.answer_at(level, answer)
        refused = self._admission(block)
        if refused is not None:
            self._refuse_or_defer(answer, len(block.data), *refused)
            return
        if entry is not None:
            has_machine = self._machine.machine is not None
            if has_machine and _is_system(entry) and is_transactional(entry):
                self._refuse(answer, ResponseCode.UNEXPECTED_ARGUMENT, _NO_TRANSACTIONS)
                return
            if self._proposals.holds(entry):
                self._proposals.flush()  # what is queued of it counts
            result = self._tables.check(entry)
            if result.code is not ResponseCode.SUCCESS:
                self._refuse_confirmed(entry, answer)
                return
            if result.appended is not None:
                deadline_ms = self._environment.now_ms() + self._context.config.max_wait_ack_time_ms
                self._timer.set_earlier(deadline_ms)
                self._repeated.wait(entry, result.appended, answer, deadline_ms)
                return
        self._proposals.add(Proposal(block, answer, self._environment.now_us(), entry))

    def settle(self, channel: int, producer_id: int) -> None:
        """Give queued batches and markers of a producer their places, so that tables count them."""
        if self._proposals.holds_producer((channel, producer_id)):
            self._proposals.flush()

    def _is_misplaced(self, entry: Checked | None) -> bool:
        """Whether a group takes no such append: a batch without partitions, or another with."""
        return not (self._holds_partitions and isinstance(entry, LEADERS_ENTRIES))

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

    def _refuse_confirmed(self, entry: Checked, answer: Answer) -> None:
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

    def _admission(self, block: Block) -> tuple[ResponseCode, str] | None:
        """Return why no append can be taken now, or None (spec 30 section 1, in its order)."""
        context = self._context
        if context.health_text:
            return ResponseCode.DISK_ERROR, f"replica is unhealthy: {context.health_text}"
        if context.core.role is not Role.LEADER:
            text = f"not the leader of {context.config.group}"
            unknown = "" if context.core.leader_id else "; no leader is known here"
            return ResponseCode.NOT_LEADER, text + unknown
        if context.core.is_transferring:
            return ResponseCode.LEADER_TRANSFERRING, "leadership is being transferred"
        if context.core.is_stopping and context.core.may_stop:
            return ResponseCode.LEADER_TRANSFERRING, "this node is stopping, and no other can lead"
        full_text = self._full_text(len(block.data))
        if full_text:
            self._proposals.flush()  # what was taken in this turn has its place now
            if not self._space.takes_releasing(block, self._machine.releases):
                self._space.report()
                return ResponseCode.DISK_FULL, full_text
        if self._is_full():
            count, waiting_bytes = self._waiting()
            return (
                ResponseCode.LEADER_PENDING_FULL,
                f"{counted(count, 'append waits', 'appends wait')} for a majority "
                f"({waiting_bytes} bytes); "
                "try again later",
            )
        if self._environment.disk.queued_bytes >= self._limits.disk_queue_bytes_max:
            return ResponseCode.LEADER_PENDING_FULL, "the disk has not caught up; try again later"
        return None

    def _full_text(self, size_bytes: int) -> str:
        """Say which full disks keep an append from being taken, or from being committed."""
        core = self._context.core
        own = self._space.full_text(size_bytes)
        return f"{core.self_id}: {own}" if own else core.no_room_text

    @property
    def has_room(self) -> bool:
        """Whether an append is not refused for those that wait here, or for the disk."""
        queued = self._environment.disk.queued_bytes
        return queued < self._limits.disk_queue_bytes_max and not self._is_full()

    def _waiting(self) -> tuple[int, int]:
        """Return how many appends wait here, and their bytes."""
        # asked twice for each append: no calls
        pending, queued, repeated = self.pending, self._proposals.queued, self._repeated
        levels, deferred = self.levels, self._deferred
        count = len(pending.waiting) + queued.count + levels.held + self._lookups
        count += len(repeated.waiting) + repeated.lookups + len(deferred.waiting)
        size_bytes = pending.size_bytes + queued.size_bytes + deferred.size_bytes
        return count, size_bytes + levels.held_bytes

    def _is_full(self) -> bool:
        """Whether as many appends wait as may wait."""
        limits, (count, size_bytes) = self._limits, self._waiting()
        return count >= limits.pending_requests_max or size_bytes >= limits.pending_bytes_max

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
        entries = [member.entry for member in batch.members if member.entry is not None]
        leads = list(filter(_is_system, entries)) if entries else []
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
        leader_id = self._context.core.leader_id
        for pending in self.pending.pop_committed(index):
            proposal = pending.proposal
            count, size = len(proposal.block.sizes), len(proposal.block.data)
            counters.append_entries += count
            counters.append_bytes += size
            latency.observe((now_us - proposal.accepted_us) / 1_000_000)
            proposal.answer(
                AppendResponse(
                    leader_id=leader_id,
                    term=pending.term,
                    first_index=pending.first_index,
                    last_index=pending.last_index,
                    positions=pending.positions,
                ),
                results_of(pending.first_index + (proposal.entry is not None), pending.last_index),
            )
        if self._repeated.waiting:
            self._repeated.answer_committed()

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
        self._repeated.fail_beyond(committed, effect.code, _UNKNOWN_OUTCOME)
        self.levels.leadership_ended()

    def tick(self, now_ms: int) -> None:
        """Answer the appends that were not committed, or not executed, in time."""
        for pending in self.pending.pop_expired(now_ms):
            self._answer_failed(pending, *self._why_late(pending.last_index))
        for answer, code, text in self._deferred.take_due(now_ms):
            self._refuse(answer, code, text)
        self._repeated.expire(now_ms, self._why_late)
        self._set_timer()

    def _why_late(self, index: int) -> tuple[ResponseCode, str]:
        """Return why an append that ends at an index has no answer in time."""
        wait_ms = self._context.config.max_wait_ack_time_ms
        if index > self._context.core.committed_index:
            return ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, _ACK_TIMEOUT.format(wait_ms)
        if self._machine.failed_text:
            return ResponseCode.TIMEOUT, _NEVER_APPLIED.format(self._machine.failure_text)
        return ResponseCode.TIMEOUT, _NOT_APPLIED.format(wait_ms)

    def _set_timer(self) -> None:
        due_ms = min(self.pending.next_deadline_ms(), self._deferred.next_deadline_ms())
        self._timer.set(min(due_ms, self._repeated.next_deadline_ms()))

    def _answer_failed(self, pending: PendingAppend, code: ResponseCode, text: str) -> None:
        self._refuse(pending.proposal.answer, code, text)

    def _refuse(self, answer: Answer, code: ResponseCode, text: str) -> None:
        context = self._context
        context.counters.count_refusal(code)
        group = context.config.group
        log_event(logger, logging.DEBUG, "append refused", group=group, code=code.name, text=text)
        answer(refusal(code, text, context.core.leader_id, context.core.term), ())


def _is_system(entry: Checked | None) -> TypeGuard[SystemEntry]:
    return entry is not None and not isinstance(entry, ProducedBatch)
