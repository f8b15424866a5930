"""Hostile inputs by the hundred thousand at each port of a cluster, beside a well-behaved client.

    python tests/torture/hostile.py --inputs 100000 --seed 1
    python tests/torture/hostile.py --inputs 5000 native-tls-before kafka-plain-after

Two clusters after each other: one that speaks TLS (`cluster up --secure`), and one that does not,
whose users log in with a password. At each door, which is a port before or after a login, come
`--inputs` inputs from a seed. Beside them a client appends and gets entries, produces records and
asks for /health. At the end all nodes live and have no traceback in their logs; memory, logs and
descriptors are within bounds; every answer to the client was right.

The hostile processes have only the processor time that nobody else wants (SCHED_IDLE), unless they
are `--eager`. Before each door they only compute for a while: what that does to the client is
nothing that a node does to it.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import resource
import secrets
import ssl
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import msgspec  # noqa: E402
import uvloop  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from good_client import Behaved, watched  # noqa: E402
from hostile_client import Password, Way, try_inputs  # noqa: E402
from hostile_inputs import GROUP, TOPIC, doors, input_for  # noqa: E402
from quorumlog import SyncClient  # noqa: E402
from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType  # noqa: E402
from quorumlog.cli.local_certificates import make_missing  # noqa: E402
from quorumlog.local import LocalCluster, ending_in_order, guarded  # noqa: E402
from quorumlog.local.layout import Layout  # noqa: E402
from quorumlog.model.config import dump_config, load_config  # noqa: E402
from quorumlog.model.security_config import SecurityConfig  # noqa: E402
from quorumlog.pki.authority import AuthorityDirectory  # noqa: E402
from quorumlog.pki.files import pair_in  # noqa: E402
from quorumlog.pki.names import user_subject  # noqa: E402

SECONDS = 60.0
AT_ONCE = 200
"""Hostile connections at a door at a time."""
LOGINS_SHARE = 8
"""Of those, at a door behind a login, one in so many: it has to be let in within 5 s."""
INPUTS_OF_CONNECTION = 20
"""The most inputs on a connection that has logged in, unless one of them ends it."""
SOURCES = 64
"""Addresses that they come from: 127.0.1.1 and so on."""
GROWTH_MIB = 200
"""A node has no more memory at any time than at the beginning and this. It is above what 200
strangers may cost (64 KiB each) and what the well-behaved client's own data takes (32 MiB of the
tails of logs), and far below the budgets for requests of clients who have logged in."""
LOG_MIB = 16
"""What all that may add to a node's log and audit log."""
SOCKETS, FILES = 8, 32
"""A node has no more sockets and files, when all are gone, than before and these: the well-behaved
client has some, and files of logs become more."""
MALLORY = Password("mallory", "a password of mallory")
GOOD = Password("good", "a password of good")
MIB = 1 << 20


