"""Real processes in networks of their own, hurt in every way for many rounds, under load.

    python tests/torture/rounds.py --rounds 60 --seed 1

Each round does some of: lose power (kill -9, then what was not fsynced is undone at random), kill
-9, stop cleanly, cut the network, freeze, step wall clocks by seconds to days, flip a bit in a file
of a stopped node, wipe a disk, add and remove a member, hand leadership over. Meanwhile appenders,
a producer, readers and writers of keys work; at the end every client's history is checked against
every replica. Needs root (network namespaces). A run that finds something keeps its directory.
Whatever ends this process, its nodes end with it.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from integration.history import Append, Fate  # noqa: E402
from integration.network import PORT, PREFIX, Network  # noqa: E402
from integration.workload import Workload  # noqa: E402
from quorumlog import KV, Client, Producer  # noqa: E402
from quorumlog.local import ending_in_order, guarded  # noqa: E402
from quorumlog.local.guard import SERVICE  # noqa: E402
from quorumlog.model.config import GroupConfig, NodeConfig, dump_config  # noqa: E402
from quorumlog.model.errors import QuorumlogError  # noqa: E402
from quorumlog.model.limits import Limits  # noqa: E402
from small_files import SMALL_FILES  # noqa: E402
from torture.lossy_files import lose_power  # noqa: E402

FOUNDERS = ("n0", "n1", "n2")
SPARE = "n3"
DAY_S = 86_400
ROUND_S = 4.0
SETTLE_S = 60.0
FILE_BYTES = 256 << 10
ENTRY_BYTES_MAX = 64 << 10


class Nodes:
    """Node processes, each in a namespace, with a disk that can lose power and a wrong clock."""

    def __init__(self, directory, network):
        self.directory = directory
        self.network = network
        self.ids = network.node_ids
        self.addresses = {name: f"{network.address(name)}:{PORT}" for name in self.ids}
        self.servers = ",".join(self.addresses.values())
        self.processes = {}
        self.log_sizes = {}
        for node_id in self.ids:
            names = FOUNDERS if node_id in FOUNDERS else (*FOUNDERS, node_id)
            peers = ";".join(f"{name}-{self.addresses[name]}" for name in names)
            common = {
                "peers": peers,
                "mapped_file_size_for_entry_data": FILE_BYTES,
                "mapped_file_size_for_entry_index": 32 * 4_096,
                "file_reserved_hours": 1,
                "delete_when": ";".join(f"{hour:02}" for hour in range(24)),
                "enable_disk_force_clean": False,
                "disk_ample_bytes": SMALL_FILES["disk_ample_bytes"],
            }
            groups = [
                GroupConfig(group="g", **common),
                GroupConfig(group="kv", state_machine="kv", snapshot_threshold=500, **common),
            ]
            config = NodeConfig(
                self_id=node_id,
                store_base_dir=str(directory / node_id),
                cluster=PREFIX,
                groups=groups,
                insecure=True,
                limits=Limits(entry_bytes_max=ENTRY_BYTES_MAX),
            )
            (directory / f"{node_id}.toml").write_bytes(dump_config(config))
            (directory / f"{node_id}.clock").write_text("0")

    def is_up(self, node_id):
        process = self.processes.get(node_id)
        return process is not None and process.poll() is None

    def start(self, node_id):
        where = self.directory
        program = [sys.executable, "-m", "torture.node", where / f"{node_id}.journal"]
        serve = [where / f"{node_id}.clock", SERVICE, where / f"{node_id}.toml"]
        inside = ["ip", "netns", "exec", self.network.namespace(node_id)]
        paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (where / f"{node_id}.log").open("ab") as log:
            self.log_sizes[node_id] = log.tell()
            self.processes[node_id] = subprocess.Popen(
                [*inside, *program, *serve], stderr=log, env=env
            )

    def kill(self, node_id):
        process = self.processes.pop(node_id, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def stop(self, node_id):
        process = self.processes.pop(node_id)
        process.terminate()
        try:
            status = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{node_id} did not stop within 30 s") from None
        # one that has not begun yet does not know the signal
        is_early = status == -signal.SIGTERM and not self.has_started(node_id)
        if status and not is_early:
            raise AssertionError(f"{node_id} stopped with status {status}")

    def has_started(self, node_id):
        """Whether the node's present or last process came so far as to say that it is up."""
        log = (self.directory / f"{node_id}.log").read_bytes()
        return b'"node started"' in log[self.log_sizes[node_id] :]

    def signal(self, node_id, number):
        if self.is_up(node_id):
            self.processes[node_id].send_signal(number)

    def wrong_by(self, node_id, seconds):
        (self.directory / f"{node_id}.clock").write_text(str(seconds))

    def lose_power(self, node_id, generator):
        self.kill(node_id)
        return lose_power(self.directory / f"{node_id}.journal", generator)

    def wipe(self, node_id):
        self.kill(node_id)
        shutil.rmtree(self.directory / node_id, ignore_errors=True)
        shutil.rmtree(self.directory / f"{node_id}.journal", ignore_errors=True)

    def flip_bit(self, node_id, generator):
        """Flip one bit of one file of a stopped node; return which."""
        files = sorted(p for p in (self.directory / node_id).rglob("*") if p.is_file())
        small = [p for p in files if "quorumlog" in p.name or "mdb" in p.name]
        path = generator.choice(small if generator.random() < 0.5 and small else files)
        size = path.stat().st_size
        if not size:
            return f"{path.name} is empty"
        with path.open("r+b") as file:
            used = min(size, len(path.read_bytes().rstrip(b"\0")) or 1)
            at = generator.randrange(used)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << generator.randrange(8))]))
        return f"{path.relative_to(self.directory)} at {at}"


