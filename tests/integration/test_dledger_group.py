"""Three real nodes go on with the directories of a DLedger group, of which one lost a file."""

import tarfile
from pathlib import Path

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
        assert f"{lost} is missing or cut short" in caplog.text
