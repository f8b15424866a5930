"""Whoever makes and deletes groups on simulated nodes, and may die in the midst of it."""

from collections.abc import Callable

from quorumlog.model.codes import ResponseCode
from quorumlog.model.group_records import GroupRecord
from quorumlog.sim.group_cluster import DELAY_US, IDENTITY_BYTES, GroupCluster
from quorumlog.sim.group_node import GroupNode

PATIENCE_MS = 1_500
"""How long whoever makes or deletes a group waits for answers."""
DIES = 0.2
"""Share of changes in the midst of which whoever asks for them dies."""
PURGES = 0.5


class GroupChanges:
    """Makes and deletes groups. `deleted`: the identities of those that a node has deleted."""

    def __init__(self, cluster: GroupCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._say = say
        self.made: set[bytes] = set()
        self.deleted: set[bytes] = set()

    def _ask(
        self,
        node_id: str,
        act: Callable[[GroupNode, Callable[[ResponseCode, str], None]], None],
        answers: dict[str, ResponseCode],
    ) -> None:
        """Send a request to a node; its answer is noted if it arrives."""
        cluster, random = self._cluster, self._random
        node = cluster.nodes[node_id]

        def answered(code: ResponseCode, text: str) -> None:
            def arrive() -> None:
                if node_id not in cluster.cut:
                    answers[node_id] = code

            cluster.clock.after_us(random.randint(*DELAY_US), arrive)

        def arrive() -> None:
            if node.is_up and node_id not in cluster.cut:
                node.enter(lambda: act(node, answered))

        cluster.clock.after_us(random.randint(*DELAY_US), arrive)

    def _asked(self, least: int) -> tuple[list[str], bool]:
        """Return which nodes are asked, and whether whoever asks dies then."""
        ids = self._cluster.ids
        dies = self._random.random() < DIES
        count = self._random.randint(1, max(1, least)) if dies else len(ids)
        return self._random.sample(ids, count), dies

    def create(self, name: str, settings: dict[str, str]) -> None:
        """Make a group as a client does; it may die in between."""
        identity = self._random.randbytes(IDENTITY_BYTES)
        record = GroupRecord(
            group=name, identity=identity, peers=self._cluster.peers, settings=settings
        )
        answers: dict[str, ResponseCode] = {}
        asked, dies = self._asked(len(self._cluster.ids) - 1)
        self._say(f"create {name} {identity.hex()[:6]} at {asked}")
        for node_id in asked:
            self._ask(node_id, lambda node, done: node.lifecycle.create(record, done), answers)
        if not dies:
            self._cluster.clock.after_ms(PATIENCE_MS, lambda: self._created(record, answers))

    def _created(self, record: GroupRecord, answers: dict[str, ResponseCode]) -> None:
        ids = self._cluster.ids
        if [*answers.values()].count(ResponseCode.SUCCESS) == len(ids):
            self.made.add(record.identity)
            return
        undone: dict[str, ResponseCode] = {}
        for node_id in ids:
            if answers.get(node_id, ResponseCode.SUCCESS) is ResponseCode.SUCCESS:
                self._ask(node_id, self._deletion(record.group, record.identity), undone)

    def _deletion(
        self, name: str, identity: bytes
    ) -> Callable[[GroupNode, Callable[[ResponseCode, str], None]], None]:
        purge = self._random.random() < PURGES
        return lambda node, done: node.lifecycle.delete(name, identity, done, purge=purge)

    def delete(self, name: str) -> None:
        """Delete a group that most nodes have; whoever does it may die in between."""
        nodes = self._cluster.nodes.values()
        known = [node.lifecycle.identity_of(name) for node in nodes if node.is_up]
        here = [identity for identity in known if identity in self.made]
        if len(here) <= len(nodes) // 2:
            return
        identity, answers = here[0], dict[str, ResponseCode]()
        asked, _ = self._asked(len(nodes))
        self._say(f"delete {name} {identity.hex()[:6]} at {asked}")
        for node_id in asked:
            self._ask(node_id, self._deletion(name, identity), answers)

        def done() -> None:
            if ResponseCode.SUCCESS in answers.values():
                self.deleted.add(identity)

        self._cluster.clock.after_ms(PATIENCE_MS, done)
