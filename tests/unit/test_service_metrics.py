"""Metrics have names by Prometheus' conventions, and /metrics is what Prometheus reads."""

import errno
import importlib.metadata
import re

import pytest

from generated_tables import METRICS, page
from partition_group import PartitionGroup
from quorumlog.model.histogram import ENTRY_COUNTS, Histogram
from quorumlog.node.replica.counters import PEERS_MAX, PushHistograms, ReplicaHistograms
from quorumlog.service import metrics
from quorumlog.service.metric_families import FAMILIES

HISTOGRAM_UNITS = ("_seconds", "_bytes", "_entries")
BASE_UNITS = re.compile(r"_(ms|millis|milliseconds|us|micros|minutes|hours|kib|mib|kb|mb|percent)_")
LABELS = {
    *("group", "self_id", "remote_id", "read_mode", "code", "state", "reader", "reason"),
    *("directory", "version", "python", "request", "error", "topic", "partition"),
    *("consumer_group", "file", "quota", "release", "wire_version", "features"),
}
"""Each has few values; docs/reference/metrics.md says which."""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_166_each_metric_has_a_name_by_convention_a_text_and_bounded_labels(family):
    name = family.shown_name
    assert re.fullmatch(r"quorumlog_[a-z]+(_[a-z]+)*", name)
    assert (family.kind == "counter") == name.endswith("_total")
    assert not re.search(r"_(count|sum|bucket)$", name), "these are parts of a histogram"
    assert not BASE_UNITS.search(f"{name}_"), "durations are seconds, sizes bytes"
    if family.kind == "histogram":
        assert name.endswith(HISTOGRAM_UNITS)
    if "since 1970" in family.text and not family.instead:
        assert name.endswith("_timestamp_seconds")
    assert family.text.endswith(".")
    assert len(family.text) > 5
    assert set(family.labels) <= LABELS


def test_166_no_metric_is_there_twice_and_what_replaces_one_exists():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert {family.instead for family in FAMILIES if family.instead} <= set(names)


def test_166_the_page_lists_each_metric_as_it_is():
    assert METRICS.read_text() == page("metrics"), "run python tests/generated_tables.py"


@pytest.mark.parametrize("room", [2, 3])
def test_f3_partitions_have_figures_of_their_own_up_to_a_bound(room):
    group = PartitionGroup()
    group.produce(1, count=3)
    leader = group.leader()
    for node in group.cluster.nodes.values():
        if node is not leader:
            node.stop(power=True)
            break
    group.wait(lambda: any(not peer.live for peer in leader.core.peer_progress()))
    shown = metrics._Page()
    count = metrics._add_partitions(shown, ("g", "n0"), leader.running, room)
    samples = {
        (one.name, one.labels.get("partition")): one.value
        for family in shown.finished()
        for one in family.samples
    }
    assert count == (3 if room == 3 else 0)
    assert samples["quorumlog_replica_partitions", None] == 3
    assert samples["quorumlog_replica_partition_records", None] == 3
    assert samples["quorumlog_replica_under_replicated", None] == 1
    assert samples.get(("quorumlog_partition_high_watermark", "1")) == (3 if count else None)
    assert samples.get(("quorumlog_partition_log_start_offset", "2")) == (0 if count else None)
    assert samples.get(("quorumlog_partition_size_bytes", "2")) == (0 if count else None)


def test_a_histogram_counts_each_value_in_the_first_bucket_that_holds_it():
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 24.0


def test_the_time_of_a_push_ends_with_its_own_acknowledgement_or_a_later_one():
    pushes = PushHistograms(pushes_max=4)
    for number, sent_us in ((1, 0), (2, 1_000), (3, 2_000)):
        pushes.sent.append((number, sent_us, 10, 500))
    pushes.acknowledged(2, 4_000)  # the answer to 1 was lost
    pushes.acknowledged(1, 9_000)
    pushes.acknowledged(7, 9_000)  # not one of these
    assert sum(pushes.seconds.counts) == 1
    assert pushes.seconds.total == 0.003
    assert pushes.entries.total == 10
    assert pushes.size_bytes.total == 500


def test_pushes_that_nobody_acknowledges_are_forgotten():
    pushes = PushHistograms(pushes_max=2)
    for number in range(1_000):
        pushes.sent.append((number, number, 1, 100))
    pushes.acknowledged(0, 1_000)
    pushes.acknowledged(999, 1_000)
    assert sum(pushes.seconds.counts) == 1


def test_members_that_come_and_go_leave_a_bounded_number_of_histograms():
    histograms = ReplicaHistograms()
    for number in range(3 * PEERS_MAX):
        histograms.new_peer(f"n{number}", 8)
        histograms.snapshot_installed(f"n{number}", 0.5)
    assert len(histograms.pushes) == len(histograms.installs) == PEERS_MAX
    assert f"n{3 * PEERS_MAX - 1}" in histograms.pushes


def test_the_buckets_of_entries_hold_the_largest_block():
    assert ENTRY_COUNTS[-1] == 65_536


def test_every_metric_that_a_page_names_exists():
    names = {family.shown_name for family in FAMILIES}
    parts = {
        f"{family.shown_name}_{part}"
        for family in FAMILIES
        if family.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    docs = METRICS.parents[1]
    unknown = {
        (path.name, name)
        for path in [*docs.rglob("*.md"), docs.parent / "CHANGELOG.md", docs.parent / "README.md"]
        for name in re.findall(r"\bquorumlog_[a-z_]+", path.read_text())
        if name not in names | parts
    }
    assert unknown == set()


def test_no_file_is_read_for_the_version_when_a_node_starts(monkeypatch):
    """A node that had no descriptor free just then ended."""

    def no_descriptor(_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", no_descriptor)
    assert metrics.NodeMetrics(None)._build[0] == metrics.VERSION
