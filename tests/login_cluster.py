"""A node in the program of a test where users log in, on both ports, with TLS or without."""

import asyncio
import threading
from contextlib import contextmanager

from quorumlog.auth.verifiers import SALT_BYTES, verifier_of
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterUsers,
    CreateTopics,
    NewTopic,
    UserChange,
)
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.security_config import SecurityConfig
from quorumlog.service.served_node import ServedNode
from small_files import SMALL_FILES, SMALL_SETTINGS, directory_in_memory
from steady_loop import SteadyLoop

SECONDS = 60
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class LoginNode:
    """One node; `address` is its own port, `kafka` that for Kafka's clients."""

    def __init__(self, loop, served, config):
        self._loop = loop
        self.served = served
        self.address = config.listen_address
        self.kafka = config.kafka_listen
        self.admin = config.admin_listen
        self.counters = served.node.instruments.logins

    @property
    def broker(self):
        return self.served._kafka._broker

    def run(self, coroutine):
        """Return what a coroutine returns that runs in the node's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    def add_user(self, user, password, mechanisms=MECHANISMS):
        """Have `__cluster` keep verifiers of a password."""
        verifiers = {
            one: verifier_of(password, one, bytes(SALT_BYTES), 4_096) for one in mechanisms
        }
        command = AlterUsers("User:admin", "", [UserChange(user, verifiers)])
        self.run(self.broker.execute(command, SECONDS * 1000))

    def create_topic(self, name, topic_id):
        """Have the node lead a topic of one partition."""
        topics = CreateTopics([NewTopic(name, topic_id, 1)])
        self.run(self.broker.execute(topics, SECONDS * 1000))
        assert self.run(self.broker.wait_open([topic_id], SECONDS * 1000))

    def give(self, acls):
        """Have `__cluster` keep ACLs, and this node know of them."""
        acls = list(acls)
        self.run(self.broker.execute(AlterAcls("User:admin", "", acls, []), SECONDS * 1000))
        known = {one for found in self.broker.view.security.acls.values() for one in found}
        assert known.issuperset(acls)

    def connections(self):
        """Return the principals of Kafka's clients that are connected."""
        return sorted(one.principal for one in self.served._kafka._listener.connections)


@contextmanager
def login_node(
    directory, tls=None, groups=(), limits=DEFAULT_LIMITS, *, has_admin=False, **security
):
    """Run a node that asks clients to log in; `groups`: plain groups that it has, too.

    `has_admin`: it has an admin port.
    """
    with (
        directory_in_memory(directory) as place,
        _running(place, tls, groups, limits, has_admin, security) as node,
    ):
        yield node


@contextmanager
def _running(place, tls, groups, limits, has_admin, security):
    own, kafka, admin = free_ports(3)
    peers = f"n0-127.0.0.1:{own}"
    config = NodeConfig(
        self_id="n0",
        store_base_dir=str(place),
        groups=[
            GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES),
            *(GroupConfig(group=name, peers=peers, **SMALL_FILES) for name in groups),
        ],
        kafka_listen=f"127.0.0.1:{kafka}",
        admin_listen=f"127.0.0.1:{admin}" if has_admin else "",
        partition_groups=SMALL_SETTINGS,
        tls=tls,
        limits=limits,
        security=SecurityConfig(**{"authorization": "off", **security}),
    )
    loop = SteadyLoop()
    thread = threading.Thread(target=loop.run_forever, name="node of the test")
    thread.start()

    async def start():
        served = ServedNode(config, {})
        await served.start()
        broker = served._kafka._broker
        assert await broker.until(lambda: broker.is_complete, SECONDS * 1000)
        return served

    try:
        served = asyncio.run_coroutine_threadsafe(start(), loop).result(SECONDS)
        yield LoginNode(loop, served, config)
        asyncio.run_coroutine_threadsafe(served.stop(), loop).result(SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()
