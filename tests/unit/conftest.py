"""Scripted servers for tests of clients."""

import pytest

from scripted_cluster import World


@pytest.fixture
async def world():
    made = World()
    await made.start()
    yield made
    await made.stop()
