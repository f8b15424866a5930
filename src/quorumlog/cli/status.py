"""`quorumlog status`: the replicas of a group."""

from collections import defaultdict
from typing import Annotated

import typer
from rich.text import Text

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Group,
    Servers,
    Story,
    Timeout,
    wants_history,
)
from quorumlog.cli.output import (
    BAD_STYLE,
    GOOD_STYLE,
    QUIET_STYLE,
    print_json,
    print_line,
    print_table,
)
from quorumlog.cli.target import Target, find_target
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.client import ConsumerPosition, StatusResponse

LEFT_OUT = {"VOTES": "yes", "FLUSH": "sync"}
"""Columns that are only shown if a replica has another value there, by their usual value."""
MACHINE_COLUMNS = ("MACHINE", ">APPLIED", ">SNAPSHOT")
"""Columns of a group that has a state machine."""


def status_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
    history: Annotated[
        bool, typer.Option("--history", help="Print the newest events of each replica.")
    ] = False,
    story: Story = False,
) -> None:
    """Show the replicas of a group: role, term, how far log and machine are, lag, health."""
    target = find_target(directory, servers, group, timeout, context)
    if history or wants_history(story=story):
        _print_histories(target, as_json=as_json)
        return
    with target.client() as client:
        replicas = sorted(client.status(), key=lambda status: status.node_id)
    answering(target, replicas)
    lags = leader_lags(replicas)
    if as_json:
        for status in replicas:
            print_json(replica_object(status, lags.get(status.node_id)))
        return
    print_line(f"group {target.group}")
    _print_replicas(replicas, lags)
    for status in replicas:
        if not answered(status):
            print_line(_said_by(status.node_id or status.address, status.text))
        elif status.role == Role.LEADER.value:
            _print_uses(status)
        if answered(status) and status.address_text:
            said_by = "" if _is_elsewhere(status) else f"{status.node_id}: "
            print_line(f"{said_by}{status.address_text}")


def _print_uses(status: StatusResponse) -> None:
    """Print what the leader knows of the log's form, writers of transactions, and consumers."""
    if status.original_compatible:
        print_line("DLedger 0.2.7 to 0.4.0 can go on with the log (originalCompatible)")
    if status.open_transactions:
        print_line(
            f"open transactions: {status.open_transactions}; readers see entries up to "
            f"{status.stable_index}"
        )
    for one in status.consumers:
        print_line(
            f"consumer group {one.group}, partition {one.partition}: at {one.index}, "
            f"lag {_lag(status, one)}, committed {one.ago_ms / 1_000:.0f} s ago"
        )


def _lag(status: StatusResponse, one: ConsumerPosition) -> int:
    return max(0, status.stable_index + 1 - one.index)


def _print_histories(target: Target, *, as_json: bool) -> None:
    with target.client() as client:
        histories = sorted(client.admin.history(), key=lambda one: one.node_id)
    if all(one.error for one in histories):
        raise _no_answer(target, [_said_by(one.address, one.error) for one in histories])
    for one in histories:
        if as_json:
            lines = [{"seconds_ago": ago / 1_000, "text": text} for ago, text in one.lines]
            node = one.node_id or None
            print_json({"node": node, "address": one.address, "story": lines, "error": one.error})
            continue
        error = f": {one.error}" if one.error else ""
        print_line(f"{one.node_id or '?'} ({one.address}){error}")
        for ago, text in one.lines:
            print_line(f"  {ago / 1_000:10.3f} s ago  {text}")


def answering(target: Target, replicas: list[StatusResponse]) -> list[StatusResponse]:
    """Return the replicas that reported their status. Raises `CommandError` when none did."""
    known = [status for status in replicas if answered(status)]
    if not known:
        raise _no_answer(target, [_said_by(one.address, one.text) for one in replicas])
    return known


def _said_by(name: str, text: str) -> str:
    """Return what is known of a node after its name, with which the text may begin already."""
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def _no_answer(target: Target, reasons: list[str]) -> CommandError:
    return CommandError(f"no replica of group {target.group} answers: {'; '.join(reasons)}")


def answered(status: StatusResponse) -> bool:
    """Whether a replica reported its status; else `text` says why not."""
    return status.code == ResponseCode.SUCCESS


def leader_lags(replicas: list[StatusResponse]) -> dict[str, int]:
    """Return node id → entries that it lags, as the leader of the highest term sees it."""
    leaders = [status for status in replicas if status.role == Role.LEADER.value]
    if not leaders:
        return {}
    leader = max(leaders, key=lambda status: status.term)
    lags = {peer.peer_id: peer.lag for peer in leader.peers if peer.lag >= 0}
    return {**lags, leader.node_id: 0}