class Torture:
    """Rounds of faults; keeps to what the guarantees allow: a majority keeps its disks."""

    def __init__(self, nodes, generator, load):
        self.nodes = nodes
        self.network = nodes.network
        self.generator = generator
        self.load = load
        self.members = list(FOUNDERS)
        self.done = Counter()
        self.undone = Counter()

    def some(self, least=1, most=None):
        names = list(self.members)
        count = self.generator.randint(least, most or len(names))
        return self.generator.sample(names, min(count, len(names)))

    # -- faults: each hurts, waits a while, and puts right what it did ------------------------

    async def power(self):
        """Some lose power in one moment, often all."""
        victims = self.members if self.generator.random() < 0.5 else self.some()
        for node_id in victims:
            self.nodes.kill(node_id)
        for node_id in victims:
            self.undone.update(self.nodes.lose_power(node_id, self.generator))
        for node_id in victims:
            self.nodes.start(node_id)

    async def kills(self):
        victims = self.some()
        for node_id in victims:
            self.nodes.kill(node_id)
        await self.pause(0.5)
        for node_id in victims:
            self.nodes.start(node_id)

    async def stops(self):
        for node_id in self.some(most=2):
            if self.nodes.is_up(node_id):
                await asyncio.to_thread(self.nodes.stop, node_id)
                self.nodes.start(node_id)

    async def cuts(self):
        if self.generator.random() < 0.5:
            side = self.some(most=2)
            self.network.split(side, [n for n in self.nodes.ids if n not in side])
        else:
            for sender, receiver in self.network.pairs():
                if self.generator.random() < 0.3:
                    self.network.cut(sender, receiver)
        await self.pause(2.0)
        self.network.heal()

    async def freezes(self):
        victims = self.some(most=2)
        for node_id in victims:
            self.nodes.signal(node_id, signal.SIGSTOP)
        await self.pause(2.0)
        for node_id in victims:
            self.nodes.signal(node_id, signal.SIGCONT)

    async def clocks(self):
        steps = [-10 * DAY_S, -3_600, -5, 5, 60, 3_600, 4 * DAY_S, 10 * DAY_S]
        step = self.generator.choice(steps)
        for node_id in self.members if self.generator.random() < 0.5 else self.some():
            self.nodes.wrong_by(node_id, step)
        await self.pause(1.5)
        if self.generator.random() < 0.5:
            for node_id in self.nodes.ids:
                self.nodes.wrong_by(node_id, 0)

    async def rots(self):
        (victim,) = self.some(most=1)
        self.nodes.kill(victim)
        told = self.nodes.flip_bit(victim, self.generator)
        print(f"    flipped a bit of {told}")
        self.nodes.start(victim)
        await self.heal_refused(victim)

    async def heal_refused(self, victim):
        """A node that refuses rightly is given an empty disk, as its advice says."""
        await asyncio.sleep(1.5)
        if not self.nodes.is_up(victim):
            log = (self.nodes.directory / f"{victim}.log").read_text().splitlines()
            print(f"    {victim} refused: {log[-1][:300]}")
            self.done["refused after a flipped bit"] += 1
            await self.wiped(victim)

    async def wipes(self):
        (victim,) = self.some(most=1)
        await self.wiped(victim)

    async def wiped(self, victim):
        """One disk at a time: the group must have readmitted it before anything else happens."""
        await self.until_served()
        self.nodes.wipe(victim)
        self.nodes.start(victim)
        async with self.client() as log, self.client("kv") as kv:
            for client in (log, kv):
                await self.until_member(client, victim)

    async def until_member(self, client, node_id):
        """Wait until a member with another disk votes again."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                with contextlib.suppress(QuorumlogError, TimeoutError):
                    await client.admin.wait_until_voter(node_id, timeout_s=5)
                    found = [s for s in await client.status() if s.node_id == node_id]
                    leading = [s for s in await client.status() if s.role == "LEADER"]
                    if found and leading and found[0].end_index >= leading[0].committed_index - 100:
                        return
                await asyncio.sleep(0.1)

    async def members_change(self):
        await self.until_served()
        async with self.client() as log, self.client("kv") as kv:
            if SPARE in self.members:
                for client in (log, kv):
                    await self.insist(client.admin.remove_member, SPARE)
                self.members.remove(SPARE)
                self.nodes.wipe(SPARE)
            else:
                self.nodes.start(SPARE)
                for client in (log, kv):
                    await self.insist(client.admin.add_member, SPARE, self.nodes.addresses[SPARE])
                    await self.until_member(client, SPARE)
                self.members.append(SPARE)

    async def insist(self, change, *arguments):
        """A change of members that a fault interrupts is asked for again until it is so."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                try:
                    return await change(*arguments)
                except QuorumlogError as error:
                    if "already" in str(error) or "no member" in str(error):
                        return None
                    await asyncio.sleep(0.2)

    async def hands_over(self):
        async with self.client() as client:
            with contextlib.suppress(QuorumlogError):
                await client.admin.transfer(self.generator.choice(self.members))

    # -- rounds -------------------------------------------------------------------------------

    def client(self, group="g"):
        return Client(self.nodes.servers, group, timeout_ms=10_000)

    async def pause(self, most):
        await asyncio.sleep(self.generator.uniform(0.1, most))

    async def until_served(self):
        await self.load.acknowledged_after(5, seconds=SETTLE_S)

    async def round(self, number):
        faults = {
            self.power: 3,
            self.kills: 2,
            self.stops: 1,
            self.cuts: 2,
            self.freezes: 1,
            self.clocks: 2,
            self.rots: 2,
            self.wipes: 1,
            self.members_change: 1,
            self.hands_over: 1,
        }
        count = self.generator.randint(1, 3)
        chosen = self.generator.choices(list(faults), list(faults.values()), k=count)
        print(f"round {number}: {', '.join(fault.__name__ for fault in chosen)}", flush=True)
        for fault in chosen:
            self.done[fault.__name__] += 1
            await fault()
        self.network.heal()
        for node_id in self.members:
            if not self.nodes.is_up(node_id):
                log = (self.nodes.directory / f"{node_id}.log").read_text().splitlines()
                last = "\n".join(log[-3:])
                raise AssertionError(f"{node_id} ended by itself:\n{last}")
        begun = time.monotonic()
        await self.until_served()
        print(f"    served {time.monotonic() - begun:.1f} s after the last fault", flush=True)
        await self.pause(1.0)


