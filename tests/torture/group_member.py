"""A member of a consumer group, in a process of its own that can be killed.

    python tests/torture/group_member.py SETTINGS

SETTINGS is JSON: `topic`, `consumer` (settings of librdkafka), and `target`, a topic that each
record is also sent to before it is committed, or null. It prints what happens as lines of JSON,
each before or after it happens as `group_history` needs it. It does what lines of its standard
input say: `stall SECONDS` (it does not poll), `leave`. Without standard input it ends.
"""

import json
import os
import selectors
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

COMMIT_S = 0.3
POLL_S = 0.05
POLLED = 200
GENERATION = slice(7, 11)
"""Where librdkafka's metadata of a group, in the form that it has for other producers, say the
generation, or the epoch of the member."""


class Member:
    """Consumes, produces and commits; tells whoever has started it."""

    def __init__(self, settings):
        self._topic, self._target = settings["topic"], settings["target"]
        self._owned = set()
        self._ranges = {}
        self._producer = None
        self._commit_s = 0
        if self._target:
            servers = settings["consumer"]["bootstrap.servers"]
            options = {"enable.idempotence": True, "linger.ms": 2, "log_level": 0}
            self._producer = Producer({"bootstrap.servers": servers, **options})
        self._consumer = Consumer({**settings["consumer"], "enable.auto.commit": False})
        # The selector and the raw descriptor: nothing may be left in a buffer of Python's.
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)

    def run(self):
        """Be a member until told to leave."""
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        while self._obey():
            for _ in range(POLLED):
                message = self._consumer.poll(POLL_S if not self._ranges else 0)
                if message is None:
                    break
                self._take(message)
            if self._ranges and time.monotonic() >= self._commit_s:
                self._commit()
        tell("leaving")
        self._consumer.close()

    def _obey(self):
        """Do what the next line says; False: it is time to leave."""
        if not self._selector.select(0 if not self._ranges else POLL_S / 5):
            return True
        lines = os.read(sys.stdin.fileno(), 4_096).decode().splitlines()
        for line in lines:
            what, *values = line.split()
            if what == "stall":
                time.sleep(float(values[0]))  # what the run wants
            else:
                return False
        return bool(lines)

    def _take(self, message):
        error = message.error()
        if error is not None:
            tell("error", code=error.name(), fatal=error.fatal())
            return
        place, offset = message.partition(), message.offset()
        begin, end = self._ranges.get(place, (offset, offset))
        if offset != end:
            tell("fault", text=f"{place}@{offset} was consumed after {end}")
        self._ranges[place] = begin, offset + 1
        if self._producer is not None:
            self._producer.produce(self._target, message.value(), partition=place)

    def _commit(self):
        """Commit what was consumed; what is refused is committed later, if it is still owned."""
        self._commit_s = time.monotonic() + COMMIT_S
        if self._producer is not None and self._producer.flush(20):
            return
        ranges = {one: told for one, told in self._ranges.items() if one in self._owned}
        if not ranges:
            self._ranges.clear()
            return
        tell("committing", ranges=ranges)
        offsets = [TopicPartition(self._topic, one, end) for one, (_, end) in ranges.items()]
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            tell("refused", code=error.args[0].name())
            return
        done = [one.partition for one in answered if one.error is None]
        tell("committed", partitions=done)
        for one in done:
            self._ranges.pop(one, None)

    # -- rebalances -----------------------------------------------------------------------------

    def _on_assign(self, consumer, partitions):
        added = {one.partition for one in partitions}
        for one in added:
            self._ranges.pop(one, None)
        self._owned |= added
        metadata = consumer.consumer_group_metadata()
        generation = int.from_bytes(metadata[GENERATION], "big", signed=True)
        tell("assigned", generation=generation, partitions=sorted(self._owned), added=sorted(added))

    def _on_revoke(self, _, partitions):
        if any(one.partition in self._ranges for one in partitions):
            self._commit()
        self._give_up("revoked", partitions)

    def _on_lost(self, _, partitions):
        self._give_up("lost", partitions)

    def _give_up(self, what, partitions):
        gone = {one.partition for one in partitions}
        self._owned -= gone
        for one in gone:
            self._ranges.pop(one, None)
        tell(what, partitions=sorted(gone))


def tell(what, **values):
    """Print what happens, with the time: by one call, so that a line is whole or cut at its end."""
    line = json.dumps({"is": what, "at": time.monotonic(), **values}) + "\n"
    try:
        os.write(sys.stdout.fileno(), line.encode())
    except BrokenPipeError:  # whoever has started it is no more
        os._exit(0)


if __name__ == "__main__":
    Member(json.loads(sys.argv[1])).run()
