"""What a `SyncProducer` took is stored or reported: errors between calls, exits, forks."""

import asyncio
import gc
import logging
import sys
import textwrap
import threading

import pytest

from quorumlog.client import Producer, SyncProducer, sync_producer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    DeadlineExceededError,
    Outcome,
    ProducerFencedError,
    RequestError,
    UnexpectedArgumentError,
)
from scripted_cluster import LOSE_ANSWER, SILENT, SOON_S, passed

PLAIN = {"idempotent": False, "linger_ms": 60_000}


def bodies_of(count):
    return [b"%06d" % number for number in range(count)]


async def in_thread(function, *arguments):
    async with asyncio.timeout(3 * SOON_S):
        return await asyncio.to_thread(function, *arguments)


# -- errors that come behind the caller's back -----------------------------------------------------


async def test_a_wrong_type_is_refused_by_the_send_itself_and_nothing_else_is_lost(world):
    bodies = bodies_of(201)

    def script():
        with SyncProducer(world.addresses, "g", **PLAIN) as producer:
            for number, body in enumerate(bodies):
                producer.send(body)
                if number == 100:
                    with pytest.raises(UnexpectedArgumentError, match="not str"):
                        producer.send("a str")
                    with pytest.raises(UnexpectedArgumentError, match="not int"):
                        producer.send_batch([b"not taken", 5])
                    with pytest.raises(
                        UnexpectedArgumentError, match="the largest that can be appended"
                    ):
                        producer.send(bytes(5 << 20))
            producer.flush()

    await in_thread(script)
    assert world.stored == bodies


async def test_the_next_call_says_how_many_were_not_appended_and_which(world):
    world.script(None, ResponseCode.PRODUCER_FENCED)

    def script():
        producer = SyncProducer(world.addresses, "g", batch_bytes=540, in_flight_blocks=1, **PLAIN)
        for body in bodies_of(10):
            producer.send(body)
        producer.flush()
        errors = []
        try:
            for body in bodies_of(30):
                producer.send(body)
            producer.flush()
        except ProducerFencedError as error:
            errors.append(error)
        for call in (lambda: producer.send(b"later"), producer.flush, producer.close):
            with pytest.raises(ProducerFencedError) as caught:
                call()
            errors.append(caught.value)
        return errors

    errors = await in_thread(script)
    assert world.stored == bodies_of(10)
    assert len(errors) == 4
    for error in errors:
        lost = error.undelivered
        assert (lost.first, lost.unknown) == (10, 0)
        assert lost.last == 9 + lost.count
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        assert f"{lost.count} entries (among numbers 10 to {lost.last} of" in str(error)
        assert str(error).endswith(": not appended")
    assert len({id(error) for error in errors}) == 4
    # all that were taken and are not in the log, no more: the refused ones were never taken
    assert errors[-1].undelivered.count <= 30


async def test_entries_of_unknown_outcome_are_distinguished_from_those_not_appended(world):
    world.script(LOSE_ANSWER)
    producer = Producer(
        world.addresses,
        "g",
        batch_bytes=540,
        linger_ms=60_000,
        in_flight_blocks=1,
        retry_unknown=False,
        idempotent=False,
    )
    deliveries = [await producer.send(body) for body in bodies_of(25)]
    with pytest.raises(RequestError) as caught:
        await producer.flush()
    assert caught.value.undelivered.count == 25
    assert caught.value.undelivered.unknown == 10
    assert caught.value.outcome is Outcome.UNKNOWN
    outcomes = []
    for delivery in deliveries:
        with pytest.raises(RequestError) as caught:
            await delivery
        outcomes.append(caught.value.outcome)
    assert outcomes == [Outcome.UNKNOWN] * 10 + [Outcome.DID_NOT_HAPPEN] * 15
    assert world.stored == bodies_of(10)
    await producer.close(flush=False)


