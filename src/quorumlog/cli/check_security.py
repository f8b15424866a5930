"""`quorumlog cluster check-security`: what stands open, and who comes plain or anonymous."""

import typer

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.cli.errors import EXIT_FAILED
from quorumlog.cli.options import TIMEOUT_SECONDS, AsJson, ContextName, FromDir, Servers, Timeout
from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.cli.security_target import cluster_client
from quorumlog.client.security_admin import NodeSecurity, UnsecuredClient
from quorumlog.model.wording import counted


def check_security_command(
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Say what stands open at each node, and who still comes plain or anonymous.

    Exit status 1: something is open, or a node does not answer.
    """
    with cluster_client(directory, servers, context, timeout) as client:
        nodes = sorted(client.security.check_nodes(), key=lambda one: one.node_id)
    for node in nodes:
        if as_json:
            print_json(_object(node))
        else:
            _print(node)
    if not as_json:
        _print_clients(nodes)
    if any(node.is_open for node in nodes):
        raise typer.Exit(EXIT_FAILED)


def _print(node: NodeSecurity) -> None:
    name = node.node_id or node.address
    for word, text in node.findings:
        print_line(f"{name}: {word}: {text}")
    if node.error:
        prefix = "" if name in node.error else f"{name}: "
        print_line(f"{prefix}{node.error}")
    elif not node.is_open:
        print_line(f"{name}: nothing is open")
    elif not node.findings:
        print_line(f"{name}: its configuration leaves nothing open")


def _print_clients(nodes: list[NodeSecurity]) -> None:
    rows = [
        [
            node.node_id,
            one.principal.partition(":")[2],
            one.host,
            one.port,
            one.name or "-",
            _how(one),
            "now" if not one.ago_s else f"{one.ago_s} s ago",
        ]
        for node in nodes
        for one in node.clients
    ]
    if rows:
        print_line("")
        print_table(["NODE", "USER", "ADDRESS", "PORT", "CALLED", "CAME", ">LAST SEEN"], rows)
    for node in nodes:
        if node.left_out:
            print_line(f"{node.node_id}: and {counted(node.left_out, 'more client')}")


def _how(client: UnsecuredClient) -> str:
    if not client.is_plain:
        return "anonymous"
    return "plain" if client.principal != ANONYMOUS else "plain, anonymous"


def _object(node: NodeSecurity) -> dict[str, object]:
    return {
        "node": node.node_id or None,
        "address": node.address,
        "open": node.is_open,
        "error": node.error or None,
        "findings": [{"finding": word, "text": text} for word, text in node.findings],
        "clients": [
            {
                "principal": one.principal,
                "host": one.host,
                "port": one.port,
                "called": one.name or None,
                "plain": one.is_plain,
                "seconds_ago": one.ago_s,
            }
            for one in node.clients
        ],
        "clients_left_out": node.left_out,
    }