def replica_object(status: StatusResponse, lag: int | None) -> dict[str, object]:
    """Return a replica as `--json` shows it; fields of one that does not answer are null."""
    known = answered(status)
    return {
        "group": status.group,
        "node": status.node_id or None,
        "address": status.address,
        "role": status.role if known else None,
        "term": status.term if known else None,
        "leader": status.leader_id if known else None,
        "begin_index": status.begin_index if known else None,
        "end_index": status.end_index if known else None,
        "committed_index": status.committed_index if known else None,
        "durable_index": status.durable_index if known else None,
        "lag": lag,
        "damaged_entries": status.damaged_entries if known else None,
        "damaged_ranges": status.damaged_ranges if known else None,
        "disk": status.disk_text if known else None,
        "retention": status.retention_text if known else None,
        "voters": status.voters if known else None,
        "outgoing_voters": status.outgoing if known else None,
        "learners": status.learners if known else None,
        "membership_index": status.membership_index if known else None,
        "transferring": status.is_transferring if known else None,
        "last_vote_result": status.last_vote_result if known else None,
        "scrub_passes": status.scrub_passes if known else None,
        "scrub_last_pass_ms": status.scrub_last_pass_ms if known else None,
        "scrub_found": status.scrub_found if known else None,
        "flush": status.flush if known else None,
        "state_machine": status.state_machine if known else None,
        "applied_index": status.applied_index if known else None,
        "snapshot_index": status.snapshot_index if known else None,
        "install_state": status.install_state if known else None,
        "machine": status.machine_text if known else None,
        "machine_rebuilds": status.machine_rebuilds if known else None,
        "machine_compared_index": status.machine_compared_index if known else None,
        "machine_checked_ms": status.machine_checked_ms if known else None,
        "tables_compared_index": status.tables_compared_index if known else None,
        "tables_rebuilt": status.tables_rebuilt if known else None,
        "release": (status.release or None) if known else None,
        "original_compatible": status.original_compatible if known else None,
        "stable_index": status.stable_index if known else None,
        "open_transactions": status.open_transactions if known else None,
        "connections": status.connections if known else None,
        "connections_max": status.connections_max if known else None,
        "loop_lag_ms": status.loop_lag_ms if known else None,
        "consumers": [
            {
                "group": one.group,
                "partition": one.partition,
                "index": one.index,
                "lag": _lag(status, one),
                "seconds_ago": one.ago_ms / 1_000,
            }
            for one in status.consumers
        ],
        "identity": (status.identity or None) if known else None,
        "addresses": status.address_text if known else None,
        "healthy": known and status.healthy,
        "text": status.health_text if known else status.text,
    }


def _print_replicas(replicas: list[StatusResponse], lags: dict[str, int]) -> None:
    rows = [_row(status, lags.get(status.node_id)) for status in replicas]
    known = [row for status, row in zip(replicas, rows, strict=True) if answered(status)]
    left_out = {name for name, usual in LEFT_OUT.items() if all(r[name] == usual for r in known)}
    if len({row["RELEASE"] for row in known}) == 1:
        left_out.add("RELEASE")
    if not any(status.state_machine for status in replicas):
        left_out.update(MACHINE_COLUMNS)
    columns = [name for name in known[0] if name not in left_out]
    print_table(columns, [[row[name] for name in columns] for row in rows])


def _row(status: StatusResponse, lag: int | None) -> dict[str, str | Text]:
    """Return what the table shows of a replica, by column."""
    place: dict[str, str | Text] = {"NODE": status.node_id or "?", "ADDRESS": status.address}
    if not answered(status):
        return defaultdict(lambda: "-", place, HEALTH=Text("no answer", BAD_STYLE))
    leads = status.role == Role.LEADER.value
    safe = status.flush == "sync"
    return {
        **place,
        "RELEASE": status.release or "?",
        "ROLE": Text(status.role, GOOD_STYLE if leads else QUIET_STYLE),
        ">TERM": str(status.term),
        ">END": str(status.end_index),
        ">COMMITTED": str(status.committed_index),
        ">DURABLE": str(status.durable_index),
        ">LAG": "?" if lag is None else str(lag),
        "VOTES": vote_text(status),
        "FLUSH": status.flush if safe else Text(f"{status.flush} (unsafe)", BAD_STYLE),
        **dict(zip(MACHINE_COLUMNS, _machine_cells(status), strict=True)),
        "HEALTH": _health_cell(status),
    }


def _machine_cells(status: StatusResponse) -> list[str | Text]:
    state = status.install_state
    is_ready = state in ("", "ready")
    return [
        status.state_machine if is_ready else Text(f"{status.state_machine} ({state})", BAD_STYLE),
        str(status.applied_index),
        "-" if status.snapshot_index < 0 else str(status.snapshot_index),
    ]


def vote_text(status: StatusResponse) -> str:
    """Return whether a replica votes, as its own log says."""
    if status.node_id in status.learners:
        return "learner"
    if status.node_id in status.voters:
        return "joint" if status.outgoing else "yes"
    return "leaving" if status.node_id in status.outgoing else "no member"


def _is_elsewhere(status: StatusResponse) -> bool:
    """Whether a replica takes no part as its log has it at another address."""
    return not status.healthy and status.health_text == status.address_text != ""


def _health_cell(status: StatusResponse) -> Text:
    if not status.healthy:
        if _is_elsewhere(status):
            return Text("takes no part, see below", BAD_STYLE)
        first_line = status.health_text.partition("\n")[0]  # a traceback follows, say
        return Text(first_line or "unhealthy", BAD_STYLE)
    if vote_text(status) == "no member" and status.membership_index >= 0:
        return Text("was removed from the group", QUIET_STYLE)
    if status.leader_id is None:
        return Text(status.health_text or "no leader known", BAD_STYLE)
    if status.disk_stalled:
        return Text("the disk does not answer", BAD_STYLE)
    if status.disk_text:
        return Text(f"disk full: {status.disk_text}", BAD_STYLE)
    if status.retention_text:
        return Text(f"ok; {status.retention_text}", BAD_STYLE)
    return Text("ok", GOOD_STYLE)
