"""A node process that has to stop does, whatever it waits for."""

import signal
import subprocess
import sys

import pytest

from embedding import configs
from quorumlog.model.config import dump_config

WAITS_FOR_EVER = """
import threading
from quorumlog.service.main import exit_within
threading.Thread(target=threading.Event().wait).start()  # as a thread in a disk that hangs
exit_within(0.1, "n0")
"""


def test_a_process_whose_threads_do_not_return_ends_and_says_why():
    ended = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER], capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert b"quorumlog: n0: could not stop within 0.1 s" in ended.stderr


STARTS_FOR_EVER = """
import asyncio, sys, threading
from quorumlog.model.config import load_config
from quorumlog.node import groups, places
from quorumlog.service import kafka_clients, main

def on_a_thread(*_, **__):
    print("waits", flush=True)
    threading.Event().wait()

async def on_the_loop(*_):
    print("waits", flush=True)
    await asyncio.Event().wait()

{patch}
main.FAILED_STOP_S = {bound_s}
sys.exit(main.serve(load_config(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("patch", "bound_s", "status", "said"),
    [
        ("groups.open_group = on_a_thread", 0.1, 1, b"could not stop within 0.1 s"),
        ("places.Places.resolved = on_the_loop", 60, 0, b"node stopped"),
        ("kafka_clients.KafkaService.start = on_the_loop", 60, 0, b"node stopped"),
    ],
)
def test_a_node_that_is_told_to_stop_during_its_start_does(
    memory_path, patch, bound_s, status, said
):
    (config,) = configs(memory_path, count=1).values()
    file = memory_path / "n0.toml"
    file.write_bytes(dump_config(config))
    script = STARTS_FOR_EVER.format(patch=patch, bound_s=bound_s)
    with subprocess.Popen(
        [sys.executable, "-c", script, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as node:
        try:
            assert node.stdout.readline() == b"waits\n"
            node.send_signal(signal.SIGTERM)
            _, errors = node.communicate(timeout=60)
        finally:
            node.kill()
    assert node.returncode == status
    assert said in errors
    assert b"node started" not in errors


LOOKS_AT_GARBAGE = """
import gc, sys
from quorumlog.model.config import load_config
from quorumlog.service import main

async def looks(config):
    print(gc.get_freeze_count(), len(gc.get_objects()))
    return 0

main._serve = looks
sys.exit(main.serve(load_config(sys.argv[1])))
"""


def test_the_garbage_collector_does_not_look_at_what_was_imported(tmp_path):
    """A look at it holds up all groups, and comes when many connections are made at once."""
    (config,) = configs(tmp_path, count=1).values()
    file = tmp_path / "n0.toml"
    file.write_bytes(dump_config(config))
    command = [sys.executable, "-c", LOOKS_AT_GARBAGE, file]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=True)
    frozen, looked_at = map(int, ended.stdout.split())
    assert frozen > 10 * looked_at
