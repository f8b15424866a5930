"""Spark writes a stream to two topics while driver, executors, Python workers and brokers die.

Rows are numbered, and come by files, of which the query takes one for each batch. In the end every
number must be there once, as librdkafka reads with read_committed.

    python tests/torture/topic_sink.py --rounds 50
    python tests/torture/topic_sink.py --rounds 50 --plain

With `--plain` the driver is a program in Python that does what Spark does, and starts faster: its
tasks are processes, of which it runs again those that fail; it notes what a batch has before, and
that it was committed after.
"""

import argparse
import contextlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from quorumlog.local import LocalCluster, ending_in_order, guarded
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.spark.sink.topics.coordinator import SinkBatch
from quorumlog.spark.sink.topics.options import parse_topic_options
from quorumlog.spark.sink.topics.writer import TopicTaskWriter, end_batch
from topic_rows import make_topics, values_of

TOPICS = ("even", "odd")
PARTITIONS = 3
TASKS = 3
FILE_ROWS = 500
FILE_S = 0.7
"""Pause between two files."""
AHEAD = 40
"""Files that are there before their batch is, at most: the last driver has to write them all."""
ROUND_S = 30.0
"""A round ends once a batch was committed after its fault, or fails after ten times this."""
STEP_S = 0.5
"""The longest pause of a plain driver before and after a decision, in which faults are to hit."""
KINDS = ("driver", "driver", "worker", "broker", "coordinator")
MASTER = "local-cluster[2,1,1024]"
"""Executors are processes of their own, which may be killed."""
EXECUTOR = b"CoarseGrainedExecutorBackend"


# -- the driver ---------------------------------------------------------------------------------


