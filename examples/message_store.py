"""An ordered message store, as a broker builds it on a replicated log.

    python examples/message_store.py

Three brokers run in this program, each with a node inside. A message goes to a queue; the log is
the only place where it is stored. An append hook writes into each message where it lies, and every
broker keeps for each queue the positions of its messages, which it derives from committed entries.
The broker that leads serves; when it stops, another one goes on where it was.
"""

import asyncio
import socket
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing

from quorumlog import AppendPlace, GroupConfig, Node, NodeConfig, Role, RoleChange
from quorumlog.errors import NotLeaderError

GROUP = "messages"
FILE_BYTES, ROOM_BYTES = 16 << 20, 1 << 30
"""For a few messages on the disk of a desktop; a server has reason to keep what is the default."""
POSITION_BYTES = 8
"""What each message starts with: its own position, filled in by the leader's append hook."""


def fill_in_position(place: AppendPlace, body: memoryview) -> None:
    """Write into a message where it lies: whoever has it can say where it is."""
    body[:POSITION_BYTES] = place.position.to_bytes(POSITION_BYTES, "big")


class Broker:
    """A node, and the queues that are derived from its log."""

    def __init__(self, config: NodeConfig) -> None:
        self.name = config.self_id
        self.serves = False
        self._queues: defaultdict[int, list[int]] = defaultdict(list)
        self._dispatched = -1
        self._news = asyncio.Condition()
        self._node = Node(config)
        self._node.add_group(GROUP, append_hook=fill_in_position, on_role_change=self._role_changed)

    async def start(self) -> None:
        """Start the node, and derive the queues from what it has."""
        await self._node.start()
        self._log = self._node.group(GROUP)
        self._dispatching = asyncio.create_task(self._dispatch())

    async def stop(self) -> None:
        """Stop; another broker leads from now on."""
        self.serves = False
        self._dispatching.cancel()
        await asyncio.gather(self._dispatching, return_exceptions=True)
        await self._node.stop()

    async def _dispatch(self) -> None:
        """Add the position of each committed message to its queue; the channel is the queue."""
        async with aclosing(self._log.read()) as entries:
            async for entry in entries:
                position = int.from_bytes(entry.body[:POSITION_BYTES], "big")
                async with self._news:
                    self._queues[entry.channel].append(position)
                    self._dispatched = entry.index
                    self._news.notify_all()

    async def _role_changed(self, change: RoleChange) -> None:
        """Serve once this broker leads and has dispatched all that others acknowledged."""
        self.serves = False
        if change.role is not Role.LEADER:
            return
        last = (await self._log.bounds(linearizable=True))[1]
        while last > self._dispatched and not (await self._log.get(last)).is_data:
            last -= 1  # a leader starts with an entry of its own, which is no message
        async with self._news:
            await self._news.wait_for(lambda: self._dispatched >= last)
        self.serves = self._log.role is Role.LEADER

    async def put(self, queue: int, message: bytes) -> int:
        """Store a message; return its place in the queue, once a majority has it."""
        if not self.serves:
            raise NotLeaderError(f"{self.name} does not serve")
        place = await self._log.append(bytes(POSITION_BYTES) + message, channel=queue)
        async with self._news:
            await self._news.wait_for(lambda: self._dispatched >= place.index)
        return self._queues[queue].index(place.pos)

    async def get(self, queue: int, first: int = 0) -> list[bytes]:
        """Return the messages of a queue from a place on, read by their positions."""
        entries = [await self._log.get_at(position) for position in self._queues[queue][first:]]
        return [entry.body[POSITION_BYTES:] for entry in entries]


async def who_serves(brokers: Sequence[Broker]) -> Broker:
    """Wait until one of the brokers serves."""
    while True:
        for broker in brokers:
            if broker.serves:
                return broker
        await asyncio.sleep(0.02)


async def show(directory: str) -> None:
    """Store messages in two queues; stop the broker that leads; go on with another one."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in listening]
    for one in listening:
        one.close()
    peers = ";".join(f"n{number}-{address}" for number, address in enumerate(addresses))
    brokers = []
    for number in range(3):
        place = f"{directory}/n{number}"
        group = GroupConfig(
            group=GROUP,
            peers=peers,
            mapped_file_size_for_entry_data=FILE_BYTES,
            disk_ample_bytes=ROOM_BYTES,
        )
        brokers.append(
            Broker(NodeConfig(self_id=f"n{number}", store_base_dir=place, groups=[group]))
        )
    await asyncio.gather(*(broker.start() for broker in brokers))
    try:
        first = await who_serves(brokers)
        for number in range(3):
            for queue in (1, 2):
                place = await first.put(queue, b"message %d of queue %d" % (number, queue))
                print(f"queue {queue} has a message at place {place}")
        await first.stop()
        brokers.remove(first)
        second = await who_serves(brokers)
        print(
            "the leader has stopped, another one", "serves" if second is not first else "does not"
        )
        print(f"queue 1 goes on at place {await second.put(1, b'message 3 of queue 1')}")
        for message in await second.get(1):
            print(message.decode())
    finally:
        await asyncio.gather(*(broker.stop() for broker in brokers))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="quorumlog-messages-") as made:
        asyncio.run(show(made))
