"""The machine with a file of its own in docs/machines.md runs as printed, and makes damage good."""

import json
import re
import zlib
from pathlib import Path

import pytest

MACHINES_PAGE = Path(__file__).parents[2] / "docs" / "machines.md"
OPTIONS = {
    "state_machine": "printed_totals:Totals",
    "snapshot_threshold": 20,
    "digest_entries": 8,
}
NAMES = ["apples", "pears", "plums"]


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """The module `printed_totals`, as the page has it."""
    blocks = re.findall(r"```python\n(.*?)```", MACHINES_PAGE.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "class Totals(" in block]
    directory = tmp_path / "modules"
    directory.mkdir()
    (directory / "printed_totals.py").write_text(example)
    monkeypatch.syspath_prepend(directory)


def appliers(cluster):
    return {node_id: cluster.replica(node_id).applier for node_id in cluster.nodes}


def rebuilds(cluster, node_id):
    return cluster.replica(node_id).counters.machine_rebuilds


def file_of(cluster, node_id):
    return Path(cluster.configs[node_id].store_base_dir) / "g" / "machine" / "totals"


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 4
    path.write_bytes(raw)


async def count(client, rounds):
    for _ in range(rounds):
        for name in NAMES:
            await client.execute(name.encode())


def written(cluster, node_id):
    """What the file says, if it is there and whole: the machine's own thread writes it."""
    path = file_of(cluster, node_id)
    crc, _, data = path.read_bytes().partition(b"\n") if path.exists() else (b"", b"", b"")
    return json.loads(data)[1] if crc == b"%d" % zlib.crc32(data) else None


async def all_have(cluster, until, each):
    wanted = dict.fromkeys(NAMES, each)

    def have():
        return all(
            applier.is_eligible
            and applier.state.machine.totals == wanted
            and written(cluster, node_id) == wanted
            for node_id, applier in appliers(cluster).items()
        )

    await until(have, what=f"all have {wanted}")


@pytest.mark.usefixtures("printed")
async def test_the_machine_that_keeps_a_file_does_as_printed(make_cluster, until):
    async with make_cluster(**OPTIONS) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await count(client, 10)
            await all_have(cluster, until, 10)
            points = [applier.comparisons for applier in appliers(cluster).values()]
            await until(lambda: all(p.agreed_index > 0 for p in points), what="digests agreed")
            saved = [applier.state for applier in appliers(cluster).values()]
            await until(lambda: all(s.newest_index > 0 for s in saved), what="snapshots")

            # a bit of its file while the node is stopped
            await cluster.stop("n1")
            flip(file_of(cluster, "n1"))
            await cluster.start("n1")
            await all_have(cluster, until, 10)
            assert rebuilds(cluster, "n1") == 1

            # a bit of its file while it runs: the next check finds it
            flip(file_of(cluster, "n2"))
            appliers(cluster)["n2"].scrub.check_soon()
            await until(lambda: rebuilds(cluster, "n2") == 1, what="n2 is rebuilt")
            await all_have(cluster, until, 10)

            # another state, well written: the others tell
            appliers(cluster)["n0"].state.machine.totals["pears"] = 7
            await count(client, 6)
            await until(lambda: rebuilds(cluster, "n0") == 1, what="n0 is rebuilt")
            await all_have(cluster, until, 16)

            # and each opens what it closed
            await cluster.stop()
            await cluster.start()
            await all_have(cluster, until, 16)
            assert [rebuilds(cluster, node_id) for node_id in cluster.ids] == [0, 0, 0]
            await count(client, 1)
            await all_have(cluster, until, 17)
