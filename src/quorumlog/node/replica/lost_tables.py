"""Asking peers for the derived tables, when this replica has lost its own, or they are wrong.

The tables are derived from the log, but the log may have removed entries that they need. Without
them a block could be appended a second time, so such a replica does not lead until a peer has sent
it the tables. Those of any peer make up for lost ones. In the place of tables that differ from a
majority's, only those count that have been equal to a majority's since.
"""

import logging
from collections.abc import Callable

from quorumlog.log_events import log_event
from quorumlog.model.errors import StorageError
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.tables import Tables

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""Pause before the next peer is asked."""
ROUNDS = 4
"""Learners are asked at most this often before the replica goes on without their answers."""


class LostTables:
    """The part of a replica that asks its peers for their tables.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, tables: Tables) -> None:
        self._context = context
        self._environment = context.environment
        self._tables = tables
        self._queries_sent = 0
        self._number: int | None = None
        self._unknowing: set[str] = set()
        self._doubted: dict[str, int] = {}
        self.replaced: Callable[[], None] = lambda: None
        """Called when a peer's tables have taken the place of doubted ones."""
        self._timer = context.timers.new(self.tick, is_for_writes=True)
        if tables.is_lost:
            self._timer.set(context.environment.now_ms())

    def doubted(self, name: str, index: int, text: str) -> None:
        """A table differs from a majority's after an entry: take those of a peer that agrees."""
        self._doubted[name] = max(index, self._doubted.get(name, -1))
        self._context.record(f"{text}; peers are asked for theirs")
        self._context.update_eligibility()
        self._timer.set_earlier(self._environment.now_ms())

    @property
    def text(self) -> str:
        """What is wrong with the tables, for people; empty: nothing is."""
        if self._tables.is_lost:
            return "what producers appended is lost here; peers are asked for it"
        if self._doubted:
            return f"{', '.join(self._doubted)} differ from a majority's; peers are asked for them"
        return ""

    def tick(self, now_ms: int) -> None:
        """Ask the next peer; continue without lost tables if no peer has them."""
        context, core = self._context, self._context.core
        if self._tables.is_trusted:
            context.update_eligibility()
            return
        self._timer.set(now_ms + RETRY_MS)
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        if self._tables.is_lost and self._no_peer_has_tables(peers):
            self._give_up(now_ms)
            return
        if not peers:
            return
        self._queries_sent += 1
        self._number = self._environment.nonce()
        request = RepairRequest(
            **context.envelope_to(peers[self._queries_sent % len(peers)]),
            request_id=self._number,
            first_index=-1,  # an entry removed everywhere: the answer has the tables attached
            last_index=-1,
            bytes_max=0,
        )
        self._environment.network.send(request.remote_id, request)

    def _no_peer_has_tables(self, peers: list[str]) -> bool:
        """Whether no peer knows the tables; learners need not be up to say so."""
        membership = self._context.core.membership
        voters = {*membership.voters, *membership.outgoing} - {self._context.core.self_id}
        were_asked = self._queries_sent >= ROUNDS * len(peers)
        return voters <= self._unknowing and (were_asked or self._unknowing.issuperset(peers))

    def answered(self, message: RepairResponse, attachment: memoryview) -> bool:
        """Take a peer's tables; return False if the message answers something else."""
        if message.request_id != self._number:
            return False
        self._number = None
        if not attachment:
            self._unknowing.add(message.local_id)
            return True
        self._unknowing.discard(message.local_id)
        if self._doubted:
            self._replace(message, attachment)
            return True
        self._tables.learned(attachment)
        if not self._tables.is_lost:
            self._timer.clear()
            group = self._context.config.group
            log_event(logger, logging.INFO, "sessions found", group=group, peer=message.local_id)
            self._context.update_eligibility()
        return True

    def _replace(self, message: RepairResponse, attachment: memoryview) -> None:
        """Take the tables of a peer if they have agreed with a majority's since these did not."""
        context, agreed = self._context, dict(message.agreed)
        if any(agreed.get(name, -1) < index for name, index in self._doubted.items()):
            return
        try:
            is_done = self._tables.replaced(attachment, context.core.committed_index)
        except StorageError as error:  # what follows the tables cannot be read now
            text = str(error)
            log_event(logger, logging.WARNING, "cannot read what follows tables", text=text)
            return
        if not is_done:
            return
        names = ", ".join(self._doubted)
        self._doubted.clear()
        self.replaced()
        context.counters.tables_rebuilt += 1
        log_event(
            logger,
            logging.WARNING,
            "tables replaced",
            group=context.config.group,
            tables=names,
            peer=message.local_id,
        )
        context.record(f"{names} replaced by the tables of {message.local_id}")
        self._timer.clear()
        context.update_eligibility()

    def _give_up(self, now_ms: int) -> None:
        """Log that no replica knows the tables, and continue without them."""
        context = self._context
        begin = context.log.before_begin_index + 1
        self._tables.give_up()
        context.raise_alarm(
            f"no replica knows what producers appended before entry {begin}: those that began "
            "there must begin again under a new producer id, and what they send again of it is "
            "appended twice; partitions opened there must be opened again on channels never used"
        )
        self._timer.set(now_ms)
