"""A receiver of OpenTelemetry's protocol gets what /metrics shows, and traces of appends."""

import asyncio
import logging
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_service

import quorumlog
from embedding import configs
from quorumlog.local.ports import free_ports
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.errors import ConfigError
from quorumlog.node.instruments import TRACES_MAX, Span, Trace, Tracer
from quorumlog.node.node import Node
from quorumlog.service import otlp, otlp_metrics
from quorumlog.service.metric_families import FAMILIES
from quorumlog.service.metrics import NodeMetrics
from quorumlog.service.otlp import OtlpExporter
from quorumlog.service.traced_requests import requests_of

PATIENCE_S = 60.0
"""For what happens in another thread; nothing is judged by it."""


class Receiver(metrics_service.MetricsServiceServicer, trace_service.TraceServiceServicer):
    """A server of OTLP over gRPC on this machine."""

    def __init__(self, port=0):
        self.metrics, self.spans, self.headers = queue.Queue(), queue.Queue(), queue.Queue()
        self._server = grpc.server(ThreadPoolExecutor(2))
        metrics_service.add_MetricsServiceServicer_to_server(self, self._server)
        trace_service.add_TraceServiceServicer_to_server(_Spans(self.spans), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def Export(self, request, context):  # noqa: N802  (the protocol's name)
        self.headers.put(dict(context.invocation_metadata()))
        self.metrics.put(request)
        return metrics_messages.ExportMetricsServiceResponse()

    def stop(self):
        self._server.stop(None).wait()


class _Spans(trace_service.TraceServiceServicer):
    def __init__(self, spans):
        self._spans = spans

    def Export(self, request, context):  # noqa: N802  (the protocol's name)
        self._spans.put(request)
        return trace_messages.ExportTraceServiceResponse()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.stop()


async def taken(waiting):
    return await asyncio.to_thread(waiting.get, timeout=PATIENCE_S)


def configured(cluster, node_id, port, **options):
    """Have a node, before it starts, send to a receiver."""
    cluster.configs[node_id] = msgspec.structs.replace(
        cluster.configs[node_id],
        metrics_grpc_exporter_target=f"127.0.0.1:{port}",
        metric_grpc_exporter_interval_in_mills=50,
        **options,
    )
    return cluster.configs[node_id]


def exporter_of(node, config):
    return OtlpExporter(config, NodeMetrics(node), node.instruments)


def attributes_of(one):
    return {
        item.key: getattr(item.value, item.value.WhichOneof("value")) for item in one.attributes
    }


async def test_a_receiver_gets_the_metrics_that_prometheus_shows(make_cluster, receiver):
    async with make_cluster(count=1) as cluster:
        config = configured(
            cluster, "n0", receiver.port, metrics_grpc_exporter_header="x-token:abc,x-other:d e"
        )
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(3):
                await client.append(b"x" * 100)
        exporter = exporter_of(cluster.nodes["n0"], config)
        exporter.start()
        request = await taken(receiver.metrics)
        await asyncio.to_thread(exporter.stop)
        headers = await taken(receiver.headers)

    assert (headers["x-token"], headers["x-other"]) == ("abc", "d e")
    (of_resource,) = request.resource_metrics
    resource = attributes_of(of_resource.resource)
    assert resource["service.name"] == "quorumlog"
    assert resource["service.instance.id"] == "n0"
    (scope,) = of_resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    known = {family.shown_name: family for family in FAMILIES}
    assert set(found) > {"quorumlog_replica_term", "process_resident_memory_bytes"}
    for name, metric in found.items():
        if name in known:
            kind = {"sum": "counter"}.get(metric.WhichOneof("data"), metric.WhichOneof("data"))
            assert (kind, metric.description) == (known[name].kind, known[name].help_text)
        expected = {"seconds": "s", "bytes": "By", "entries": "{entry}"}
        assert metric.unit == expected.get(name.removesuffix("_total").split("_")[-1], "1")

    appended = found["quorumlog_service_append_bytes_total"].sum
    assert appended.is_monotonic
    (point,) = appended.data_points
    assert (attributes_of(point), point.as_double) == ({"group": "g", "self_id": "n0"}, 3 * 148)
    (latency,) = found["quorumlog_service_append_seconds"].histogram.data_points
    assert latency.count == sum(latency.bucket_counts) == 3
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    assert 0 < latency.sum < 60
    assert not latency.HasField("min"), "it is not known"
    assert 0 < latency.start_time_unix_nano <= latency.time_unix_nano


async def test_many_points_are_sent_in_several_requests(make_cluster, receiver, monkeypatch):
    monkeypatch.setattr(otlp_metrics, "POINTS_TOGETHER", 20)
    async with make_cluster(count=1) as cluster:
        config = configured(cluster, "n0", receiver.port)
        await cluster.start()
        exporter = exporter_of(cluster.nodes["n0"], config)
        exporter.start()
        names = []
        while "quorumlog_build_info" not in names:
            (of_resource,) = (await taken(receiver.metrics)).resource_metrics
            (scope,) = of_resource.scope_metrics
            assert len(scope.metrics) <= 20
            names += [metric.name for metric in scope.metrics]
        await asyncio.to_thread(exporter.stop)
    assert len(names) > 40
    assert len(set(names)) == len(names)


async def test_a_receiver_that_is_away_changes_nothing_and_is_one_line(make_cluster, until, caplog):
    caplog.set_level(logging.INFO, otlp.__name__)

    def said():
        return [one for one in caplog.records if one.name == otlp.__name__]

    first = Receiver(*free_ports(1))  # one that nobody else takes while it is away
    first.stop()
    async with make_cluster(count=1) as cluster:
        config = configured(cluster, "n0", first.port, metric_grpc_exporter_time_out_in_mills=200)
        await cluster.start()
        exporter = exporter_of(cluster.nodes["n0"], config)
        exporter.start()
        async with cluster.client() as client:
            assert (await client.append(b"entry")).index >= 0
            await until(said)
            back = Receiver(first.port)
            await taken(back.metrics)
            await until(lambda: len(said()) == 2)
        await asyncio.to_thread(exporter.stop)
        back.stop()
        assert cluster.nodes["n0"].instruments.sends_failed >= 1
    assert [(one.levelname, one.message) for one in said()] == [
        ("WARNING", "the receiver takes no metrics"),
        ("INFO", "the receiver takes metrics again"),
    ]
    assert getattr(said()[0], EVENT_FIELDS)["target"] == f"127.0.0.1:{first.port}"


async def test_a_traced_append_is_a_span_with_its_steps(make_cluster, receiver):
    async with make_cluster() as cluster:
        for node_id in cluster.ids:
            configured(cluster, node_id, receiver.port, trace_every=1)
            node = cluster.nodes[node_id] = Node(cluster.configs[node_id], requests_of)
            await node.start()
        async with cluster.client() as client:
            appended = [await client.append(b"x" * 100) for _ in range(2)]
        leader = cluster.leader_id()
        node, config = cluster.nodes[leader], cluster.configs[leader]
        exporter = exporter_of(node, config)
        exporter.start()
        spans = []
        while len([span for span in spans if span.name == "append"]) < 2:
            request = await taken(receiver.spans)
            spans += [
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
        await asyncio.to_thread(exporter.stop)

    appends = [one for one in spans if one.name == "append"]
    first = min(appends, key=lambda one: one.start_time_unix_nano)
    of_first = attributes_of(first)
    assert of_first["group"] == "g"
    assert of_first["first_index"] == of_first["last_index"] == appended[0].index
    assert of_first["bytes"] == 148
    steps = [one for one in spans if one.parent_span_id == first.span_id]
    assert {one.trace_id for one in steps} == {first.trace_id}
    names = [one.name for one in steps]
    assert {"service", "replica", "disk", "core", "peer_link", "answer"} <= set(names)
    peers = {attributes_of(one)["remote_id"] for one in steps if one.name == "peer_link"}
    assert peers <= {"n0", "n1", "n2"} - {leader}
    for one in steps:
        assert first.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
    by_name = {one.name: one for one in steps}
    order = [by_name[name].start_time_unix_nano for name in ("service", "replica", "disk")]
    assert order == sorted(order)
    assert by_name["core"].end_time_unix_nano <= first.end_time_unix_nano


async def test_without_trace_every_no_part_of_tracing_is_there(make_cluster):
    async with make_cluster(count=1) as cluster:
        await cluster.start()
        node = cluster.nodes["n0"]
        assert node.instruments.tracer is None
        assert type(node.replicas["g"]).__name__ == "Replica"
        assert type(requests_of(node)).__name__ == "ClientRequests"


def test_traces_that_nobody_takes_are_bounded():
    tracer = Tracer(every=1)
    for number in range(TRACES_MAX + 5):
        tracer.add(Trace(Span("append", number, number), ()))
    assert tracer.dropped == 5
    assert tracer.take()[0].whole.start_ns == 5
    assert tracer.take() == []


async def test_a_node_in_a_program_sends_its_metrics_as_a_served_one_does(tmp_path, receiver):
    config = msgspec.structs.replace(
        configs(tmp_path)["n0"],
        metrics_grpc_exporter_target=f"127.0.0.1:{receiver.port}",
        trace_every=1,
    )
    async with quorumlog.Node(config):
        pass  # the last figures are sent when it stops
    request = await taken(receiver.metrics)
    (resource,) = request.resource_metrics
    assert attributes_of(resource.resource)["service.instance.id"] == "n0"


async def test_without_the_extra_a_node_is_not_started(tmp_path, monkeypatch):
    config = msgspec.structs.replace(
        configs(tmp_path)["n0"], metrics_grpc_exporter_target="127.0.0.1:4317"
    )
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match=r"pip install 'quorumlog\[otlp\]'"):
        await quorumlog.Node(config).start()
    assert not (tmp_path / "n0").exists()
