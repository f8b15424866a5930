"""Where a node's metrics can be had: the admin port, and a receiver of OpenTelemetry."""

from collections.abc import Callable

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.config import NodeConfig
from quorumlog.node.node import Node
from quorumlog.service.admin_access import AdminMembers, access_of
from quorumlog.service.http import AdminPort
from quorumlog.service.metrics import NodeMetrics
from quorumlog.service.otlp import OtlpExporter, require_extra


class MetricOutlets:
    """The outlets that a configuration names; `start` and `stop` may wait, so not on the loop.

    Raises `ConfigError` if a package that one of them needs is not installed.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._admin: AdminPort | None = None
        self._otlp: OtlpExporter | None = None
        if config.metrics_grpc_exporter_target:
            require_extra()

    def start(
        self,
        node: Node,
        kafka: KafkaCounters | None,
        view: Callable[[], ClusterView],
        members: AdminMembers,
    ) -> None:
        """Show and send the metrics of a node that has been started.

        `kafka`: what is counted of Kafka clients, if the node serves them. `view` returns what
        `__cluster` holds, `members` who somebody at the admin port is, and may do.
        Raises `ConfigError` if the admin port is taken; then, as after any error, `stop` it.
        """
        config, metrics = self._config, NodeMetrics(node, kafka, view)
        if config.admin_listen:
            self._admin = AdminPort(
                config.admin_listen,
                node,
                metrics.registry,
                tls=node.tls,
                access=access_of(config, members),
                stop_access=members.stop,
                audit=node.instruments.audit,
            )
            self._admin.start()
        if config.metrics_grpc_exporter_target:
            self._otlp = OtlpExporter(config, metrics, node.instruments)
            self._otlp.start()

    def stop(self) -> None:
        """Stop what was started; returns after a few seconds at most."""
        if self._admin is not None:
            self._admin.stop()
        if self._otlp is not None:
            self._otlp.stop()
