"""`quorumlog cluster init`: all files that a cluster on several machines starts from."""

import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.output import print_line, print_table
from quorumlog.log_events import reason_of
from quorumlog.model.config import (
    CLUSTER_GROUP,
    GroupConfig,
    NodeConfig,
    check_name,
    is_loopback,
    parse_address,
)
from quorumlog.model.errors import ConfigError
from quorumlog.model.security_config import USER_PREFIX, SecurityConfig
from quorumlog.model.tls_config import TlsConfig

ADMIN: Final = "admin"
AUTHORITY: Final = "ca"
"""Names of directories beside those of nodes."""
CONTEXTS: Final = "contexts.toml"
ADMIN_HOST: Final = "127.0.0.1"
ADMIN_PORT_DISTANCE: Final = 100
"""The port of metrics is this much above the node's own, as in local clusters, or the next one."""
PORT_MAX: Final = 65_535
OWN_HOSTS: Final = ("localhost", ADMIN_HOST)
"""By these whoever is on a node's machine reaches it, as its port of metrics is there only."""
CERTIFICATE_DAYS: Final = 365
AUTHORITY_DAYS: Final = 3_650


class Place(NamedTuple):
    """A node and where it is: `kafka`, where Kafka's clients reach it; empty: it is no broker.

    `admin`: where its metrics are had, on its machine only.
    """

    node_id: str
    address: str
    kafka: str = ""
    admin: str = ""

    @property
    def host(self) -> str:
        """The host name or address by which others reach it."""
        return parse_address(self.address)[0]

    @property
    def machine(self) -> str:
        """The same text for all nodes on one machine, as far as their addresses say it."""
        return ADMIN_HOST if is_loopback(self.host) else self.host.lower()


def init_command(
    nodes: Annotated[
        list[str],
        typer.Argument(
            metavar="NODE=HOST:PORT...",
            help="The nodes, each with the address by which the others and clients reach it.",
        ),
    ],
    directory: Annotated[
        Path, typer.Option("--dir", "-d", help="A new directory.", show_default=False)
    ],
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="With certificates: nodes speak TLS only, clients log in, and rights count.",
        ),
    ] = False,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Group; repeatable.", show_default="default"),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            min=1,
            max=PORT_MAX,
            help="Nodes are brokers, which Kafka's clients reach at this port; several on one host "
            "at the following ones.",
            show_default="none",
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", help="Name of the cluster, for people, and of its context.")
    ] = "quorumlog",
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Where each node keeps its data; a relative path begins where it is started.",
        ),
    ] = "data",
) -> None:
    """Make the files of a cluster on several machines: certificates, and a directory for each node.

    Copy each node's directory to its machine, and start it there. The directory of the certificate
    authority (ca) goes nowhere. The user admin gets a certificate, too.
    """
    if not secure:
        raise typer.BadParameter(
            "give --secure: without TLS, nodes do not listen beyond their machine. For several "
            "machines in a network of your own without it, write the configurations yourself "
            "(docs/howto/machines.md); for one machine: 'quorumlog cluster up'"
        )
    places = _places(nodes, kafka_port)
    configs = [_config(one, places, groups or ["default"], cluster, data) for one in places]
    _write_all(directory, places, configs)
    _print_next(directory, places, cluster)


def _places(given: Sequence[str], kafka_port: int | None) -> list[Place]:
    """Return the nodes that were given. Raises `typer.BadParameter`."""
    places, brokers = list[Place](), Counter[str]()
    for text in given:
        node_id, separator, address = text.partition("=")
        try:
            host, port = parse_address(address)
            check_name("node", node_id, dash=False)
            kafka = ""
            if kafka_port is not None:
                kafka = f"{address.rpartition(':')[0]}:{kafka_port + brokers[host.lower()]}"
                parse_address(kafka)
                brokers[host.lower()] += 1
        except ConfigError as error:
            if not separator:
                raise typer.BadParameter(f"{text!r} is not NODE=HOST:PORT") from error
            raise typer.BadParameter(str(error)) from error
        if not port:
            raise typer.BadParameter(f"{text}: others could not find a port that is chosen later")
        places.append(Place(node_id, address, kafka))
    _check_doubles(places)
    reserved = {ADMIN, AUTHORITY} & {one.node_id for one in places}
    if reserved:
        raise typer.BadParameter(
            f"no node may be called {min(reserved)}: a directory has that name"
        )
    return _with_admin_ports(places)