def rss_mib(pid):
    """Return the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def descriptors(pid):
    """Return how many sockets, and how many other descriptors, a process has."""
    places = []
    for one in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            places.append(os.readlink(f"/proc/{pid}/fd/{one}"))
    sockets = sum(place.startswith("socket:") for place in places)
    return sockets, len(places) - sockets


# -- clusters --------------------------------------------------------------------------------------


def allowed(user, kind, name, operations, pattern=PatternType.LITERAL):
    """Return what gives a user rights."""
    return [
        Acl(kind, name, pattern, f"User:{user}", "*", one, Permission.ALLOW) for one in operations
    ]


ACLS = [
    *allowed("mallory", ResourceType.TOPIC, TOPIC, [Operation.ALL]),
    *allowed("mallory", ResourceType.GROUP, "*", [Operation.ALL]),
    *allowed("mallory", ResourceType.TRANSACTIONAL_ID, "*", [Operation.ALL]),
    *allowed(
        "mallory", ResourceType.GROUP, GROUP,
        [Operation.READ, Operation.WRITE, Operation.DESCRIBE],
    ),
    *allowed("good", ResourceType.TOPIC, "good", [Operation.ALL]),
    *allowed("good", ResourceType.GROUP, "default", [Operation.READ, Operation.WRITE]),
]  # fmt: skip


class Attacked:
    """A running cluster with the users mallory and good."""

    def __init__(self, directory, nodes, *, has_tls):
        self.has_tls = has_tls
        self.cluster = LocalCluster.create(
            directory, nodes=nodes, groups=("default", GROUP), kafka_port=0, topics=True,
            secure=has_tls,
        )  # fmt: skip
        if has_tls:
            self._make_certificates()
            self.cluster.up(SECONDS)
            self._give_rights(self.cluster.context)
        else:
            self._configure(login="optional", authorization="off")
            self.cluster.up(SECONDS)
            self._give_rights(self.cluster.servers)
            self.cluster.down()
            self._configure(login="required", authorization="on")
            self.cluster.up(SECONDS)
        self.before = self.cluster.running()
        self.descriptors = {pid: descriptors(pid) for pid in self.before.values()}
        self.rss = {pid: rss_mib(pid) for pid in self.before.values()}
        self.peak = dict(self.rss)
        self.log_bytes = self._log_bytes()

    def _make_certificates(self):
        where = self.cluster.tls_directory
        make_missing(where, self.cluster.node_ids)
        authority = AuthorityDirectory(where, datetime.now(UTC), secrets.token_bytes)
        for name in ("mallory", "good"):
            subject = user_subject(name, authority.cluster_id())
            authority.issue(subject, pair_in(where, name), "ec-p256", 30, force=True)

    def _configure(self, **security):
        layout = Layout(self.cluster.directory)
        for node_id in self.cluster.node_ids:
            file = layout.config(node_id)
            config = msgspec.structs.replace(
                load_config(file), security=SecurityConfig(super_users=["User:admin"], **security)
            )
            file.write_bytes(dump_config(config))

    def _give_rights(self, target):
        with SyncClient(target, "default") as client:
            for who in (MALLORY, GOOD):
                client.security.add_user(who.user, who.text)
            client.security.add_acls(ACLS)
        options = {"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 2}
        if self.has_tls:
            options |= {
                "security.protocol": "SSL",
                "ssl.ca.location": str(self.cluster.context.ca),
                "ssl.certificate.location": str(self.cluster.context.certificate),
                "ssl.key.location": str(self.cluster.context.key),
            }
        admin = AdminClient(options)
        topics = [NewTopic("good", 1), NewTopic(TOPIC, 2)]
        for made in admin.create_topics(topics).values():
            made.result(SECONDS)

    def addresses(self, port):
        """Return where all nodes have a port."""
        cluster, nodes = self.cluster, self.cluster.node_ids
        match port:
            case "native":
                return [cluster.address(one) for one in nodes]
            case "kafka":
                return [cluster.kafka_address(one) for one in nodes]
            case _:
                return [cluster.admin_address(one) for one in nodes]

    def files(self, user):
        """Return the files of a user for TLS: authority, certificate, key; none without TLS."""
        where = self.cluster.tls_directory
        if where is None:
            return None
        return str(where / "ca.pem"), str(where / f"{user}.pem"), str(where / f"{user}.key")

    def _log_bytes(self):
        return {one: self._logged(one) for one in self.cluster.node_ids}

    def _logged(self, node_id):
        audit = Path(Layout(self.cluster.directory).store(node_id))
        files = [self.cluster.log_file(node_id), *audit.glob("quorumlog.audit.log*")]
        return sum(one.stat().st_size for one in files)

    def look(self):
        """Note how much memory the nodes hold."""
        for pid in self.peak:
            with contextlib.suppress(OSError):
                self.peak[pid] = max(self.peak[pid], rss_mib(pid))

    def _returned(self, pid):
        (sockets, files), before = descriptors(pid), self.descriptors[pid]
        return sockets <= before[0] + SOCKETS and files <= before[1] + FILES

    def check(self):
        """Raise `AssertionError` unless the nodes are as they have to be; return it in words."""
        assert self.cluster.running() == self.before, "a node ended"
        until = time.monotonic() + SECONDS
        while not all(self._returned(pid) for pid in self.peak):
            now = {pid: descriptors(pid) for pid in self.peak}
            assert time.monotonic() < until, f"sockets and files: {self.descriptors} → {now}"
            time.sleep(0.2)
        grown = max(self.peak[pid] - self.rss[pid] for pid in self.peak)
        assert grown < GROWTH_MIB, f"a node's memory has grown by {grown:.0f} MiB"
        for node_id in self.cluster.node_ids:
            text = self.cluster.log_file(node_id).read_text(errors="replace")
            assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:4_000]
        bytes_now = self._log_bytes()
        logged = max(bytes_now[one] - self.log_bytes[one] for one in bytes_now) / MIB
        assert logged < LOG_MIB, f"a node's logs have grown by {logged:.1f} MiB"
        return f"memory +{grown:.0f} MiB at most, logs +{logged:.1f} MiB at most"


# -- hostile processes -----------------------------------------------------------------------------


def ways_of(door, addresses, files):
    """Return how a door is reached; who comes before a login shows no certificate."""
    ways = []
    for address in addresses:
        context = None
        if door.has_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # whoever it is
            if door.stage == "after":
                context.load_cert_chain(*files[1:])
        needs_password = door.stage == "after" and not door.has_tls
        ways.append(Way(address, context, MALLORY if needs_password else None))
    return ways


class AtDoor:
    """What a hostile process does at one door."""

    def __init__(self, door, addresses, files, options):
        self.door = door
        self._ways = ways_of(door, addresses, files)
        self._random = random.Random(f"{options.seed} {door}")
        self._left, self._refusals_left = options.inputs, options.inputs
        self._is_after = door.stage == "after"
        self._at_once = max(1, options.at_once // (LOGINS_SHARE if self._is_after else 1))
        self.found, self.silent = Counter(), []

    async def run(self):
        """Send all inputs."""
        await asyncio.gather(*(self._one_after_the_other() for _ in range(self._at_once)))

    async def _one_after_the_other(self):
        chance, door = self._random, self.door
        while self._left > 0 and self._refusals_left > 0:
            count = min(self._left, INPUTS_OF_CONNECTION if self._is_after else 1)
            inputs = [input_for(chance, door) for _ in range(count)]
            self._left -= count
            source = f"127.0.1.{chance.randrange(1, SOURCES + 1)}"
            outcomes = await try_inputs(chance, door, chance.choice(self._ways), inputs, source)
            self.found.update(outcomes)
            if "not let in" in outcomes:  # no input has come there
                self._refusals_left -= 1
                outcomes = []
            self._left += count - len(outcomes)
            if "silent" in outcomes:
                self.silent.append(repr(inputs[len(outcomes) - 1])[:400])


def attack(places, files, options, pipe):
    """In a process of its own: compute until told to begin, then send inputs to doors at once."""
    if not options.eager:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    at_doors = [AtDoor(door, addresses, files, options) for door, addresses in places]
    computing = random.Random(options.seed)
    while not pipe.poll():
        input_for(computing, at_doors[0].door)
    pipe.recv()

    async def run():
        await asyncio.gather(*(one.run() for one in at_doors))

    uvloop.run(run())
    pipe.send([(one.door, one.found, one.silent) for one in at_doors])


class Attack:
    """A hostile process at some doors."""

    def __init__(self, attacked, wanted, options):
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        places = [(door, attacked.addresses(door.port)) for door in wanted]
        arguments = (places, attacked.files("mallory"), options, there)
        self._process = context.Process(target=attack, args=arguments, daemon=True)
        self._process.start()

    def begin(self):
        """Be hostile from now on."""
        self._here.send("begin")

    def wait(self, attacked, watch):
        """Return the outcomes when all inputs were sent."""
        while not self._here.poll(0.1):
            attacked.look()
            watch.take()
        return self._here.recv()

    def end(self):
        """End the process."""
        self._process.kill()
        self._process.join()


def run_doors(attacked, wanted, options, watch):
    """Have doors attacked at the same time; print what became of it."""
    attacking = Attack(attacked, wanted, options)
    try:
        computing = watch.during(options.baseline)
        attacking.begin()
        since = time.monotonic()
        outcomes = attacking.wait(attacked, watch)
        seconds = time.monotonic() - since
    finally:
        attacking.end()
    loud = watch.since(since)
    for door, found, _ in outcomes:
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(found.items()))
        print(f"{door}: {told}", flush=True)
    rate = options.inputs * len(wanted) / seconds
    print(f"    {rate:,.0f}/s; p99 beside computing → beside these: ", end="")
    print(Behaved.compared(computing, loud))
    print(f"    {attacked.check()}", flush=True)
    silent = [text for *_, texts in outcomes for text in texts]
    assert not silent, f"{len(silent)} connections were not ended, such as {silent[0]}"


def chosen(options, *, has_tls):
    """Return the doors that are to be attacked at a cluster."""
    found = doors(tls=(has_tls,))
    return [one for one in found if not options.doors or name_of(one) in options.doors]


def name_of(door):
    """Return the name of a door on the command line."""
    return f"{door.port}-{'tls' if door.has_tls else 'plain'}-{door.stage}"


def run(directory, options):
    """Attack both clusters. Raises `AssertionError` if something is found."""
    with guarded(directory):
        for has_tls in (True, False):
            wanted = chosen(options, has_tls=has_tls)
            if not wanted:
                continue
            attacked = Attacked(directory / f"tls-{has_tls}", options.nodes, has_tls=has_tls)
            with watched(attacked.cluster, GOOD, attacked.files("good")) as watch:
                for some in [wanted] if options.together else [[one] for one in wanted]:
                    run_doors(attacked, some, options, watch)
            print(f"    the well-behaved client: {watch.verdict()}", flush=True)
            attacked.cluster.down()


def main():
    """Attack, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="at each door")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--baseline", type=float, default=10.0, help="seconds before each door")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="connections at each door")
    parser.add_argument("--together", action="store_true", help="attack all doors at once")
    parser.add_argument("--eager", action="store_true", help="take as much time as the nodes do")
    parser.add_argument("doors", nargs="*", help="such as native-tls-before; default: all")
    options = parser.parse_args()
    known = {name_of(one) for one in doors()}
    if unknown := set(options.doors) - known:
        parser.error(f"{', '.join(sorted(unknown))}: no door; there are {', '.join(sorted(known))}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ending_in_order(), tempfile.TemporaryDirectory(prefix="torture-") as directory:
        run(Path(directory), options)
    print(f"seed {options.seed}: nothing found")


if __name__ == "__main__":
    main()
