"""A plain cluster comes to have TLS, rights and another authority, node by node and under load."""

import asyncio
import os
import signal
import socket
import time
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from integration.command_line import command, objects
from integration.rolling_clients import (
    STEP,
    STEP_S,
    KafkaClient,
    LogClient,
    check_log,
    check_replicas,
    check_topic,
    go_on,
)
from quorumlog import SyncClient
from quorumlog.client.connection import ServerConnection
from quorumlog.errors import NotAuthorizedError, RequestError
from quorumlog.local import LocalCluster
from quorumlog.model.config import parse_address
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.transport.tls_contexts import client_context

pytestmark = pytest.mark.processes

STEP_MS = int(STEP_S * 1000)
"""The time for what a client is refused at once."""

TLS = """
[tls]
mode = "{mode}"
certificate = "{directory}/{node}.pem"
key = "{directory}/{node}.key"
ca = "{directory}/ca.pem"
"""
SECURITY = """
[security]
superUsers = ["User:admin"]
authorization = "{authorization}"
"""
CONTEXTS = """
[contexts.load]
servers = "{servers}"
ca = "{directory}/ca.pem"
certificate = "{directory}/load.pem"
key = "{directory}/load.key"
"""


def done(*words):
    """Run a command that has to succeed; return what it prints."""
    status, out, err = command(*words)
    assert status == 0, (words, out, err)
    return out


