"""A replicated state machine of your own: registers, each a number that has a value.

PYTHONPATH=examples quorumlog cluster up --dir /tmp/regs --machine register:Registers --port 7401
python examples/register.py 127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 write 7 70
python examples/register.py 127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 read 7 [--stale]
"""

import asyncio
import struct
import sys
from collections.abc import Sequence

from quorumlog import Client, Entry
from quorumlog.machine import SnapshotReader, SnapshotWriter, StateMachine

WRITE, NUMBER = struct.Struct("<ii"), struct.Struct("<i")
ABSENT = -1


class Registers(StateMachine):
    """Key → value, both of four bytes; a command is a pair of them, a question a key."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Write; the result is the value of before. What is no pair changes nothing."""
        return [self._write(entry.body) for entry in entries]

    def _write(self, body: bytes) -> bytes:
        if len(body) != WRITE.size:
            return b"a command has 8 bytes"
        key, value = WRITE.unpack(body)
        before, self._values[key] = self._values.get(key, ABSENT), value
        return NUMBER.pack(before)

    def query(self, query: bytes) -> bytes:
        """Return the value of a key, -1 if it has none."""
        return NUMBER.pack(self._values.get(NUMBER.unpack(query)[0], ABSENT))

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write all pairs, in the order of their keys."""
        for pair in sorted(self._values.items()):
            writer.write(WRITE.pack(*pair))

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """Replace all pairs."""
        self._values = dict(WRITE.iter_unpack(reader.read()))


async def write(client: Client, key: int, value: int) -> int:
    """Write a value; return the one of before. It is executed once, however often it is sent."""
    (before,) = NUMBER.unpack((await client.execute(WRITE.pack(key, value))).result)
    return int(before)


async def read(client: Client, key: int, *, stale: bool = False) -> int:
    """Return a value: by default as of now, from the leader; `stale`: what any replica has."""
    found = await client.query(NUMBER.pack(key), linearizable=not stale)
    return int(NUMBER.unpack(found.answer)[0])


async def main(servers: str, *words: str) -> None:
    """Do what the command line says."""
    async with Client(servers) as client:
        if words[0] == "write":
            print("before:", await write(client, int(words[1]), int(words[2])))
        else:
            print(await read(client, int(words[1]), stale="--stale" in words))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
