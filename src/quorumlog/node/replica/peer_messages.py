"""Messages to peers: each waits until what it promises is durable, and gets its chain CRC here.

Chain CRCs travel with pushes and heartbeats, so that the next one shows logs that differ.
The core does not see bytes, so they are added and compared here.
"""

from collections import deque

import msgspec

from quorumlog.model.codes import PushType
from quorumlog.model.errors import StorageError
from quorumlog.model.messages.peer import HeartBeatRequest, PeerMessage, PushRequest
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.raft.effects import Send

HELD_SENDS_MAX = 65_536
"""Messages that may wait for a write; above, the oldest is dropped (peers repeat theirs)."""


class PeerMessages:
    """The part of a replica that sends its messages and compares chain CRCs.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self._log = context.log
        self._network = context.environment.network
        self._held: deque[Send] = deque()
        self._durable_token = 0

    def send(self, effect: Send) -> None:
        """Send at once, or when the write it waits for is durable."""
        if effect.after is None or effect.after <= self._durable_token:
            self._transmit(effect.message)
            return
        if len(self._held) >= HELD_SENDS_MAX:
            self._held.popleft()
        self._held.append(effect)

    def writes_durable(self, token: int) -> None:
        """Everything up to this token is durable: send the messages that waited for it."""
        self._durable_token = token
        while self._held and (self._held[0].after or 0) <= token:
            self._transmit(self._held.popleft().message)

    def drop_all(self) -> None:
        """Send nothing that waits for a write: it may never be durable."""
        self._held.clear()

    def _transmit(self, message: PeerMessage) -> None:
        bulk = isinstance(message, PushRequest)
        if isinstance(message, HeartBeatRequest):
            message = self._with_committed_chain(message)
        elif isinstance(message, PushRequest) and message.type is PushType.COMPARE:
            with_chain = self.with_chain(message)
            if with_chain is None:
                return
            message = with_chain
        self._network.send(message.remote_id, message, bulk=bulk)

    # -- chain CRCs -------------------------------------------------------------------------

    def with_chain(self, message: PushRequest) -> PushRequest | None:
        """Add the chain CRC at prev_index, 0 if it is just before the log and not known any more.

        Returns None if that entry is damaged here: the peer waits, everything else goes on.
        """
        chain = self._chain_at(message.prev_index)
        if chain is None and message.prev_index <= self._log.before_begin_index:
            chain = 0
        if chain is None:
            text = f"entry {message.prev_index} is damaged: {message.remote_id} is not compared"
            self._context.raise_alarm(text)
            return None
        return msgspec.structs.replace(message, prev_chain_crc=chain)

    def _with_committed_chain(self, message: HeartBeatRequest) -> HeartBeatRequest:
        index = message.committed_index
        if index <= self._log.before_begin_index:
            return message
        chain = self._committed_chain(index)
        return msgspec.structs.replace(message, committed_chain_crc=chain) if chain else message

    def _committed_chain(self, index: int) -> int:
        """Return the chain CRC at an index, or 0 (not compared) if that would need the disk."""
        if index != self._log.end_index and not self._log.is_in_memory(index):
            return 0
        try:
            return self._log.chain_crc_at(index) or 0
        except StorageError:
            return 0

    def push_matches(self, message: PushRequest) -> bool:
        """Whether the chain CRC of a received push equals ours at prev_index, if both know it."""
        compared = message.type in (PushType.COMPARE, PushType.APPEND)
        inside = self._log.before_begin_index < message.prev_index <= self._log.end_index
        if not compared or not inside:
            return True
        known = self._chain_at(message.prev_index)
        return known is None or message.prev_chain_crc in (0, known)

    def heartbeat_matches(self, message: HeartBeatRequest, committed_index: int) -> bool:
        """Whether our committed entries equal those that the leader calls committed, if known."""
        index = message.committed_index
        if not message.committed_chain_crc or index > committed_index:
            return True
        if index <= self._log.before_begin_index:
            return True
        return self._committed_chain(index) in (0, message.committed_chain_crc)

    def _chain_at(self, index: int) -> int | None:
        """Return the chain CRC at an index; damage that is found is reported."""
        chain = self._log.chain_crc_at(index)
        if chain is None and self._log.before_begin_index < index:
            self._context.check_entry(index)
        return chain
