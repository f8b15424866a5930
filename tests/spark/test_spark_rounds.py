"""A stream from one group to another while somebody is killed again and again: each row once.

`QUORUMLOG_SPARK_ROUNDS=50` makes it as long as wanted; `QUORUMLOG_SPARK_SEED` says who is killed.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from quorumlog.client import SyncClient, SyncProducer
from quorumlog.local import LocalCluster

ROUNDS = int(os.environ.get("QUORUMLOG_SPARK_ROUNDS", "1"))
SEED = int(os.environ.get("QUORUMLOG_SPARK_SEED", "7"))

pytestmark = [
    pytest.mark.processes,
    pytest.mark.spark,
    pytest.mark.timeout(600 + 120 * ROUNDS),
]

START_SECONDS = 180.0
PROGRESS_SECONDS = 180.0
END_SECONDS = 180.0
DELAY_SECONDS = 1.0
"""At most, from rows seen in the log to a kill: twice as long as a batch takes."""
DELAY_IN_BATCH_SECONDS = 0.04
"""The same when the kill is to come between rows and the end of their batch."""
DOWN_SECONDS = (0.1, 2.0)
"""How long a node that was killed stays away."""
LAST_ROWS = 100
DRIVER, ANY_NODE = "driver", "any node"
VICTIMS = (DRIVER, DRIVER, "leader of in", "leader of out", ANY_NODE)
MARK = "QUORUMLOG_TEST_DRIVER"
"""A variable in the environment of a driver and all its children, whatever group they are in."""

PROGRAM = """
import sys, threading
from quorumlog.spark import session

servers, checkpoint = sys.argv[1:]
spark = session("rounds")
partitions = int(sys.stdin.readline())
query = (
    spark.readStream.format("quorumlog")
    .option("servers", servers)
    .option("group", "in")
    .option("startingOffsets", "earliest")
    .option("maxEntriesPerTrigger", "200")
    .load()
    .select("body")
    .repartition(partitions)
    .writeStream.format("quorumlog")
    .option("servers", servers)
    .option("group", "out")
    .option("checkpointLocation", checkpoint)
    .start()
)
print("started", query.runId, flush=True)

def stop_when_told():
    sys.stdin.read()
    query.stop()

