"""Read a group from where the last run stopped, wait for new entries, and remember the position.

    python examples/consume.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights /tmp/position

Ctrl-C ends it; the next run continues. An entry that was printed when the process was killed, and
whose position was not stored yet, is printed again: at least once. For exactly once, store the
position in the same transaction as the result (for example, in one row of the same database).
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from quorumlog import Client


def stored_position(file: Path) -> int | None:
    """Return the index of the first entry that was not handled yet; None: nothing was handled."""
    return int(file.read_text()) if file.exists() else None


def store_position(file: Path, index: int) -> None:
    """Replace the file as a whole: a crash leaves the old position or the new one."""
    new = file.with_suffix(".new")
    with new.open("w") as written:
        written.write(str(index))
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)


async def consume(servers: str, group: str, file: Path) -> None:
    """Print entries as they are committed, and store the position after each block of them."""
    position = stored_position(file)
    async with Client(servers, group) as log:
        start = "earliest" if position is None else position
        async for entries in log.read_blocks(start, follow=True):
            for entry in entries:
                print(entry.index, entry.body.decode(errors="replace"), flush=True)
            store_position(file, entries[-1].index + 1)


def main() -> None:
    """Run until Ctrl-C."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    servers, group, file = sys.argv[1:]
    with suppress(KeyboardInterrupt):
        asyncio.run(consume(servers, group, Path(file)))


if __name__ == "__main__":
    main()