def _check_doubles(places: Sequence[Place]) -> None:
    """Raise `typer.BadParameter` if two nodes have one name or address."""
    addresses = [found for one in places for found in (one.address, one.kafka) if found]
    for what, values in (
        ("node", [one.node_id for one in places]),
        ("address", [found.lower() for found in addresses]),
    ):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise typer.BadParameter(f"{what} {twice[0]} is given twice")


def _with_admin_ports(places: Sequence[Place]) -> list[Place]:
    """Return the nodes with ports of metrics that no other node on the same machine has."""
    taken = defaultdict[str, set[int]](set)
    for one in places:
        taken[one.machine].update(
            parse_address(found)[1] for found in (one.address, one.kafka) if found
        )
    found = list[Place]()
    for one in places:
        port = parse_address(one.address)[1]
        above = range(port + ADMIN_PORT_DISTANCE, PORT_MAX + 1)
        below = range(port - ADMIN_PORT_DISTANCE, 0, -1)
        admin = next(port for port in (*above, *below) if port not in taken[one.machine])
        taken[one.machine].add(admin)
        found.append(one._replace(admin=f"{ADMIN_HOST}:{admin}"))
    return found


def _config(
    place: Place, places: Sequence[Place], groups: Sequence[str], cluster: str, data: str
) -> NodeConfig:
    """Return the configuration of a node. Raises `ConfigError`."""
    peers = ";".join(f"{one.node_id}-{one.address}" for one in places)
    all_groups = [GroupConfig(group=group, peers=peers) for group in groups]
    # users and ACLs are in it, also where there are no topics
    all_groups.append(GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers))
    return NodeConfig(
        self_id=place.node_id,
        store_base_dir=data,
        cluster=cluster,
        admin_listen=place.admin,
        kafka_listen=place.kafka,
        groups=all_groups,
        tls=TlsConfig(
            certificate="tls/node.pem",
            key="tls/node.key",
            ca="tls/ca.pem",
        ),
        security=SecurityConfig(super_users=[f"{USER_PREFIX}{ADMIN}"]),
    )


def toml_of(config: NodeConfig) -> str:
    """Return a configuration for people: what differs from the defaults, with a word on it."""

    def line(key: str, value: str, comment: str = "") -> str:
        text = f"{key} = {msgspec.json.encode(value).decode()}"  # a string of JSON is one of TOML
        return f"{text:<34}# {comment}" if comment else text

    lines = [
        line("selfId", config.self_id),
        line("storeBaseDir", config.store_base_dir, "a relative path begins where it is started"),
        line("cluster", config.cluster),
        line("adminListen", config.admin_listen, "metrics and health, for this machine"),
    ]
    if config.kafka_listen:
        lines.append(line("kafkaListen", config.kafka_listen, "for Kafka's clients"))
    if config.tls is not None:
        lines += [
            "",
            "[tls]" + " " * 29 + "# paths begin at this file",
            line("certificate", config.tls.certificate),
            line("key", config.tls.key),
            line("ca", config.tls.ca),
        ]
    if config.security is not None:
        names = msgspec.json.encode(config.security.super_users).decode()
        lines += [
            "",
            "[security]" + " " * 24 + "# clients log in, or show a certificate",
            f"{f'superUsers = {names}':<34}# by certificate only",
        ]
    for group in config.groups:
        lines += ["", "[[groups]]", line("group", group.group)]
        if group.kind != "log":
            lines.append(line("kind", group.kind))
        lines.append(line("peers", group.peers))
    return "\n".join(lines) + "\n"


def contexts_of(places: Sequence[Place], cluster: str, cluster_id: str) -> str:
    """Return a file of contexts with the cluster in it, as admin sees it."""
    kafka = ",".join(one.kafka for one in places if one.kafka)
    values = {
        "servers": ",".join(one.address for one in places),
        "kafka": kafka,
        "clusterId": cluster_id,
        "ca": "ca.pem",
        "certificate": f"{ADMIN}.pem",
        "key": f"{ADMIN}.key",
    }
    lines = [f'default = "{cluster}"', "", f'[contexts."{cluster}"]']
    lines += [f'{key} = "{value}"' for key, value in values.items() if value]
    return "\n".join(lines) + "\n"


