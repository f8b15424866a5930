"""The traced appends of one replica: which moments they have passed."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.block import Block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.instruments import Span, Trace, Tracer
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.proposals import Answer

OPEN_MAX = 64
"""Appends of a replica that are traced at a time; no other is traced meanwhile."""
MOMENTS_MAX = 4_096
"""Moments of each kind that are remembered while appends are traced."""
LINGER_MS = 1_000
"""How long an answered append waits for members that have not acknowledged it yet."""


@dataclass(slots=True)
class _Append:
    """An append that is traced, in microseconds of the node's clock; 0: not yet."""

    arrived_us: int
    accepted_us: int
    entries: int
    size_bytes: int
    wall_ns: int
    answered_us: int = 0
    response: AppendResponse | None = None


@dataclass(frozen=True, slots=True)
class _Moment:
    """Everything up to `index` has come so far, at a peer or here (empty)."""

    index: int
    at_us: int
    peer_id: str = ""


class AppendTraces:
    """Notes when entries are staged, durable, pushed, acknowledged and committed, while it counts.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, tracer: Tracer) -> None:
        self._context = context
        self._environment = context.environment
        self._tracer = tracer
        self._timer = context.timers.new(self._finish)
        self._seen = 0
        self._open: list[_Append] = []
        self._moments: dict[str, deque[_Moment]] = {
            name: deque(maxlen=MOMENTS_MAX)
            for name in ("staged", "durable", "pushed", "acknowledged", "committed")
        }

    def begin(self, block: Block, answer: Answer) -> Answer:
        """Trace an append if it is its turn; return the callback that is to get its answer."""
        self._seen += 1
        if self._seen % self._tracer.every or len(self._open) >= OPEN_MAX:
            return answer
        now_us, wall_ms = self._environment.now_us(), self._environment.wall_ms()
        arrived_us = self._tracer.arrived_us or now_us
        wall_ns = wall_ms * 1_000_000 - now_us * 1_000
        found = _Append(arrived_us, now_us, block.count, len(block.data), wall_ns)
        self._open.append(found)

        def answered(response: AppendResponse, results: Sequence[bytes]) -> None:
            found.answered_us, found.response = self._environment.now_us(), response
            self._timer.set_earlier(self._environment.now_ms() + LINGER_MS)
            answer(response, results)

        return answered

    def note(self, name: str, index: int, peer_id: str = "", *, at_us: int = 0) -> None:
        """Everything up to an index is staged, durable, pushed, acknowledged or committed.

        It is so now, or since `at_us`.
        """
        if self._open:
            at_us = at_us or self._environment.now_us()
            self._moments[name].append(_Moment(index, at_us, peer_id))

    def _finish(self, now_ms: int) -> None:
        """Give the tracer those that were answered long enough ago."""
        due_ms = NEVER_MS
        for found in list(self._open):
            if found.response is None:
                continue
            end_ms = found.answered_us // 1_000 + LINGER_MS
            if end_ms <= now_ms:
                self._open.remove(found)
                self._tracer.add(self._trace_of(found, found.response))
            else:
                due_ms = min(due_ms, end_ms)
        self._timer.set(due_ms)
        if not self._open:
            for moments in self._moments.values():
                moments.clear()

    def _trace_of(self, found: _Append, response: AppendResponse) -> Trace:
        core = self._context.core
        attributes: dict[str, str | int] = {
            "group": self._context.config.group,
            "self_id": core.self_id,
            "entries": found.entries,
            "bytes": found.size_bytes,
        }
        refused = "" if response.code == ResponseCode.SUCCESS else ResponseCode(response.code).name
        if not refused:
            attributes |= {
                "first_index": response.first_index,
                "last_index": response.last_index,
                "term": response.term,
            }
        whole = _span(found, "append", found.arrived_us, found.answered_us, attributes)
        steps = [_span(found, "service", found.arrived_us, found.accepted_us, {})]
        if not refused:
            steps += self._steps_of(found, response.last_index)
        return Trace(whole, tuple(steps), refused)

    def _steps_of(self, found: _Append, index: int) -> list[Span]:
        """Return the steps of an append that was acknowledged, as far as they are known."""
        staged_us = self._when("staged", index)
        committed_us = self._when("committed", index)
        durable_us = self._when("durable", index)
        steps = []
        if staged_us:
            steps.append(_span(found, "replica", found.accepted_us, staged_us, {}))
            if durable_us:
                steps.append(_span(found, "disk", staged_us, durable_us, {}))
        for peer_id in sorted({moment.peer_id for moment in self._moments["pushed"]}):
            pushed_us = self._when("pushed", index, peer_id)
            acknowledged_us = self._when("acknowledged", index, peer_id)
            if pushed_us and acknowledged_us:
                of_peer: dict[str, str | int] = {"remote_id": peer_id}
                steps.append(_span(found, "peer_link", pushed_us, acknowledged_us, of_peer))
        if staged_us and committed_us:
            steps.append(_span(found, "core", staged_us, committed_us, {}))
            steps.append(_span(found, "answer", committed_us, found.answered_us, {}))
        return steps

    def _when(self, name: str, index: int, peer_id: str = "") -> int:
        """Return when an index was reached first; 0: that is not known."""
        reached = (
            moment.at_us
            for moment in self._moments[name]
            if moment.index >= index and moment.peer_id == peer_id
        )
        return next(reached, 0)


def _span(
    found: _Append, name: str, start_us: int, end_us: int, attributes: dict[str, str | int]
) -> Span:
    start_ns, end_ns = (found.wall_ns + at_us * 1_000 for at_us in (start_us, end_us))
    return Span(name, start_ns, max(start_ns, end_ns), attributes)
