"""`quorumlog members`, `transfer` and `watch-leader`: who belongs to a group, and who leads it."""

import time
from itertools import islice
from typing import Annotated, Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Group,
    Servers,
    Timeout,
)
from quorumlog.cli.output import (
    flush_every_line,
    print_json,
    print_line,
    print_note,
    print_table,
)
from quorumlog.cli.status import answered, answering, leader_lags
from quorumlog.cli.target import Target, find_target
from quorumlog.client import SyncClient
from quorumlog.model.config import CLUSTER_GROUP, PARTITION_GROUP, check_name, parse_address
from quorumlog.model.errors import NetworkError, RequestError, UnknownGroupError
from quorumlog.model.messages.client import StatusResponse
from quorumlog.model.wording import entries_text

CATCH_UP_SECONDS = 300.0
POLL_SECONDS = 0.2
"""Pause between two polls of a member that is catching up."""
REPORT_SECONDS = 2.0
"""Pause between two reports of its lag."""

_STRANGER: Final = (
    "{node} has other groups, and takes an invitation only of their members: if the leader of "
    "{group} is none, transfer leadership to a member that is, or make a group of which both are "
    "members ('quorumlog group create')"
)

Node = Annotated[str, typer.Argument(help="Id of the member.", show_default=False)]

app = typer.Typer(
    help="Who belongs to a group: list, add, promote, remove; one change at a time.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the members as the newest membership known names them."""
    target = find_target(directory, servers, group, timeout, context)
    with target.client() as client:
        replicas = client.status()
    newest = max(answering(target, replicas), key=lambda status: status.membership_index)
    lags = leader_lags(replicas)
    by_id = {status.node_id: status for status in replicas if status.node_id}
    ids = [*newest.voters, *(o for o in newest.outgoing if o not in newest.voters)]
    rows = []
    for node_id in [*ids, *newest.learners]:
        status = by_id.get(node_id)
        kind = _kind(newest, node_id)
        lag = lags.get(node_id)
        address = status.address if status is not None else "?"
        if as_json:
            print_json({"node": node_id, "address": address, "kind": kind, "lag": lag})
        rows.append([node_id, address, kind, "?" if lag is None else str(lag)])
    if not as_json:
        print_line(f"group {target.group}, membership of index {newest.membership_index}")
        print_table(["NODE", "ADDRESS", "KIND", ">LAG"], rows)


def _kind(status: StatusResponse, node_id: str) -> str:
    if node_id in status.learners:
        return "learner"
    if status.outgoing and (node_id in status.voters) != (node_id in status.outgoing):
        return "voter (joining)" if node_id in status.voters else "voter (leaving)"
    return "voter"


@app.command(name="add")
def add_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    node: Node,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Where it listens.", show_default=False)
    ],
    learner: Annotated[
        bool, typer.Option("--learner", help="Let it receive entries, but not vote.")
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = CATCH_UP_SECONDS,
) -> None:
    """Add a member that runs already; wait until it has caught up and votes.

    It may have the group in its configuration, with the members and itself as `peers`; if it does
    not have it, the leader invites it; a node with other groups comes only if the leader is a
    member of one of them. Nothing is added unless it answers at that address as a node
    of this cluster.
    """
    check_name("member id", node, dash=False)
    parse_address(address)
    target = find_target(directory, servers, group, min(timeout, TIMEOUT_SECONDS), context)
    with target.client() as client:
        _check_newcomer(client, target, node, address)
        client.admin.add_member(node, address, learner=learner)
        if learner:
            print_line(f"{node} is a learner of {target.group}")
            return
        print_note(f"waiting for {node} at {address} to catch up, up to {timeout:g} s")
        if not _has_become_voter(client, node, timeout):
            raise CommandError(
                f"{node} is a learner of {target.group} and has not caught up within "
                f"{timeout:g} s; is it running, and reachable at {address}? It will vote once it "
                f"has (see 'quorumlog members list'); 'quorumlog members remove {node}' takes it "
                "out of the group again"
            )
    print_line(f"{node} votes in {target.group}")


