"""How a replica starts whose leader has removed the entries that it needs (spec 40 section 5).

A plain log has nothing to install: its replica simply starts after the removed entries. With a
state machine the leader offers its newest snapshot. The follower fetches it in chunks, at its own
pace, and resumes where it was when a connection or process ended; the leader bounds the rate. Only
when all of it is here, checked and durable does the core reset the log.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import (
    InstallSnapshotRequest,
    OfferQuery,
    OfferResponse,
    SnapshotChunk,
    SnapshotChunkRequest,
)
from quorumlog.node.replica.applier import Applier
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.retention import Retention
from quorumlog.node.replica.served_snapshots import SILENT_OFFERS
from quorumlog.node.replica.snapshot_offers import fingerprint_of, meta_of
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.tables import Tables
from quorumlog.raft.effects import ConfirmOffer, FetchSnapshot, ResetLog
from quorumlog.raft.events import OfferConfirmed, Received, SnapshotFetched
from quorumlog.storage.log.snapshots import Installing, SnapshotMeta, Snapshots

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PendingQuery:
    """The query whether the leader made an offer; `table` came with the offer."""

    number: int
    offer: InstallSnapshotRequest
    table: bytes
    since_ms: int

    def is_about(self, offer: InstallSnapshotRequest) -> bool:
        """Whether an offer that came later is the same one."""
        earlier = self.offer
        return (earlier.local_id, earlier.term, earlier.last_included_index) == (
            offer.local_id,
            offer.term,
            offer.last_included_index,
        )


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A snapshot that is fetched: the offer, the tables that came with it, and since when."""

    offer: InstallSnapshotRequest
    table: bytes
    since_us: int


