"""Offers snapshots to peers that need removed entries, and sends them in chunks.

A leader offers on its own (spec 40 section 5); a peer whose machine cannot go on asks for an offer.
"""

import logging
from dataclasses import dataclass, field

from quorumlog.log_events import log_event
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import (
    InstallSnapshotRequest,
    OfferQuery,
    OfferResponse,
    SnapshotChunk,
    SnapshotChunkRequest,
    SnapshotOfferRequest,
)
from quorumlog.node.replica.applier import Applier
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.snapshot_offers import fingerprint_of
from quorumlog.node.replica.tables import Tables
from quorumlog.raft.effects import OfferSnapshot
from quorumlog.raft.events import EntriesUnreadable
from quorumlog.raft.rate_limiter import RateLimiter
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots

logger = logging.getLogger(__name__)

OFFERS_KNOWN = 4
"""Newest offers to a peer that are confirmed when it asks: offers and requests may cross."""


@dataclass(slots=True)
class _OffersMade:
    """Fingerprints of the latest offers to a peer, in one term."""

    term: int
    fingerprints: list[bytes] = field(default_factory=list)

    def add(self, fingerprint: bytes) -> None:
        self.fingerprints = [*self.fingerprints, fingerprint][-OFFERS_KNOWN:]


class SnapshotSender:
    """The part of a replica that offers snapshots and sends them, at `peerPushQuota` at most.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        snapshots: Snapshots | None,
        tables: Tables,
        served: ServedSnapshots,
        applier: Applier,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._snapshots = snapshots
        self._tables = tables
        self._served = served
        self._applier = applier
        self._chunk_bytes = context.limits.push_bytes_max
        self._rate = RateLimiter(lambda: context.config.peer_push_quota)
        self._held: dict[str, SnapshotChunkRequest] = {}
        self._timer = context.timers.new(self.tick)
        self._offers_made: dict[str, _OffersMade] = {}

    def offer(self, effect: OfferSnapshot) -> None:
        """Offer a peer a place to start."""
        core, log = self._context.core, self._context.log
        meta = self._snapshot_for(effect.peer_id)
        if meta is None:
            reason = f"there is no snapshot of what came before {log.before_begin_index + 1}"
            self._context.step(EntriesUnreadable(effect.peer_id, effect.request_id, reason))
            return
        offer = InstallSnapshotRequest(
            **self._context.envelope_to(effect.peer_id),
            incarnation=core.incarnation,
            request_id=effect.request_id,
            last_included_index=meta.last_included_index,
            last_included_term=meta.last_included_term,
            chain_crc=meta.chain_crc,
            membership_index=core.membership_index,
            config=meta.config,
            size_bytes=meta.size_bytes,
            sha256=meta.sha256,
            digest=meta.digest,
            kept_bytes=meta.kept_bytes,
            from_leader=core.role is Role.LEADER,
        )
        table = self._tables.encode()
        if offer.from_leader:
            self._record_offer(offer, table)
        self._environment.network.send(effect.peer_id, offer, [table])

    def _record_offer(self, offer: InstallSnapshotRequest, table: bytes) -> None:
        made = self._offers_made.get(offer.remote_id)
        if made is None or made.term != offer.term:
            known = self._context.core.membership.ids
            self._offers_made = {
                peer: one for peer, one in self._offers_made.items() if peer in known
            }
            made = self._offers_made[offer.remote_id] = _OffersMade(offer.term)
        made.add(fingerprint_of(offer, table))

    def query_received(self, query: OfferQuery) -> None:
        """A peer asks whether this replica made an offer that came in its name."""
        core, made = self._context.core, self._offers_made.get(query.local_id)
        is_own = (
            core.role is Role.LEADER
            and made is not None
            and made.term == core.term == query.term
            and query.fingerprint in made.fingerprints
        )
        answer = OfferResponse(
            **self._context.envelope_to(query.local_id),
            request_id=query.request_id,
            code=ResponseCode.SUCCESS if is_own else ResponseCode.INCONSISTENT_LEADER,
        )
        self._environment.network.send(query.local_id, answer)

    def _snapshot_for(self, peer_id: str) -> SnapshotMeta | None:
        """Return the snapshot that a peer is fetching; if it fetches none, where it can start."""
        fetched = self._served.fetched_by(peer_id)
        if fetched is not None:
            return fetched
        meta = self._newest_snapshot()
        if meta is not None and self._snapshots is not None:
            self._served.offered(peer_id, meta)
        return meta

    def _newest_snapshot(self) -> SnapshotMeta | None:
        """Return the newest snapshot, or for a plain log the place where it starts."""
        log, machine = self._context.log, self._applier.state
        if not self._tables.is_trusted:
            return None  # the offer must carry what the removed entries said
        index = log.before_begin_index
        if machine.machine is not None:
            newest = machine.newest
            # the offer must carry what the removed entries said
            known = self._tables.as_of
            reaches = newest is not None and index <= newest.last_included_index <= known
            return newest if reaches else None
        chain_crc = log.chain_crc_at(index)
        configs = [pair for pair in log.config_entries() if pair[0] <= index]
        return SnapshotMeta(
            last_included_index=index,
            last_included_term=log.before_begin_term,
            chain_crc=-1 if chain_crc is None else chain_crc,
            config=configs[-1] if configs else None,
        )

    def send_chunk(self, request: SnapshotChunkRequest) -> None:
        """Send a chunk, now or when the rate allows it."""
        now_ms = self._environment.now_ms()
        if not self._served.requested(request):
            self._applier.scrub.suspect(request.last_included_index)
        if self._snapshots is None:
            self._answer(request, ResponseCode.LOAD_SNAPSHOT_ERROR, b"")
        elif self._rate.is_used_up(now_ms):
            self._held[request.local_id] = request
            self._timer.set_earlier(now_ms + self._rate.left_ms(now_ms))
        else:
            self._read_and_send(self._snapshots, request, now_ms)

    def _read_and_send(
        self, snapshots: Snapshots, request: SnapshotChunkRequest, now_ms: int
    ) -> None:
        length = max(0, min(request.bytes_max, self._chunk_bytes))
        self._rate.sample(length, now_ms)

        def run() -> bytes:
            return snapshots.read_chunk(request.last_included_index, request.offset, length)

        def failed(error: Exception) -> None:
            log_event(
                logger,
                logging.INFO,
                "snapshot cannot be sent",
                group=self._context.config.group,
                last_included_index=request.last_included_index,
                text=str(error),
            )
            self._served.forget(request.local_id)
            self._answer(request, ResponseCode.LOAD_SNAPSHOT_ERROR, b"")

        def done(data: bytes) -> None:
            self._answer(request, ResponseCode.SUCCESS, data)

        self._environment.executor.run(run, done, failed)

    def _answer(self, request: SnapshotChunkRequest, code: ResponseCode, data: bytes) -> None:
        chunk = SnapshotChunk(
            **self._context.envelope_to(request.local_id),
            request_id=request.request_id,
            code=code,
            offset=request.offset,
        )
        self._environment.network.send(request.local_id, chunk, [data], bulk=True)

    def offer_requested(self, message: SnapshotOfferRequest) -> None:
        """A peer's machine needs a snapshot; while there is no leader, any replica offers one."""
        core = self._context.core
        leads = core.role is Role.LEADER or core.leader_id is None
        applier, machine = self._applier, self._applier.state
        if not leads or (machine.machine is not None and not applier.is_eligible):
            return
        if message.least_index > machine.newest_index:
            if not applier.snapshotter.is_requested:  # the peer asks again
                applier.snapshotter.ask(lambda code, text, index: None)
        elif self._newest_snapshot() is not None:
            self.offer(OfferSnapshot(message.local_id, message.request_id))

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Send the chunks that were held back."""
        held, self._held = self._held, {}
        for request in held.values():
            self.send_chunk(request)