def _check_newcomer(client: SyncClient, target: Target, node: str, address: str) -> None:
    """Raise `CommandError` unless a node of this id, of this cluster, answers there.

    Of one that votes already the leader says so. One that does not have the group is invited by the
    leader.
    """
    newest = max(answering(target, client.status()), key=lambda status: status.membership_index)
    if node in newest.voters:
        return
    own = client.metadata()
    refused = f"{node} is not added to {target.group}"
    advice = "start it first"
    try:
        found = client.metadata(address)
    except RequestError as error:
        raise CommandError(f"{refused}: {error}; {advice}") from error
    if (found.cluster, found.node_id) != (own.cluster, node):
        raise CommandError(
            f"{refused}: at {address} is node {found.node_id} of cluster {found.cluster!r}, not "
            f"{node} of {own.cluster!r}"
        )
    try:
        client.metadata(address, target.group)
    except NetworkError as error:
        raise CommandError(f"{refused}: {error}; {advice}") from error
    except UnknownGroupError:
        print_note(f"{node} does not have {target.group} yet: the leader invites it")
        leaders = {one.leader_id for one in own.groups if one.group == target.group}
        if found.groups and not any(leaders & set(one.peers) for one in found.groups):
            print_note(_STRANGER.format(node=node, group=target.group))
    except RequestError:
        pass  # it may not take part as long as it is no member, or not at this address


def _has_become_voter(client: SyncClient, node: str, timeout_s: float) -> bool:
    """Wait until a member votes, and print how far it lags; False if it does not in time."""
    started = reported_at = time.monotonic()
    reported_lag = None
    while True:
        replicas = client.status()
        known = [status for status in replicas if answered(status)]
        newest = max(known, key=lambda status: status.membership_index, default=None)
        if newest is not None and node in newest.voters and not newest.outgoing:
            return True
        now = time.monotonic()
        if now - started >= timeout_s:
            return False
        lag = leader_lags(replicas).get(node)
        if lag is not None and lag != reported_lag and now - reported_at >= REPORT_SECONDS:
            print_note(f"{node} is {entries_text(lag)} behind")
            reported_lag, reported_at = lag, now
        time.sleep(min(POLL_SECONDS, started + timeout_s - now))


@app.command(name="promote")
def promote_command(
    node: Node,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Make a voter of a learner that has caught up."""
    target = find_target(directory, servers, group, timeout, context)
    with target.client() as client:
        client.admin.promote_member(node)
    print_line(f"{node} votes in {target.group}")


@app.command(name="remove")
def remove_command(
    node: Node,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Remove a member; stop its process afterwards. A leader transfers leadership first.

    From the group that brokers share topics in, only a member that does not run is removed.
    """
    target = find_target(directory, servers, group, timeout, context)
    of_brokers = target.group == CLUSTER_GROUP
    with target.client() as client:
        if of_brokers and _answers(client, node):
            raise CommandError(
                f"{node} runs: it would go on to tell Kafka's clients which topics and leaders "
                f"there were when it left {CLUSTER_GROUP}; stop its process first"
            )
        client.admin.remove_member(node)
        print_line(f"{node} is no member of {target.group} any more")
        if of_brokers and (left := _partition_groups_of(client, node)):
            print_note(
                f"{node} is still a member of {', '.join(left)}: partition groups keep their "
                "members, so these have one replica less, and so have topics that are placed there "
                f"later. To bring it back, start a node with selfId {node} and add it to "
                f"{CLUSTER_GROUP} again ('quorumlog members add {node} HOST:PORT --group "
                f"{CLUSTER_GROUP}')"
            )


def _partition_groups_of(client: SyncClient, node: str) -> list[str]:
    """Return the partition groups that a node is a member of, as far as those that answer know."""
    try:
        found = [one for one in client.admin.groups.list() if node in one.members]
    except RequestError:  # the removal is done, and this was only to be said beside it
        return []
    return sorted(
        (one.group for one in found if PARTITION_GROUP.fullmatch(one.group)),
        key=lambda name: int(name.removeprefix("pg-")),
    )


def _answers(client: SyncClient, node: str) -> bool:
    return any(status.node_id == node and answered(status) for status in client.status())


def transfer_command(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="Member that shall lead.",
            show_default="the one that has most of the log",
        ),
    ] = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    term: Annotated[
        int, typer.Option("--term", help="Only in this term.", show_default="any")
    ] = -1,
) -> None:
    """Transfer leadership to a member that has (nearly) everything."""
    target = find_target(directory, servers, group, timeout, context)
    with target.client() as client:
        leader = client.admin.transfer(node, term=term)
    print_line(f"{leader} leads {target.group}")


def watch_leader_command(
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many leaders.")
    ] = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print who leads, and each later leader, until Ctrl-C: term, node, address."""
    target = find_target(directory, servers, group, timeout, context)
    flush_every_line()
    with target.client() as client:
        for leader in islice(client.watch_leader(), count):
            if as_json:
                print_json({"term": leader.term, "node": leader.node_id, "address": leader.address})
            else:
                print_line(f"term {leader.term}  {leader.node_id}  {leader.address}")
