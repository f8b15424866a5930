"""Linearizable reads: the leader proves, after it was asked, that it still leads (Raft 8).

A read is answered with everything up to the index that was committed when it was asked, once a
majority has answered a round of heartbeats that was sent after that, in a term whose first entry is
committed. No clock is involved, so neither pauses nor jumps make a read stale (RELIABILITY 2.5).
"""

from collections import deque
from dataclasses import dataclass

from quorumlog.model.codes import ResponseCode
from quorumlog.raft.effects import Finished, ReadReady
from quorumlog.raft.state import RaftState

READS_MAX = 65_536
"""Number of reads that may wait for a round; further ones are refused."""


@dataclass(frozen=True, slots=True)
class _ReadRound:
    round: int
    index: int
    request_ids: list[int]


class ReadIndex:
    """The reads of one leader's term: those of rounds under way, and those for the next."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._waiting: list[int] = []
        self._rounds: deque[_ReadRound] = deque()

    @property
    def needs_round(self) -> bool:
        """Whether to start a round: reads wait for one and none is under way."""
        return bool(self._waiting) and not self._rounds

    @property
    def is_idle(self) -> bool:
        """Whether no read waits."""
        return not self._waiting and not self._rounds

    def add(self, request_id: int) -> None:
        """Take a read; it joins the next round."""
        waiting = len(self._waiting) + sum(len(one.request_ids) for one in self._rounds)
        if waiting >= READS_MAX:
            text = f"{waiting} reads wait for a majority; try again later"
            self._state.emit(Finished(request_id, ResponseCode.LEADER_PENDING_FULL, text))
        else:
            self._waiting.append(request_id)

    def round_started(self, number: int) -> None:
        """Heartbeats are sent now: they prove leadership for all reads that were asked before."""
        if self._waiting:
            self._rounds.append(_ReadRound(number, self._state.committed_index, self._waiting))
            self._waiting = []

    def confirmed(self, number: int) -> None:
        """A majority answered the heartbeats of this round or a later one."""
        while self._rounds and self._rounds[0].round <= number:
            one = self._rounds.popleft()
            for request_id in one.request_ids:
                self._state.emit(ReadReady(request_id, one.index))

    def abandon(self) -> None:
        """Leadership ended: refuse the reads that wait."""
        text = "leadership ended before a majority confirmed it"
        for one in self._rounds:
            self._waiting += one.request_ids
        for request_id in self._waiting:
            self._state.emit(Finished(request_id, ResponseCode.TERM_CHANGED, text))
        self._rounds.clear()
        self._waiting = []