stopping = threading.Thread(target=stop_when_told, daemon=True)
stopping.start()
query.awaitTermination()
stopping.join()
spark.stop()
"""


class EventHistory:
    """What happened, for whoever has to understand a failure."""

    def __init__(self):
        self._begun = time.monotonic()
        self._lines = []
        self.tell(f"seed {SEED}, {ROUNDS} rounds")

    def tell(self, text):
        self._lines.append(f"{time.monotonic() - self._begun:6.1f} s  {text}")
        print(self._lines[-1])

    def __str__(self):
        return "\n".join(self._lines)


@dataclass(frozen=True)
class Plan:
    """What is done in a round, drawn before anything happens: the seed alone decides."""

    victim: str
    node: str
    down: float
    count: int
    goal: int
    delay: float
    is_in_batch: bool
    partitions: int

    @classmethod
    def draw(cls, chance, nodes):
        count, is_in_batch = chance.randint(300, 600), chance.random() < 0.6
        return cls(
            victim=chance.choice(VICTIMS),
            node=chance.choice(nodes),
            down=chance.uniform(*DOWN_SECONDS),
            count=count,
            goal=chance.randint(1, count),
            delay=chance.uniform(0, DELAY_IN_BATCH_SECONDS if is_in_batch else DELAY_SECONDS),
            is_in_batch=is_in_batch,
            partitions=chance.randint(1, 3),
        )


class Driver:
    """A process with a session, its JVM and their workers, and a query once it is told to begin."""

    def __init__(self, servers, directory, name, story):
        self.name = name
        self._story = story
        self._mark = secrets.token_hex(8)
        self._log = directory / f"{name}.log"
        temporary = directory / "temporary"  # what killed ones leave there goes with the test
        temporary.mkdir(exist_ok=True)
        environment = {
            MARK: self._mark,
            "TMPDIR": str(temporary),
            "SPARK_SUBMIT_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={temporary}",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, servers, str(directory / "checkpoint")],
                cwd=temporary,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def tell_to_begin(self, partitions):
        """Let it start the query, as soon as it has a session."""
        self.check_alive()
        self._process.stdin.write(b"%d\n" % partitions)
        self._process.stdin.flush()
        self._story.tell(f"{self.name} is to begin, with {partitions} partitions")

    def wait_until_begun(self):
        self.wait_until(lambda: "started " in self._log.read_text(), START_SECONDS, "query started")
        self._story.tell("its query has started")

    def check_alive(self):
        """Nobody has killed it, so it has to be there: it ends when its query fails."""
        code = self._process.poll()
        assert code is None, f"{self.name} ended by itself with {code}\n{self._told()}"

    def wait_until(self, is_so, seconds, what, pause=0.05):
        """Wait for a condition, the driver being alive all the time."""
        deadline = time.monotonic() + seconds
        while not is_so():
            self.check_alive()
            late = f"not within {seconds:g} s: {what}\n{self._told()}"
            assert time.monotonic() < deadline, late
            time.sleep(pause)

    def kill(self):
        """End the driver and all its children with SIGKILL; none is left when this returns.

        Return those that were not in its process group: Spark's workers have groups of their own.
        """
        if self._process.poll() is None:  # else its number may be somebody else's by now
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()
        strays = set()
        deadline = time.monotonic() + START_SECONDS
        while pids := self.pids():
            strays.update(pids)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"{pids} survive SIGKILL"
            time.sleep(0.01)
        return strays

    def stop(self):
        """Let the query end as it should; nothing of it is left when this returns."""
        self.check_alive()
        self._process.stdin.close()
        code = self._process.wait(START_SECONDS)
        assert code == 0, f"{self.name} ended with {code}\n{self._told()}"
        deadline = time.monotonic() + START_SECONDS
        while pids := self.pids():
            assert time.monotonic() < deadline, f"{pids} survive their driver"
            time.sleep(0.05)

    def pids(self):
        """Return its processes, those that have lost their parents included."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # has ended, or is somebody else's
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def _told(self):
        return f"{self._story}\n{self._log}:\n{self._log.read_text()[-4_000:]}"


class Reader:
    """Counts the rows of a group, reading each once."""

    def __init__(self, client, isolation):
        self._client = client
        self._isolation = isolation
        self._next = 0
        self._count = 0

    def count(self):
        """Return how many there are by now."""
        for entry in self._client.read(self._next, follow=False, isolation=self._isolation):
            self._next = entry.index + 1
            self._count += 1
        return self._count


