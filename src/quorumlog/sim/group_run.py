"""One run from one seed of groups that come and go: made, deleted and made again, amid faults.

Invariants: a group exists with one identity at all its members in the end, or at none; what was
deleted does not come back; no entry of a group is in a log of another one of its name; and for each
group all invariants of a group.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import Role
from quorumlog.sim.cluster import DATA_FILE_BYTES, INDEX_FILE_BYTES
from quorumlog.sim.environment_faults import EnvironmentFaults
from quorumlog.sim.finding import Finding, Outcome, found_by
from quorumlog.sim.group_changes import GroupChanges
from quorumlog.sim.group_cluster import DELAY_US, LIMITS, GroupCluster
from quorumlog.sim.group_faults import GroupFaults
from quorumlog.sim.slow_links import SlowLinks

NAMES = ("a", "b", "c", "d", "e", "f")
CHANGE_MS, APPEND_MS, CHECK_MS = 500, 40, 20
DELETIONS = 0.4
"""Share of changes that delete a group."""
FILES_KEPT = (0, 0, 2, 4)
"""Data files that a group keeps; 0: all."""
APPENDED_BYTES = (24, 60, 400)
APPENDED_MAX = 3
SETTLE_MS = 90_000
STEP_MS = 500


class GroupRun:
    """Groups that come and go on nodes that fail."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.cluster = GroupCluster(seed, nodes)
        self.happened: list[str] = []
        self.changes = GroupChanges(self.cluster, self._say)
        self.faults = GroupFaults(self.cluster, self._say)
        chance = Random(f"clocks, disks and links {seed}")  # noqa: S311  (nothing secret)
        self.environment_faults = EnvironmentFaults(self.cluster, chance, self._say)
        chance = Random(f"slow links {seed}")  # noqa: S311  (nothing secret)
        self.slow_links = SlowLinks(self.cluster, chance)
        self._clock = self.cluster.clock
        self._random = self.cluster.random
        self._sent = 0
        self._is_busy = True

    def _say(self, text: str) -> None:
        self.happened.append(f"{self._clock.now_ms:>8} ms  {text}")

    # -- what happens -----------------------------------------------------------------------------

    def _again(self, pause_ms: int, action: Callable[[], None]) -> None:
        """Do something now and after each pause, until the end of the busy time."""
        if self._is_busy:
            action()
            self._clock.after_ms(pause_ms, lambda: self._again(pause_ms, action))

    def _change(self) -> None:
        if not self._is_busy:
            return
        name, random = self._random.choice(NAMES), self._random
        if random.random() < DELETIONS:
            self.changes.delete(name)
        else:
            self.changes.create(
                name,
                {
                    "mappedFileSizeForEntryData": str(DATA_FILE_BYTES),
                    "mappedFileSizeForEntryIndex": str(INDEX_FILE_BYTES),
                    "retentionBytes": str(random.choice(FILES_KEPT) * DATA_FILE_BYTES),
                },
            )
        self._clock.after_ms(random.randint(1, 2 * CHANGE_MS), self._change)

    def _append(self) -> None:
        """Append to all groups at the same time: what a node leads goes into one group commit."""
        random = self._random
        for node, replica in self.cluster.replicas():
            if replica.core.role is not Role.LEADER or not replica.core.is_ready:
                continue
            bodies = []
            for _ in range(random.randint(1, APPENDED_MAX)):
                self._sent += 1
                body = replica.core.given_identity + self._sent.to_bytes(8, "big")
                bodies.append(body.ljust(random.choice(APPENDED_BYTES), b"."))
            data = memoryview(bytearray(encode_block(bodies)))
            block = parse_block(data, count=len(bodies), entry_bytes_max=LIMITS.entry_bytes_max)
            take = self.cluster.checks.group_of(replica).appending(bodies)
            node.enter(partial(replica.propose, block, partial(self._answered, take)))

    def _answered(self, take: Callable[..., None], *answer: object) -> None:
        """An answer is on its way to its client."""
        self._clock.after_us(self._random.randint(*DELAY_US), lambda: take(*answer))

    def _look(self) -> None:
        """Notice who reaches whom, start what is down, and check the logs."""
        self.cluster.update_connections()  # those of a process that has ended break at once
        self.faults.start_nodes()
        self.cluster.update_connections()
        self.cluster.check_entries()
        self._clock.after_ms(CHECK_MS, self._look)

    # -- the run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let groups come and go for a while, then until all is settled. Raises `Finding`."""
        for node in self.cluster.nodes.values():
            node.start()
        self._look()
        self._change()
        self._again(APPEND_MS, self._append)
        self.faults.start()
        self.slow_links.start()
        self.environment_faults.start()
        self.cluster.run_until(int(seconds * 1_000))
        self._is_busy = False
        self.faults.end()
        self.slow_links.end()
        self.environment_faults.end()
        end_ms = self._clock.now_ms + SETTLE_MS
        while (unsettled := self._unsettled()) and self._clock.now_ms < end_ms:
            self.cluster.run_until(self._clock.now_ms + STEP_MS)
        if unsettled:
            raise Finding("all_or_none", unsettled)
        left = {replica.core.given_identity for _, replica in self.cluster.replicas()}
        self.cluster.checks.ended(left)

    def _unsettled(self) -> str:
        """Return what is not yet as it must be in the end; "" if all is."""
        nodes = self.cluster.nodes
        if not all(node.is_up for node in nodes.values()):
            return "a node is down: " + "; ".join(node.why_stopped for node in nodes.values())
        for name in NAMES:
            hosts = [node for node in nodes.values() if name in node.replicas]
            found = {node.node_id: node.replicas[name] for node in hosts}
            identities = {replica.core.given_identity for replica in found.values()}
            back = identities & self.changes.deleted
            if back:
                return f"{name} of identity {[one.hex()[:6] for one in back]} was deleted"
            if found and (len(found) < len(nodes) or len(identities) > 1):
                at = {node: one.core.given_identity.hex()[:6] for node, one in found.items()}
                return f"{name} is at {at}"
            leaders = [one for one in found.values() if one.core.role is Role.LEADER]
            ends = {(one.core.committed_index, one.log.end_index) for one in found.values()}
            if found and (len(leaders) != 1 or len(ends) > 1):
                return f"{name} has {len(leaders)} leaders, committed and ends are {sorted(ends)}"
        return self.cluster.find_damage()


def run_groups_seed(seed: int, *, seconds: float = 30.0, nodes: int = 3) -> Outcome:
    """Simulate groups that come and go: `seconds` of faults, then until all is settled."""
    run = GroupRun(seed, nodes)
    finding = found_by(lambda: run.run(seconds))
    clock = run.cluster.clock
    return Outcome(
        seed,
        clock.now_ms,
        clock.events,
        run.cluster.checks.appended,
        0,
        run.cluster.trace.text,
        [
            *(*run.faults.names, *run.environment_faults.names),
            *["slow_links"] * run.slow_links.are_chosen,
        ],
        {
            "groups": run.happened,
            "slow links": run.slow_links.happened,
            "state": run.cluster.describe(),
        },
        finding,
    )