async def test_an_interrupted_send_loses_nothing(world, monkeypatch):
    world.script(SILENT)
    bodies = [bytes([number]) * 20_000 for number in range(40)]
    producer = SyncProducer(
        world.addresses,
        "g",
        batch_bytes=100_000,
        buffer_bytes=200_000,
        in_flight_blocks=1,
        request_timeout_ms=300_000,
        idempotent=False,
    )
    server = world.servers["n0"]
    waiting = threading.Event()
    wait_for_space = Producer._wait_for_space

    async def full(self, size):
        waiting.set()
        await wait_for_space(self, size)

    monkeypatch.setattr(Producer, "_wait_for_space", full)
    taken = []

    def send_all():
        for body in bodies:
            taken.append(body)
            producer.send(body)

    def script():
        thread = producer._outbox._thread
        wait = thread.wait

        def interrupted(work):
            async def cancelled():
                task = asyncio.ensure_future(work)
                await asyncio.to_thread(waiting.wait, SOON_S)
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            wait(cancelled())
            raise KeyboardInterrupt

        thread.wait = interrupted
        with pytest.raises(KeyboardInterrupt):
            send_all()
        thread.wait = wait

    await in_thread(script)
    assert len(taken) < len(bodies)
    for connection in list(server.listener.connections):
        connection.abort("scripted")
    await in_thread(producer.close)
    assert world.stored == taken


# -- nobody closes it ------------------------------------------------------------------------------


async def test_one_that_is_dropped_delivers_what_it_took_and_ends_its_thread(world, caplog):
    def script():
        producer = SyncProducer(world.addresses, "g", idempotent=False, linger_ms=60_000)
        for body in bodies_of(300):
            producer.send(body)
        return producer._outbox._thread._thread

    with caplog.at_level(logging.WARNING):
        thread = await in_thread(script)
        gc.collect()
        await in_thread(thread.join, SOON_S)
    assert not thread.is_alive()
    assert world.stored == bodies_of(300)
    assert "dropped without being closed; 300 entries (among numbers" in caplog.text
    assert "may be lost" not in caplog.text


async def test_one_that_is_dropped_and_cannot_deliver_says_how_many(world, caplog, monkeypatch):
    monkeypatch.setattr(sync_producer, "EXIT_SECONDS", 0.1)
    world.script(*[SILENT] * 10)

    def script():
        producer = SyncProducer(world.addresses, "g", **PLAIN)
        for body in bodies_of(30):
            producer.send(body)
        return producer._outbox._thread._thread

    with caplog.at_level(logging.WARNING):
        thread = await in_thread(script)
        gc.collect()
        await in_thread(thread.join, SOON_S)
    assert not thread.is_alive()
    assert "entries may be lost: 30 entries (among numbers" in caplog.text


async def test_one_that_delivered_everything_is_dropped_quietly(world, caplog):
    def script():
        producer = SyncProducer(world.addresses, "g", **PLAIN)
        producer.send(b"x")
        producer.flush()
        return producer._outbox._thread._thread

    with caplog.at_level(logging.WARNING):
        thread = await in_thread(script)
        gc.collect()
        await in_thread(thread.join, SOON_S)
    assert not thread.is_alive()
    assert caplog.records == []


async def test_one_that_is_closed_because_of_an_error_says_what_it_did_not_wait_for(world, caplog):
    world.script(*[SILENT] * 10)

    def script():
        with SyncProducer(world.addresses, "g", **PLAIN) as producer:
            producer.send(b"x")
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        await in_thread(script)
    assert "closed because of ZeroDivisionError: 1 entry (number" in caplog.text


def test_a_producer_whose_loop_ends_says_what_is_missing(caplog):
    async def script():
        producer = Producer("127.0.0.1:1", "g", **PLAIN)
        deliveries.append(await producer.send(b"x"))
        deliveries.append(await producer.send(b"y"))
        await asyncio.sleep(0.01)

    deliveries = []
    with caplog.at_level(logging.WARNING):
        asyncio.run(script())
    assert "before its loop ended: 2 entries (among numbers" in caplog.text
    assert all(delivery.done() for delivery in deliveries)


