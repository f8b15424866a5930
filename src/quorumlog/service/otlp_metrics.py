"""The metrics of a node as OpenTelemetry has them; used by `OtlpExporter` alone."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otlp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric

SCOPE = InstrumentationScope("quorumlog")
POINTS_TOGETHER = 2_000
"""With so many points a request is sent: receivers take 4 MiB at a time unless told otherwise."""
_UNITS = {"seconds": "s", "bytes": "By", "entries": "{entry}"}


def unit_of(name: str) -> str:
    """Return the unit of a metric in OpenTelemetry's words, from the end of its name."""
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "1")


def send_metrics(
    exporter: OTLPMetricExporter,
    resource: Resource,
    found: Iterable[Metric],
    started_ns: int,
    now_ns: int,
) -> bool:
    """Send what `/metrics` shows; return whether the receiver took all of it.

    After a request that it does not take, the rest is not sent.
    """
    batch: list[otlp.Metric] = []
    points = 0
    for metric in found:
        if not metric.samples:
            continue
        batch.append(_metric_of(metric, started_ns, now_ns))
        points += len(batch[-1].data.data_points)
        if points >= POINTS_TOGETHER:
            if not _send(exporter, resource, batch):
                return False
            batch, points = [], 0
    return not batch or _send(exporter, resource, batch)


def _send(exporter: OTLPMetricExporter, resource: Resource, metrics: list[otlp.Metric]) -> bool:
    of_resource = otlp.ResourceMetrics(resource, [otlp.ScopeMetrics(SCOPE, metrics, "")], "")
    result = exporter.export(otlp.MetricsData([of_resource]))
    return result is otlp.MetricExportResult.SUCCESS


def _metric_of(metric: Metric, started_ns: int, now_ns: int) -> otlp.Metric:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    cumulative = otlp.AggregationTemporality.CUMULATIVE
    data: Any
    if metric.type == "histogram":
        data = otlp.Histogram(list(_histograms(metric, started_ns, now_ns)), cumulative)
    else:
        points = [
            otlp.NumberDataPoint(one.labels, started_ns, now_ns, float(one.value))
            for one in metric.samples
            if one.name == name
        ]
        is_counter = metric.type == "counter"
        data = otlp.Sum(points, cumulative, is_monotonic=True) if is_counter else otlp.Gauge(points)
    return otlp.Metric(name, metric.documentation, unit_of(name), data)


def _histograms(metric: Metric, started_ns: int, now_ns: int) -> Iterator[otlp.HistogramDataPoint]:
    for labels, bounds, cumulated, total in _by_labels(metric):
        counts = [int(more - less) for less, more in pairwise((0.0, *cumulated))]
        yield otlp.HistogramDataPoint(
            labels,
            started_ns,
            now_ns,
            count=int(cumulated[-1]),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=None,  # not known, which the protocol allows
            max=None,
        )


def _by_labels(
    metric: Metric,
) -> Iterable[tuple[dict[str, str], list[float], list[float], float]]:
    """Yield (labels, bounds, values up to each bound and in all, sum) of each histogram."""
    found: dict[tuple[tuple[str, str], ...], tuple[list[float], list[float], list[float]]] = {}
    for sample in metric.samples:
        labels = tuple(item for item in sample.labels.items() if item[0] != "le")
        bounds, cumulated, total = found.setdefault(labels, ([], [], []))
        if sample.name.endswith("_bucket"):
            cumulated.append(sample.value)
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            total.append(sample.value)
    for key, (bounds, cumulated, total) in found.items():
        yield dict(key), bounds, cumulated, total[0]
