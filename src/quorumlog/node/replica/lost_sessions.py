"""Asking peers for the table of producer sessions, when this replica has lost its own.

The table is derived from the log, but not from what the log has removed. Without it a block that
was stored could be stored once more, so such a replica does not lead until a peer has told it.
"""

import logging
from typing import TYPE_CHECKING

from quorumlog.log_events import log_event
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.environment import Environment

if TYPE_CHECKING:
    from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""Pause before the next peer is asked."""
ROUNDS = 4
"""So often learners are asked before what they know is done without."""


class LostSessions:
    """Of one replica; called on its thread."""

    def __init__(self, replica: "Replica", environment: Environment) -> None:
        self._replica = replica
        self._environment = environment
        self._asked = 0
        self._number: int | None = None
        self._unknowing: set[str] = set()
        self._next_ask_ms = environment.now_ms() if replica.sessions.is_lost else NEVER_MS

    def tick(self, now_ms: int) -> None:
        """Ask the next peer, when it is time; go on without when all of them know as little."""
        if now_ms < self._next_ask_ms:
            return
        replica, core = self._replica, self._replica.core
        self._next_ask_ms = now_ms + RETRY_MS if replica.sessions.is_lost else NEVER_MS
        if not replica.sessions.is_lost:
            replica.update_eligibility()
            return
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        if self._has_no_hope(peers):
            self._give_up(now_ms)
            return
        self._asked += 1
        self._number = self._environment.nonce()
        request = RepairRequest(
            group=replica.config.group,
            local_id=core.self_id,
            remote_id=peers[self._asked % len(peers)],
            term=core.term,
            request_id=self._number,
            first_index=-1,  # removed everywhere: the answer to that has the table with it
            last_index=-1,
            bytes_max=0,
        )
        self._environment.network.send(request.remote_id, request)

    def _has_no_hope(self, peers: list[str]) -> bool:
        """Whether all peers know as little; learners need not be up to say so."""
        membership = self._replica.core.membership
        voters = {*membership.voters, *membership.outgoing} - {self._replica.core.self_id}
        were_asked = self._asked >= ROUNDS * len(peers)
        return voters <= self._unknowing and (were_asked or self._unknowing.issuperset(peers))

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        return self._next_ask_ms

    def answered(self, message: RepairResponse, attachment: memoryview) -> bool:
        """Take a peer's table; return False if the message answers something else."""
        if message.request_id != self._number:
            return False
        self._number, sessions = None, self._replica.sessions
        if not attachment:
            self._unknowing.add(message.local_id)
            return True
        self._unknowing.discard(message.local_id)
        sessions.learned(attachment)
        if not sessions.is_lost:
            self._next_ask_ms = self._environment.now_ms()
            group = self._replica.config.group
            log_event(logger, logging.INFO, "sessions found", group=group, peer=message.local_id)
            self._replica.update_eligibility()
        return True

    def _give_up(self, now_ms: int) -> None:
        """No replica knows: say it, and go on rather than stand still for ever."""
        replica = self._replica
        begin = replica.log.before_begin_index + 1
        replica.sessions.give_up()
        replica.raise_alarm(
            f"no replica knows what producers stored before entry {begin}: those that began there "
            "must begin again under a new producer id, and what they send again of it is stored "
            "twice"
        )
        self._next_ask_ms = now_ms
