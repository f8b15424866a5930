"""Where a replica begins whose leader has removed the entries that it needs (spec 40 section 5).

A plain log has nothing to install: such a replica simply begins behind what was removed. With a
state machine the leader offers its newest snapshot. The follower fetches it piece by piece, at its
own pace and from where it had come when connections or processes ended; the leader bounds the rate.
Only when all of it is here, checked and durable does the core begin the log anew.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import (
    InstallSnapshotRequest,
    OfferQuery,
    OfferResponse,
    SnapshotChunk,
    SnapshotChunkRequest,
    SnapshotOfferRequest,
)
from quorumlog.node.environment import Environment
from quorumlog.raft.effects import ConfirmOffer, FetchSnapshot, OfferSnapshot, ResetLog
from quorumlog.raft.events import EntriesUnreadable, OfferConfirmed, Received, SnapshotFetched
from quorumlog.raft.rate_limiter import RateLimiter
from quorumlog.storage.log.snapshots import Installing, SnapshotMeta, Snapshots
from quorumlog.transport.peers import VISITORS_MAX

if TYPE_CHECKING:
    from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

SILENT_OFFERS = 3
"""An install is given up after so many push time-outs without an offer; its bytes are kept."""
OFFERS_KNOWN = 4
"""Newest offers to a peer that are confirmed when it asks: they cross with the questions."""
BEGINS_MAX = 3
"""A snapshot whose first piece is asked for more often is read: it may be damaged here."""


@dataclass(slots=True)
class _Served:
    """A snapshot that a peer was offered; when it last asked for a piece of it, and for which.

    `begins` counts how often it asked for the first one.
    """

    meta: SnapshotMeta
    asked_ms: int
    offset: int = 0
    begins: int = 0


@dataclass(slots=True)
class _Made:
    """Fingerprints of what a peer was offered lately, in one term."""

    term: int
    fingerprints: list[bytes] = field(default_factory=list)

    def add(self, fingerprint: bytes) -> None:
        self.fingerprints = [*self.fingerprints, fingerprint][-OFFERS_KNOWN:]


@dataclass(frozen=True, slots=True)
class _Question:
    """An offer whose sender was asked whether it made it; `table` came with it."""

    number: int
    offer: InstallSnapshotRequest
    table: bytes
    since_ms: int

    def is_about(self, offer: InstallSnapshotRequest) -> bool:
        """Whether an offer is the same, later."""
        mine = self.offer
        return (mine.local_id, mine.term, mine.last_included_index) == (
            offer.local_id,
            offer.term,
            offer.last_included_index,
        )


class SnapshotTransfer:
    """Of one replica; called on its thread. `piece_bytes_max` bounds what is sent at a time."""

    def __init__(
        self,
        replica: "Replica",
        snapshots: Snapshots | None,
        environment: Environment,
        piece_bytes_max: int,
    ) -> None:
        self._replica = replica
        self._snapshots = snapshots
        self._environment = environment
        self._config = replica.config
        self._piece_bytes = piece_bytes_max
        self._quota = RateLimiter(self._config.peer_push_quota)
        self._held: dict[str, SnapshotChunkRequest] = {}
        self._served: dict[str, _Served] = {}
        self._offer: InstallSnapshotRequest | None = None
        self._begun: InstallSnapshotRequest | None = None
        self._staged: Installing | None = None
        self._request_id = -1
        self._asked_ms = self._offered_ms = 0
        self._is_busy = False
        self._fetched: SnapshotMeta | None = None
        self._wanted: tuple[str, int] | None = None
        self._made: dict[str, _Made] = {}
        self._question: _Question | None = None
        self._begun_table = b""
        self._least_index = -1
        self.state = "ready"

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot is being fetched: such a replica does not campaign."""
        return self._offer is not None

    # -- the leader ---------------------------------------------------------------------------

    def offer(self, effect: OfferSnapshot) -> None:
        """Tell a peer where it can begin."""
        core, log = self._replica.core, self._replica.log
        meta = self._offered_to(effect.peer_id)
        if meta is None:
            reason = f"there is no snapshot of what came before {log.before_begin_index + 1}"
            self._replica.tell(EntriesUnreadable(effect.peer_id, effect.request_id, reason))
            return
        offer = InstallSnapshotRequest(
            group=self._config.group,
            local_id=core.self_id,
            remote_id=effect.peer_id,
            incarnation=core.incarnation,
            term=core.term,
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
        table = self._replica.sessions.encode()
        if offer.from_leader:
            self._note_made(offer, table)
        self._environment.network.send(effect.peer_id, offer, [table])

    def _note_made(self, offer: InstallSnapshotRequest, table: bytes) -> None:
        made = self._made.get(offer.remote_id)
        if made is None or made.term != offer.term:
            known = self._replica.core.membership.ids
            self._made = {peer: one for peer, one in self._made.items() if peer in known}
            made = self._made[offer.remote_id] = _Made(offer.term)
        made.add(_fingerprint(offer, table))

    def asked(self, question: OfferQuery) -> None:
        """A peer asks whether an offer in this replica's name is its own."""
        core, made = self._replica.core, self._made.get(question.local_id)
        is_mine = (
            core.role is Role.LEADER
            and made is not None
            and made.term == core.term == question.term
            and question.fingerprint in made.fingerprints
        )
        answer = OfferResponse(
            group=question.group,
            local_id=question.remote_id,
            remote_id=question.local_id,
            term=core.term,
            request_id=question.request_id,
            code=ResponseCode.SUCCESS if is_mine else ResponseCode.INCONSISTENT_LEADER,
        )
        self._environment.network.send(question.local_id, answer)

    def _offered_to(self, peer_id: str) -> SnapshotMeta | None:
        """Return the snapshot that a peer is fetching: a newer one would have it begin again.

        If it fetches none, where it can begin now.
        """
        served, begin = self._served.get(peer_id), self._replica.log.before_begin_index
        if served and self._is_fetched(served) and served.meta.last_included_index >= begin:
            return served.meta
        meta = self._place_to_begin()
        if meta is not None and self._snapshots is not None:
            self._served.pop(peer_id, None)
            self._served[peer_id] = _Served(meta, self._environment.now_ms())
            known = self._replica.core.membership.ids
            visitors = [peer for peer in self._served if peer not in known]
            for peer in visitors[:-VISITORS_MAX]:
                del self._served[peer]
        return meta

    def _is_fetched(self, served: _Served) -> bool:
        silent_ms = self._environment.now_ms() - served.asked_ms
        return silent_ms < SILENT_OFFERS * self._config.max_push_time_out_ms

    def _note_served(self, request: SnapshotChunkRequest, now_ms: int) -> None:
        served = self._served.get(request.local_id)
        if served is None or served.meta.last_included_index != request.last_included_index:
            return
        served.begins += request.offset == 0
        # it was no good: a newer one may be
        if request.offset == 0 < served.offset or served.begins > BEGINS_MAX:
            del self._served[request.local_id]
            self._replica.applier.scrub.suspect(request.last_included_index)
        else:
            served.asked_ms, served.offset = now_ms, request.offset

    def served_indexes(self) -> list[int]:
        """Return the snapshots that peers are fetching: they are kept."""
        fetched = [served for served in self._served.values() if self._is_fetched(served)]
        return [served.meta.last_included_index for served in fetched]

    def _place_to_begin(self) -> SnapshotMeta | None:
        """Return the newest snapshot; of a plain log, where it begins."""
        log, applier = self._replica.log, self._replica.applier
        if self._replica.sessions.is_lost:
            return None  # what producers stored before it must be told along with it
        index = log.before_begin_index
        if applier.machine is not None:
            newest = applier.snapshotter.newest
            # what producers stored before it must be told along with it
            known = self._replica.sessions.as_of
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

    def serve(self, request: SnapshotChunkRequest) -> None:
        """Send a piece, now or when the rate allows it."""
        now_ms = self._environment.now_ms()
        self._note_served(request, now_ms)
        if self._snapshots is None:
            self._answer(request, ResponseCode.LOAD_SNAPSHOT_ERROR, b"")
        elif self._quota.is_used_up(now_ms):
            self._held[request.local_id] = request
            self._replica.wake()
        else:
            self._send_piece(self._snapshots, request, now_ms)

    def _send_piece(self, snapshots: Snapshots, request: SnapshotChunkRequest, now_ms: int) -> None:
        length = max(0, min(request.bytes_max, self._piece_bytes))
        self._quota.sample(length, now_ms)

        def run() -> bytes:
            return snapshots.read_chunk(request.last_included_index, request.offset, length)

        def failed(error: Exception) -> None:
            log_event(
                logger,
                logging.INFO,
                "snapshot cannot be sent",
                group=self._config.group,
                last_included_index=request.last_included_index,
                text=str(error),
            )
            self._served.pop(request.local_id, None)
            self._answer(request, ResponseCode.LOAD_SNAPSHOT_ERROR, b"")

        def done(data: bytes) -> None:
            self._answer(request, ResponseCode.SUCCESS, data)

        self._environment.executor.run(run, done, failed)

    def _answer(self, request: SnapshotChunkRequest, code: ResponseCode, data: bytes) -> None:
        piece = SnapshotChunk(
            group=request.group,
            local_id=request.remote_id,
            remote_id=request.local_id,
            term=self._replica.core.term,
            request_id=request.request_id,
            code=code,
            offset=request.offset,
        )
        self._environment.network.send(request.local_id, piece, [data], bulk=True)

    def wanted(self, message: SnapshotOfferRequest) -> None:
        """A peer cannot go on without a snapshot; while nobody leads, anybody's will do."""
        core = self._replica.core
        leads = core.role is Role.LEADER or core.leader_id is None
        applier = self._replica.applier
        if not leads or (applier.machine is not None and not applier.is_eligible):
            return
        if message.least_index > applier.snapshotter.newest_index:
            if not applier.snapshotter.is_asked:  # the peer asks again
                applier.snapshotter.ask(lambda code, text, index: None)
        elif self._place_to_begin() is not None:
            self.offer(OfferSnapshot(message.local_id, message.request_id))

    # -- the follower -------------------------------------------------------------------------

    def offered(self, offer: InstallSnapshotRequest, attachment: memoryview) -> None:
        """A peer offers a place to begin; one that names no readable membership is dropped.

        Its producer sessions are attached; they are taken once the offer is.
        """
        try:
            if offer.config is not None:
                Membership.decode(offer.config[1])
        except UnexpectedArgumentError as error:
            self._replica.raise_alarm(f"{offer.local_id} offers a log that cannot be read: {error}")
            return
        if self._snapshots is not None and not offer.sha256:
            self._replica.raise_alarm(
                f"{offer.local_id} offers a plain log, but this replica of the group has a state "
                "machine: give all members the same stateMachine"
            )
            return
        table = bytes(attachment)
        if offer.from_leader:
            self._replica.tell(Received(offer), table)
        applier = self._replica.applier
        is_wanted = self._wanted == (offer.local_id, offer.request_id)
        least = max(self._least_index, applier.applied_index + 1)
        if is_wanted and offer.last_included_index >= least:
            self._wanted = None
            self.fetch(FetchSnapshot(offer), table)

    def confirm(self, effect: ConfirmOffer, table: bytes) -> None:
        """Ask the leader itself whether it made this offer."""
        offer, before = effect.offer, self._question
        is_later = before is not None and before.is_about(offer)
        since_ms = (
            before.since_ms if before is not None and is_later else self._environment.now_ms()
        )
        self._question = _Question(self._environment.nonce(), offer, table, since_ms)
        question = OfferQuery(
            group=offer.group,
            local_id=offer.remote_id,
            remote_id=offer.local_id,
            term=self._replica.core.term,
            request_id=self._question.number,
            fingerprint=_fingerprint(offer, table),
        )
        self._environment.network.send(offer.local_id, question)
        self._replica.wake()

    def answered(self, answer: OfferResponse) -> None:
        """The leader says whether it made the offer."""
        asked = self._question
        if asked is None or (answer.local_id, answer.request_id) != (
            asked.offer.local_id,
            asked.number,
        ):
            return
        self._question = None
        if answer.code is ResponseCode.SUCCESS:
            self._replica.tell(OfferConfirmed(asked.offer), asked.table)
        else:
            self._not_confirmed(asked, "says that it did not")

    def _not_confirmed(self, asked: _Question, what: str) -> None:
        index = asked.offer.last_included_index
        self._replica.raise_alarm(
            f"a message in the name of {asked.offer.local_id} of term {asked.offer.term} offers a "
            f"log that begins after index {index}, but {asked.offer.local_id} {what}; nothing was "
            "removed"
        )

    def want(self, peer_id: str, least_index: int = -1) -> None:
        """The machine cannot go on: what it needs is damaged here, or removed.

        Only a snapshot that includes `least_index` will do.
        """
        core = self._replica.core
        self._wanted, self._least_index = (peer_id, self._environment.nonce()), least_index
        message = SnapshotOfferRequest(
            group=self._config.group,
            local_id=core.self_id,
            remote_id=peer_id,
            term=core.term,
            request_id=self._wanted[1],
            least_index=least_index,
        )
        self._environment.network.send(peer_id, message)

    def fetch(self, effect: FetchSnapshot, table: bytes = b"") -> None:
        """Begin to fetch what is offered, or go on; `table`: the sessions that came with it.

        What is being written or checked just now ends before another offer takes its place.
        """
        offer, snapshots = effect.offer, self._snapshots
        if snapshots is None:
            self._replica.raise_alarm(
                f"{offer.local_id} offers the snapshot of a state machine, but this replica of "
                "the group has none: give all members the same stateMachine"
            )
            return
        before, self._offer = self._offer, offer
        self._offered_ms = self._environment.now_ms()
        if before is None:
            self._replica.update_eligibility()
        if self._is_busy:
            return
        is_same = self._staged is not None and self._staged.meta == _meta_of(offer)
        self._begun, self._begun_table = offer, table
        if not is_same:
            self._begin(snapshots, offer)
        elif self._offered_ms >= self._asked_ms + self._config.max_push_time_out_ms:
            self._go_on()
        self._replica.wake()

    def _begin(self, snapshots: Snapshots, offer: InstallSnapshotRequest) -> None:
        staged, self._staged = self._staged, None
        self.state = "installing"
        log_event(
            logger,
            logging.INFO,
            "installing a snapshot",
            group=self._config.group,
            last_included_index=offer.last_included_index,
            bytes=offer.size_bytes,
            leader=offer.local_id,
        )

        meta = _meta_of(offer)

        def run() -> Installing | None:
            if staged is not None:
                staged.close()
            return None if snapshots.holds(meta) else snapshots.install(meta)

        def done(found: Installing | None) -> None:
            self._staged = found
            if found is None:  # a crash came between fetching it and beginning anew
                self._arrived(meta)
            else:
                self._go_on()

        self._run(run, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do something beside the loop; what fails is tried again with the next offer."""
        self._is_busy = True

        def finished(result: Any) -> None:
            self._is_busy = False
            done(result)
            self._replica.wake()

        def failed(error: Exception) -> None:
            self._is_busy = False
            log_event(
                logger,
                logging.ERROR,
                "snapshot cannot be installed now",
                group=self._config.group,
                text=str(error),
            )
            staged, self._staged = self._staged, None
            if staged is not None:
                self._environment.executor.run(staged.discard, lambda _: None, _not_discarded)
            self._replica.wake()

        self._environment.executor.run(work, finished, failed)

    def _go_on(self) -> None:
        staged, offer = self._staged, self._offer
        if staged is None or offer is None or staged.meta != _meta_of(offer):
            return  # another offer came meanwhile, or none any more: the next one begins it
        self.state = "installing"
        if staged.size_bytes < staged.meta.size_bytes:
            self._ask()
            return
        self.state = "verifying"
        self._run(staged.publish, lambda is_whole: self._published(staged, is_whole=is_whole))

    def _ask(self) -> None:
        offer, staged = self._offer, self._staged
        if offer is None or staged is None:
            return
        self._request_id = self._environment.nonce()
        self._asked_ms = self._environment.now_ms()
        request = SnapshotChunkRequest(
            group=offer.group,
            local_id=offer.remote_id,
            remote_id=offer.local_id,
            term=self._replica.core.term,
            request_id=self._request_id,
            last_included_index=offer.last_included_index,
            offset=staged.size_bytes,
            bytes_max=min(self._piece_bytes, staged.meta.size_bytes - staged.size_bytes),
        )
        self._environment.network.send(offer.local_id, request)

    def received(self, piece: SnapshotChunk, attachment: memoryview) -> None:
        """Write a piece that was asked for, and ask for the next."""
        staged = self._staged
        if staged is None or self._is_busy or piece.request_id != self._request_id:
            return
        self._request_id = -1  # it may come twice
        if piece.code is not ResponseCode.SUCCESS or not len(attachment):
            return  # gone: the leader offers a newer one
        before = staged.size_bytes

        def done(size_bytes: int) -> None:
            if size_bytes > before:  # else it was not what was asked for: wait for the next offer
                self._go_on()

        self._run(lambda: staged.write(attachment, piece.offset), done)

    def _published(self, staged: Installing, *, is_whole: bool) -> None:
        if not is_whole:
            self._replica.raise_alarm(
                f"snapshot {staged.meta.last_included_index} came damaged; it is fetched again"
            )
            self.state = "installing"  # with the next offer: what is damaged there stays so a while
            return
        self._staged = None
        self._arrived(staged.meta)

    def _arrived(self, meta: SnapshotMeta) -> None:
        """It is here, whole and durable."""
        offer, self._fetched = self._begun, meta
        self._end()
        if self._begun_table:
            self._replica.sessions.learned(self._begun_table)
        if offer is not None:
            self._replica.tell(SnapshotFetched(offer))
        applier = self._replica.applier
        if applier.snapshotter.newest_index == meta.last_included_index:
            applier.snapshotter.newest = (
                meta  # it has taken that one's place, and need not be alike
            )
        if not applier.is_loading and applier.applied_index < meta.last_included_index:
            # the log holds what the snapshot does, but the machine could not be given it
            applier.load(meta)

    def _end(self) -> None:
        self._offer = None
        self.state = "ready"
        self._replica.update_eligibility()

    def reset(self, effect: ResetLog, table: bytes = b"") -> None:
        """Begin the log anew, as the core decided; `table`: the sessions that came with the offer.

        Those of a snapshot were taken when it was here.
        """
        replica, log = self._replica, self._replica.log
        log_event(
            logger,
            logging.WARNING,
            "log begins anew",
            group=self._config.group,
            first_index=effect.before_begin_index + 1,
            first_index_before=log.before_begin_index + 1,
            end_index_before=log.end_index,
        )
        replica.counters.log_resets += 1
        if table:
            replica.sessions.learned(table)
        if effect.truncate_from >= 0:
            replica.sessions.truncated(effect.truncate_from)
        replica.sessions.began_anew(effect.before_begin_index)
        if effect.truncate_from >= 0:
            self._environment.disk.submit(replica, None, log.truncate(effect.truncate_from))
        else:
            log.note_committed(effect.before_begin_index)
        plan = log.reset(
            effect.before_begin_index, effect.before_begin_term, effect.chain_crc, effect.config
        )
        self._environment.disk.submit(replica, effect.token, plan)
        replica.repairer.look_again_later()
        # one that went on from a later snapshot of its own has what this one would give it
        fetched = self._fetched
        if fetched is not None and replica.applier.applied_index < fetched.last_included_index:
            replica.applier.load(fetched)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Send what was held back; give up what nobody offers any more."""
        if self._held and not self._quota.is_used_up(now_ms):
            held, self._held = self._held, {}
            for request in held.values():
                self.serve(request)
        if self._offer is not None and now_ms >= self._give_up_ms() and not self._is_busy:
            self._end()
        asked = self._question
        if asked is not None and now_ms >= self._unanswered_ms(asked):
            self._question = None
            self._not_confirmed(asked, "does not confirm it")

    def _unanswered_ms(self, asked: _Question) -> int:
        return asked.since_ms + SILENT_OFFERS * self._config.max_push_time_out_ms

    def _give_up_ms(self) -> int:
        return self._offered_ms + SILENT_OFFERS * self._config.max_push_time_out_ms

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        now_ms = self._environment.now_ms()
        held_ms = now_ms + self._quota.left_ms(now_ms) if self._held else NEVER_MS
        is_waiting = self._offer is not None and not self._is_busy
        asked = self._question
        return min(
            held_ms,
            self._give_up_ms() if is_waiting else NEVER_MS,
            self._unanswered_ms(asked) if asked is not None else NEVER_MS,
        )


def _not_discarded(error: Exception) -> None:
    text = str(error)
    log_event(
        logger, logging.WARNING, "what was fetched of a snapshot cannot be removed", text=text
    )


def _meta_of(offer: InstallSnapshotRequest) -> SnapshotMeta:
    return SnapshotMeta(
        last_included_index=offer.last_included_index,
        last_included_term=offer.last_included_term,
        chain_crc=offer.chain_crc,
        config=offer.config,
        digest=offer.digest,
        size_bytes=offer.size_bytes,
        sha256=offer.sha256,
        kept_bytes=offer.kept_bytes,
    )


def _fingerprint(offer: InstallSnapshotRequest, table: bytes) -> bytes:
    """Return what tells an offer, with the sessions attached to it, from every other."""
    said = (offer.term, *msgspec.structs.astuple(_meta_of(offer)))
    return hashlib.sha256(msgspec.msgpack.encode(said) + table).digest()
