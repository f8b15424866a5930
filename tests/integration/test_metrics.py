"""What /metrics says of a node is true, complete, and what Prometheus' own parser reads."""

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from quorumlog import KV
from quorumlog.model.release import RELEASE
from quorumlog.service import metrics as metrics_module
from quorumlog.service.metric_families import FAMILIES
from quorumlog.service.metrics import OTHER_GROUPS, NodeMetrics

BY_NAME = {family.shown_name: family for family in FAMILIES}


def read(node):
    """Return name → [(labels, value)] of a node's page, read as Prometheus does."""
    text = generate_latest(NodeMetrics(node).registry).decode()
    found = {}
    for family in parse(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found, name, **labels):
    """Return the value of the one sample with these labels."""
    (one,) = [one for has, one in found[name] if labels.items() <= has.items()]
    return one


async def test_166_metrics_have_their_listed_names_and_labels_and_truthful_units(
    make_cluster, until
):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            for _ in range(3):
                last = await client.append(b"x" * 100)
            await client.get(1)
            leader = cluster.leader_id()
            # two have it on their disks by now, and any of the three may be the last
            cores = [cluster.replica(node_id).core for node_id in cluster.ids]
            await until(lambda: all(core.durable_index >= last.index for core in cores))
            registry = NodeMetrics(cluster.nodes[leader]).registry
            collected = list(registry.collect())
            found = read(cluster.nodes[leader])

            # names, kinds and labels
            own = [metric for metric in collected if metric.name.startswith("quorumlog_")]
            shown = [one.name + ("_total" if one.type == "counter" else "") for one in own]
            assert sorted(shown) == sorted(BY_NAME)
            for metric, name in zip(own, shown, strict=True):
                family = BY_NAME[name]
                assert (metric.type, metric.documentation) == (family.kind, family.help_text)
                for sample in metric.samples:
                    assert set(sample.labels) - {"le"} == set(family.labels), name
            assert "process_cpu_seconds_total" in found

            # truthful: three appends of 148 bytes with header, pushed to two followers
            of = {"group": "g", "self_id": leader}
            assert value(found, "quorumlog_service_append_bytes_total", **of) == 3 * 148
            assert value(found, "quorumlog_service_append_seconds_count", **of) == 3
            assert 0 < value(found, "quorumlog_service_append_seconds_sum", **of) < 60
            assert value(found, "quorumlog_replica_block_entries_sum", **of) == 3
            assert value(found, "quorumlog_replica_block_bytes_sum", **of) == 3 * 148
            assert value(found, "quorumlog_service_fetch_seconds_count", **of) >= 1
            assert value(found, "quorumlog_disk_commit_bytes_sum") >= 3 * 148
            pushed = found["quorumlog_peer_link_push_bytes_sum"]  # a majority has acknowledged
            assert max(size for _, size in pushed) >= 3 * 148
            assert {has["remote_id"] for has, _ in pushed} <= {"n0", "n1", "n2"} - {leader}
            pushes = sum(one for _, one in found["quorumlog_peer_link_push_seconds_count"])
            entries = sum(one for _, one in found["quorumlog_peer_link_push_entries_sum"])
            assert 3 <= pushes <= entries
            entries = value(found, "quorumlog_replica_entries", **of)
            assert entries == value(found, "quorumlog_replica_end_index", **of) + 1
            assert value(found, "quorumlog_build_info") == 1
            links = {has["remote_id"]: has for has, _ in found["quorumlog_peer_link_info"]}
            assert links.keys() == {"n0", "n1", "n2"} - {leader}
            assert {(has["release"], has["wire_version"]) for has in links.values()} == {
                (RELEASE, "1")
            }
            free, size = (
                value(found, f"quorumlog_disk_{name}_bytes", directory=directory)
                for directory in [cluster.configs[leader].store_base_dir]
                for name in ("free", "size")
            )
            assert 0 < free < size

            # a follower's side of the same
            follower = min({"n0", "n1", "n2"} - {leader})
            theirs = read(cluster.nodes[follower])
            assert value(theirs, "quorumlog_peer_link_push_bytes_received_total") >= 2 * 148


