"""What a node observes beside its replicas: group commits, and the traces of some appends.

A trace says where the time of one append goes, step by step (docs/architecture.md).
"""

from collections import deque

import msgspec

from quorumlog.auth.login import LoginCounters
from quorumlog.model.audit_events import AuditedEvent, AuditEvent, NodeAudit
from quorumlog.model.histogram import CommitHistograms

TRACES_MAX = 1_024
"""Finished traces that wait to be sent; above it, the oldest is dropped and counted."""


class Span(msgspec.Struct, frozen=True):
    """One step of an append, in nanoseconds since 1970."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int] = {}


class Trace(msgspec.Struct, frozen=True):
    """One append: `whole` from its arrival to its answer, and its steps, which may be unfinished.

    `refused_code` is the name of the code of an append that was not acknowledged.
    """

    whole: Span
    steps: tuple[Span, ...]
    refused_code: str = ""


class Tracer:
    """Says which appends of a node are traced, and keeps their traces until they are sent.

    One of `every` is traced, for each group. `arrived_us` is when the request that is being handled
    arrived. Traces are added on the event loop's thread and may be taken on any other.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.arrived_us = 0
        self.dropped = 0
        self._finished: deque[Trace] = deque()

    def add(self, trace: Trace) -> None:
        """Keep a finished trace."""
        self._finished.append(trace)
        if len(self._finished) > TRACES_MAX:
            self._finished.popleft()
            self.dropped += 1

    def take(self) -> list[Trace]:
        """Return what has been finished since the last call."""
        return [self._finished.popleft() for _ in range(len(self._finished))]


class NodeInstruments:
    """What one node observes; without `trace_every` there is no tracer.

    `sends_failed` counts the times a receiver did not take what was sent. `audit` takes what is
    recorded of clients.
    """

    def __init__(self, trace_every: int, audit: NodeAudit) -> None:
        self.audit = audit
        self.commits = CommitHistograms()
        self.sends_failed = 0
        self.logins = LoginCounters()
        self.tracer = Tracer(trace_every) if trace_every else None

    def begin_audit(self, self_id: str) -> None:
        """Begin to write the audit log: the node was started, and its directory is its alone."""
        self._record(AuditedEvent.NODE_STARTED, self_id)
        self.audit.open()

    def end_audit(self, self_id: str, reason: str) -> None:
        """Write what is left, which may take seconds; `reason`: why the node had to stop."""
        self._record(AuditedEvent.NODE_STOPPED, self_id, reason)
        self.audit.close()

    def _record(self, event: AuditedEvent, self_id: str, reason: str = "") -> None:
        said = AuditEvent(event=event, resource=f"node:{self_id}", reason=reason)
        self.audit.record(said)