async def test_a_time_out_between_calls_is_raised_by_the_next_send(world):
    world.leader_id = None

    def script():
        producer = SyncProducer(world.addresses, "g", delivery_timeout_ms=200, **PLAIN)
        producer.send(b"one")
        producer.send(b"two")
        producer.flush()

    with pytest.raises(
        DeadlineExceededError, match=r"2 entries \(among numbers 0 to 1 of"
    ) as caught:
        await in_thread(script)
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


# -- whole processes -------------------------------------------------------------------------------

HEAD = """
import asyncio, gc, logging, multiprocessing, os, signal, sys, time
from quorumlog import *
from quorumlog.client import Transactions, sync_producer
servers = sys.argv[1]
signal.alarm(60)
PLAIN = dict(idempotent=False, linger_ms=60_000)
def said(call):
    called_at = time.monotonic()
    try:
        call()
    except RequestError as error:
        assert "forked child" in str(error), error
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        assert time.monotonic() - called_at < 5
    else:
        raise SystemExit("it was not refused")
"""


async def process(script, *arguments):
    """Run a script of its own; return what it wrote to its error output, and its status."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HEAD + textwrap.dedent(script),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await started.communicate()
    return errors.decode(), started.returncode


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise SystemExit(0)", "global_ = 1 / 0"])
async def test_at_exit_what_was_sent_is_appended(world, end):
    errors, _ = await process(
        f"""
        producer = SyncProducer(servers, "g", **PLAIN)
        for number in range(500):
            producer.send(b"%06d" % number)
        {end}
        """,
        world.addresses,
    )
    assert world.stored == bodies_of(500), errors


async def test_at_exit_it_is_logged_how_many_could_not_be_appended(world):
    world.script(*[SILENT] * 10)
    errors, status = await process(
        """
        sync_producer.EXIT_SECONDS = 0.2
        producer = SyncProducer(servers, "g", **PLAIN)
        for number in range(500):
            producer.send(b"%06d" % number)
        """,
        world.addresses,
    )
    assert status == 0
    assert "entries may be lost: 500 entries (among numbers" in errors


async def test_a_thread_that_still_sends_is_waited_for_before_the_end(world):
    errors, status = await process(
        """
        import threading
        producer = SyncProducer(servers, "g", **PLAIN)
        def send():
            threading.main_thread().join()
            for number in range(500):
                producer.send(b"%06d" % number)
        threading.Thread(target=send).start()
        """,
        world.addresses,
    )
    assert (errors, status) == ("", 0)
    assert world.stored == bodies_of(500)


async def test_a_reader_that_nobody_closes_does_not_hold_up_the_end(world):
    errors, status = await process(
        """
        client = SyncClient(servers, "g")
        client.append_batch([b"one", b"two"])
        reading = client.read(0)
        assert next(reading).body == b"one"
        """,
        world.addresses,
    )
    assert (errors, status) == ("", 0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_a_process_of_multiprocessing_appends_what_it_sent(world, method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, sys
            from quorumlog import SyncProducer
            kept = []
            def work(servers):
                producer = SyncProducer(servers, "g", idempotent=False, linger_ms=60_000)
                kept.append(producer)
                for number in range(500):
                    producer.send(b"%06d" % number)
            if __name__ == "__main__":
                made = multiprocessing.get_context("{method}").Process(
                    target=work, args=(sys.argv[1],)
                )
                made.start()
                made.join()
                sys.exit(made.exitcode)
            """
        )
    )
    started = await asyncio.create_subprocess_exec(sys.executable, str(script), world.addresses)
    assert await started.wait() == 0
    assert world.stored == bodies_of(500)


