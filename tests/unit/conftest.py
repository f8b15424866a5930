"""Scripted servers for tests of clients."""

import socket

import pytest

from scripted_cluster import World
from steady_loop import have_steady_time


def pytest_asyncio_loop_factories(config, item):
    """Tests of one process do not depend on how much time a busy machine gives it."""
    return have_steady_time(item)


@pytest.fixture
async def world():
    made = World()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def mute():
    """Listen like a process that is frozen: connections are made, and nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture
def _has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
