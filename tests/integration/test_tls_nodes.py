"""Nodes that speak TLS to each other, to clients and to Kafka's clients."""

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager

import msgspec
import pytest
import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from certificates import Authority
from quorumlog.client.connection import ServerConnection
from quorumlog.local.ports import free_ports
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import NetworkError, StorageError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.service.served_node import ServedNode
from quorumlog.transport.tls_contexts import client_context
from small_files import SMALL_FILES, SMALL_SETTINGS
from tls_ends import files_of, outgoing

SECONDS = 60
MEMBERS = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    for name in MEMBERS:
        made.node(name)
    made.user("alice")
    return made


def tls_of(pki, name, **options):
    certificate, key = files_of(pki, name)
    return TlsConfig(certificate=certificate, key=key, ca=str(pki.file), **options)


def configs_of(directory, tls, group="g", **options):
    """Return the configuration of three nodes; `tls` maps each to its table, or to None."""
    ports = dict(zip(MEMBERS, free_ports(3), strict=True))
    peers = ";".join(f"{name}-127.0.0.1:{port}" for name, port in ports.items())
    kind = "cluster" if group == CLUSTER_GROUP else "log"
    hosted = GroupConfig(group=group, peers=peers, kind=kind, **SMALL_FILES)
    return {
        name: NodeConfig(
            self_id=name, store_base_dir=str(directory / name), groups=[hosted], tls=tls(name),
            **options,
        )
        for name in MEMBERS
    }  # fmt: skip


class Nodes:
    """Nodes that can be started and stopped one by one."""

    def __init__(self, configs):
        self.configs = configs
        self.served = {}

    async def start(self, name, **options):
        config = self.configs[name] = msgspec.structs.replace(self.configs[name], **options)
        self.served[name] = ServedNode(config, {})
        await self.served[name].start()

    async def stop(self, name):
        await self.served.pop(name).stop()

    def replica(self, name):
        return self.served[name].node.replicas["g"]

    async def leads(self):
        """Wait until all that run have the same leader and have heard from it; return its id."""
        async with asyncio.timeout(SECONDS):
            while True:
                leaders = {self.replica(name).core.leader_id for name in self.served}
                (leader,) = leaders if len(leaders) == 1 else (None,)
                if leader in self.served:
                    ends = {self.replica(n).core.committed_index for n in self.served}
                    if len(ends) == 1 and ends != {-1}:
                        return leader
                await asyncio.sleep(0.01)

    def peers(self):
        """Return who is connected to whom, and whether that is encrypted."""
        return {
            (name, one.hello.node_id): (one.is_encrypted, one.principal)
            for name, served in self.served.items()
            for one in served.node.listener.connections
            if one.hello is not None and one.hello.node_id
        }

    def stated_ids(self):
        """Return the ids of clusters that peers state in their Hellos."""
        return {
            one.hello.cluster_id
            for served in self.served.values()
            for one in served.node.listener.connections
            if one.hello is not None and one.hello.node_id
        }


@asynccontextmanager
async def running(configs):
    nodes = Nodes(configs)
    try:
        async with asyncio.TaskGroup() as group:
            for name in configs:
                group.create_task(nodes.start(name))
        yield nodes
    finally:
        for name in list(nodes.served):
            await nodes.stop(name)


