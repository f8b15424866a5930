"""Requests of a connection around its login: who asks by then, and how much of them is held."""

from types import SimpleNamespace

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.throttles import Throttles
from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.request_queue import RequestQueue
from quorumlog.kafka.requests import ApiKey

METADATA = int(ApiKey.METADATA)


class World:
    """A connection and its queue; requests wait while the client does not read."""

    def __init__(self):
        self.principal, self.mechanism, self.is_read_by_client = ANONYMOUS, "", False
        self.remote_address = "h:1"
        self.started, self.is_needed = [], True
        services = SimpleNamespace(
            throttles=Throttles(),
            authorizer=None,
            now=lambda: 0.0,
            broker=SimpleNamespace(is_complete=True),
        )
        self.queue = RequestQueue(services, self, self)
        self.queue.login = self
        self.queue._turn_away = lambda request, reason: self.started.append(request.context)

    def hold(self, connection, size):
        pass

    def queue_changed(self):
        pass

    def why_not(self, api_key):
        return "for this test"

    def add(self):
        content = METADATA.to_bytes(2, "big") + bytes(6) + b"\xff\xff"
        self.queue.add(ReceivedFrame(memoryview(content), 0))


def test_a_request_that_waited_for_a_login_is_of_who_has_logged_in():
    world = World()
    world.add()
    world.principal, world.mechanism, world.is_read_by_client = "User:alice", "login", True
    world.queue.changed()
    (context,) = world.started
    assert (context.principal, context.mechanism) == ("User:alice", "login")


def test_before_a_login_one_request_is_read_at_a_time():
    world = World()
    assert not world.queue.is_full
    world.add()
    assert world.queue.is_full
    world.is_needed = False
    assert not world.queue.is_full
