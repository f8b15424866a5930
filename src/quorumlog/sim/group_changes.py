"""Groups that come and go on simulated machines: made, deleted and made again while nodes crash.

Invariants: a group exists with one identity at all its members in the end, or at none; what was
deleted does not come back; no entry of a group is in a log of another one of its name.
"""

from collections.abc import Callable
from functools import partial

from quorumlog.model.block import decode_entries, encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import StorageError
from quorumlog.model.group_records import GroupRecord
from quorumlog.model.messages.base import Message
from quorumlog.sim.cluster import LIMITS
from quorumlog.sim.finding import Finding
from quorumlog.sim.group_node import GroupNode, node_config
from quorumlog.sim.simulation_clock import SimulationClock

NODES = ("n0", "n1", "n2")
NAMES = ("a", "b", "c", "d", "e", "f")
PEERS = ";".join(f"{node_id}-127.0.0.1:{7101 + number}" for number, node_id in enumerate(NODES))
SETTINGS = {"mappedFileSizeForEntryData": "16384", "mappedFileSizeForEntryIndex": "2048"}
DELAY_US = (100, 2_000)
PATIENCE_MS = 1_500
"""How long whoever makes or deletes a group waits for answers."""
CHANGE_MS, FAULT_MS, APPEND_MS, CHECK_MS = 500, 3_500, 40, 20
CUT_MS = (200, 4_000)
DIES = 0.2
"""Share of changes in the midst of which whoever asks for them dies."""
SETTLE_MS = 90_000


