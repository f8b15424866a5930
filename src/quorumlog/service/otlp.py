"""Sends metrics, and spans of traced appends, to an OpenTelemetry receiver (OTLP over gRPC).

OpenTelemetry comes with the extra `otlp`, and is imported only if a receiver is configured. What is
sent is what `/metrics` shows, under the same names: both are made from `metric_families`. A thread
of its own reads and sends; a receiver that is away, slow or hostile delays nothing else.
"""

import logging
import threading
import time
from typing import Any

from quorumlog.log_events import describe_error, log_event
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.node.instruments import NodeInstruments
from quorumlog.service.metrics import VERSION, NodeMetrics

logger = logging.getLogger(__name__)

LAST_SEND_S = 2.0
"""How long a node that stops waits for its last figures to be taken."""
_NOT_TAKEN = (
    "it was not reached within metricGrpcExporterTimeOutInMills, or refuses: does a receiver of "
    "OTLP over gRPC listen there?"
)
"""Why, as far as is known: OpenTelemetry only says that something was not sent."""
_MISSING = (
    "metricsGrpcExporterTarget needs OpenTelemetry, which is not installed: "
    "pip install 'quorumlog[otlp]'"
)


def require_extra() -> None:
    """Raise `ConfigError` if OpenTelemetry is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.grpc  # noqa: PLC0415
        import opentelemetry.sdk.resources  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(f"{_MISSING} ({error})") from error


class OtlpExporter:
    """Sends everything at an interval, and once more when it is stopped.

    Raises `ConfigError` if the extra is not installed.
    """

    def __init__(
        self, config: NodeConfig, metrics: NodeMetrics, instruments: NodeInstruments
    ) -> None:
        require_extra()
        from opentelemetry.exporter.otlp.proto.grpc import (  # noqa: PLC0415
            metric_exporter,
            trace_exporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        from quorumlog.service import otlp_metrics, otlp_spans  # noqa: PLC0415

        self._target = config.metrics_grpc_exporter_target
        self._interval_s = config.metric_grpc_exporter_interval_in_mills / 1_000
        self._metrics, self._instruments = metrics, instruments
        self._send_metrics, self._send_traces = otlp_metrics.send_metrics, otlp_spans.send_traces
        options: dict[str, Any] = {
            "endpoint": self._target,
            "insecure": not self._target.startswith("https://"),
            "headers": list(config.exporter_headers.items()),
            "timeout": config.metric_grpc_exporter_time_out_in_mills / 1_000,
        }
        self._exporter = metric_exporter.OTLPMetricExporter(**options)
        self._span_exporter = trace_exporter.OTLPSpanExporter(**options)
        self._resource = Resource(
            {
                "service.name": "quorumlog",
                "service.namespace": config.cluster,
                "service.instance.id": config.self_id,
                "service.version": VERSION,
            }
        )
        self._started_ns = time.time_ns()
        self._has_failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quorumlog-otlp", daemon=True)

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send once more, and end; returns after `LAST_SEND_S` at the latest."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LAST_SEND_S)
        self._exporter.shutdown(timeout_millis=0)
        self._span_exporter.shutdown()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._interval_s)
            try:
                is_sent = self._send()
                self._report(is_sent=is_sent, why="" if is_sent else _NOT_TAKEN)
            except Exception as error:  # of a library; what is not sent now is sent next time
                self._report(is_sent=False, why=describe_error(error))

    def _send(self) -> bool:
        found = self._metrics.registry.collect()
        started_ns, now_ns = self._started_ns, time.time_ns()
        is_sent = self._send_metrics(self._exporter, self._resource, found, started_ns, now_ns)
        if self._instruments.tracer is not None:
            traces = self._instruments.tracer.take()
            is_sent = self._send_traces(self._span_exporter, self._resource, traces) and is_sent
        return is_sent

    def _report(self, *, is_sent: bool, why: str) -> None:
        self._instruments.sends_failed += not is_sent
        if is_sent == (not self._has_failed):
            return
        self._has_failed = not is_sent
        level = logging.INFO if is_sent else logging.WARNING
        text = "the receiver takes metrics again" if is_sent else "the receiver takes no metrics"
        log_event(logger, level, text, target=self._target, reason=why)
