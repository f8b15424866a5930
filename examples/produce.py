"""Append the lines of standard input to a group, each exactly once and in order.

quorumlog cluster up --dir /tmp/flights --group flights --port 7101
seq 1000 | python examples/produce.py 127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 flights
"""

import asyncio
import sys

from quorumlog import Producer, RequestError


async def produce(servers: str, group: str) -> None:
    """Send every line; the producer batches them and sends again what a fail-over interrupts."""
    async with Producer(servers, group) as producer:
        delivery = None
        # in a thread: waiting for a line must not keep the producer from sending
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            delivery = await producer.send(line.rstrip(b"\n"))  # waits only if the buffer is full
        await producer.flush()  # returns once a majority has every line on disk
        if delivery is not None:
            last = await delivery  # a delivery says where its entry is
            print(f"the last line is at index {last.index}")


def main() -> int:
    """Return 1 if some lines may be missing, and say which."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    servers, group = sys.argv[1:]
    try:
        asyncio.run(produce(servers, group))
    except RequestError as error:
        print(f"{error} (outcome: {error.outcome.value})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
