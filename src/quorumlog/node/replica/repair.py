"""Finding damage before a reader does, and having peers make good what is damaged.

A damaged entry is asked for by its identity, so any peer that has it can help, leader or not: two
replicas with damage in different places heal one another (RELIABILITY 2.3).
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from quorumlog.log_events import log_event
from quorumlog.model.block import Buffer, parse_block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    CorruptionError,
    OutOfDescriptorsError,
    RequestError,
    StorageError,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.environment import Environment
from quorumlog.node.replica.fetches import gather
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import WritePlan

if TYPE_CHECKING:
    from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

REPAIR_RETRY_MS = 1_000
"""Pause before the next peer is asked for what the last one did not send."""
SCRUB_BYTES = 512 * 1024
"""Read and checked at a time; the rate decides how often."""
REPAIR = 1
"""Token of the writes that replace damaged entries."""


class Repairer:
    """Of one replica; called on its thread."""

    def __init__(self, replica: "Replica", environment: Environment, limits: Limits) -> None:
        self._replica = replica
        self._environment = environment
        self._limits = limits
        self._config = replica.config
        self._request: RepairRequest | None = None
        self._turn, self._failures = 1, 0
        self._alone = 0
        self._next_ask_ms = NEVER_MS if not replica.log.damaged else environment.now_ms()
        self._writing = False
        self._repaired = -1
        self._scrubbing = False
        self._next_scrub_ms = (
            environment.now_ms() if self._config.scrub_bytes_per_second else NEVER_MS
        )
        self._pass_started_ms = environment.now_ms()
        self._pass_end = -1
        self.scrub_index = -1
        self.scrub_passes = 0
        self.scrub_last_pass_ms = 0
        self.scrub_found = 0

    def tick(self, now_ms: int) -> None:
        """Ask for what is damaged, check what may be, when it is time."""
        if now_ms >= self._next_ask_ms and not self._writing:
            self._ask(now_ms)
        if now_ms >= self._next_scrub_ms and not self._scrubbing:
            self._scrub(now_ms)

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        scrub_ms = NEVER_MS if self._scrubbing else self._next_scrub_ms
        ask_ms = NEVER_MS if self._writing else self._next_ask_ms
        return min(scrub_ms, ask_ms)

    # -- finding ----------------------------------------------------------------------------

    def found(self, error: CorruptionError) -> None:
        """Set a damaged entry aside, and leave leading until it is repaired."""
        replica, index = self._replica, error.index
        if index is None or replica.log.damaged.range_at(index):
            return
        if self._is_still_damaged(index):
            self._set_aside(error, index)

    def _set_aside(self, error: CorruptionError, index: int) -> None:
        replica = self._replica
        if replica.health_text:
            return
        replica.counters.entries_damaged += 1
        log_event(logger, logging.ERROR, "damaged", group=self._config.group, text=str(error))
        try:
            plan = replica.log.quarantine(index, is_readable=error.is_readable)
        except OutOfDescriptorsError as busy:  # the scrub meets it again
            log_event(
                logger,
                logging.WARNING,
                "entry is set aside later",
                group=self._config.group,
                index=index,
                reason=str(busy),
            )
            return
        except StorageError as lost:
            replica.write_failed(lost)
            self._environment.broken(str(lost))
            return
        self._environment.disk.submit(self, None, plan)
        if replica.log.damaged:
            replica.update_eligibility()
            self._next_ask_ms = min(self._next_ask_ms, self._environment.now_ms())

    def _is_still_damaged(self, index: int) -> bool:
        """Whether it is so now: it was found on another thread, and the log may have changed."""
        log = self._replica.log
        if not log.before_begin_index < index <= log.end_index:
            return False
        try:
            log.verify(index, index, 1)
        except OutOfDescriptorsError:
            return False  # not read at all: the scrub meets it again
        except (StorageError, RequestError):
            return True
        return False

    def look_again_later(self) -> None:
        """Something cannot be read that may be mended in a moment: see to it that it is known."""
        self._next_ask_ms = min(self._next_ask_ms, self._environment.now_ms() + REPAIR_RETRY_MS)

    def look_at(self, index: int) -> None:
        """Something is wrong with an entry: if it is damaged, deal with it."""
        try:
            self._replica.log.read(index, index, 1)
        except CorruptionError as error:
            self.found(error)
        except (StorageError, RequestError) as error:
            log_event(
                logger,
                logging.WARNING,
                "cannot look at an entry",
                group=self._config.group,
                index=index,
                text=str(error),
            )

    # -- asking -----------------------------------------------------------------------------

    def _ask(self, now_ms: int) -> None:
        """Ask the next peer for the first damaged range."""
        replica = self._replica
        peers = [peer for peer in replica.core.membership.ids if peer != replica.core.self_id]
        self._next_ask_ms = NEVER_MS
        replica.update_eligibility()
        if not replica.log.damaged or not peers:
            return
        self._next_ask_ms = now_ms + REPAIR_RETRY_MS
        first, last = replica.log.damaged.ranges[0]
        if self._request is not None:  # it was not answered
            self._turn += 1
        self._alone = self._alone + 1 if replica.core.leader_id is None else 0
        self._request = RepairRequest(
            group=self._config.group,
            local_id=replica.core.self_id,
            remote_id=peers[self._turn % len(peers)],
            term=replica.core.term,
            request_id=self._environment.nonce(),
            first_index=first,
            last_index=last,
            bytes_max=self._limits.push_bytes_max,
        )
        self._environment.network.send(self._request.remote_id, self._request)

    def answered(self, message: RepairResponse, attachment: memoryview) -> None:
        """Put a peer's entries in the place of damaged ones, if they are those."""
        asked = self._request
        if asked is None or message.request_id != asked.request_id or self._writing:
            return
        self._request = None
        if message.code is ResponseCode.INDEX_OUT_OF_RANGE:
            self._not_there(asked.first_index, message, attachment)
        if message.code is not ResponseCode.SUCCESS or message.first_index != asked.first_index:
            self._ask_another()
            return
        if self._replica.log.damaged.range_at(asked.first_index) is None:
            return  # removed, replaced or found whole since it was asked for
        behind = asked.first_index + message.count
        try:
            block = parse_block(
                attachment, count=message.count, entry_bytes_max=self._limits.entry_bytes_max
            )
            plan = self._replica.log.repair(block)
        except (RequestError, StorageError) as error:
            if isinstance(error, CorruptionError) and error.index == behind:
                self._set_aside(error, behind)  # by itself it may look whole: only these tell
                if self._replica.log.damaged.range_at(behind):
                    self._next_ask_ms = self._environment.now_ms()
                return
            log_event(
                logger,
                logging.ERROR,
                "repair refused",
                group=self._config.group,
                peer=message.local_id,
                text=str(error),
            )
            self._look_around(asked.first_index)
            self._turn += 1
            return
        self._writing = True
        self._failures = 0
        self._repaired = behind - 1
        self._alone = 0
        self._replica.counters.entries_repaired += block.count
        self._environment.disk.submit(self, REPAIR, plan)

    def _ask_another(self) -> None:
        """A peer does not have what is asked for: the others are asked at once, all again later."""
        self._turn += 1
        self._failures += 1
        if self._failures % max(1, len(self._replica.core.membership.ids) - 1):
            self._next_ask_ms = self._environment.now_ms()

    def _look_around(self, index: int) -> None:
        """No entry fits: the one before it may be damaged, or its own index record and not it."""
        if index - 1 > self._replica.log.before_begin_index:
            self.look_at(index - 1)
        self._look_again(index)

    def _look_again(self, index: int) -> None:
        """What was set aside may be whole, now that the entry before it is known, or its place."""
        with suppress(StorageError):  # nothing has changed then
            self._environment.disk.submit(self, None, self._replica.log.quarantine(index))

    def _not_there(self, index: int, message: RepairResponse, attachment: memoryview) -> None:
        """What the leader has removed nobody will give: go on behind it.

        Without a leader the same goes for what a peer has removed, once all have been asked: this
        replica may be the only one that can lead, its log being the longest, and does not while it
        is damaged. Producer sessions that began in it are in the peer's table, which is attached.
        """
        replica = self._replica
        if message.begin_index <= index:
            return
        leader_id = replica.core.leader_id
        others = len(replica.core.membership.ids) - 1
        if message.local_id != leader_id and (leader_id is not None or self._alone <= others):
            return
        if replica.applier.machine is not None and replica.applier.applied_index < index:
            replica.snapshot_transfer.want(message.local_id)
        elif attachment:  # else what producers stored in it is not known there
            replica.sessions.learned(attachment)
            if (
                replica.applier.machine is not None
                and replica.applier.snapshotter.newest_index < index
            ):
                # first what the machine made of it; then the next peer that is asked has it removed
                replica.applier.snapshotter.ask(lambda code, text, saved_index: None)
            replica.maintenance.remove_until(message.begin_index - 1)

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`: a quarantine was noted, or damaged entries are whole again."""
        log = self._replica.log
        if token == REPAIR:
            self._writing = False
            # what the chain CRC tells of them could not be seen before
            for index in (self._repaired + 1, self._repaired + 2):
                if log.damaged.range_at(index):
                    self._look_again(index)
                elif index <= log.end_index:
                    self.look_at(index)
            if log.damaged:
                self._next_ask_ms = self._environment.now_ms()
            else:
                log_event(logger, logging.INFO, "repaired", group=self._config.group)
        self._replica.update_eligibility()

    def writes_completed(self) -> None:
        """See `WriteOwner`: ask for the next range at once."""
        self.tick(self._environment.now_ms())

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: the replica is told as well."""

    # -- helping ----------------------------------------------------------------------------

    def serve(self, request: RepairRequest) -> None:
        """Send a peer entries that are damaged there, from memory or beside the loop."""
        log = self._replica.log
        # what is damaged here as well is another peer's to give; what lies before it is not
        aside = log.damaged.next_from(request.first_index + 1)
        last = min(request.last_index, log.end_index)
        last = last if aside is None else min(last, aside - 1)
        bytes_max = min(request.bytes_max, self._limits.push_bytes_max)
        met: list[CorruptionError] = []

        def read() -> list[EntryRun]:
            try:
                return gather(log, request.first_index, last, bytes_max)
            except CorruptionError as error:
                if error.index is None or error.index <= request.first_index:
                    raise
                met.append(error)
                return gather(log, request.first_index, error.index - 1, bytes_max)

        def done(runs: list[EntryRun]) -> None:
            for error in met:
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
            group=request.group,
            local_id=request.remote_id,
            remote_id=request.local_id,
            term=self._replica.core.term,
            request_id=request.request_id,
            code=code,
            first_index=request.first_index,
            count=sum(run.count for run in runs),
            begin_index=self._replica.log.before_begin_index + 1,
        )
        parts: list[Buffer] = [run.data for run in runs]
        if request.first_index < response.begin_index and not self._replica.sessions.is_lost:
            parts = [self._replica.sessions.encode()]
        self._environment.network.send(request.local_id, response, parts, bulk=True)

    # -- scrub ------------------------------------------------------------------------------

    def _scrub(self, now_ms: int) -> None:
        """Check the next run of the log; a pass ends where the log was committed to."""
        replica = self._replica
        if self.scrub_index >= self._pass_end and not self._begin_pass(now_ms):
            return
        first = max(self.scrub_index, replica.log.before_begin_index) + 1
        last = self._pass_end
        if first > last:
            self._end_pass(now_ms)
            return
        self._scrubbing = True
        pause_ms = max(1, SCRUB_BYTES * 1_000 // self._config.scrub_bytes_per_second)
        log = replica.log

        def check() -> int:
            return log.verify(first, last, SCRUB_BYTES)

        def done(checked: int) -> None:
            self._scrubbing = False
            self.scrub_index = checked
            self._next_scrub_ms = self._environment.now_ms() + pause_ms
            if checked >= last:
                self._end_pass(self._environment.now_ms())
            replica.wake()

        def failed(error: Exception) -> None:
            self._scrubbing = False
            self._next_scrub_ms = self._environment.now_ms() + pause_ms
            if isinstance(error, CorruptionError) and error.index is not None:
                self.scrub_found += 1
                self.scrub_index = error.index
                self.found(error)
            elif not isinstance(error, StorageError | RequestError):
                text = "scrub failed"
                log_event(logger, logging.ERROR, text, exc_info=error, group=self._config.group)
            replica.wake()

        self._environment.executor.run(check, done, failed)

    def _begin_pass(self, now_ms: int) -> bool:
        """Begin again at the first entry; False while there is none."""
        # what a majority has may not be on this disk yet
        core = self._replica.core
        committed = min(core.committed_index, core.durable_index)
        self._pass_started_ms = now_ms
        if committed <= self._replica.log.before_begin_index:
            self._next_scrub_ms = now_ms + REPAIR_RETRY_MS
            return False
        self.scrub_index, self._pass_end = self._replica.log.before_begin_index, committed
        return True

    def _end_pass(self, now_ms: int) -> None:
        self.scrub_passes += 1
        self.scrub_last_pass_ms = self._environment.wall_ms()
        self.scrub_index = self._pass_end = -1
        interval_ms = int(self._config.scrub_interval_hours * 3_600_000)
        self._next_scrub_ms = max(now_ms + 1, self._pass_started_ms + interval_ms)
