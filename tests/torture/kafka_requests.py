"""Damaged requests of Kafka's clients, by thousands, to a node in a process of its own.

    python tests/torture/kafka_requests.py --each 5000 --seed 1

Each request that is spoken is sent in every version, damaged at random. Each connection must be
answered or closed within 5 s; at the end the node lives, still serves a client, has not grown by
more than a bound and has no traceback in its log.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from kafka_mutations import damaged, request  # noqa: E402
from quorumlog.kafka.requests import SPOKEN, ApiKey  # noqa: E402
from quorumlog.local import LocalCluster, ending_in_order, guarded  # noqa: E402

ANSWER_S = 5.0
AT_ONCE = 16
SECONDS = 60.0
GROWTH_MIB = 200
SILENT = {ApiKey.PRODUCE, ApiKey.FETCH}
"""Their damaged forms may ask for no answer, or for a long wait: then another request follows."""
KEY = slice(4, 6)
"""Where a frame says which request it is, which may be damaged, too."""


def resident_mib(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4_096 / (1 << 20)


async def outcome_of(host, port, frame, probe):
    """Return what became of a connection that sent this frame, then one that is answered."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(frame)
        if probe is not None:
            writer.write(probe)
        found = await asyncio.wait_for(reader.read(4), ANSWER_S)
        return "answered" if found else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()


def is_silent(frame):
    return int.from_bytes(frame[KEY], "big") in SILENT


async def hurt(host, port, key, each, generator):
    """Send `each` damaged forms of a request; return how they ended, and the slowest."""
    versions = SPOKEN[key]
    found, slowest, silent = Counter(), 0.0, []
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(frame, probe):
        nonlocal slowest
        async with limit:
            begun = time.monotonic()
            try:
                found[await outcome_of(host, port, frame, probe)] += 1
            except TimeoutError:
                found["silent"] += 1
                silent.append(frame.hex())
            slowest = max(slowest, time.monotonic() - begun)

    for begin in range(0, each, 500):
        frames = []
        for _ in range(min(500, each - begin)):
            version = generator.randint(versions.first, versions.last)
            frames.append(damaged(generator, request(generator, key, version)))
        probe = request(generator, ApiKey.API_VERSIONS, 0)
        await asyncio.gather(*(one(frame, probe if is_silent(frame) else None) for frame in frames))
    return found, slowest, silent


async def hurt_all(cluster, options):
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    generator, silent = random.Random(options.seed), []
    keys = [ApiKey[name] for name in options.keys] or [ApiKey(key) for key in SPOKEN]
    (pid,) = cluster.running().values()
    for key in keys:
        before = resident_mib(pid)
        found, slowest, unanswered = await hurt(host, int(port), key, options.each, generator)
        silent += unanswered
        after = resident_mib(pid)
        told = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        print(f"{key.name}: {told}; slowest {slowest:.2f} s; {before:.0f} → {after:.0f} MiB")
    if silent:
        raise AssertionError(f"{len(silent)} were not answered, as {silent[0]}")


def run(directory, options):
    with guarded(directory):
        cluster = LocalCluster.create(directory / "c", nodes=1, topics=True, kafka_port=0)
        cluster.up(SECONDS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
        admin.create_topics([NewTopic("t", 3)])["t"].result(SECONDS)
        before = cluster.running()
        first = resident_mib(*before.values())
        asyncio.run(hurt_all(cluster, options))
        last = resident_mib(*before.values())
        log = cluster.log_file("n0").read_text()
        assert cluster.running() == before, "the node ended"
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        assert last - first < GROWTH_MIB, f"it grew from {first:.0f} to {last:.0f} MiB"
        admin.create_topics([NewTopic("afterwards", 1)])["afterwards"].result(SECONDS)
        print(f"seed {options.seed}: {first:.0f} → {last:.0f} MiB, the node serves: nothing found")
        cluster.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=1_000, help="damaged forms of each request")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("keys", nargs="*", help="requests, as CREATE_TOPICS; default: all")
    options = parser.parse_args()
    with ending_in_order(), tempfile.TemporaryDirectory(prefix="torture-") as directory:
        run(Path(directory), options)


if __name__ == "__main__":
    main()
