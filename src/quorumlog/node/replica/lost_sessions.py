"""Asking peers for the table of producer sessions, when this replica has lost its own.

The table is derived from the log, but the log may have removed entries that it needs. Without the
table a block could be appended a second time, so such a replica does not lead until a peer has sent
it the table.
"""

import logging

from quorumlog.log_events import log_event
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.sessions import Sessions

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""Pause before the next peer is asked."""
ROUNDS = 4
"""Learners are asked at most this often before the replica goes on without their answers."""


class LostSessions:
    """The part of a replica that asks its peers for their table.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, sessions: Sessions) -> None:
        self._context = context
        self._environment = context.environment
        self._sessions = sessions
        self._queries_sent = 0
        self._number: int | None = None
        self._unknowing: set[str] = set()
        self._timer = context.timers.new(self.tick, is_for_writes=True)
        if sessions.is_lost:
            self._timer.set(context.environment.now_ms())

    def tick(self, now_ms: int) -> None:
        """Ask the next peer; continue without a table if no peer has one."""
        context, core = self._context, self._context.core
        if not self._sessions.is_lost:
            context.update_eligibility()
            return
        self._timer.set(now_ms + RETRY_MS)
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        if self._no_peer_has_table(peers):
            self._give_up(now_ms)
            return
        self._queries_sent += 1
        self._number = self._environment.nonce()
        request = RepairRequest(
            **context.envelope_to(peers[self._queries_sent % len(peers)]),
            request_id=self._number,
            first_index=-1,  # an entry removed everywhere: the answer has the table attached
            last_index=-1,
            bytes_max=0,
        )
        self._environment.network.send(request.remote_id, request)

    def _no_peer_has_table(self, peers: list[str]) -> bool:
        """Whether no peer knows the table; learners need not be up to say so."""
        membership = self._context.core.membership
        voters = {*membership.voters, *membership.outgoing} - {self._context.core.self_id}
        were_asked = self._queries_sent >= ROUNDS * len(peers)
        return voters <= self._unknowing and (were_asked or self._unknowing.issuperset(peers))

    def answered(self, message: RepairResponse, attachment: memoryview) -> bool:
        """Take a peer's table; return False if the message answers something else."""
        if message.request_id != self._number:
            return False
        self._number, sessions = None, self._sessions
        if not attachment:
            self._unknowing.add(message.local_id)
            return True
        self._unknowing.discard(message.local_id)
        sessions.learned(attachment)
        if not sessions.is_lost:
            self._timer.clear()
            group = self._context.config.group
            log_event(logger, logging.INFO, "sessions found", group=group, peer=message.local_id)
            self._context.update_eligibility()
        return True

    def _give_up(self, now_ms: int) -> None:
        """Log that no replica knows the table, and continue without it."""
        context = self._context
        begin = context.log.before_begin_index + 1
        self._sessions.give_up()
        context.raise_alarm(
            f"no replica knows what producers appended before entry {begin}: those that began "
            "there must begin again under a new producer id, and what they send again of it is "
            "appended twice"
        )
        self._timer.set(now_ms)