def drive(servers, directory, *, is_last):
    """Write what comes to the topics, until killed, or until all that is there is written."""
    from quorumlog.spark import session  # noqa: PLC0415  (in the driver's process only)

    spark = session("topic-sink", master=MASTER, output=directory / "spark.log")
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(directory / "in"))
    rows = lines.repartition(TASKS).selectExpr(
        f"if(value % 2 = 0, '{TOPICS[0]}', '{TOPICS[1]}') AS topic", "value AS key", "value"
    )
    writer = (
        rows.writeStream.format("quorumlog")
        .option("kafka.bootstrap.servers", servers)
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    if is_last:
        writer.trigger(availableNow=True).start().awaitTermination()
        spark.stop()
        return
    query, last = writer.trigger(processingTime="0 seconds").start(), -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > last:
            last = progress["batchId"]
            print(f"batch {last}", flush=True)
        query.awaitTermination(0.1)


class PlainDriver:
    """Has batches written by processes, each of them divided anew when it is run again."""

    def __init__(self, servers, directory):
        self.options = parse_topic_options({"servers": servers, "deliveryTimeoutMs": "60s"})
        self.offsets, self.commits = directory / "offsets", directory / "commits"
        self.run = str(uuid.uuid4())

    def drive(self, *, is_last):
        planned, committed = _number_in(self.offsets), _number_in(self.commits)
        while not is_last or committed < planned:
            batch = committed + 1
            if batch > planned:
                planned = _note(self.offsets, batch)
            self.write(SinkBatch("plain", self.run, batch))
            committed = _note(self.commits, batch)
            print(f"batch {batch}", flush=True)

    def write(self, batch):
        numbers = range(batch.batch_id * FILE_ROWS, (batch.batch_id + 1) * FILE_ROWS)
        parts = random.randint(2, 4)
        messages = {}
        for attempt in range(8):
            left = [part for part in range(parts) if part not in messages]
            running = [self.start(batch, part, attempt, numbers[part::parts]) for part in left]
            for part, (pid, pipe) in zip(left, running, strict=True):
                with open(pipe, "rb") as told:
                    data = told.read()
                if os.waitpid(pid, 0)[1] == 0:
                    messages[part] = pickle.loads(data)
            if len(messages) == parts:
                time.sleep(random.uniform(0, STEP_S))
                end_batch(self.options, batch, list(messages.values()), commits=True, is_last=False)
                time.sleep(random.uniform(0, STEP_S))
                return
        raise AssertionError(f"the tasks of batch {batch.batch_id} fail")

    def start(self, batch, part, attempt, numbers):
        """Fork a task; return its process and the pipe that it says into what it has written."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        status = 1
        try:
            rows = [
                pa.record_batch(
                    {
                        "topic": pa.array([TOPICS[one % 2] for one in some]),
                        "value": pa.array([str(one) for one in some]),
                    }
                )
                for some in (numbers[at : at + 50] for at in range(0, len(numbers), 50))
            ]
            message = TopicTaskWriter(self.options, batch, part, attempt).write(iter(rows))
            with open(writing, "wb") as told:
                told.write(pickle.dumps(message))
            status = 0
        except Exception as error:
            print(f"task {part}.{attempt} of {batch}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)


def _number_in(path):
    return int(path.read_text()) if path.exists() else -1


def _note(path, number):
    new = path.with_suffix(".new")
    new.write_text(str(number))
    new.rename(path)
    return number


class Driver:
    """The driver in a process of its own, with all that Spark starts for it."""

    is_plain = False

    def __init__(self, servers, directory, *, is_last=False):
        program = [sys.executable, __file__, "--drive", servers]
        more = ["--last"] * is_last + ["--plain"] * self.is_plain
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*program, "--dir", str(directory), *more],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.batches = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self):
        for line in self.process.stdout:
            self.batches += line.startswith("batch ")

    def kill(self):
        """Kill the driver, the JVM and all workers, which share a session."""
        for pid in _of_session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kill_a_worker(self, choice):
        """Kill a process that runs tasks in Python; return whether there is one."""
        workers = _of_session(self.process.pid)
        if self.is_plain:
            workers.remove(self.process.pid)
        else:
            workers = [one for one in workers if b"pyspark" in _command(one)]
            workers = [one for one in workers if b"java" not in _command(one)[:200]]
        return _kill_one(workers, choice)

    def kill_an_executor(self, choice):
        """Kill a JVM that runs tasks; return whether there is one."""
        processes = _of_session(self.process.pid)
        return _kill_one([one for one in processes if EXECUTOR in _command(one)], choice)


def _kill_one(processes, choice):
    """Kill one of these; return whether there is one."""
    if processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(choice.choice(processes), signal.SIGKILL)
    return bool(processes)


def _of_session(session):
    """Return the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# -- rounds -------------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Writes files of numbers, one after the other."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self._into, self._committed = directory / "in", directory / "checkpoint" / "commits"
        self.sent, self.stopping = 0, threading.Event()

    def run(self):
        number = 0
        while not self.stopping.wait(FILE_S):
            if number >= len(list(self._committed.glob("[0-9]*"))) + AHEAD:
                continue
            texts = [f"{self.sent + one}\n" for one in range(FILE_ROWS)]
            path = self._into / f".{number:06}.txt"  # Spark does not see it under this name
            path.write_text("".join(texts))
            path.rename(self._into / f"{number:06}.txt")
            self.sent, number = self.sent + FILE_ROWS, number + 1


class Rounds:
    """What is killed, again and again."""

    def __init__(self, cluster, directory, seed):
        self.cluster, self.directory, self.choice = cluster, directory, random.Random(seed)
        self.servers = cluster.bootstrap_servers
        self.driver = Driver(self.servers, directory)
        self.done = Counter()

    def play(self):
        """Hurt something, and wait until a batch has been committed since."""
        kind = self.choice.choice(KINDS if self.driver.is_plain else (*KINDS, "executor"))
        self._wait_for_batches(1)
        time.sleep(self.choice.uniform(0, 2))
        if kind == "driver":
            self.driver.kill()
        elif kind == "worker":
            kind = kind if self.driver.kill_a_worker(self.choice) else "nothing"
        elif kind == "executor":
            kind = kind if self.driver.kill_an_executor(self.choice) else "nothing"
        else:
            self._kill_a_broker(is_coordinator=kind == "coordinator")
        self.done[kind] += 1
        self._wait_for_batches(2)

    def _kill_a_broker(self, *, is_coordinator):
        nodes = self.cluster.node_ids
        if is_coordinator:
            health = self.cluster.health()
            leads = [one for one in nodes if _leads(health[one])]
            nodes = leads or nodes
        node = self.choice.choice(nodes)
        self.cluster.kill(node)
        time.sleep(self.choice.uniform(0.2, 2))
        self.cluster.start(node)

    def _wait_for_batches(self, count):
        deadline, before = time.monotonic() + 10 * ROUND_S, self.driver.batches
        while self.driver.batches < before + count:
            if self.driver.process.poll() is not None:  # it was killed, or its query has failed
                self.done["starts"] += 1
                self.driver.kill()
                self.driver, before = Driver(self.servers, self.directory), 0
            if time.monotonic() > deadline:
                raise AssertionError(f"no batch in {10 * ROUND_S:g} s; see {self.directory}")
            time.sleep(0.05)


def _leads(health):
    found = None if health is None else health.groups.get(CLUSTER_GROUP)
    return found is not None and found.role.lower() == "leader"


def run(directory, options):
    """Play all rounds and judge."""
    (directory / "in").mkdir()
    cluster = LocalCluster.create(directory / "nodes", topics=True, kafka_port=0)
    cluster.up()
    rounds = None
    try:
        make_topics(cluster.bootstrap_servers, TOPICS, PARTITIONS)
        feeder = Feeder(directory)
        feeder.start()
        rounds = Rounds(cluster, directory, options.seed)
        for number in range(options.rounds):
            rounds.play()
            print(f"round {number + 1}: {dict(rounds.done)}", flush=True)
        feeder.stopping.set()
        feeder.join()
        rounds.driver.kill()
        rounds.driver = Driver(cluster.bootstrap_servers, directory, is_last=True)
        if rounds.driver.process.wait(600):
            raise AssertionError(f"the last driver failed; see {directory}/driver.log")
        sent = feeder.sent
        if options.plain:
            sent = (_number_in(directory / "commits") + 1) * FILE_ROWS
        judge(cluster.bootstrap_servers, sent)
        print(f"seed {options.seed}: {sent} rows, each once; {dict(rounds.done)}")
        print("nothing found", flush=True)
    finally:
        if rounds is not None:
            rounds.driver.kill()
        cluster.down()


def judge(servers, sent):
    """Assert that each number is in the topics once, in the right one."""
    for remainder, topic in enumerate(TOPICS):
        found = [int(one) for one in values_of(servers, [topic], PARTITIONS)]
        expected = list(range(remainder, sent, 2))
        if sorted(found) != expected:
            twice = [one for one, times in Counter(found).items() if times > 1]
            lost = sorted(set(expected) - set(found))
            raise AssertionError(f"{topic}: twice {len(twice)} {twice[:9]}, lost {lost[:9]}")
    everything = values_of(servers, TOPICS, PARTITIONS, isolation="read_uncommitted")
    print(f"{len(everything) - sent} records of aborted transactions are in the logs")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--drive", metavar="SERVERS", help="be the driver (used by the program)")
    parser.add_argument("--last", action="store_true", help="as the driver: write all, and end")
    parser.add_argument("--plain", action="store_true", help="without Spark")
    options = parser.parse_args()
    Driver.is_plain = options.plain
    if options.drive and options.plain:
        PlainDriver(options.drive, options.dir).drive(is_last=options.last)
        return
    if options.drive:
        drive(options.drive, options.dir, is_last=options.last)
        return
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory):
        run(directory, options)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
