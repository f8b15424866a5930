"""Appends that are answered earlier, or later, than when they are committed (`WriteLevel`).

An append that is answered early stays among those that wait for a majority, so that what a leader
holds in memory is bounded as ever. What is appended, written and pushed does not depend on levels.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.proposals import Answer, PendingAppend

_TOO_LATE = "entries {} to {} are committed, but {} did not acknowledge them in {} ms"
_ENDED = "entries {} to {} are committed; leadership ended before all voters acknowledged them"


class LevelAnswer:
    """In the place of an append's callback: answers once, when its level is reached.

    It is called when the append is committed (and applied), or fails.
    """

    def __init__(
        self, levels: "WriteLevels", level: WriteLevel, answer: Answer, now_ms: int, wait_ms: int
    ) -> None:
        self._levels = levels
        self._answer = answer
        self.level = level
        self.wait_ms = wait_ms
        self.deadline_ms = now_ms + wait_ms
        self.is_staged = self.is_answered = False
        self.size_bytes = 0

    def __call__(self, response: AppendResponse, results: Sequence[bytes]) -> None:
        """See `Answer`."""
        self._levels.ended(self, response, results)

    def give(self, response: AppendResponse, results: Sequence[bytes] = ()) -> None:
        """Answer, unless that was done before."""
        if not self.is_answered:
            self.is_answered = True
            self._answer(response, results)


class _OnAll(msgspec.Struct, frozen=True):
    """A committed append that not all voters are known to have."""

    answer: LevelAnswer
    response: AppendResponse
    results: Sequence[bytes]


def _last_index(one: _OnAll) -> int:
    return one.response.last_index


class WriteLevels:
    """The part of a replica that answers appends of other levels than REPLICATION.

    `unstaged` of them have no place in the log yet. `held` and `held_bytes` are committed, and wait
    for all voters. All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        self.unstaged = 0
        self._early: deque[PendingAppend] = deque()
        self._on_all: list[_OnAll] = []
        """By last index. A block that came again has a later deadline than others after it."""
        self._timer = context.timers.new(self._expire)
        self.held = self.held_bytes = 0
        self.is_waiting = False
        """Whether an answer depends on what is durable, here or on all voters."""

    def answer_at(self, level: WriteLevel, answer: Answer) -> LevelAnswer:
        """Return what takes the place of an append's callback."""
        self.unstaged += 1
        context = self._context  # its configuration may have been altered since the last append
        now_ms, wait_ms = context.environment.now_ms(), context.config.max_wait_ack_time_ms
        return LevelAnswer(self, level, answer, now_ms, wait_ms)

    def staged(self, pending: Iterable[PendingAppend]) -> None:
        """Answer those of staged appends that need no more than their place."""
        for one in pending:
            answer = one.proposal.answer
            if not isinstance(answer, LevelAnswer):
                continue
            self._placed(answer)
            answer.size_bytes = len(one.proposal.block.data)
            if answer.level <= WriteLevel.RECEIVE:
                answer.give(self._early_response(one, WriteLevel.RECEIVE))
            elif answer.level is WriteLevel.PERSISTENCE:
                self._early.append(one)
                self.is_waiting = True

    def _placed(self, answer: LevelAnswer) -> None:
        self.unstaged -= not answer.is_staged
        answer.is_staged = True

    def _early_response(self, pending: PendingAppend, level: WriteLevel) -> AppendResponse:
        return AppendResponse(
            leader_id=self._context.core.leader_id,
            term=pending.term,
            first_index=pending.first_index,
            last_index=pending.last_index,
            positions=pending.positions,
            level=level,
        )

    def ended(
        self, answer: LevelAnswer, response: AppendResponse, results: Sequence[bytes]
    ) -> None:
        """An append is committed and applied, or failed."""
        self._placed(answer)
        is_done = response.code == ResponseCode.SUCCESS
        if not is_done or answer.level is not WriteLevel.ALL:
            answer.give(response, results)
            return
        if response.last_index <= self._context.core.index_on_all():
            answer.give(msgspec.structs.replace(response, level=WriteLevel.ALL), results)
            return
        insort(self._on_all, _OnAll(answer, response, results), key=_last_index)
        self.held += 1
        self.held_bytes += answer.size_bytes
        self._timer.set_earlier(answer.deadline_ms)
        self.is_waiting = True

    def advance(self) -> None:
        """Answer what is durable now; the core has taken an event."""
        core, early = self._context.core, self._early
        while early and (early[0].last_index <= core.durable_index or _is_over(early[0])):
            one = early.popleft()
            if isinstance(one.proposal.answer, LevelAnswer):
                one.proposal.answer.give(self._early_response(one, WriteLevel.PERSISTENCE))
        if self._on_all:
            count = bisect_right(self._on_all, core.index_on_all(), key=_last_index)
            for found in self._take(self._on_all[:count], self._on_all[count:]):
                response = msgspec.structs.replace(found.response, level=WriteLevel.ALL)
                found.answer.give(response, found.results)
        self.is_waiting = bool(early or self._on_all)

    def _take(self, taken: list[_OnAll], left: list[_OnAll]) -> list[_OnAll]:
        """Let some wait no more; return them."""
        self._on_all = left
        self.held -= len(taken)
        self.held_bytes -= sum(one.answer.size_bytes for one in taken)
        return taken

    def leadership_ended(self) -> None:
        """This replica does not learn any more what others have; what failed was told so."""
        self._early.clear()
        for found in self._take(self._on_all, []):
            self._refuse(found, _ENDED)

    def _expire(self, now_ms: int) -> None:
        due = [one for one in self._on_all if one.answer.deadline_ms <= now_ms]
        left = [one for one in self._on_all if one.answer.deadline_ms > now_ms]
        self._timer.set(min((one.answer.deadline_ms for one in left), default=NEVER_MS))
        for found in self._take(due, left):
            core, last = self._context.core, found.response.last_index
            matches = {peer.peer_id: peer.match_index for peer in core.peer_progress()}
            late = [peer for peer in core.membership.voters if matches.get(peer, last) < last]
            who = ", ".join(late) or "some voters"
            self._refuse(found, _TOO_LATE, who, found.answer.wait_ms)

    def _refuse(self, found: _OnAll, text: str, *more: object) -> None:
        response = found.response
        text = text.format(response.first_index, response.last_index, *more)
        code = ResponseCode.WAIT_ALL_ACK_TIMEOUT
        self._context.counters.count_refusal(code)
        found.answer.give(msgspec.structs.replace(response, code=code, text=text))


def _is_over(pending: PendingAppend) -> bool:
    answer = pending.proposal.answer
    return isinstance(answer, LevelAnswer) and answer.is_answered
