"""What the watchdog of an event loop finds, and what it must not take for a finding."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loop_watch import LoopWatch
from quorumlog.service.watchdog import VARIABLE

TESTS = Path(__file__).parents[1]
LOOP = """
import asyncio, os, sys, threading, time
import uvloop
from quorumlog.service.watchdog import watchdog_if_wanted

def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(10_000))

def sleep_on_the_loop():
    time.sleep(0.3)

def compute_on_the_loop():
    compute(0.3)

async def turns(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compute(0.01)
        await asyncio.sleep(0.001)

async def until_found(call):
    until = time.monotonic() + 60
    while not os.path.exists(os.environ["QUORUMLOG_LOOP_WATCHDOG"]) and time.monotonic() < until:
        call()
        await asyncio.sleep(0)

def starve():
    # all threads, on a processor that others use, too, who weigh a hundred times as much
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
        os.setpriority(os.PRIO_PROCESS, int(task), 19)

async def main():
    watchdog = watchdog_if_wanted()
    await asyncio.sleep(0.1)
    await work()
    await asyncio.sleep(0.1)
    watchdog.stop()

{work}

uvloop.run(main())
"""


@pytest.fixture
def started(tmp_path):
    """`started(code of work)`: a process with a watched loop, and the file of its findings."""
    made = []

    def begin(work):
        path = tmp_path / f"findings{len(made)}"
        program = tmp_path / f"loop{len(made)}.py"
        program.write_text(LOOP.replace("{work}", work))
        made.append(
            subprocess.Popen(
                [sys.executable, program],
                env=os.environ | {VARIABLE: str(path)},
                stdout=subprocess.PIPE,
            )
        )
        return made[-1], path

    yield begin
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def busy():
    """As many processes that compute as there are processors, beside what is tested."""
    made = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    yield
    for process in made:
        process.kill()
        process.wait()


def findings(process, path):
    assert process.wait(200) == 0
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("name", ["sleep_on_the_loop", "compute_on_the_loop"])
def test_a_blocked_loop_is_found_with_its_place_in_the_code(started, name):
    found = findings(*started(f"async def work():\n    await until_found({name})"))
    what = "was blocked for" if name.startswith("sleep") else "used the processor for"
    assert f"the loop {what} 0." in found
    assert f"in {name}" in found


@pytest.mark.parametrize("name", ["sleep_on_the_loop", "compute_on_the_loop"])
def test_a_blocked_loop_is_found_on_a_busy_machine_as_well(started, busy, name):
    found = findings(*started(f"async def work():\n    await until_found({name})"))
    assert f"in {name}" in found


def test_a_call_into_the_system_that_waits_is_found(started):
    """As `fsync` does on a disk that hangs."""
    work = """
def read_on_the_loop():
    reads, writes = os.pipe()
    threading.Timer(0.3, os.write, (writes, b"x")).start()
    os.read(reads, 1)

async def work():
    await until_found(read_on_the_loop)
"""
    assert "in read_on_the_loop" in findings(*started(work))


def test_a_busy_machine_is_no_finding(started, busy):
    assert findings(*started("async def work():\n    await turns(3)")) == ""


def test_other_threads_that_compute_are_no_finding(started, busy):
    work = """
async def work():
    for _ in range(2):
        threading.Thread(target=compute, args=(1.0,), daemon=True).start()
    await turns(3)
"""
    assert findings(*started(work)) == ""


def test_a_process_that_gets_next_to_no_processor_is_no_finding(started, busy):
    work = """
async def work():
    starve()
    await turns(3)
"""
    assert findings(*started(work)) == ""


def test_a_wait_for_a_thread_that_gets_no_processor_is_no_finding(started, busy):
    """Neither for one that has still to start, nor for one that has the interpreter's lock."""
    work = """
async def work():
    threading.Thread(target=compute, args=(0.1,), daemon=True).start()
    starve()
    for _ in range(5):
        threading.Thread(target=compute, args=(0.001,), daemon=True).start()
        await asyncio.sleep(0.001)
"""
    assert findings(*started(work)) == ""


def test_a_process_that_is_stopped_for_a_while_is_no_finding(started):
    process, path = started("async def work():\n    print('go', flush=True)\n    await turns(1.5)")
    assert process.stdout.readline() == b"go\n"
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        subprocess.run(["sleep", "0.3"], check=True)
        process.send_signal(signal.SIGCONT)
    assert findings(process, path) == ""


def test_a_finding_fails_the_test_in_which_it_was_made(tmp_path, started, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    watch = LoopWatch(tmp_path / "findings")
    watch.begin()
    assert os.environ[VARIABLE] == str(tmp_path / "findings")
    watch.check()
    (tmp_path / "findings").write_text("the loop was blocked\n")
    with pytest.raises(AssertionError, match="stood still:\nthe loop was blocked"):
        watch.check()
    watch.check()  # the next one is not to blame
    watch.end()
    assert VARIABLE not in os.environ
