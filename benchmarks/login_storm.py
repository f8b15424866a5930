"""Storms of connections at one node: logins, idle connections, handshakes that never end.

    python benchmarks/login_storm.py [--logins 1000] [--idle 5000] [--half-open 5000]

Starts a secure node of its own on this machine. A served client asks for metadata again and again
on one connection, as fast as it is answered. Beside it, each by a process of its own that comes
from `SOURCES` addresses: so many logins by certificate, and by SCRAM-SHA-256 over TLS, as fast as
they come; so many connections that say nothing; and so many that send a ClientHello and no more.
Of each it prints how long it takes, what it costs the node's processor, how many answers the served
client gets beside it and in quiet, and how much less of that processor is thus for it. It needs two
free cores, a minute, and more than 5,000 descriptors (`ulimit -n`).
"""

import argparse
import asyncio
import errno
import multiprocessing
import os
import resource
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import uvloop

from quorumlog.cli.local_certificates import make_missing
from quorumlog.client import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Secret,
    Security,
    SyncClient,
)
from quorumlog.client.connection import ServerConnection
from quorumlog.client.login import LoginOfClient
from quorumlog.errors import NetworkError
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.client import MetadataRequest
from quorumlog.pki.authority import AuthorityDirectory
from quorumlog.pki.files import pair_in
from quorumlog.pki.names import user_subject
from quorumlog.transport.tls import OutgoingTls
from quorumlog.transport.tls_contexts import client_context

GROUP = "default"
USER, PASSWORD = "stormer", "a password that is long enough"
ACL = Acl(
    ResourceType.GROUP,
    GROUP,
    PatternType.LITERAL,
    f"User:{USER}",
    "*",
    Operation.DESCRIBE,
    Permission.ALLOW,
)
QUIET_S = 3.0
SECONDS = 60.0
AT_ONCE = 100
"""Logins under way at a time."""
SOURCES = 20
"""Addresses of the storms: 127.0.2.1 and so on."""
HOLD_S = 6.0
"""Idle and half-open connections are held for this long: a node ends them after 5 s."""


class Files(NamedTuple):
    """Of a user: the authority's certificate, its own, and its key."""

    ca: str
    certificate: str
    key: str


def context_of(files: Files, *, shows_certificate: bool) -> ssl.SSLContext:
    """Return how a client encrypts."""
    own = (files.certificate, files.key) if shows_certificate else ("", "")
    context = client_context(files.ca, *own)
    context.check_hostname = False
    return context


# -- storms, each in a process of its own --------------------------------------------------------


async def log_in(address: str, files: Files, count: int, *, by_certificate: bool) -> int:
    """Log in so often, `AT_ONCE` at a time, each until it is in; return the number of attempts."""
    tls = OutgoingTls(context_of(files, shows_certificate=by_certificate))
    login = None
    if not by_certificate:  # the password is hashed once for all
        security = Security(ca=files.ca, user=USER, password=Secret(PASSWORD))
        login = LoginOfClient(security)
    opened: list[ServerConnection] = []
    left, attempts = count, 0

    async def one_after_the_other() -> None:
        nonlocal left, attempts
        while left > 0:
            left -= 1
            attempts += 1
            made = ServerConnection(address, "", DEFAULT_LIMITS, group=GROUP, tls=tls, login=login)
            try:
                await made.open(SECONDS)
                await made.request(MetadataRequest(group=GROUP))
            except NetworkError:  # it took too long, as the machine is busy
                left += 1
            else:
                opened.append(made)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
    for one in opened:
        one.close()
    return attempts


def first_flight(files: Files) -> bytes:
    """Return a ClientHello."""
    outgoing = ssl.MemoryBIO()
    context = context_of(files, shows_certificate=False)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def hold(address: str, count: int, first: bytes) -> int:
    """Make so many connections that say this and no more; return how many were made."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    held: list[socket.socket] = []
    left = count

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            made = socket.socket()
            made.setblocking(False)
            made.bind((f"127.0.2.{left % SOURCES + 1}", 0))
            try:
                await loop.sock_connect(made, (host, int(port)))
                if first:
                    await loop.sock_sendall(made, first)
            except OSError as error:
                made.close()
                if error.errno == errno.EMFILE:
                    raise
            else:
                held.append(made)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
    await asyncio.sleep(HOLD_S)
    for one in held:
        one.close()
    return len(held)


STORMS: dict[str, Callable[[str, Files, int], Awaitable[int]]] = {
    "logins by certificate": lambda address, files, count: log_in(
        address, files, count, by_certificate=True
    ),
    "logins by SCRAM-SHA-256": lambda address, files, count: log_in(
        address, files, count, by_certificate=False
    ),
    "connections that say nothing": lambda address, files, count: hold(address, count, b""),
    "handshakes that never end": lambda address, files, count: hold(
        address, count, first_flight(files)
    ),
}


def storm(name: str, address: str, files: Files, count: int, pipe: Connection) -> None:
    """In a process of its own: storm when told to, and say how many connections were made.

    It has only the processor time that neither the node nor the served client wants: what the
    storm itself computes is nothing that the node does to the served client.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    pipe.recv()

    async def run() -> int:
        return await STORMS[name](address, files, count)

    pipe.send(uvloop.run(run()))


