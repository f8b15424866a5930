"""Write a batch with two producers; readers see all of it, once, or nothing.

    python examples/transactions.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights 0

The last argument numbers the batch. Run it again with the same number, as a job that was restarted
would, and nothing is written a second time.
"""

import asyncio
import sys

from quorumlog import Client, Transactions

PARTS = 2
ROWS = 100


async def visible(log: Client) -> int:
    """Count what a reader sees; `read_committed` is the default isolation."""
    return len([entry async for entry in log.read(follow=False)])


async def write(servers: str, group: str, batch: int) -> None:
    """Write one batch unless an earlier run has ended it."""
    async with Client(servers, group) as log:
        writer = Transactions(log, "example import")  # the same name in every run of the job
        run = await writer.init()  # from now on, an older run of the same name is refused
        if run.last_batch >= batch:
            print(f"batch {batch} was written before")
            return
        before = await visible(log)
        accepted = []
        for part in range(PARTS):  # in a real job each part is a task, perhaps on its own machine
            async with writer.producer(run, batch, part) as producer:
                await producer.send_batch(b"%d/%d/%d" % (batch, part, row) for row in range(ROWS))
                await producer.flush()
                accepted.append(producer.attempt())
        print(f"written but not committed: readers see {await visible(log) - before} more entries")
        await writer.commit(run.epoch, batch, [each for each in accepted if each is not None])
        print(f"committed: readers see {await visible(log) - before} more entries")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