def _write_all(directory: Path, places: Sequence[Place], configs: Sequence[NodeConfig]) -> None:
    """Make the directory with all files, or nothing. Raises `CommandError` or `PkiError`."""
    from quorumlog.pki.files import (  # noqa: PLC0415  (loaded when it is used)
        KEY_MODE,
        make_directory,
        write_new,
    )

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CommandError(f"{directory} is not empty; choose a new directory")
    name = f".{secrets.token_hex(4)}.new"
    # one that is there stays itself: it may be a shell's, a mounted disk, or a link
    beside = directory / name if directory.exists() else directory.with_name(directory.name + name)
    make_directory(beside)
    try:
        cluster_id = _write_certificates(beside, places)
        contexts = contexts_of(places, configs[0].cluster, cluster_id)
        write_new(beside / ADMIN / CONTEXTS, contexts.encode(), KEY_MODE)
        for config in configs:
            path = beside / config.self_id / f"{config.self_id}.toml"
            path.write_text(toml_of(config))
        _place(beside, directory)
    except OSError as error:
        raise CommandError(f"{directory} cannot be made: {reason_of(error)}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _place(made: Path, directory: Path) -> None:
    """Give a directory with all files its name, or move what is in it to the one that is there."""
    if made.parent != directory:
        made.replace(directory)
        return
    moved = list[Path]()
    try:
        for one in made.iterdir():
            moved.append(one.rename(directory / one.name))
    except OSError:
        for one in moved:
            shutil.rmtree(one, ignore_errors=True)
        raise


def _write_certificates(directory: Path, places: Sequence[Place]) -> str:
    """Make the authority and all certificates; return the id of the cluster."""
    from quorumlog.pki.authority import AuthorityDirectory  # noqa: PLC0415
    from quorumlog.pki.files import (  # noqa: PLC0415
        CERTIFICATE_MODE,
        make_directory,
        pair_in,
        write_new,
    )
    from quorumlog.pki.issue import pem_of  # noqa: PLC0415
    from quorumlog.pki.names import new_cluster_id, node_subject, user_subject  # noqa: PLC0415

    authority = AuthorityDirectory(directory / AUTHORITY, datetime.now(UTC), secrets.token_bytes)
    cluster_id = new_cluster_id(secrets.token_bytes)
    made = authority.make(cluster_id, "ec-p256", AUTHORITY_DAYS, force=False)
    wanted = [
        (
            node_subject(one.node_id, cluster_id, [one.host, *OWN_HOSTS]),
            pair_in(directory / one.node_id / "tls", "node"),
        )
        for one in places
    ]
    wanted.append((user_subject(ADMIN, cluster_id), pair_in(directory / ADMIN, ADMIN)))
    for subject, pair in wanted:
        make_directory(pair.key.parent)
        authority.issue(subject, pair, "ec-p256", CERTIFICATE_DAYS, force=False)
        write_new(pair.key.with_name("ca.pem"), pem_of(made.certificate), CERTIFICATE_MODE)
    return cluster_id


def _print_next(directory: Path, places: Sequence[Place], cluster: str) -> None:
    print_line(
        f"made {directory}; {directory / AUTHORITY} has the key of the authority: keep it here"
    )
    print_line("")
    print_table(
        ("COPY", "TO", "AND START IT THERE"),
        [
            (
                str(directory / one.node_id),
                one.host,
                f"cd {one.node_id} && quorumlog serve --config {one.node_id}.toml",
            )
            for one in places
        ],
    )
    print_line("")
    print_line("then, here:")
    servers = ",".join(one.address for one in places)
    print_line(f"quorumlog cert check {directory / ADMIN} --servers {servers}")
    print_line(f"export QUORUMLOG_CONTEXTS={(directory / ADMIN / CONTEXTS).absolute()}")
    print_line("quorumlog status")
    print_line("")
    print_line(f"(that file has the context {cluster}, which is its default)")
