"""Read a log as a member of a consumer group, and wait for new entries.

    python examples/consume.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights printers

Ctrl-C ends it; the next run of the group `printers` continues. Several of them may run: one prints,
the others stand by. Entries that were printed when the process was killed, and whose position was
not committed yet, are printed again: at least once.
"""

import asyncio
import sys
from contextlib import suppress

from quorumlog import Consumer
from quorumlog.errors import ConsumerFencedError


async def consume(servers: str, log: str, group: str) -> None:
    """Print entries as they are committed, and commit the position after each block of them."""
    async with Consumer(servers, group=group, log=log) as consumer:
        async for entries in consumer.read_blocks():
            for entry in entries:
                print(entry.index, entry.body.decode(errors="replace"), flush=True)
            try:
                await consumer.commit()
            except ConsumerFencedError as error:  # after a long pause: this one stands by again
                print(error, file=sys.stderr)


def main() -> None:
    """Run until Ctrl-C."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    with suppress(KeyboardInterrupt):
        asyncio.run(consume(*sys.argv[1:]))


if __name__ == "__main__":
    main()