class GroupChanges:
    """One run from one seed."""

    def __init__(self, seed: int) -> None:
        self.clock = SimulationClock(seed)
        self.random = self.clock.random
        self.nodes = {node_id: GroupNode(self, node_config(node_id, LIMITS)) for node_id in NODES}
        self.happened: list[str] = []
        self.made: set[bytes] = set()
        self.deleted: set[bytes] = set()
        self.counts = {"made": 0, "undone": 0, "deleted": 0, "appended": 0, "crashes": 0}
        self._epochs: dict[tuple[str, str], int] = {}
        self._arrives_us: dict[tuple[str, str], int] = {}
        self._connected: set[frozenset[str]] = set()
        self._cut: set[str] = set()
        self._looked_at: dict[tuple[str, bytes], int] = {}
        self._is_faulty = True

    def say(self, text: str) -> None:
        """Note what happened."""
        self.happened.append(f"{self.clock.now_ms:>8} ms  {text}")

    # -- connections ------------------------------------------------------------------------------

    def peers_of(self, node_id: str) -> list[str]:
        """See `GroupNetwork`."""
        return [peer for peer in NODES if frozenset((node_id, peer)) in self._connected]

    def carry(self, sender: str, receiver: str, message: Message, data: bytes) -> None:
        """See `GroupNetwork`: in order, unless the connection breaks."""
        pair = sender, receiver
        if frozenset(pair) not in self._connected:
            return
        epoch = self._epochs.get(pair, 0)
        due_us = max(
            self._arrives_us.get(pair, 0), self.clock.now_us + self.random.randint(*DELAY_US)
        )
        self._arrives_us[pair] = due_us
        target = self.nodes[receiver]

        def arrive() -> None:
            if self._epochs.get(pair, 0) == epoch and target.is_up:
                target.enter(lambda: target.receive(sender, message, data))

        self.clock.after_us(due_us - self.clock.now_us, arrive)

    def _update_connections(self) -> None:
        """Connect nodes that reach each other, and break the connections of others."""
        for one in NODES:
            for other in NODES:
                pair = frozenset((one, other))
                if one >= other:
                    continue
                reach = self.nodes[one].is_up and self.nodes[other].is_up
                reach = reach and not {one, other} & self._cut
                if reach and pair not in self._connected:
                    self._connected.add(pair)
                    for node_id, peer in ((one, other), (other, one)):
                        node = self.nodes[node_id]
                        node.enter(partial(node.connected, peer))
                elif not reach and pair in self._connected:
                    self._connected.discard(pair)
                    for key in ((one, other), (other, one)):
                        self._epochs[key] = self._epochs.get(key, 0) + 1

    # -- whoever makes and deletes groups ---------------------------------------------------------

    def ask(
        self,
        node_id: str,
        act: Callable[[GroupNode, Callable[[ResponseCode, str], None]], None],
        answers: dict[str, ResponseCode],
    ) -> None:
        """Send a request to a node; its answer is noted if it arrives."""
        node = self.nodes[node_id]

        def answered(code: ResponseCode, text: str) -> None:
            def arrive() -> None:
                if node_id not in self._cut:
                    answers[node_id] = code

            self.clock.after_us(self.random.randint(*DELAY_US), arrive)

        def arrive() -> None:
            if node.is_up and node_id not in self._cut:
                node.enter(lambda: act(node, answered))

        self.clock.after_us(self.random.randint(*DELAY_US), arrive)

    def create(self, name: str) -> None:
        """Make a group as a client does; it may die in between."""
        identity = self.random.randbytes(16)
        record = GroupRecord(group=name, identity=identity, peers=PEERS, settings=SETTINGS)
        answers: dict[str, ResponseCode] = {}
        dies = self.random.random() < DIES
        asked = self.random.sample(NODES, self.random.randint(1, 2) if dies else 3)
        self.say(f"create {name} {identity.hex()[:6]} at {asked}")
        for node_id in asked:
            self.ask(node_id, lambda node, done: node.lifecycle.create(record, done), answers)
        if not dies:
            self.clock.after_ms(PATIENCE_MS, lambda: self._created(record, answers))

    def _created(self, record: GroupRecord, answers: dict[str, ResponseCode]) -> None:
        if [*answers.values()].count(ResponseCode.SUCCESS) == len(NODES):
            self.made.add(record.identity)
            self.counts["made"] += 1
            return
        self.counts["undone"] += 1
        undone: dict[str, ResponseCode] = {}
        for node_id in NODES:
            if answers.get(node_id, ResponseCode.SUCCESS) is ResponseCode.SUCCESS:
                self.ask(node_id, self._deletion(record.group, record.identity), undone)

    def _deletion(
        self, name: str, identity: bytes
    ) -> Callable[[GroupNode, Callable[[ResponseCode, str], None]], None]:
        purge = self.random.random() < 0.5
        return lambda node, done: node.lifecycle.delete(name, identity, done, purge=purge)

    def delete(self, name: str) -> None:
        """Delete a group that most nodes have; whoever does it may die in between."""
        known = [node.lifecycle.identity_of(name) for node in self.nodes.values() if node.is_up]
        here = [identity for identity in known if identity in self.made]
        if len(here) < 2:
            return
        identity, answers = here[0], dict[str, ResponseCode]()
        dies = self.random.random() < DIES
        asked = self.random.sample(NODES, self.random.randint(1, 3) if dies else 3)
        self.say(f"delete {name} {identity.hex()[:6]} at {asked}")
        for node_id in asked:
            self.ask(node_id, self._deletion(name, identity), answers)

        def done() -> None:
            if ResponseCode.SUCCESS in answers.values():
                self.deleted.add(identity)
                self.counts["deleted"] += 1

        self.clock.after_ms(PATIENCE_MS, done)

    # -- what happens -----------------------------------------------------------------------------

    def _change(self) -> None:
        if not self._is_faulty:
            return
        name = self.random.choice(NAMES)
        (self.delete if self.random.random() < 0.4 else self.create)(name)
        self.clock.after_ms(self.random.randint(1, 2 * CHANGE_MS), self._change)

    def _append(self) -> None:
        if not self._is_faulty:
            return
        for node in self.nodes.values():
            for replica in [*node.replicas.values()] if node.is_up else ():
                if replica.core.role is Role.LEADER and replica.core.is_ready:
                    body = replica.core.identity + self.random.randbytes(4)
                    data = memoryview(bytearray(encode_block([body])))
                    block = parse_block(data, count=1, entry_bytes_max=LIMITS.entry_bytes_max)
                    self.counts["appended"] += 1
                    node.enter(partial(replica.propose, block, lambda response, results: None))
        self.clock.after_ms(APPEND_MS, self._append)

    def _fault(self) -> None:
        if not self._is_faulty:
            return
        node = self.nodes[self.random.choice(NODES)]
        if self.random.random() < 0.3:
            self._cut.add(node.node_id)
            self.say(f"{node.node_id} is cut off")
            gone_ms = self.random.randint(*CUT_MS)
            self.clock.after_ms(gone_ms, lambda: self._cut.discard(node.node_id))
        elif node.is_up:
            self.counts["crashes"] += 1
            self.say(f"{node.node_id} crashes")
            if self.random.random() < 0.6:
                node.files.crash_at = node.files.calls + self.random.randint(1, 30)
            else:
                node.stop(power=self.random.random() < 0.5)
        self.clock.after_ms(self.random.randint(1, 2 * FAULT_MS), self._fault)

    def _look(self) -> None:
        """Notice who reaches whom, start what is down, and check the logs."""
        self._update_connections()  # those of a process that has ended break, even if it starts now
        for node in self.nodes.values():
            if not node.is_up and not self.random.randrange(40 if self._is_faulty else 4):
                node.files.crash_at = None
                if node.files.is_off:
                    node.files.restart()
                node.start()
                self.say(f"{node.node_id} starts{node.why_stopped and ': ' + node.why_stopped}")
        self._update_connections()
        for node in self.nodes.values():
            for name, replica in [*node.replicas.items()] if node.is_up else ():
                self._check_entries(node, name, replica)
        self.clock.after_ms(CHECK_MS, self._look)

    def _check_entries(self, node: GroupNode, name: str, replica: object) -> None:
        log, identity = node.replicas[name].log, node.replicas[name].core.given_identity
        key = node.node_id, identity
        index = max(self._looked_at.get(key, 0), log.before_begin_index + 1)
        if index > log.end_index:
            self._looked_at[key] = min(index, log.end_index + 1)
            return
        try:
            run = log.read(index, log.end_index, 1 << 20)
        except StorageError:
            return
        self._looked_at[key] = run.last_index + 1
        for entry in decode_entries(run.block()):
            if entry.is_data and entry.body[:16] != identity:
                text = f"{node.node_id}/{name}: entry {entry.index} is another group's"
                raise Finding("no_predecessor", text)

    # -- the run ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let groups come and go for a while, then until all is settled. Raises `Finding`."""
        for node in self.nodes.values():
            node.start()
        for action in (self._look, self._change, self._append, self._fault):
            action()
        self.clock.run_until(int(seconds * 1_000), lambda: None)
        self._is_faulty = False
        self._cut.clear()
        for node in self.nodes.values():
            node.files.crash_at = None
        end_ms = self.clock.now_ms + SETTLE_MS
        while (unsettled := self._unsettled()) and self.clock.now_ms < end_ms:
            self.clock.run_until(self.clock.now_ms + 500, lambda: None)
        if unsettled:
            raise Finding("all_or_none", unsettled)

    def _unsettled(self) -> str:
        """Return what is not yet as it must be in the end; "" if all is."""
        for name in NAMES:
            found = {
                node_id: node.replicas[name]
                for node_id, node in self.nodes.items()
                if node.is_up and name in node.replicas
            }
            identities = {replica.core.given_identity for replica in found.values()}
            back = identities & self.deleted
            if back:
                return f"{name} of identity {[one.hex()[:6] for one in back]} was deleted"
            if found and (len(found) < len(NODES) or len(identities) > 1):
                at = {node: one.core.given_identity.hex()[:6] for node, one in found.items()}
                return f"{name} is at {at}"
            leaders = [one for one in found.values() if one.core.role is Role.LEADER]
            ends = {one.core.committed_index for one in found.values()}
            if found and (len(leaders) != 1 or len(ends) > 1):
                return f"{name} has {len(leaders)} leaders, committed {sorted(ends)}"
        if not all(node.is_up for node in self.nodes.values()):
            return "a node is down: " + "; ".join(n.why_stopped for n in self.nodes.values())
        return ""
