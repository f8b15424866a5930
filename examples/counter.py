"""A replicated state machine of your own: a counter for each name.

PYTHONPATH=examples quorumlog cluster up --dir /tmp/counted --machine counter:Counters --port 7301
python examples/counter.py 127.0.0.1:7301,127.0.0.1:7302,127.0.0.1:7303 apples apples pears
"""

import asyncio
import json
import sys
from collections.abc import Sequence

from quorumlog import Client, Entry
from quorumlog.machine import SnapshotReader, SnapshotWriter, StateMachine


class Counters(StateMachine):
    """Every node has one of these and gives it the same commands in the same order.

    So nothing but the commands may decide what it does: no clock, no random number, no file.
    """

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Count the name in each command; the result of a command is the new total."""
        return [self._count(entry.body.decode(errors="replace")) for entry in entries]

    def _count(self, name: str) -> bytes:
        self._totals[name] = self._totals.get(name, 0) + 1
        return b"%d" % self._totals[name]

    def query(self, query: bytes) -> bytes:
        """Return the total of a name."""
        return b"%d" % self._totals.get(query.decode(errors="replace"), 0)

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write the whole state; the log before it can then be removed."""
        writer.write(json.dumps(self._totals, sort_keys=True).encode())

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """Replace the whole state."""
        self._totals = json.loads(reader.read())


async def count(servers: str, names: Sequence[str]) -> None:
    """Count names, and ask for the totals; a command that is sent again is executed once."""
    async with Client(servers) as client:
        for name in names:
            await client.execute(name.encode())
        for name in sorted(set(names)):
            print(name, (await client.query(name.encode())).answer.decode())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    asyncio.run(count(sys.argv[1], sys.argv[2:]))
