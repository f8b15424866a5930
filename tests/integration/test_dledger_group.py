"""Three real nodes go on with the directories of a DLedger group, of which one lost a file."""

import tarfile
from pathlib import Path

import msgspec

from quorumlog.model.block import decode_entries

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAST = 499


def lay_out(cluster, directory):
    """Put what the original left into the nodes' directories."""
    with tarfile.open(FIXTURES / "multi-term.tar.gz") as archive:
        archive.extractall(directory / "original", filter="data")
    for node_id in cluster.ids:
        base = Path(cluster.configs[node_id].store_base_dir)
        base.mkdir()
        (found,) = (directory / "original").rglob(f"dledger-{node_id}")
        found.rename(base / "g")


def lose_last_file(cluster, node_id):
    lost = max((Path(cluster.configs[node_id].store_base_dir) / "g" / "data").iterdir())
    lost.unlink()
    return lost


def bodies_at(cluster, node_id):
    log, found = cluster.replica(node_id).log, []
    while len(found) <= LAST:
        run = log.read(len(found), LAST, 1 << 20)
        found += [(entry.index, entry.term, entry.body) for entry in decode_entries(run.block())]
    return found


async def test_entries_of_a_lost_data_file_come_back_from_the_other_members(
    make_cluster, until, tmp_path, caplog
):
    async with make_cluster() as cluster:
        lay_out(cluster, tmp_path)
        lost = lose_last_file(cluster, "n1")
        await cluster.start()
        async with cluster.client() as client:
            at = await client.append(b"and on")
            assert at.index > LAST
            replica = cluster.replica("n1")
            await until(lambda: not replica.log.damaged, what="n1 has its entries again")
            await until(lambda: len(set(cluster.logs().values())) == 1)
        assert bodies_at(cluster, "n1") == bodies_at(cluster, "n0") == bodies_at(cluster, "n2")
        assert f"{lost} is missing or cut short" in said(caplog)


def said(caplog):
    """Return all log lines with their fields."""
    return "\n".join(f"{record.message} {vars(record)}" for record in caplog.records)


async def test_a_group_with_dledgers_log_stays_readable_by_it_and_says_so(
    make_cluster, tmp_path, caplog
):
    async with make_cluster() as cluster:
        lay_out(cluster, tmp_path)
        await cluster.start()
        async with cluster.client() as client:
            at = await client.append(b"and on")
            statuses = await client.status()
        assert all(status.original_compatible for status in statuses)
        assert "stays readable by DLedger 0.2.7 to 0.4.0" in said(caplog)
        log = cluster.replica(cluster.leader_id()).log
        runs = [log.read(index, index, 1) for index in range(LAST + 1, at.index + 1)]
        entries = [entry for run in runs for entry in decode_entries(run.block())]
        assert {entry.magic for entry in entries} == {1}
        assert [entry.is_data for entry in entries] == [False] * (len(entries) - 1) + [True]


async def test_it_does_not_if_it_is_told_otherwise(make_cluster, tmp_path, caplog):
    async with make_cluster(original_compatible="no") as cluster:
        lay_out(cluster, tmp_path)
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"and on")
            statuses = await client.status()
        assert not any(status.original_compatible for status in statuses)
        assert "is not readable any more by DLedger" in said(caplog)


async def test_what_a_group_was_founded_with_counts_and_a_later_setting_is_named(
    make_cluster, caplog
):
    async with make_cluster(original_compatible="0.2.7") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"first")
        await cluster.stop()
        for node_id, config in cluster.configs.items():
            groups = [msgspec.structs.replace(config.groups[0], original_compatible="no")]
            cluster.configs[node_id] = msgspec.structs.replace(config, groups=groups)
        await cluster.start()
        async with cluster.client() as client:
            await client.append(b"second")
            statuses = await client.status()
        assert all(status.original_compatible for status in statuses)
        assert "the group was founded compatible" in said(caplog)
