"""Damage in the log: quarantines damaged entries and has peers repair them.

A damaged entry is requested by its identity, so any peer that has it can help, leader or not: two
replicas with damage in different places repair one another (RELIABILITY 2.3).
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from quorumlog.log_events import log_event
from quorumlog.model.block import Buffer, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    CorruptionError,
    OutOfDescriptorsError,
    RequestError,
    StorageError,
)
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.fetches import gather
from quorumlog.node.replica.scrubber import Scrubber
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import WritePlan

logger = logging.getLogger(__name__)

REPAIR_RETRY_MS = 1_000
"""Pause before the next peer is asked for entries that the last one did not send."""
REPAIR = 1
"""Token of the writes that replace damaged entries."""

SkipRemoved: TypeAlias = Callable[[int, str, int, bytes | memoryview], None]
"""Skips a damaged entry that a peer has removed; see `SnapshotReceiver.skip_removed`."""


class Repairer:
    """The part of a replica that quarantines damaged entries and has peers repair them.

    `agreed` says after which entry each derived table equalled a majority's last. All methods run
    on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        tables: Tables,
        skip_removed: SkipRemoved,
        agreed: Callable[[], list[tuple[str, int]]],
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._limits = context.limits
        self._tables = tables
        self._skip_removed = skip_removed
        self._agreed = agreed
        self.scrubber = Scrubber(context, self.found)
        self._request: RepairRequest | None = None
        self._peer_number, self._failures = 1, 0
        self._rounds_without_leader = 0
        self._timer = context.timers.new(self._ask_due, is_for_writes=True)
        if context.log.damaged:
            self._timer.set(context.environment.now_ms())
        self._writing = False
        self._repaired = -1

    def _ask_due(self, now_ms: int) -> None:
        """Ask for damaged entries; once a repair that is being written is done, it says so."""
        if not self._writing:
            self._ask(now_ms)

    # -- finding ----------------------------------------------------------------------------

    def found(self, error: CorruptionError) -> None:
        """Quarantine a damaged entry, and give up leadership until it is repaired."""
        context, index = self._context, error.index
        if index is None or context.log.damaged.range_at(index):
            return
        if self._is_still_damaged(index):
            self._quarantine(error, index)

    def _quarantine(self, error: CorruptionError, index: int) -> None:
        context = self._context
        if context.health_text:
            return
        context.counters.entries_damaged += 1
        group = self._context.config.group
        log_event(logger, logging.ERROR, "damaged", group=group, text=str(error))
        try:
            plan = context.log.quarantine(index, is_readable=error.is_readable)
        except OutOfDescriptorsError as busy:  # the scrub will find it again
            log_event(
                logger,
                logging.WARNING,
                "entry is quarantined later",
                group=self._context.config.group,
                index=index,
                reason=str(busy),
            )
            return
        except StorageError as lost:
            context.fail(lost)
            return
        self._environment.disk.submit(self, None, plan)
        if context.log.damaged:
            context.update_eligibility()
            self._timer.set_earlier(self._environment.now_ms())

    def _is_still_damaged(self, index: int) -> bool:
        """Whether the entry is damaged now: the log may have changed since it was read."""
        log = self._context.log
        if not log.before_begin_index < index <= log.end_index:
            return False
        try:
            log.verify(index, index, 1)
        except OutOfDescriptorsError:
            return False  # it could not be read at all: the scrub will find it again
        except (StorageError, RequestError):
            return True
        return False

    def check_later(self) -> None:
        """Check damage again soon: something could not be read that may be readable in a moment."""
        self._timer.set_earlier(self._environment.now_ms() + REPAIR_RETRY_MS)

    def check_entry(self, index: int) -> None:
        """Read an entry that is under suspicion; quarantine it if it is damaged."""
        try:
            self._context.log.read(index, index, 1)
        except CorruptionError as error:
            self.found(error)
        except (StorageError, RequestError) as error:
            log_event(
                logger,
                logging.WARNING,
                "cannot check an entry",
                group=self._context.config.group,
                index=index,
                text=str(error),
            )

    # -- asking -----------------------------------------------------------------------------

    def _ask(self, now_ms: int) -> None:
        """Ask the next peer for the first damaged range."""
        context = self._context
        peers = [peer for peer in context.core.membership.ids if peer != context.core.self_id]
        self._timer.clear()
        context.update_eligibility()
        if not context.log.damaged or not peers:
            return
        self._timer.set(now_ms + REPAIR_RETRY_MS)
        first, last = context.log.damaged.ranges[0]
        if self._request is not None:  # the last request was not answered
            self._peer_number += 1
        self._rounds_without_leader = (
            self._rounds_without_leader + 1 if context.core.leader_id is None else 0
        )
        self._request = RepairRequest(
            **context.envelope_to(peers[self._peer_number % len(peers)]),
            request_id=self._environment.nonce(),
            first_index=first,
            last_index=last,
            bytes_max=self._limits.push_bytes_max,
        )
        self._environment.network.send(self._request.remote_id, self._request)

    def answered(self, message: RepairResponse, attachment: memoryview) -> None:
        """Replace damaged entries with a peer's, if they are the same entries."""
        request = self._request
        if request is None or message.request_id != request.request_id or self._writing:
            return
        self._request = None
        if message.code is ResponseCode.INDEX_OUT_OF_RANGE:
            self._skip_if_removed(request.first_index, message, attachment)
        if message.code is not ResponseCode.SUCCESS or message.first_index != request.first_index:
            self._ask_another()
            return
        if self._context.log.damaged.range_at(request.first_index) is None:
            return  # the entry was removed, replaced or found whole since the request
        following = request.first_index + message.count
        try:
            block = parse_block(
                attachment, count=message.count, entry_bytes_max=self._limits.entry_bytes_max
            )
            plan = self._context.log.repair(block)
        except (RequestError, StorageError) as error:
            if isinstance(error, CorruptionError) and error.index == following:
                # it may seem whole by itself: only these entries show the damage
                self._quarantine(error, following)
                if self._context.log.damaged.range_at(following):
                    self._timer.set(self._environment.now_ms())
                return
            log_event(
                logger,
                logging.ERROR,
                "repair refused",
                group=self._context.config.group,
                peer=message.local_id,
                text=str(error),
            )
            self._check_neighbours(request.first_index)
            self._peer_number += 1
            return
        self._writing = True
        self._failures = 0
        self._repaired = following - 1
        self._rounds_without_leader = 0
        self._context.counters.entries_repaired += block.count
        self._environment.disk.submit(self, REPAIR, plan)

    def _ask_another(self) -> None:
        """A peer lacks the entries: ask the others at once, and all of them again later."""
        self._peer_number += 1
        self._failures += 1
        if self._failures % max(1, len(self._context.core.membership.ids) - 1):
            self._timer.set(self._environment.now_ms())

    def _check_neighbours(self, index: int) -> None:
        """Check the entry before, as none was accepted: it, or an index record, may be damaged."""
        if index - 1 > self._context.log.before_begin_index:
            self.check_entry(index - 1)
        self._recheck(index)

    def _recheck(self, index: int) -> None:
        """Check a quarantined entry again: it may be whole, now that its neighbours are known."""
        with suppress(StorageError):  # then nothing has changed
            self._environment.disk.submit(self, None, self._context.log.quarantine(index))

    def _skip_if_removed(self, index: int, message: RepairResponse, attachment: memoryview) -> None:
        """Go on after an entry that the leader has removed: no peer will give it any more.

        Without a leader the same applies to an entry that any peer has removed, once all have been
        asked: this replica may have the longest log and be the only one that can lead, but it may
        not lead while it is damaged. What the entry says is in the peer's tables, which are
        attached.
        """
        context = self._context
        if message.begin_index <= index:
            return
        leader_id = context.core.leader_id
        others = len(context.core.membership.ids) - 1
        if message.local_id != leader_id and (
            leader_id is not None or self._rounds_without_leader <= others
        ):
            return
        self._skip_removed(index, message.local_id, message.begin_index, attachment)

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`: a quarantine was recorded, or damaged entries are whole again."""
        log = self._context.log
        if token == REPAIR:
            self._writing = False
            # with the repaired entries their chain CRCs can be checked, too
            for index in (self._repaired + 1, self._repaired + 2):
                if log.damaged.range_at(index):
                    self._recheck(index)
                elif index <= log.end_index:
                    self.check_entry(index)
            if log.damaged:
                self._timer.set(self._environment.now_ms())
            else:
                log_event(logger, logging.INFO, "repaired", group=self._context.config.group)
        self._context.update_eligibility()

    def writes_completed(self) -> None:
        """See `WriteOwner`: ask for the next range at once."""
        now_ms = self._environment.now_ms()
        if self._timer.due_ms <= now_ms and not self._context.health_text:
            self._ask_due(now_ms)

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: the failure is reported to the replica as well."""

    # -- helping ----------------------------------------------------------------------------

    def serve(self, request: RepairRequest) -> None:
        """Send a peer entries that are damaged there, from memory or on a thread."""
        log = self._context.log
        # entries that are damaged here too must come from another peer; those before can be sent
        quarantined = log.damaged.next_from(request.first_index + 1)
        last = min(request.last_index, log.end_index)
        last = last if quarantined is None else min(last, quarantined - 1)
        bytes_max = min(request.bytes_max, self._limits.push_bytes_max)
        damage_found: list[CorruptionError] = []

        def read() -> list[EntryRun]:
            try:
                return gather(log, request.first_index, last, bytes_max)
            except CorruptionError as error:
                if error.index is None or error.index <= request.first_index:
                    raise
                damage_found.append(error)
                return gather(log, request.first_index, error.index - 1, bytes_max)

        def done(runs: list[EntryRun]) -> None:
            for error in damage_found:
                self.found(error)
            self._send(
                request, ResponseCode.SUCCESS if runs else ResponseCode.INDEX_OUT_OF_RANGE, runs
            )

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self.found(error)
            self._send(request, ResponseCode.DISK_ERROR, [])

        if not log.before_begin_index < request.first_index <= last or bytes_max <= 0:
            self._send(request, ResponseCode.INDEX_OUT_OF_RANGE, [])
        elif log.is_in_memory(request.first_index):
            done(read())
        else:
            self._environment.executor.run(read, done, failed)

    def _send(self, request: RepairRequest, code: ResponseCode, runs: list[EntryRun]) -> None:
        response = RepairResponse(
            **self._context.envelope_to(request.local_id),
            request_id=request.request_id,
            code=code,
            first_index=request.first_index,
            count=sum(run.count for run in runs),
            begin_index=self._context.log.before_begin_index + 1,
        )
        parts: list[Buffer] = [run.data for run in runs]
        if request.first_index < response.begin_index and self._tables.is_trusted:
            parts = [self._tables.encode()]
            response = msgspec.structs.replace(response, agreed=self._agreed())
        self._environment.network.send(request.local_id, response, parts, bulk=True)
