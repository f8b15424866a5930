"""What tests with networks of their own wait for before they begin."""

import errno
import socket

import pytest

from integration.network import Network, NetworkCluster


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(), OSError(errno.EHOSTUNREACH, "No route to host"), TimeoutError()],
    ids=repr,
)
def test_a_node_that_is_not_reached_yet_is_asked_again(tmp_path, monkeypatch, error):
    def failing(*_):
        raise error

    cluster = NetworkCluster(tmp_path, Network(["n0"]))
    monkeypatch.setattr(socket, "create_connection", failing)
    assert not cluster._listens("n0")