async def produce(load, stopping):
    """A producer's entries, each of which must be stored once and in order."""
    async with Producer(load.servers, "g", delivery_timeout_ms=120_000) as producer:
        waiting, number = [], 0
        while not stopping.is_set():
            record = Append(f"producer-{number}".encode(), load.recorder.clock())
            load.history.appends.append(record)
            waiting.append((record, await producer.send(record.value)))
            number += 1
            if len(waiting) >= 50:
                await settle(load, waiting)
        await producer.flush()
        await settle(load, waiting)


async def settle(load, waiting):
    for record, delivery in waiting:
        placed = await delivery
        record.fate, record.index = Fate.ACKNOWLEDGED, placed.index
        record.completed = load.recorder.clock()
    waiting.clear()
    await asyncio.sleep(0.02)


async def put_keys(servers, stopping, known):
    """Keys that rise: what was acknowledged, or more, must be read at any time."""
    async with Client(servers, "kv", timeout_ms=5_000) as client:
        kv, number = KV(client), 0
        while not stopping.is_set():
            key = f"key{number % 200}"
            known.setdefault(key, [0, 0])[1] = number
            with contextlib.suppress(QuorumlogError):
                await kv.put(key, f"{number:012}")
                known[key][0] = number
            with contextlib.suppress(QuorumlogError):
                key = f"key{(number * 7) % 200}"
                least = known.get(key, [0, 0])[0]
                value = await kv.get(key)
                found = int(value or 0)
                most = known.get(key, [0, 0])[1]
                if not least <= found <= most:
                    raise AssertionError(f"{key} is {found}, but {least} was acknowledged")
            number += 1
            await asyncio.sleep(0.01)