class Migration:
    """The cluster, its certificates, and the clients that load it."""

    def __init__(self, cluster, outside):
        self.cluster = cluster
        self.certificates = outside / "certificates"
        """Where nodes and clients have theirs."""
        self.authority = outside / "authority"
        self._outside = outside
        self._plain = {
            node_id: (cluster.directory / f"{node_id}.toml").read_text()
            for node_id in cluster.node_ids
        }
        self._contexts = outside / "contexts.toml"
        content = CONTEXTS.format(servers=cluster.servers, directory=self.certificates)
        self._contexts.write_text(content)
        self._contexts.chmod(0o600)
        self.running = []
        self.ended = []
        self.reports = {}

    # -- clients ----------------------------------------------------------------------------

    def kafka(self, *, secured, user="load"):
        """Return librdkafka's settings."""
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0}
        if secured:
            settings |= {
                "security.protocol": "SSL",
                "ssl.ca.location": str(self.certificates / "ca.pem"),
                "ssl.certificate.location": str(self.certificates / f"{user}.pem"),
                "ssl.key.location": str(self.certificates / f"{user}.key"),
            }
        return settings

    def begin(self, name, *, secured):
        """Have a client of the log and one of Kafka's begin."""
        where = [self.cluster.servers, "g", *(["load"] if secured else [])]
        environment = os.environ | {"QUORUMLOG_CONTEXTS": str(self._contexts)}
        self.running.append(LogClient(name, where, environment))
        self.begin_kafka(f"{name}-kafka", secured=secured)

    def begin_kafka(self, name, *, secured):
        self.running.append(KafkaClient(name, self.kafka(secured=secured)))

    def end(self, *names):
        """Have clients end: they know that all is acknowledged that they have sent."""
        for one in [one for one in self.running if one.name in names]:
            self.running.remove(one)
            self.ended.append(one)
            report = one.end()
            if report is not None:
                self.reports[one.name] = report

    def go_on(self):
        go_on(self.running)

    # -- nodes ------------------------------------------------------------------------------

    def configure(self, node_id, *, mode, authorization=""):
        """Restart a node with another configuration, as an operator does; the load goes on."""
        more = TLS.format(mode=mode, node=node_id, directory=self.certificates)
        if authorization:
            more += SECURITY.format(authorization=authorization)
        (self.cluster.directory / f"{node_id}.toml").write_text(self._plain[node_id] + more)
        self.cluster.restart(node_id)
        self.go_on()

    def configure_all(self, **keys):
        for node_id in self.cluster.node_ids:
            self.configure(node_id, **keys)

    def read_again(self):
        """Have all nodes read their files again, and wait until they have."""
        before = {node_id: self._readings(node_id) for node_id in self.cluster.node_ids}
        for pid in self.cluster.running().values():
            os.kill(pid, signal.SIGHUP)
        deadline = time.monotonic() + STEP_S
        for node_id, count in before.items():
            while self._readings(node_id) == count:
                assert time.monotonic() < deadline, f"{node_id} did not read its files again"
                time.sleep(0.02)
        self.go_on()

    def _readings(self, node_id):
        log = self.cluster.log_file(node_id).read_text()
        assert "TLS files cannot be used" not in log
        return log.count("TLS files read again")

    def is_encrypted(self):
        """Return whether each node shows a certificate of `ca.pem`."""
        context = client_context(str(self.certificates / "ca.pem"))
        for node_id in self.cluster.node_ids:
            host, port = parse_address(self.cluster.address(node_id))
            with (
                socket.create_connection((host, port), STEP_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost"),
            ):
                pass
        return True

    # -- certificates -----------------------------------------------------------------------

    def certify(self):
        """Make the certificates of nodes and users by `authority`; no file is ever incomplete."""
        made = self._outside / "made"
        for node_id in self.cluster.node_ids:
            words = ("--host", "127.0.0.1", "--host", "localhost")
            done("cert", "node", node_id, *words, "--dir", self.authority, "--out", made)
        for user in ("load", "admin"):
            done("cert", "client", user, "--dir", self.authority, "--out", made)
        (made / "ca.pem").unlink()  # whom all trust is another step
        self.certificates.mkdir(exist_ok=True)
        for suffix in ("key", "pem"):  # the certificate last
            for path in made.glob(f"*.{suffix}"):
                path.rename(self.certificates / path.name)

    def trust(self, *authorities):
        """Let nodes and clients trust some authorities."""
        beside = self._outside / "ca.pem.new"
        beside.write_bytes(b"".join((one / "ca.pem").read_bytes() for one in authorities))
        self.certificates.mkdir(exist_ok=True)
        beside.rename(self.certificates / "ca.pem")


@contextmanager
def migration(directory):
    cluster = LocalCluster.create(directory / "cluster", groups=("g",), topics=True, kafka_port=0)
    cluster.up()
    made = Migration(cluster, directory)
    try:
        yield made
    finally:
        for one in made.running:
            one.kill()
        cluster.down()


def test_a_cluster_in_use_gets_tls_and_rights_and_another_authority(tmp_path):
    with migration(tmp_path) as it:
        it.begin("plain", secured=False)
        it.go_on()
        get_tls(it)
        get_rights(it)
        get_another_authority(it)
        it.end(*[one.name for one in it.running])
        check_log(it.cluster, it.reports, 3 * STEP)
        of_topic = [one for one in it.ended if isinstance(one, KafkaClient)]
        check_topic(it.kafka(secured=True, user="admin"), of_topic)
        check_replicas(it.cluster)


def get_tls(it):
    """Both kinds of connections for a time, then TLS alone; with one step back."""
    done("cert", "ca", "--dir", it.authority)
    it.trust(it.authority)
    it.certify()
    it.configure_all(mode="optional")
    assert it.is_encrypted()
    it.begin("secured", secured=True)
    it.go_on()  # clients of both kinds
    (it.cluster.directory / "tls").symlink_to(it.certificates)  # the cluster's own commands, too
    it.cluster = LocalCluster.open(it.cluster.directory)
    it.end("plain", "plain-kafka")
    it.configure_all(mode="required")
    it.configure("n1", mode="optional")  # somebody has second thoughts
    asyncio.run(connected(it.cluster.address("n1")))
    it.configure("n1", mode="required")
    for node_id in it.cluster.node_ids:
        with (
            SyncClient(it.cluster.address(node_id), "g", timeout_ms=STEP_MS) as plain,
            pytest.raises(RequestError, match="this port speaks TLS"),
        ):
            plain.bounds()


async def connected(address):
    """Connect to a node without TLS."""
    connection = ServerConnection(address, "", DEFAULT_LIMITS, group="g")
    await connection.open(STEP_S)
    connection.close()


def get_rights(it):
    """What is missing is reported at first, then given, then demanded."""
    it.configure_all(mode="required", authorization="log")
    with SyncClient(it.cluster.context, "g") as admin:
        assert admin.security.acls() == []
    # the suggestions are what the audit logs of all nodes have
    suggested = done("acl", "suggest", "--dir", it.cluster.directory).splitlines()
    assert suggested
    for line in suggested:
        program, *words = line.split()
        assert program == "quorumlog"
        assert words[:4] == ["acl", "add", "--user", "load"]
        done(*words, "--dir", it.cluster.directory)
    it.configure_all(mode="required", authorization="on")
    with SyncClient(context_of_load(it), "other") as load, pytest.raises(NotAuthorizedError):
        load.append(b"it has no right to this group")


def context_of_load(it):
    """Return the context of the user whose clients load the cluster."""
    files = {"certificate": "load.pem", "key": "load.key"}
    return replace(
        it.cluster.context, **{key: str(it.certificates / name) for key, name in files.items()}
    )


def get_another_authority(it):
    """No node is restarted; each step is done everywhere before the next begins."""
    pids = it.cluster.running()
    former, newer = it.authority, it.authority.with_name("newer")
    (shown,) = objects("cert", "show", former / "ca.pem")
    done("cert", "ca", "--dir", newer, "--cluster-id", shown["cluster_id"])
    it.trust(former, newer)
    it.read_again()
    # librdkafka reads its files only when it starts
    it.begin_kafka("both", secured=True)
    it.end("secured-kafka")
    done("cert", "client", "load", "--dir", former, "--out", former)
    of_former = {"certificate": str(former / "load.pem"), "key": str(former / "load.key")}
    it.authority = newer
    it.certify()
    it.read_again()
    with SyncClient(replace(it.cluster.context, **of_former), "g", timeout_ms=STEP_MS) as client:
        client.bounds()  # a new connection by the former authority
    it.begin_kafka("newer", secured=True)
    it.end("both")
    it.trust(newer)
    it.read_again()
    assert it.is_encrypted()
    assert it.cluster.running() == pids
    with (
        SyncClient(replace(it.cluster.context, **of_former), "g", timeout_ms=STEP_MS) as late,
        pytest.raises(RequestError, match="does not trust the authority"),
    ):
        late.bounds()
    it.cluster.restart("n2")  # all its connections are new, and by the newer authority alone
    it.go_on()