def serve(address: str, files: Files, pipe: Connection) -> None:
    """In a process of its own: ask again and again; say how many answers there were when asked."""

    async def run() -> None:
        tls = OutgoingTls(context_of(files, shows_certificate=True))
        client = ServerConnection(address, "", DEFAULT_LIMITS, group=GROUP, tls=tls)
        await client.open(SECONDS)
        answers, slowest = 0, 0.0
        while True:
            begun = time.perf_counter()
            await client.request(MetadataRequest(group=GROUP))
            slowest = max(slowest, time.perf_counter() - begun)
            answers += 1
            if pipe.poll():
                pipe.recv()
                pipe.send((answers, slowest))
                answers, slowest = 0, 0.0

    uvloop.run(run())


# -- measuring -----------------------------------------------------------------------------------


class Served:
    """The served client."""

    def __init__(self, address: str, files: Files) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self.process = context.Process(target=serve, args=(address, files, there), daemon=True)
        self.process.start()
        self.count()

    def count(self) -> tuple[int, float]:
        """Return answers since the last count, and the longest wait for one, in seconds."""
        self._here.send("count")
        answers, slowest = self._here.recv()
        return int(answers), float(slowest)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, count: int, cluster: LocalCluster, files: Files, served: Served) -> None:
    """Print what a storm does."""
    address = cluster.address("n0")
    pid = cluster.running()["n0"]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (name, address, files, count, there)
    process = context.Process(target=storm, args=arguments, daemon=True)
    process.start()
    served.count()
    used = processor_s(pid)
    time.sleep(QUIET_S)
    quiet = served.count()[0] / QUIET_S
    for_served = (processor_s(pid) - used) / QUIET_S
    used, begun = processor_s(pid), time.perf_counter()
    here.send("go")
    made = here.recv()
    seconds = time.perf_counter() - begun
    answers, slowest = served.count()
    rate = answers / seconds
    less = (1 - rate / quiet) * for_served
    print(
        f"{count:,} {name} ({made:,} connections): {seconds:.1f} s; the node used "
        f"{(processor_s(pid) - used) / seconds:.2f} of a core; the served client had "
        f"{rate:,.0f} answers/s of {quiet:,.0f} in quiet, which is {less:.2f} of a "
        f"core less, the slowest after {slowest * 1_000:.0f} ms",
        flush=True,
    )
    process.join()
    if cluster.running().get("n0") != pid:
        raise SystemExit("the node has ended")


def made_user(cluster: LocalCluster) -> Files:
    """Make the user's certificate and rights; return the files."""
    where = cluster.tls_directory
    if where is None:
        raise SystemExit("the cluster does not speak TLS")
    make_missing(where, cluster.node_ids)
    authority = AuthorityDirectory(where, datetime.now(UTC), secrets.token_bytes)
    pair = pair_in(where, USER)
    subject = user_subject(USER, authority.cluster_id())
    authority.issue(subject, pair, "ec-p256", 30, force=True)
    return Files(str(where / "ca.pem"), str(pair.certificate), str(pair.key))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logins", type=int, default=1_000)
    parser.add_argument("--idle", type=int, default=5_000)
    parser.add_argument("--half-open", type=int, default=5_000)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    counts = (arguments.logins, arguments.logins, arguments.idle, arguments.half_open)
    with guarded_directory("quorumlog-storm-") as guard:
        cluster = LocalCluster.create(
            guard.directory / "c", nodes=1, groups=[GROUP], secure=True, topics=False
        )
        files = made_user(cluster)
        cluster.up()
        try:
            with SyncClient(cluster.context, GROUP) as admin:
                admin.security.add_user(USER, PASSWORD)
                admin.security.add_acls([ACL])  # who is only refused makes room for others
            served = Served(cluster.address("n0"), files)
            for name, count in zip(STORMS, counts, strict=True):
                measure(name, count, cluster, files, served)
            served.process.kill()
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
