"""Proxies between Kafka's clients and brokers that lose answers: they come, and are not passed on.

A client whose answer is lost cannot know whether its records were stored, and sends them again.
"""

import asyncio
import contextlib
import struct
import threading
from collections import Counter

from quorumlog.kafka.requests import ApiKey

_LENGTH = struct.Struct(">i")
_BEGINNING = struct.Struct(">hhi")


class AnswerLoss:
    """Loses one of `every` answers to Produce requests, with the connection that it is on.

    `done` counts answers that were passed on and that were lost.
    """

    def __init__(self, every):
        self.every = every
        self.done = Counter()

    async def pass_on(self, target, reader, writer):
        """Serve one connection of a client until either side, or a loss, ends it."""
        host, _, port = target.rpartition(":")
        writers, tasks, produces = [writer], [], set()
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
            writers.append(to_writer)
            tasks.append(asyncio.ensure_future(self._requests(reader, to_writer, produces)))
            tasks.append(asyncio.ensure_future(self._answers(to_reader, writer, produces)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the broker is down
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in writers:
                one.close()

    async def _requests(self, reader, writer, produces):
        async for frame in _frames(reader):
            key, _, correlation = _BEGINNING.unpack_from(frame)
            if key == ApiKey.PRODUCE:
                produces.add(correlation)
            await _send(writer, frame)

    async def _answers(self, reader, writer, produces):
        async for frame in _frames(reader):
            (correlation,) = _LENGTH.unpack_from(frame)
            if correlation in produces:
                produces.discard(correlation)
                is_lost = self.done.total() % self.every == self.every - 1
                self.done["answers lost" if is_lost else "answers passed on"] += 1
                if is_lost:
                    return
            await _send(writer, frame)


async def _frames(reader):
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            yield await reader.readexactly(length)


async def _send(writer, frame):
    with contextlib.suppress(ConnectionError):
        writer.writelines((_LENGTH.pack(len(frame)), frame))
        await writer.drain()


@contextlib.contextmanager
def losing_answers(places, every):
    """Run proxies in a thread of their own; `places` are targets by the address to listen at."""
    loss, loop = AnswerLoss(every), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies", daemon=True)
    thread.start()
    servers = asyncio.run_coroutine_threadsafe(_serve(loss, places), loop).result(60)
    try:
        yield loss
    finally:
        asyncio.run_coroutine_threadsafe(_end(servers), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _serve(loss, places):
    servers, tasks = [], set()
    for place, target in places.items():
        host, _, port = place.rpartition(":")

        def connected(reader, writer, target=target):
            task = asyncio.ensure_future(loss.pass_on(target, reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        servers.append(await asyncio.start_server(connected, host, int(port)))
    return servers


async def _end(servers):
    for server in servers:
        server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
