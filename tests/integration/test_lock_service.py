"""The lock service of the examples, and the counter of the documentation: machines of a user's."""

import io
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from quorumlog.model.entry import Entry

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lock_service.py"
MACHINES_PAGE = ROOT / "docs" / "machines.md"


@pytest.fixture
def example(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import lock_service  # noqa: PLC0415

    return lock_service


class Driven:
    """A machine that is given commands as the entries of a log."""

    def __init__(self, example):
        self.example = example
        self.machine = example.LockService()
        self.index = 10

    def body(self, body):
        self.index += 1
        (result,) = self.machine.apply([Entry(index=self.index, term=1, pos=0, body=body)])
        return msgspec.json.decode(result, type=self.example.Result)

    def do(self, command):
        return self.body(msgspec.json.encode(command))

    def acquire(self, owner, name="x"):
        return self.do(self.example.Acquire(name, owner))

    def release(self, owner, token, name="x"):
        return self.do(self.example.Release(name, owner, token))

    def holder(self, name="x"):
        raw = self.machine.query(name.encode())
        return msgspec.json.decode(raw, type=self.example.Holder | None)


@pytest.fixture
def locks(example):
    return Driven(example)


def test_one_owner_holds_a_lock_and_others_are_told_who(locks, example):
    got = locks.acquire("ann")
    assert got.done
    assert got.holder == example.Holder("ann", locks.index)
    other = locks.acquire("bob")
    assert (other.done, other.holder) == (False, got.holder)
    assert locks.holder() == got.holder
    assert locks.holder("another") is None
    assert locks.acquire("bob", name="another").done


def test_asking_again_gives_the_same_token(locks):
    first = locks.acquire("ann")
    assert locks.acquire("ann") == first


def test_tokens_rise_from_holder_to_holder(locks):
    tokens = []
    for owner in ("ann", "bob", "ann"):
        tokens.append(locks.acquire(owner).holder.token)
        assert locks.release(owner, tokens[-1]).done
    assert tokens == sorted(set(tokens))
    assert locks.holder() is None


def test_a_lock_is_released_only_by_whoever_holds_it_now(locks, example):
    token = locks.acquire("ann").holder.token
    assert not locks.release("bob", token).done
    assert not locks.release("ann", token - 1).done
    assert locks.do(example.BreakLock("x")).holder.owner == "ann"
    again = locks.acquire("ann").holder.token
    assert not locks.release("ann", token).done, "what it got with that token is over"
    assert locks.release("ann", again).done
    assert not locks.release("ann", again).done
    assert not locks.do(example.BreakLock("x")).done, "nobody held it"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"not json",
        b"\xff",
        b'{"do": "acquire", "name": "x\xff", "owner": "ann"}',
        b'{"do": "acquire", "name": 7, "owner": "ann"}',
        b'{"do": "conquer", "name": "x"}',
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_command_is_a_result_and_changes_nothing(locks, body):
    before = locks.machine.digest()
    result = locks.body(body)
    assert not result.done
    assert result.error.startswith("no command")
    assert locks.machine.digest() == before


def test_a_snapshot_is_the_whole_state(locks, example):
    locks.acquire("ann", name="x")
    locks.acquire("bob", name="ä")
    saved = io.BytesIO()
    locks.machine.save_snapshot(saved)
    assert msgspec.json.decode(saved.getvalue())["ä"]["owner"] == "bob"
    other = Driven(example)
    other.acquire("somebody", name="else")
    assert other.machine.digest() != locks.machine.digest()
    other.machine.load_snapshot(io.BytesIO(saved.getvalue()))
    assert other.machine.digest() == locks.machine.digest()
    assert other.holder("ä").owner == "bob"
    assert other.holder("else") is None


async def test_the_client_speaks_to_the_machine_on_real_nodes(example, make_cluster):
    async with make_cluster(state_machine="lock_service:LockService") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            locks = example.Locks(client)
            got, held = await locks.acquire("x", "ann")
            assert got
            assert await locks.acquire("x", "bob") == (False, held)
            assert await locks.holder("x") == held
            await client.admin.save_snapshot()
            await cluster.stop()
            await cluster.start()
            assert await locks.holder("x") == held
            assert await locks.break_lock("x") == held
            assert not await locks.release("x", "ann", held.token)


@pytest.mark.processes
def test_the_example_runs_in_a_few_seconds_and_shows_a_stale_token_refused():
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert said["bob tries"] == "held by ann"
    assert "bob acquires the lock with a newer token" in done.stdout
    late = done.stdout.partition("ann wakes up")[2]
    assert "ann writes: refused" in late
    assert "the lock is held by bob" in late
    assert said["the document"] == "['by ann', 'by bob']"
    assert time.monotonic() - started < 40


async def test_the_counter_of_the_documentation_counts(make_cluster, tmp_path, monkeypatch):
    machine, used = re.findall(r"```python\n(.*?)```", MACHINES_PAGE.read_text(), re.DOTALL)[:2]
    (tmp_path / "tally.py").write_text(machine)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(machine.splitlines()) <= 15
    async with make_cluster(state_machine="tally:Counter") as cluster:
        await cluster.start()
        async with cluster.client() as client:
            names = {"client": client, "shown": []}
            lines = used.replace("print(", "shown.append(").splitlines()
            exec("async def use():\n" + "\n".join(f"    {line}" for line in lines), names)
            await names["use"]()
            assert names["shown"] == [b"1", b"2", b"2"]
            await client.admin.save_snapshot()
            await cluster.stop()
            await cluster.start()
            assert (await client.query(b"")).answer == b"2"