class Rounds:
    """A cluster, a driver, one to take its place, and what is killed of them."""

    def __init__(self, cluster, client, directory, story):
        self._cluster = cluster
        self._client = client
        self._directory = directory
        self._story = story
        self._written = Reader(client, "read_uncommitted")
        self._counted = Reader(client, "read_committed")
        self._drivers = []
        self._driver = None
        self._spare = None
        self.sent = 0

    def run(self, plans, last_partitions):
        """Do as planned; then all rows that were appended count, and no driver runs."""
        self._spare = self._new_driver()
        self._cluster.up()  # while its session starts
        for number, plan in enumerate(plans):
            self._story.tell(f"round {number}: {plan}")
            self._round(plan, any(later.victim == DRIVER for later in plans[number:]))
        self._ensure_driver(last_partitions, False)
        self._append(LAST_ROWS)  # when they count, what had to be written again has ended
        self._driver.wait_until(
            lambda: self._counted.count() >= self.sent, END_SECONDS, "all rows there, and counting"
        )
        self._tell_rows()
        self._driver.stop()

    def kill_drivers(self):
        """Leave no process behind, whatever happened."""
        for driver in self._drivers:
            driver.kill()

    def _round(self, plan, needs_spare):
        """Append rows, wait until the query has written some of them, and kill somebody."""
        before = self._written.count()
        self._append(plan.count)
        self._ensure_driver(plan.partitions, needs_spare)
        self._driver.wait_until(
            lambda: self._written.count() >= before + plan.goal,
            PROGRESS_SECONDS,
            f"{plan.goal} more rows than {before} in the log, counting or not",
        )
        self._story.tell(f"{self._written.count() - before} rows written")
        if plan.is_in_batch:
            self._wait_for_open_batch(before + plan.count)
        time.sleep(plan.delay)
        self._driver.check_alive()
        if plan.victim == DRIVER:
            self._kill_driver()
        else:
            self._kill_node(plan)

    def _append(self, count):
        with SyncProducer(self._cluster.servers, "in") as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(b"%d" % number)
        self.sent += count
        self._story.tell(f"{count} rows appended, {self.sent} in all")

    def _wait_for_open_batch(self, enough):
        """Wait until there are rows whose batch has not ended, or no more are to be expected."""

        def is_open():
            ended = self._client.bounds()[1]
            return ended < self._client.bounds(isolation="read_uncommitted")[1]

        self._driver.wait_until(
            lambda: is_open() or self._written.count() >= enough,
            PROGRESS_SECONDS,
            f"a batch, or {enough} rows in the log",
            pause=0.002,
        )

    def _new_driver(self):
        name = f"driver-{len(self._drivers)}"
        driver = Driver(self._cluster.servers, self._directory, name, self._story)
        self._drivers.append(driver)
        return driver

    def _ensure_driver(self, partitions, needs_spare):
        """Take the spare driver if the last one was killed; its session takes long to start."""
        if self._driver is not None:
            self._driver.check_alive()
            return
        self._driver, self._spare = self._spare, None
        self._driver.tell_to_begin(partitions)
        self._driver.wait_until_begun()
        if needs_spare:
            self._spare = self._new_driver()

    def _kill_driver(self):
        strays = self._driver.kill()
        self._story.tell(f"{self._driver.name} killed, and {len(strays)} workers after it")
        self._driver = None
        self._tell_rows()

    def _kill_node(self, plan):
        node = plan.node
        if plan.victim != ANY_NODE:
            node = self._cluster.leader(plan.victim.removeprefix("leader of "))
        self._cluster.kill(node)
        self._story.tell(f"{node} killed")
        time.sleep(plan.down)
        self._cluster.start(node)
        self._story.tell(f"{node} started again")
        self._driver.check_alive()

    def _tell_rows(self):
        written, counted = self._written.count(), self._counted.count()
        self._story.tell(f"{counted} rows of {written} written count")


@pytest.fixture
def nodes(tmp_path):
    """A cluster that does not run yet."""
    made = LocalCluster.create(tmp_path / "nodes", groups=("in", "out"), data_file_bytes=8 << 20)
    yield made
    made.down()


def numbers(servers, group):
    with SyncClient(servers, group) as client:
        return [int(entry.body) for entry in client.read("earliest", follow=False)]


def test_whoever_is_killed_each_row_is_written_once(nodes, tmp_path):
    """A query rides out the death of a node; after its own it goes on where it was."""
    story, chance = EventHistory(), random.Random(SEED)
    plans = [Plan.draw(chance, nodes.node_ids) for _ in range(ROUNDS)]
    with ExitStack() as stack:
        client = stack.enter_context(SyncClient(nodes.servers, "out", timeout_ms=30_000))
        rounds = Rounds(nodes, client, tmp_path, story)
        stack.callback(rounds.kill_drivers)
        rounds.run(plans, chance.randint(1, 3))
    sent = list(range(rounds.sent))
    assert numbers(nodes.servers, "in") == sent, f"the input is wrong already\n{story}"
    found = Counter(numbers(nodes.servers, "out"))
    lost = sorted(set(sent) - found.keys())
    twice = {number: times for number, times in found.items() if times > 1}
    assert not lost, f"lost: {lost}\n{story}"
    assert not twice, f"more than once: {twice}\n{story}"
    assert sorted(found) == sent, f"rows that nobody appended\n{story}"
