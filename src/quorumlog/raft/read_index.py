"""Linearizable reads: the leader proves, after being asked, that it still leads (Raft 8).

A read may be answered with everything up to the index that was committed when it was asked, once a
round of heartbeats that began after that was answered by a majority, in a term whose first entry is
committed. No clock is involved: neither pauses nor jumps make a read stale (RELIABILITY 2.5).
"""

from collections import deque
from dataclasses import dataclass

from quorumlog.model.codes import ResponseCode
from quorumlog.raft.effects import Finished, ReadReady
from quorumlog.raft.state import RaftState

READS_MAX = 65_536
"""Reads that may wait for a round; one more is refused."""


@dataclass(frozen=True, slots=True)
class _ReadRound:
    round: int
    index: int
    request_ids: list[int]


class ReadIndex:
    """The reads of one leader's term: those of the round under way, and those for the next."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._waiting: list[int] = []
        self._asked: deque[_ReadRound] = deque()

    @property
    def needs_round(self) -> bool:
        """Whether a round should begin: reads wait for one and none is under way."""
        return bool(self._waiting) and not self._asked

    @property
    def is_idle(self) -> bool:
        """Whether no read waits."""
        return not self._waiting and not self._asked

    def add(self, request_id: int) -> None:
        """Take a read; it joins the next round."""
        waiting = len(self._waiting) + sum(len(asked.request_ids) for asked in self._asked)
        if waiting >= READS_MAX:
            text = f"{waiting} reads wait for a majority; try again later"
            self._state.emit(Finished(request_id, ResponseCode.LEADER_PENDING_FULL, text))
        else:
            self._waiting.append(request_id)

    def round_started(self, number: int) -> None:
        """Heartbeats leave now: what they prove holds for everything asked before."""
        if self._waiting:
            self._asked.append(_ReadRound(number, self._state.committed_index, self._waiting))
            self._waiting = []

    def confirmed(self, number: int) -> None:
        """A majority answered the heartbeats of this round or a later one."""
        while self._asked and self._asked[0].round <= number:
            asked = self._asked.popleft()
            for request_id in asked.request_ids:
                self._state.emit(ReadReady(request_id, asked.index))

    def abandon(self) -> None:
        """Leadership ended: nothing is proved any more."""
        text = "leadership ended before a majority confirmed it"
        for asked in self._asked:
            self._waiting += asked.request_ids
        for request_id in self._waiting:
            self._state.emit(Finished(request_id, ResponseCode.TERM_CHANGED, text))
        self._asked.clear()
        self._waiting = []
