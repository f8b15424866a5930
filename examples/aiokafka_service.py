"""A service with aiokafka: members of a group answer questions of one topic in another.

    python examples/aiokafka_service.py 127.0.0.1:9092,127.0.0.1:9093 questions answers

Start it several times: partitions are shared, and go to the others when one ends. On SIGTERM, or
Ctrl-C, a member answers what it has taken, commits, and leaves. Should it be killed, what it had
not committed is answered again: each question at least once.
"""

import asyncio
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

if len(sys.argv) != 4:
    raise SystemExit(__doc__)
servers, questions, answers = sys.argv[1:]
WAIT_MS = 500


async def serve(stopping: asyncio.Event) -> int:
    """Answer questions until told to stop; return how many."""
    answered = 0
    consumer = AIOKafkaConsumer(
        questions,
        bootstrap_servers=servers,
        group_id="answering",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    async with producer, consumer:
        print("ready", flush=True)
        while not stopping.is_set():
            taken = await consumer.getmany(timeout_ms=WAIT_MS)
            records = [record for found in taken.values() for record in found]
            if not records:
                continue
            sent = [
                await producer.send(answers, record.value.upper(), record.key) for record in records
            ]
            await asyncio.gather(*sent)  # a majority has them
            await consumer.commit()
            answered += len(records)
    return answered


async def main() -> None:
    """Serve until a signal comes."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    print(f"{await serve(stopping)} questions answered")


asyncio.run(main())