async def test_in_a_forked_child_every_use_is_refused_at_once_and_the_parent_goes_on(world):
    errors, status = await process(
        """
        client, kv = SyncClient(servers, "g"), SyncKV(servers, "g")
        producer = SyncProducer(servers, "g", **PLAIN)
        client.append(b"parent 0")
        reading = client.read(0)
        next(reading)
        producer.send(b"parent 1")
        raw = client.asynchronous
        held = [kind for kind in (Client(servers, "g"), Producer(raw, idempotent=False))]
        child = os.fork()
        if not child:
            for call in (
                lambda: client.append(b"child"),
                lambda: client.append_batch([b"child"]),
                lambda: client.execute(b"child"),
                lambda: client.query(b"child"),
                lambda: client.get(0),
                lambda: client.bounds(),
                lambda: client.status(),
                lambda: client.metadata(),
                lambda: client.admin.transfer("n1"),
                lambda: list(client.read(0, follow=False)),
                lambda: next(reading),
                lambda: kv.put("a", "b"),
                lambda: kv.get("a"),
                lambda: kv.transaction(then=[Put("a", "b")]),
                lambda: list(kv.scan()),
                lambda: next(kv.watch()),
                lambda: producer.send(b"child"),
                lambda: producer.send_batch([b"child"]),
                lambda: producer.flush(),
                lambda: producer.close(),
                lambda: asyncio.run(held[0].append(b"child")),
                lambda: asyncio.run(raw.append_batch([b"child"])),
                lambda: asyncio.run(raw.execute(b"child")),
                lambda: asyncio.run(raw.query(b"child")),
                lambda: asyncio.run(raw.get(0)),
                lambda: asyncio.run(raw.status()),
                lambda: asyncio.run(KV(raw).get("a")),
                lambda: asyncio.run(KV(raw).put("a", "b")),
                lambda: asyncio.run(Transactions(raw, "id").init()),
                lambda: asyncio.run(Transactions(raw, "id").commit(1, 1, [])),
                lambda: asyncio.run(held[1].send(b"child")),
                lambda: held[1].send_nowait(b"child"),
                lambda: asyncio.run(held[1].send_batch([b"child"])),
                lambda: asyncio.run(held[1].flush()),
                lambda: asyncio.run(held[1].close()),
            ):
                said(call)
            producer.close(flush=False)
            client.close()
            kv.close()
            asyncio.run(held[0].close())
            with SyncClient(servers, "g") as own:  # of its own
                own.append(b"child's own")
            del client, kv, producer, reading, raw, held, call
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.append(b"parent 2")
        producer.flush()
        producer.send(b"parent 3")
        producer.close()
        """,
        world.addresses,
    )
    assert (errors, status) == ("", 0)
    assert world.stored == [b"parent 0", b"child's own", b"parent 2", b"parent 1", b"parent 3"]


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "pass"])
async def test_a_child_that_uses_nothing_ends_and_does_not_touch_the_parents_entries(world, end):
    errors, status = await process(
        f"""
        producer = SyncProducer(servers, "g", **PLAIN)
        for number in range(250):
            producer.send(b"%06d" % number)
        for _ in range(3):
            child = os.fork()
            if not child:
                break
            assert os.waitpid(child, 0)[1] == 0
        if not child:
            {end}
        else:
            for number in range(250, 500):
                producer.send(b"%06d" % number)
        """,
        world.addresses,
    )
    assert (errors, status) == ("", 0)
    assert world.stored == bodies_of(500)


async def test_the_last_reference_in_a_child_neither_hangs_nor_flushes(world):
    errors, status = await process(
        """
        producer = SyncProducer(servers, "g", **PLAIN)
        producer.send(b"parent")
        def work(given):
            said(lambda: given.send(b"child"))
        made = multiprocessing.get_context("fork").Process(target=work, args=(producer,))
        made.start()
        made.join()
        assert made.exitcode == 0
        assert producer.stats.entries_sent == 0
        child = os.fork()
        if not child:
            del producer, made
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        world.addresses,
    )
    assert (errors, status) == ("", 0)
    await passed(lambda: world.stored == [b"parent"])
