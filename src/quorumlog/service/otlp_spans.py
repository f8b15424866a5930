"""Sends the traces of appends to an OpenTelemetry receiver; used by `OtlpExporter` alone."""

import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from quorumlog.node.instruments import Span, Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SCOPE = InstrumentationScope("quorumlog")
TRACE_ID_BITS, SPAN_ID_BITS = 128, 64


def send_traces(exporter: OTLPSpanExporter, resource: "Resource", traces: Iterable[Trace]) -> bool:
    """Send all; return whether the receiver took them. What it does not take is dropped."""
    spans = [span for trace in traces for span in _spans_of(trace, resource)]
    return not spans or exporter.export(spans) is SpanExportResult.SUCCESS


def _spans_of(trace: Trace, resource: "Resource") -> Iterator[ReadableSpan]:
    trace_id = secrets.randbits(TRACE_ID_BITS) or 1
    parent = _context(trace_id)
    status = Status(StatusCode.OK)
    if trace.refused_code:
        status = Status(StatusCode.ERROR, trace.refused_code)
    yield _readable(trace.whole, parent, None, resource, status, SpanKind.SERVER)
    for step in trace.steps:
        yield _readable(step, _context(trace_id), parent, resource, Status(), SpanKind.INTERNAL)


def _context(trace_id: int) -> SpanContext:
    span_id = secrets.randbits(SPAN_ID_BITS) or 1
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags)


def _readable(
    span: Span,
    context: SpanContext,
    parent: SpanContext | None,
    resource: "Resource",
    status: Status,
    kind: SpanKind,
) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        kind=kind,
        status=status,
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )
