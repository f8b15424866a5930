"""`quorumlog cluster`: a cluster of processes on this machine, in a directory."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from quorumlog.cli.check_security import check_security_command
from quorumlog.cli.cluster_init import init_command
from quorumlog.cli.local_certificates import make_missing
from quorumlog.cli.options import AsJson, ClusterDir
from quorumlog.cli.output import (
    BAD_STYLE,
    GOOD_STYLE,
    QUIET_STYLE,
    flush_every_line,
    print_json,
    print_line,
    print_note,
    print_table,
)
from quorumlog.cli.target import only_group
from quorumlog.local import LocalCluster, LocalClusterError
from quorumlog.local.cluster import groups_in, leader_of
from quorumlog.local.health import NodeHealth
from quorumlog.local.ports import KAFKA_PORT, unusable, unusable_text
from quorumlog.model.codes import Role
from quorumlog.model.config import parse_address
from quorumlog.model.wording import counted
from quorumlog.node.machines import machine_class

NODES = 3
GROUPS = ("default",)
GROUPS_SHOWN = 12
"""Groups named one by one; `group list` names all."""

app = typer.Typer(
    help="A cluster of processes on this machine, or the files of one on several.",
    no_args_is_help=True,
)
app.command(name="init")(init_command)

Machine = Annotated[
    str | None,
    typer.Option(
        "--machine",
        "-m",
        metavar="kv|MODULE:CLASS",
        help="State machine of a new cluster's groups.",
        show_default="none",
    ),
]
KafkaPort = Annotated[
    int | None,
    typer.Option(
        "--kafka-port",
        min=0,
        max=65_535,
        help="Kafka's clients reach a new cluster's n0 here, n1 on the next port …; 0: on any that "
        "are free.",
        show_default="9092, or free ports if something listens there",
    ),
]
Topics = Annotated[
    bool | None,
    typer.Option(
        "--topics/--no-topics",
        help="Whether a new cluster has topics, for Kafka's clients.",
        show_default="--topics",
    ),
]


@app.command(name="up")
def up_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    directory: ClusterDir,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes of a new cluster.", show_default="3")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group", "-g", help="Group of a new cluster; repeatable.", show_default="default"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65_535,
            help="A new cluster's n0 listens here, n1 on the next port …; admin ports: 100 higher.",
            show_default="free ports",
        ),
    ] = None,
    machine: Machine = None,
    kafka_port: KafkaPort = None,
    topics: Topics = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="A new cluster speaks TLS only, and clients log in and have the rights that ACLs "
            "give; commands show the certificate of admin, who may do everything.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a cluster, or start what does not run of an existing one; wait until it is ready."""
    if kafka_port is not None and topics is False:
        raise typer.BadParameter("--kafka-port and --no-topics exclude each other")
    if LocalCluster.exists(directory):
        cluster = LocalCluster.open(directory)
        _check_same(cluster, nodes, groups, port)
        _check_same_topics(cluster, topics, kafka_port)
        _check_same_machine(cluster, machine)
        _check_same_tls(cluster, secure=secure)
        running = cluster.running()
        for node_id in cluster.node_ids:
            if node_id not in running:
                _check_machines(cluster, node_id)
    else:
        if machine:
            machine_class(machine)  # else the nodes would say so, one by one
        cluster = LocalCluster.create(
            directory,
            nodes=nodes or NODES,
            groups=groups or GROUPS,
            first_port=port,
            topics=topics is not False,
            kafka_port=kafka_port,
            state_machine=machine or "",
            secure=secure,
        )
        _note_other_ports(cluster, kafka_port)
    if cluster.tls_directory is not None:
        make_missing(cluster.tls_directory, cluster.node_ids)
    started = cluster.up(starting=None if as_json else lambda ids: _print_ports(cluster, ids))
    if as_json:
        _print_status_json(cluster)
        return
    print_line(f"started {', '.join(started)}" if started else "all nodes ran already")
    _print_ready(cluster)


def _note_other_ports(cluster: LocalCluster, kafka_port: int | None) -> None:
    """Say why Kafka's clients do not find the cluster where they look for it."""
    if kafka_port is not None or not cluster.bootstrap_servers:
        return
    first = parse_address(cluster.bootstrap_servers.split(",")[0])[1]
    if first == KAFKA_PORT:
        return
    refused = unusable(range(KAFKA_PORT, KAFKA_PORT + len(cluster.node_ids)))
    for port, reason in list(refused.items())[:1]:
        print_note(f"{unusable_text({port: reason})}: Kafka's clients connect elsewhere")


def _print_ready(cluster: LocalCluster) -> None:
    """Print who leads, and where clients go."""
    health = cluster.health()
    groups = _groups_in(health) or cluster.groups
    for group in groups[:GROUPS_SHOWN]:
        print_line(f"group {group}: leader {leader_of(group, health) or 'not known yet'}")
    _print_more(groups)
    print_line(f"servers: {cluster.servers}")
    if cluster.bootstrap_servers:
        print_line(f"bootstrap.servers: {cluster.bootstrap_servers}")
    else:
        print_line("no topics: the cluster was made without brokers for Kafka's clients")
    if cluster.tls_directory is not None:
        context = cluster.context
        print_line(
            "clients log in, or show a certificate, and have the rights that ACLs give them;"
        )
        print_line("admin, by this certificate, may do everything:")
        print_line(f"ca: {context.ca}")
        print_line(f"certificate: {context.certificate}")
        print_line(f"key: {context.key}")


@app.command(name="down")
def down_command(directory: ClusterDir) -> None:
    """Stop all nodes cleanly; their data stays."""
    stopped = LocalCluster.open(directory).down()
    print_line(f"stopped {', '.join(stopped)}" if stopped else "no node ran")


@app.command(name="status")
def status_command(directory: ClusterDir, as_json: AsJson = False) -> None:
    """Show every node's process, and its role in every group."""
    cluster = LocalCluster.open(directory)
    if as_json:
        _print_status_json(cluster)
        return
    running, health = cluster.running(), cluster.health()
    groups = _groups_in(health) or cluster.groups
    roles = {
        (node_id, group): _role_cell(node_id in running, health[node_id], group)
        for node_id in cluster.node_ids
        for group in groups[:GROUPS_SHOWN]
    }
    beside = groups if len(groups) == 1 else []
    kafka = ["KAFKA"] if cluster.bootstrap_servers else []
    print_table(
        ["NODE", ">PID", "ADDRESS", "ADMIN", *kafka, *(group.upper() for group in beside)],
        [
            [
                node_id,
                str(running.get(node_id, "-")),
                cluster.address(node_id),
                cluster.admin_address(node_id),
                *(cluster.kafka_address(node_id) for _ in kafka),
                *(roles[node_id, group] for group in beside),
            ]
            for node_id in cluster.node_ids
        ],
    )
    if beside:
        return
    print_line("")
    print_table(
        ["GROUP", *(node_id.upper() for node_id in cluster.node_ids)],
        [
            [group, *(roles[node_id, group] for node_id in cluster.node_ids)]
            for group in groups[:GROUPS_SHOWN]
        ],
    )
    _print_more(groups)


@app.command(name="kill")
def kill_command(
    directory: ClusterDir,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Node to kill.", show_default=False)
    ] = None,
    leader: Annotated[bool, typer.Option("--leader", help="Kill the leader.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Whose leader; default: the only group's.")
    ] = None,
) -> None:
    """End a node with SIGKILL, as a power cut would. `cluster up` or `restart` brings it back."""
    if (node is None) != leader:
        raise typer.BadParameter("give either NODE or --leader")
    cluster = LocalCluster.open(directory)
    if leader and not cluster.running():
        raise LocalClusterError(f"no node of the cluster in {directory} runs; nothing to kill")
    victim = (
        node if node is not None else cluster.leader(only_group(cluster.hosted_groups(), group))
    )
    cluster.kill(victim)
    print_line(f"killed {victim}")


@app.command(name="restart")
def restart_command(
    directory: ClusterDir,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="Only this node.", show_default="one after another"),
    ] = None,
) -> None:
    """Stop nodes cleanly if they run, and start them again."""
    cluster = LocalCluster.open(directory)
    node_ids = cluster.node_ids if node is None else [node]
    for node_id in node_ids:
        _check_machines(cluster, node_id)  # before any of them is stopped
    for node_id in node_ids:
        cluster.restart(node_id)
        print_line(f"restarted {node_id}")


app.command(name="check-security")(check_security_command)


def _check_same(
    cluster: LocalCluster, nodes: int | None, groups: list[str] | None, port: int | None
) -> None:
    """A cluster keeps its shape; raise `LocalClusterError` when another one is asked for."""
    if nodes is not None and nodes != len(cluster.node_ids):
        raise LocalClusterError(
            f"the cluster in {cluster.directory} has "
            f"{counted(len(cluster.node_ids), 'node')}, not {nodes}; "
            "choose another directory for a new one"
        )
    if groups is not None and sorted(groups) != sorted(cluster.groups):
        raise LocalClusterError(
            f"the cluster in {cluster.directory} has the groups {', '.join(cluster.groups)}; "
            "choose another directory for others"
        )
    address = cluster.address(cluster.node_ids[0])
    if port is not None and not address.endswith(f":{port}"):
        raise LocalClusterError(
            f"the cluster in {cluster.directory} begins at {address}, not at port {port}"
        )


def _check_same_topics(cluster: LocalCluster, topics: bool | None, kafka_port: int | None) -> None:
    """A cluster keeps its brokers, or that it has none; raise `LocalClusterError` otherwise."""
    found = cluster.bootstrap_servers
    if topics is False and found:
        raise LocalClusterError(
            f"the cluster in {cluster.directory} has topics; choose another directory for one "
            "without"
        )
    if (topics or kafka_port) and not found:
        raise LocalClusterError(
            f"the cluster in {cluster.directory} was made without topics and goes on as it is; "
            "choose another directory for one that has them"
        )
    first = found.partition(",")[0]
    if kafka_port and not first.endswith(f":{kafka_port}"):
        raise LocalClusterError(
            f"the brokers of the cluster in {cluster.directory} begin at {first}, not at port "
            f"{kafka_port}"
        )


def _check_same_tls(cluster: LocalCluster, *, secure: bool) -> None:
    """A cluster does not begin to speak TLS; raise `LocalClusterError` if it is asked to."""
    if secure and cluster.tls_directory is None:
        raise LocalClusterError(
            f"the cluster in {cluster.directory} was made without TLS and goes on as it is; choose "
            "another directory for one that speaks it"
        )


def _check_same_machine(cluster: LocalCluster, machine: str | None) -> None:
    """A group keeps its machine: another one would not understand what is in the log."""
    for group, found in cluster.machines.items():
        if machine is not None and machine != found:
            has = f"has the state machine {found}" if found else "has no state machine"
            raise LocalClusterError(
                f"group {group} of the cluster in {cluster.directory} {has}, not "
                f"{machine or 'none'}; choose another directory for a new cluster"
            )


def _check_machines(cluster: LocalCluster, node_id: str) -> None:
    """Raise `ConfigError` unless a node to be started can import the state machines it needs."""
    for name in set(cluster.machines_of(node_id).values()) - {""}:
        machine_class(name)


def _print_more(groups: Sequence[str]) -> None:
    if len(groups) > GROUPS_SHOWN:
        more = counted(len(groups) - GROUPS_SHOWN, "more group")
        print_line(f"and {more}: 'quorumlog group list' names all")


def _print_ports(cluster: LocalCluster, node_ids: list[str]) -> None:
    flush_every_line()
    if not node_ids:
        return
    scheme = "https" if cluster.tls_directory else "http"
    kafka = ["KAFKA'S CLIENTS"] if cluster.bootstrap_servers else []
    print_table(
        ["STARTING", "CLIENTS AND PEERS", "METRICS", *kafka],
        [
            [
                node_id,
                cluster.address(node_id),
                f"{scheme}://{cluster.admin_address(node_id)}/metrics",
                *(cluster.kafka_address(node_id) for _ in kafka),
            ]
            for node_id in node_ids
        ],
    )


def _groups_in(health: dict[str, NodeHealth | None]) -> list[str]:
    return groups_in(one for one in health.values() if one is not None)


def _role_cell(running: bool, health: NodeHealth | None, group: str) -> Text:
    if not running:
        return Text("down", BAD_STYLE)
    if health is None:
        return Text("not answering", BAD_STYLE)
    if group not in health.groups:  # it is on other nodes
        return Text("-", QUIET_STYLE)
    state = health.groups[group]
    if not state.healthy:
        return Text(f"{state.role} ({state.first_line})", BAD_STYLE)
    return Text(state.role, GOOD_STYLE if state.role == Role.LEADER.value else QUIET_STYLE)


def _print_status_json(cluster: LocalCluster) -> None:
    running, health = cluster.running(), cluster.health()
    for node_id in cluster.node_ids:
        answer = health[node_id]
        print_json(
            {
                "node": node_id,
                "pid": running.get(node_id),
                "address": cluster.address(node_id),
                "admin": cluster.admin_address(node_id),
                "kafka": cluster.kafka_address(node_id) or None,
                "answers": answer is not None,
                "groups": {
                    name: {
                        "role": group.role,
                        "term": group.term,
                        "leader": group.leader,
                        "committed_index": group.committed_index,
                        "healthy": group.healthy,
                        "text": group.text,
                    }
                    for name, group in (answer.groups.items() if answer else ())
                },
            }
        )
