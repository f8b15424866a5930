"""A stream of Spark that reads a topic beside all else that happens to brokers.

    python tests/torture/stream_load.py SERVERS TOPIC DIRECTORY

The program writes each record with its place to Parquet files, from a checkpoint on, and begins
again if the stream fails. Once its standard input ends it reads what is left, and ends.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kafka_load import read_all
from torture.brokers import SETTLE_S, counted

PROGRAM = Path(__file__)
ENDED_S = 300.0
AGAIN_S = 1.0
TRIGGER = {"processingTime": "5 seconds"}


class StreamLoad:
    """The stream in a process of its own, and what must be true of its rows."""

    def __init__(self, brokers, topic, partitions):
        self.topics = []
        self.done = Counter()
        self._brokers, self._topic, self._partitions = brokers, topic, partitions
        self._directory = brokers.directory / "stream"
        self._process = None

    async def begin(self):
        """Start the program."""
        self._directory.mkdir()
        arguments = [self._brokers.bootstrap_servers, self._topic, str(self._directory)]
        command = [sys.executable, str(PROGRAM), *arguments]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220  (it returns at once)
                command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def check(self):
        """Raise if the program has ended by itself."""
        if self._process.poll() is not None:
            raise AssertionError(f"the stream ended: {self._log()[-3000:]}")

    def _log(self):
        return (self._directory / "log").read_text(errors="replace")

    async def calm(self):
        """Nothing is left to be waited for before the topic has got its last record."""

    async def judge(self):
        """Have the program read what is left; each record must be in one row."""
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait, ENDED_S)
        if self._process.returncode:
            raise AssertionError(f"the stream failed: {self._log()[-3000:]}")
        self.done["starts of the stream"] = self._log().count("the stream begins")
        await asyncio.to_thread(self._compare)

    def _compare(self):
        import pyarrow.parquet  # noqa: PLC0415  (only this load needs it)

        rows = pyarrow.parquet.read_table(self._directory / "rows").to_pydict()
        places = list(zip(rows["partition"], rows["offset"], strict=True))
        found = dict(zip(places, rows["value"], strict=True))
        servers = self._brokers.bootstrap_servers
        contents = read_all(servers, self._topic, self._partitions, SETTLE_S)
        wanted = {
            (partition, offset): value
            for partition, values in contents.items()
            for offset, value in enumerate(values)
        }
        if len(places) != len(found):
            twice = [place for place, times in Counter(places).items() if times > 1]
            raise AssertionError(f"the stream has {len(twice)} records twice, as {twice[:9]}")
        if found != wanted:
            wrong = [place for place in {*found, *wanted} if found.get(place) != wanted.get(place)]
            raise AssertionError(f"{len(wrong)} records of the stream are wrong, as {wrong[:9]}")
        self.done["records"] = len(found)

    def tell(self):
        """Print what there was."""
        print(f"stream: {counted(self.done)}")

    def end(self):
        """End the program: the run is over."""
        if self._process is not None:
            self._process.kill()


def main():
    from quorumlog.spark import session  # noqa: PLC0415  (only the program needs Spark)

    servers, topic, directory = sys.argv[1:]
    output, is_last = Path(directory), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_last.set()), daemon=True).start()
    spark = session("torture", master="local[2]", output=output / "spark.log")
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "20000",
    }

    def start(**trigger):
        print("the stream begins", flush=True)
        frame = spark.readStream.format("quorumlog").options(**options).load()
        writer = frame.select("partition", "offset", "value").coalesce(1).writeStream
        writer = writer.format("parquet").option("checkpointLocation", str(output / "checkpoint"))
        return writer.trigger(**trigger).start(str(output / "rows"))

    query, deadline = start(**TRIGGER), None
    while True:
        if query.isActive and not is_last.is_set():
            is_last.wait(AGAIN_S)
            continue
        if not is_last.is_set():
            print(f"the stream failed: {query.exception()}", flush=True)
            is_last.wait(AGAIN_S)
            query = start(**TRIGGER)
            continue
        query.stop()
        deadline = deadline or time.monotonic() + ENDED_S / 2
        query = start(availableNow=True)
        try:
            query.awaitTermination()
            break
        except Exception as error:
            print(f"the stream failed: {error}", flush=True)
            if time.monotonic() > deadline:
                raise
    spark.stop()


if __name__ == "__main__":
    main()
