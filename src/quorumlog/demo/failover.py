"""Half-way through the load: the leader is killed, another takes over, the first catches up."""

import time
from dataclasses import dataclass

from rich.console import Console

from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import RequestError
from quorumlog.model.wording import entries_text

LEADER_SECONDS = 20.0
CATCH_UP_SECONDS = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class FailOver:
    """What happened. Seconds are measured from the kill (and from the restart)."""

    killed: str
    new_leader: str
    seconds_to_new_leader: float
    seconds_to_catch_up: float


def kill_leader_and_restart(cluster: LocalCluster, group: str, console: Console) -> FailOver:
    """SIGKILL the leader, wait for another, restart the killed node, wait until it has caught up.

    Raises `RequestError` or `TimeoutError` when the group does not recover in time.
    """
    killed = cluster.leader(group, LEADER_SECONDS)
    killed_at = time.monotonic()
    cluster.kill(killed)
    console.print(f"  [red]killed[/red] the leader, {killed}, with SIGKILL")
    with SyncClient(cluster.context, group) as client:
        new_leader, term = _wait_for_leader(client, killed)
        to_leader = time.monotonic() - killed_at
        console.print(f"  {new_leader} leads in term {term}, {to_leader:.2f} s after the kill")
        restarted_at = time.monotonic()
        cluster.start(killed)
        behind = _wait_for_catch_up(client, killed)
        to_catch_up = time.monotonic() - restarted_at
    console.print(
        f"  {killed} restarted and caught up in {to_catch_up:.2f} s"
        + (f" (it was {entries_text(behind)} behind)" if behind else "")
    )
    return FailOver(killed, new_leader, to_leader, to_catch_up)


def _wait_for_leader(client: SyncClient, killed: str) -> tuple[str, int]:
    deadline = time.monotonic() + LEADER_SECONDS
    while time.monotonic() < deadline:
        for status in client.status():
            leads = status.code == ResponseCode.SUCCESS and status.role == Role.LEADER.value
            if leads and status.node_id != killed:
                return status.node_id, status.term
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"no new leader within {LEADER_SECONDS:g} s")


def _wait_for_catch_up(client: SyncClient, node_id: str) -> int:
    """Wait until the node holds what was committed when it was first seen; return its lag then."""
    deadline = time.monotonic() + CATCH_UP_SECONDS
    target: int | None = None
    behind = 0
    while time.monotonic() < deadline:
        try:
            committed = client.bounds()[1]
        except RequestError:
            continue
        for status in client.status():
            if status.node_id == node_id and status.code == ResponseCode.SUCCESS:
                if target is None:
                    target, behind = committed, max(0, committed - status.end_index)
                if status.committed_index >= target:
                    return behind
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{node_id} did not catch up within {CATCH_UP_SECONDS:g} s")
