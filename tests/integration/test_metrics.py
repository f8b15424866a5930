"""Every metric of a node has the name, kind and labels that spec 80 section 3 lists."""

import re
from pathlib import Path

from quorumlog.service.metrics import NodeMetrics

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "80-client-and-operations.md"
LISTED = re.compile(r"^\| `(quorumlog_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)


def found_in(registry):
    """Return name → (kind, labels) of what is collected; names are those that are shown."""
    found = {}
    for metric in registry.collect():
        labels = {name for sample in metric.samples for name in sample.labels} - {"le"}
        labels |= set(getattr(metric, "_labelnames", ()))
        name = metric.name + ("_total" if metric.type == "counter" else "")
        found[name] = (metric.type, frozenset(labels))
    return found


async def test_166_metrics_have_their_listed_names_and_labels_and_truthful_units(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"x" * 100)
        metrics = NodeMetrics()
        metrics.attach(cluster.nodes[cluster.leader_id()])
        metrics.append_answered("g", 0.25, 1, 148)
        metrics.disk_committed(0.125, 4_096)
        found = found_in(metrics.registry)
        value = metrics.registry.get_sample_value

        assert value("quorumlog_service_append_seconds_sum", {"group": "g"}) == 0.25
        assert value("quorumlog_disk_commit_seconds_sum") == 0.125
        assert value("quorumlog_disk_commit_bytes_sum") == 4_096
        assert (
            value(
                "quorumlog_service_append_bytes_total",
                {"group": "g", "self_id": cluster.leader_id()},
            )
            == 148
        )

    listed = {
        name: (kind, frozenset(labels.split(", ")) - {""})
        for name, kind, labels in LISTED.findall(SPEC.read_text())
    }
    assert found == listed