async def test_166_the_page_is_read_by_prometheus_parsers_without_a_fault(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"entry")
        registry = NodeMetrics(cluster.nodes[cluster.leader_id()]).registry
        text = generate_latest(registry).decode()
        assert {family.name for family in parse(text)} >= {
            name.removesuffix("_total") for name in BY_NAME
        }
        for line in text.splitlines():
            assert not line.startswith("# HELP") or len(line.split(" ", 3)[3]) > 5
        strict = list(parse_openmetrics(generate_openmetrics(registry).decode()))
        names = [family.name for family in strict]
        assert len(set(names)) == len(names)


async def test_166_what_a_state_machine_does_is_timed(make_cluster):
    async with make_cluster(state_machine="kv") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            kv = KV(client)
            await kv.put(b"key", b"value")
            assert await kv.get(b"key") == b"value"
            assert await client.admin.save_snapshot() >= 1
        found = read(cluster.nodes[cluster.leader_id()])
    assert value(found, "quorumlog_machine_apply_seconds_count", group="g") >= 1
    assert value(found, "quorumlog_machine_apply_entries_sum", group="g") >= 1
    assert value(found, "quorumlog_service_read_seconds_count", read_mode="READ_INDEX_READ") >= 1
    assert value(found, "quorumlog_snapshot_save_seconds_count", group="g") == 1
    assert value(found, "quorumlog_snapshots_saved_total", group="g") == 1
    assert value(found, "quorumlog_snapshots_kept", group="g") == 1
    assert value(found, "quorumlog_snapshot_last_index", group="g") >= 1
    assert value(found, "quorumlog_machine_state", state="ready") == 1
    assert sum(one for _, one in found["quorumlog_machine_state"]) == 1


async def test_histograms_of_groups_beyond_the_bound_are_added_up(make_cluster, monkeypatch):
    monkeypatch.setattr(metrics_module, "GROUPS_WITH_HISTOGRAMS_MAX", 1)
    groups = ("a", "b", "c")
    async with make_cluster(count=1, groups=groups) as cluster:
        await cluster.start()
        for group in groups:
            async with cluster.client(group) as client:
                await client.append(b"entry")
        found = read(cluster.nodes["n0"])["quorumlog_service_append_seconds_count"]
    counts = {labels["group"]: count for labels, count in found}
    assert counts.pop(OTHER_GROUPS) == 2
    (own,) = counts
    assert (own in groups, counts[own]) == (True, 1)


async def test_refusals_are_counted_by_code(make_cluster):
    async with make_cluster() as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"entry")
        node = cluster.nodes[min({"n0", "n1", "n2"} - {cluster.leader_id()})]
        answers, replica = [], node.replicas["g"]
        block = replica.log.read(0, 0, 1_000).block()
        replica.propose(block, lambda response, results: answers.append(response.code.name))
        found = read(node)
    assert answers == ["NOT_LEADER"]
    assert value(found, "quorumlog_service_appends_refused_total", code="NOT_LEADER") == 1


async def test_a_group_that_is_deleted_while_it_is_read_is_left_out(make_cluster, monkeypatch):
    async with make_cluster(count=1, groups=("a", "b")) as cluster:
        await cluster.start()
        node, true_status = cluster.nodes["n0"], metrics_module.status_of
        kept = dict(node.replicas)

        def status_of(replica, node_id):
            if replica is kept["a"]:
                del node.replicas["a"]
                raise ValueError("mmap closed or invalid")
            return true_status(replica, node_id)

        monkeypatch.setattr(metrics_module, "status_of", status_of)
        found = read(node)
        node.replicas["a"] = kept["a"]
    assert {has["group"] for has, _ in found["quorumlog_replica_term"]} == {"b"}