async def reached(nodes, name, tls):
    """Connect as a client; return the name of the node."""
    config = nodes.configs[name]
    connection = ServerConnection(config.listen_address, "", config.limits, group="g", tls=tls)
    await connection.open(SECONDS)
    connection.close()
    return connection.node_id


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not (found := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found


def reasons_of(caplog):
    return [getattr(record, EVENT_FIELDS, {}).get("reason") for record in caplog.records]


def on_the_nodes_loop(test):
    """Run a test on the loop of nodes."""

    def run(pki, tmp_path, caplog):
        uvloop.run(test(pki, tmp_path, caplog))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_the_nodes_loop
async def test_members_know_each_other_by_certificates_and_nobody_else_is_one(
    pki, tmp_path, caplog
):
    stranger = Authority(tmp_path, "stranger", cluster_id=pki.cluster_id)
    stranger.node("n2")
    async with running(configs_of(tmp_path, lambda name: tls_of(pki, name))) as nodes:
        await nodes.leads()
        await until(lambda: len(nodes.peers()) == 6)
        members = nodes.peers()
        assert {pair: (True, f"Node:{pair[1]}") for pair in members} == members
        assert nodes.stated_ids() == {pki.cluster_id}
        assert await reached(nodes, "n0", outgoing(pki, "alice")) == "n0"
        with pytest.raises(NetworkError, match="this port speaks TLS: give the certificate"):
            await reached(nodes, "n0", None)
        with pytest.raises(NetworkError, match="authority that is not trusted here"):
            await reached(nodes, "n0", outgoing(stranger, "n2"))
        await nodes.stop("n2")
        await nodes.leads()
        caplog.clear()
        await nodes.start("n2", tls=tls_of(stranger, "n2"))
        await until(lambda: any("not trusted" in str(one) for one in reasons_of(caplog)))
        assert all("n2" not in pair for pair in nodes.peers())
        await nodes.stop("n2")
        await nodes.start("n2", tls=tls_of(pki, "n2"))
        await nodes.leads()
        await until(lambda: len(nodes.peers()) == 6)
        await newer_certificates_count(pki, nodes)
        if shutil.which("openssl"):
            await keys_may_change(pki, nodes)


async def newer_certificates_count(pki, nodes):
    serial = pki.node("n0").value.serial_number
    node = nodes.served["n0"].node
    node.check_tls()
    await until(lambda: int(node.tls.current.own.serial, 16) == serial)
    await reached(nodes, "n0", outgoing(pki, "alice"))
    assert len(nodes.peers()) == 6  # they go on


async def keys_may_change(pki, nodes):
    """OpenSSL's own client asks for new keys on an open connection, which goes on."""
    address = nodes.configs["n0"].listen_address
    certificate, key = files_of(pki, "alice")
    client = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", address, "-CAfile", str(pki.file),
        "-cert", certificate, "-key", key, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = b""
    async with asyncio.timeout(SECONDS):
        while b"QLOG" not in said:  # the node's Hello
            said += await client.stdout.read(65_536)
        for letter in (b"k\n", b"K\n"):
            client.stdin.write(letter)
            while b"KEYUPDATE" not in said:
                said += await client.stdout.read(65_536)
            said = said.replace(b"KEYUPDATE", b"")
        client.stdin.write(b"no frame of ours\n")  # is received with the newer keys
        said += await client.stdout.read()
    await client.wait()
    assert b"Verify return code: 0 (ok)" in said
    assert re.search(rb"TLSv1.3, Cipher is TLS_", said)
    assert b"bad record mac" not in said


@on_the_nodes_loop
async def test_a_cluster_changes_over_node_by_node_while_it_serves(pki, tmp_path, caplog):
    async with running(configs_of(tmp_path, lambda name: None)) as nodes:
        await nodes.leads()
        for mode in ("optional", "required"):
            for name in MEMBERS:
                await nodes.stop(name)
                await nodes.leads()
                await nodes.start(name, tls=tls_of(pki, name, mode=mode))
                await nodes.leads()
                if mode == "optional":
                    assert await reached(nodes, name, None) == name
                assert await reached(nodes, name, outgoing(pki, "alice")) == name
            await until(lambda: all(is_encrypted for is_encrypted, _ in nodes.peers().values()))
        other = Authority(tmp_path, "other", "another_cluster_of_22_")
        other.node("n0")
        await nodes.stop("n0")
        with pytest.raises(StorageError, match=r"are of cluster .* is of cluster 'another_"):
            await nodes.start("n0", tls=tls_of(other, "n0"))
        await nodes.start("n0", tls=tls_of(pki, "n0"))
        await nodes.leads()


@on_the_nodes_loop
async def test_a_process_reads_newer_files_on_sighup(pki, tmp_path, caplog):
    (port,) = free_ports(1)
    own = Authority(tmp_path)
    own.node("n0")
    (tmp_path / "n0.toml").write_text(
        f'selfId = "n0"\nstoreBaseDir = "{tmp_path}/n0"\nlisten = "127.0.0.1:{port}"\n'
        '[tls]\ncertificate = "n0.pem"\nkey = "n0.key"\nca = "ca.pem"\n'
    )
    command = (sys.executable, "-m", "quorumlog", "serve", "--config", str(tmp_path / "n0.toml"))
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        shown = lambda: serial_at(port, own)  # noqa: E731
        before = await until(shown)
        newer = own.node("n0").value.serial_number
        assert before != newer
        process.send_signal(signal.SIGHUP)
        await until(lambda: shown() == newer)
    finally:
        process.terminate()
        assert await process.wait() == 0


def serial_at(port, pki):
    """Return the number of the certificate that is shown at a port; None: nobody listens yet."""
    context = client_context(str(pki.file))
    try:
        plain = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            return int(secured.getpeercert()["serialNumber"], 16)
    except OSError:
        return None


def test_kafkas_clients_speak_tls_and_plain_ones_are_refused(pki, tmp_path, caplog):
    """One broker, in a thread of its own, as Kafka's clients block."""
    port, kafka_port = free_ports(2)
    group = GroupConfig(
        group=CLUSTER_GROUP, kind="cluster", peers=f"n0-127.0.0.1:{port}", **SMALL_FILES
    )
    config = NodeConfig(
        self_id="n0", store_base_dir=str(tmp_path), groups=[group], tls=tls_of(pki, "n0"),
        kafka_listen=f"127.0.0.1:{kafka_port}", partition_groups=SMALL_SETTINGS,
    )  # fmt: skip
    stop, started = threading.Event(), threading.Event()

    async def serve():
        served = ServedNode(config, {})
        await served.start()
        started.set()
        await asyncio.to_thread(stop.wait)
        await served.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        assert started.wait(SECONDS)
        certificate, key = files_of(pki, "alice")
        settings = {
            "bootstrap.servers": config.kafka_listen,
            "security.protocol": "SSL",
            "ssl.ca.location": str(pki.file),
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
        }
        producer = Producer(settings)
        errors = []
        producer.produce("t", b"value", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(SECONDS) == 0
        assert errors == [None]
        plain = AdminClient({"bootstrap.servers": config.kafka_listen, "log_level": 0})
        with pytest.raises(Exception, match="Failed to get metadata"):
            plain.list_topics(timeout=1)
        deadline = time.monotonic() + SECONDS
        while "a plain connection; this port speaks TLS only" not in reasons_of(caplog):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        stop.set()
        thread.join(SECONDS)