class SnapshotReceiver:
    """The part of a replica that takes offers and fetches snapshots.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        snapshots: Snapshots | None,
        tables: Tables,
        requests: SnapshotRequests,
        applier: Applier,
        retention: Retention,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._snapshots = snapshots
        self._tables = tables
        self._requests = requests
        self._applier = applier
        self._machine = applier.state
        self._retention = retention
        self._offer: InstallSnapshotRequest | None = None
        self._started: _Fetch | None = None
        self._partial: Installing | None = None
        self._request_id = -1
        self._requested_ms = self._last_offer_ms = 0
        self._is_busy = False
        self._fetched: SnapshotMeta | None = None
        self._query: _PendingQuery | None = None
        self._timer = context.timers.new(self.tick)
        self.state = "ready"

    def offer_received(self, offer: InstallSnapshotRequest, attachment: memoryview) -> None:
        """A peer offers a place to start; an offer without a readable membership is dropped.

        The peer's derived tables are attached; they count once the offer is taken.
        """
        try:
            if offer.config is not None:
                Membership.decode(offer.config[1])
        except UnexpectedArgumentError as error:
            self._context.raise_alarm(f"{offer.local_id} offers a log that cannot be read: {error}")
            return
        if self._snapshots is not None and not offer.sha256:
            self._context.raise_alarm(
                f"{offer.local_id} offers a plain log, but this replica of the group has a state "
                "machine: give all members the same stateMachine"
            )
            return
        table = bytes(attachment)
        if offer.from_leader:
            self._context.step(Received(offer), table=table)
        requests = self._requests
        least = max(requests.least_index, self._machine.applied_index + 1)
        if requests.are_answered_by(offer) and offer.last_included_index >= least:
            requests.fulfilled()
            self.fetch(FetchSnapshot(offer), table)

    def confirm(self, effect: ConfirmOffer, table: bytes) -> None:
        """Ask the leader itself whether it made this offer."""
        offer, before = effect.offer, self._query
        is_later = before is not None and before.is_about(offer)
        since_ms = (
            before.since_ms if before is not None and is_later else self._environment.now_ms()
        )
        self._query = _PendingQuery(self._environment.nonce(), offer, table, since_ms)
        message = OfferQuery(
            **self._context.envelope_to(offer.local_id),
            request_id=self._query.number,
            fingerprint=fingerprint_of(offer, table),
        )
        self._environment.network.send(offer.local_id, message)
        self._set_timer()

    def response_received(self, answer: OfferResponse) -> None:
        """The leader says whether it made the offer."""
        query = self._query
        if query is None or (answer.local_id, answer.request_id) != (
            query.offer.local_id,
            query.number,
        ):
            return
        self._query = None
        if answer.code is ResponseCode.SUCCESS:
            self._context.step(OfferConfirmed(query.offer), table=query.table)
        else:
            self._not_confirmed(query, "says that it did not")

    def _not_confirmed(self, query: _PendingQuery, what: str) -> None:
        index = query.offer.last_included_index
        self._context.raise_alarm(
            f"a message in the name of {query.offer.local_id} of term {query.offer.term} offers a "
            f"log that begins after index {index}, but {query.offer.local_id} {what}; nothing was "
            "removed"
        )

    def fetch(self, effect: FetchSnapshot, table: bytes = b"") -> None:
        """Start to fetch what is offered, or continue; `table`: the tables that came with it.

        A write or check that is running is finished before another offer takes its place.
        """
        offer, snapshots = effect.offer, self._snapshots
        if snapshots is None:
            self._context.raise_alarm(
                f"{offer.local_id} offers the snapshot of a state machine, but this replica of "
                "the group has none: give all members the same stateMachine"
            )
            return
        before, self._offer = self._offer, offer
        self._machine.is_installing = True
        self._last_offer_ms = self._environment.now_ms()
        if before is None:
            self._context.update_eligibility()
        if self._is_busy:
            return
        is_same = self._partial is not None and self._partial.meta == meta_of(offer)
        since_us = self._environment.now_us()
        if is_same and self._started is not None:
            since_us = self._started.since_us
        self._started = _Fetch(offer, table, since_us)
        if not is_same:
            self._start(snapshots, offer)
        elif self._last_offer_ms >= self._requested_ms + self._context.config.max_push_time_out_ms:
            self._advance()
        self._set_timer()

    def _start(self, snapshots: Snapshots, offer: InstallSnapshotRequest) -> None:
        partial, self._partial = self._partial, None
        self.state = "installing"
        log_event(
            logger,
            logging.INFO,
            "installing a snapshot",
            group=self._context.config.group,
            last_included_index=offer.last_included_index,
            bytes=offer.size_bytes,
            leader=offer.local_id,
        )

        meta = meta_of(offer)

        def run() -> Installing | None:
            if partial is not None:
                partial.close()
            return None if snapshots.holds(meta) else snapshots.install(meta)

        def done(found: Installing | None) -> None:
            self._partial = found
            if found is None:  # a crash came between fetching it and the reset of the log
                self._fetch_completed(meta)
            else:
                self._advance()

        self._run(run, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work on a thread; after a failure the next offer tries again."""
        self._is_busy = True

        def finished(result: Any) -> None:
            self._is_busy = False
            done(result)
            self._set_timer()

        def failed(error: Exception) -> None:
            self._is_busy = False
            log_event(
                logger,
                logging.ERROR,
                "snapshot cannot be installed now",
                group=self._context.config.group,
                text=str(error),
            )
            partial, self._partial = self._partial, None
            if partial is not None:
                self._environment.executor.run(partial.discard, lambda _: None, _not_discarded)
            self._set_timer()

        self._environment.executor.run(work, finished, failed)

    def _advance(self) -> None:
        partial, offer = self._partial, self._offer
        if partial is None or offer is None or partial.meta != meta_of(offer):
            return  # the offer was replaced or given up meanwhile: the next one starts it
        self.state = "installing"
        if partial.size_bytes < partial.meta.size_bytes:
            self._request_chunk()
            return
        self.state = "verifying"
        self._run(partial.publish, lambda is_whole: self._published(partial, is_whole=is_whole))

    def _request_chunk(self) -> None:
        offer, partial = self._offer, self._partial
        if offer is None or partial is None:
            return
        self._request_id = self._environment.nonce()
        self._requested_ms = self._environment.now_ms()
        request = SnapshotChunkRequest(
            **self._context.envelope_to(offer.local_id),
            request_id=self._request_id,
            last_included_index=offer.last_included_index,
            offset=partial.size_bytes,
            bytes_max=min(
                self._context.limits.push_bytes_max, partial.meta.size_bytes - partial.size_bytes
            ),
        )
        self._environment.network.send(offer.local_id, request)

    def chunk_received(self, chunk: SnapshotChunk, attachment: memoryview) -> None:
        """Write a chunk that was requested, and request the next."""
        partial = self._partial
        if partial is None or self._is_busy or chunk.request_id != self._request_id:
            return
        self._request_id = -1  # the answer may come twice
        if chunk.code is not ResponseCode.SUCCESS or not len(attachment):
            return  # the snapshot is gone: the leader offers a newer one
        before = partial.size_bytes

        def done(size_bytes: int) -> None:
            if size_bytes > before:  # else it was another chunk: wait for the next offer
                self._advance()

        self._run(lambda: partial.write(attachment, chunk.offset), done)

    def _published(self, partial: Installing, *, is_whole: bool) -> None:
        if not is_whole:
            self._context.raise_alarm(
                f"snapshot {partial.meta.last_included_index} came damaged; it is fetched again"
            )
            self.state = "installing"  # with the next offer: what is damaged there stays so a while
            return
        self._partial = None
        self._fetch_completed(partial.meta)

    def _fetch_completed(self, meta: SnapshotMeta) -> None:
        """The snapshot is here, whole and durable."""
        started, self._fetched = self._started, meta
        self._stop_fetching()
        if started is not None:
            took_us = self._environment.now_us() - started.since_us
            self._context.histograms.snapshot_installed(started.offer.local_id, took_us / 1_000_000)
            if started.table:
                self._tables.learned(started.table)
            self._context.step(SnapshotFetched(started.offer))
        machine = self._machine
        if machine.newest_index == meta.last_included_index:
            machine.newest = meta  # it replaced the file of that index, and may differ from it
        if not self._applier.is_loading and machine.applied_index < meta.last_included_index:
            # the log holds the snapshot's entries too, but the machine could not apply them
            self._applier.load(meta)

    def _stop_fetching(self) -> None:
        self._offer = None
        self._machine.is_installing = False
        self.state = "ready"
        self._context.update_eligibility()

    def skip_removed(
        self, index: int, peer_id: str, begin_index: int, table: bytes | memoryview
    ) -> None:
        """Continue after a damaged entry that a peer has removed, as no other peer has it either.

        The peer's log starts at `begin_index`; `table` are its derived tables, empty if it does
        not know them: then what producers appended in the entry is not known there either.
        """
        machine = self._machine
        if machine.machine is not None and machine.applied_index < index:
            self._requests.ask(peer_id)
        elif table:
            self._tables.learned(table)
            if machine.machine is not None and machine.newest_index < index:
                # first save a snapshot with the entry's effect; the next peer's answer removes it
                self._applier.snapshotter.ask(lambda code, text, saved_index: None)
            self._retention.remove_until(begin_index - 1)

    def reset(self, effect: ResetLog, table: bytes = b"") -> None:
        """Reset the log, as the core decided; `table`: the tables that came with the offer.

        Those of a snapshot were taken when the snapshot arrived. They come first, because the log
        will not hold the entries from which they could be derived. Entries after the new start that
        conflict with the leader's are truncated before the reset, which keeps what lies after the
        start: if a crash comes between the two writes, the log is merely shorter, and the next
        offer resets it.
        """
        context, log = self._context, self._context.log
        log_event(
            logger,
            logging.WARNING,
            "log reset",
            group=self._context.config.group,
            first_index=effect.before_begin_index + 1,
            first_index_before=log.before_begin_index + 1,
            end_index_before=log.end_index,
        )
        context.counters.log_resets += 1
        if table:
            self._tables.learned(table)
        if effect.truncate_from >= 0:
            self._tables.truncated(effect.truncate_from)
        self._tables.log_reset(effect.before_begin_index)
        if effect.truncate_from >= 0:
            context.submit(None, log.truncate(effect.truncate_from))
        else:
            log.note_committed(effect.before_begin_index)
        plan = log.reset(
            effect.before_begin_index, effect.before_begin_term, effect.chain_crc, effect.config
        )
        context.submit(effect.token, plan)
        context.check_damage_later()
        # a machine that has loaded a later snapshot of its own needs nothing from this one
        fetched = self._fetched
        if fetched is not None and self._machine.applied_index < fetched.last_included_index:
            self._applier.load(fetched)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Give up an offer that is not repeated any more, and a query that is not answered."""
        if self._offer is not None and now_ms >= self._offer_deadline_ms() and not self._is_busy:
            self._stop_fetching()
        query = self._query
        if query is not None and now_ms >= self._query_deadline_ms(query):
            self._query = None
            self._not_confirmed(query, "does not confirm it")
        self._set_timer()

    def _query_deadline_ms(self, query: _PendingQuery) -> int:
        return query.since_ms + SILENT_OFFERS * self._context.config.max_push_time_out_ms

    def _offer_deadline_ms(self) -> int:
        return self._last_offer_ms + SILENT_OFFERS * self._context.config.max_push_time_out_ms

    def _set_timer(self) -> None:
        """Have `tick` called when it has something to do; while it is busy, its end sets it."""
        is_waiting = self._offer is not None and not self._is_busy
        offer_deadline_ms = self._offer_deadline_ms() if is_waiting else NEVER_MS
        query = self._query
        query_deadline_ms = self._query_deadline_ms(query) if query is not None else NEVER_MS
        self._timer.set(min(offer_deadline_ms, query_deadline_ms))


def _not_discarded(error: Exception) -> None:
    text = str(error)
    log_event(
        logger, logging.WARNING, "what was fetched of a snapshot cannot be removed", text=text
    )