async def check_keys(nodes, members, known):
    for node_id in members:
        async with Client(nodes.addresses[node_id], "kv", timeout_ms=20_000) as client:
            kv = KV(client)
            for key, (least, most) in known.items():
                found = int(await kv.get(key) or 0)
                if not least <= found <= most:
                    raise AssertionError(f"{node_id}: {key} is {found}, not {least} … {most}")


async def run(directory, rounds, seed):
    generator = random.Random(seed)
    network = Network([*FOUNDERS, SPARE])
    nodes = None
    try:
        network.make()
        nodes = Nodes(directory, network)
        for node_id in FOUNDERS:
            nodes.start(node_id)
        stopping, known = asyncio.Event(), {}
        async with Workload(nodes.servers) as load:
            jobs = [
                asyncio.ensure_future(produce(load, stopping)),
                asyncio.ensure_future(put_keys(nodes.servers, stopping, known)),
            ]
            await load.acknowledged_after(20, seconds=60)
            torture = Torture(nodes, generator, load)
            for number in range(rounds):
                await torture.round(number)
                for job in jobs:
                    if job.done():
                        job.result()
            for node_id in nodes.ids:
                nodes.wrong_by(node_id, 0)
            stopping.set()
            await asyncio.wait_for(asyncio.gather(*jobs), 120)
            servers = [nodes.addresses[name] for name in torture.members]
            final = await load.verify(",".join(servers))
            await check_keys(nodes, torture.members, known)
            fates = {fate.value: count for fate, count in load.history.fates().items()}
            print(f"seed {seed}: {counted(torture.done)}; undone: {counted(torture.undone)}")
            held = f"{final.next_index} entries, {len(known)} keys"
            print(f"appends: {counted(fates)}; {held}: nothing found")
    finally:
        if nodes is not None:
            for node_id in nodes.ids:
                nodes.kill(node_id)
        network.remove()


def counted(counts):
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory):
        asyncio.run(run(directory, options.rounds, options.seed))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
