"""Who may see what at the admin port: what counts as one host."""

import asyncio
import threading
from contextlib import contextmanager
from types import SimpleNamespace

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.model.security_config import PLAIN
from quorumlog.service.admin_access import HOST_LOGINS_MAX, Access, AdminMembers, AdminRequest


class World:
    """A loop that gets to nothing, so all logins wait."""

    def __init__(self, loop):
        self.loop, self.create_task = loop, loop.create_task
        self.asked = threading.Semaphore(0)
        self.members = AdminMembers(self, SimpleNamespace(offered=lambda origin: [PLAIN]), None)

    def call_soon_threadsafe(self, callback):
        self.loop.call_soon_threadsafe(callback)
        self.asked.release()

    def log_in(self, address):
        asked = AdminRequest("GET", "/metrics", address, ANONYMOUS, "Basic Ym9iOmI=")
        return self.members.verdict(asked, anonymous=Access.HEALTH)


async def ended():
    await asyncio.sleep(0)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


@contextmanager
def waiting(addresses):
    """Give a world in which a login from each address waits."""
    loop = asyncio.new_event_loop()
    world = World(loop)
    threads = [threading.Thread(target=world.log_in, args=[one]) for one in addresses]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert world.asked.acquire(timeout=60)
    yield world
    world.members.stop()
    for thread in threads:
        thread.join(60)
    loop.run_until_complete(ended())
    loop.close()


def test_a_network_of_ipv6_has_the_share_of_logins_of_one_host():
    addresses = [f"[2001:db8::{number}]:5000" for number in range(HOST_LOGINS_MAX + 1)]
    with waiting(addresses[1:]) as world:
        assert world.log_in(addresses[0]).status == "503 Service Unavailable"
        assert not world.asked.acquire(blocking=False), "it did not even come to the loop"
        assert set(world.members._by_host.values()) == {HOST_LOGINS_MAX}
