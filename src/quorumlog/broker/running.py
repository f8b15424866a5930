"""What a broker does while its node runs: looks at its replicas, tells others, does what is due."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from quorumlog.auth.decoys import SECRET_BYTES
from quorumlog.broker.barriers import Barriers
from quorumlog.broker.commands import Answer, CommandSessions, Done
from quorumlog.broker.controller import Controller
from quorumlog.broker.environment import BrokerEnvironment, HostNode
from quorumlog.broker.former_verifiers import Forgetting, FormerVerifiers
from quorumlog.broker.group_keeper import GroupKeeper
from quorumlog.broker.known_commands import refusal_of
from quorumlog.broker.leaders import Leaders
from quorumlog.broker.marker_writer import MarkerWriters
from quorumlog.broker.pace import Pace
from quorumlog.broker.partition_keeper import PartitionKeeper
from quorumlog.broker.registration import Registration
from quorumlog.broker.retention_rules import RetentionRules
from quorumlog.machine.cluster.commands import AlterUsers, AnyCommand, decode_envelope
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.block import Buffer, encode_block, parse_block
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.config import CLUSTER_GROUP, NodeConfig
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.group_records import text_of
from quorumlog.model.hooks import RoleChange
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.messages.cluster import ClusterMessage, Leading, LedGroup
from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

BEAT_MS: Final = 1_000
"""Nodes tell each other so often at least which groups they lead."""
ORDER_MS: Final = 5_000
"""How long a command of the controller may take; it is given again if nothing came of it."""
COMPLETE_RETRY_MS: Final = 200
"""Pause before the leader of `__cluster` is asked again how far this node must have come."""
RECHECK_MS: Final = 10_000
"""Partitions of a group are compared so often, although nothing seems to have changed."""
IN_SYNC_ENTRIES: Final = 1_000
"""A member that lags by more entries is not in sync."""


class Owner(Protocol):
    """The broker, as far as its running parts need it."""

    @property
    def config(self) -> NodeConfig:
        """The configuration of its node."""
        ...

    @property
    def view(self) -> ClusterView:
        """What `__cluster` holds, as far as is known here."""
        ...

    @property
    def advertised(self) -> str:
        """`host:port` where clients reach it; empty: not known, or nowhere."""
        ...


class _Leadership(NamedTuple):
    """A term in which this node leads `__cluster`, and the index that its view must have for it."""

    term: int
    ready_index: int
    is_told: bool = False
    """Whether others were told that this node leads it now, and is ready."""


class Running:
    """The parts of a broker, and what they need of its node.

    All methods run on the event loop's thread. `changed` is called when what is known of leaders
    or of live nodes has changed.
    """

    def __init__(
        self,
        owner: Owner,
        node: HostNode,
        changed: Callable[[], None],
        environment: BrokerEnvironment,
    ) -> None:
        self.node = node
        self._environment = environment
        now_ms = environment.now_ms
        self._owner = owner
        self._changed = changed
        self.leaders = Leaders(
            now_ms, self._leaders_changed, lambda name: self.view().has_given_up(name)
        )
        self.commands = CommandSessions(
            self._self_id,
            self,
            owner.config.limits.entry_bytes_max,
            environment.random_bytes,
        )
        self.controller = Controller(self, self.leaders)
        self._groups = GroupKeeper(
            node.hosting.lifecycle, node.hosting.lifecycle.catalog.records, now_ms
        )
        self._partitions: dict[str, PartitionKeeper] = {}
        self._markers = MarkerWriters(self)
        self._chores = (
            RetentionRules(node.replicas, self.view, self.barrier, now_ms),
            FormerVerifiers(
                now_ms,
                lambda: self.view().security.verifiers_removed,
                self.applied_index,
                self._former_state,
            ),
        )
        self.registration = Registration(
            self._self_id,
            owner.config.kafka_rack,
            self,
            lambda: node.own_address,
            lambda: owner.advertised,
            environment.random_bytes,
        )
        self._pace = Pace(node.new_timer(), now_ms)
        self._led: list[LedGroup] = []
        self._beat_ms = self._complete_ms = 0
        self._complete_index: int | None = None
        """How far the view must come to have all that was committed at the start; -1: it has."""
        self._barriers = Barriers(now_ms)
        self._led_last = _Leadership(-1, -1)
        given = owner.config.partition_groups
        self.settings: Mapping[str, str] = {key: text_of(value) for key, value in given.items()}

    @property
    def _self_id(self) -> str:
        return self._owner.config.self_id

    @property
    def is_complete(self) -> bool:
        """Whether the view has all that was committed when this node started."""
        return self._complete_index == -1

    def start(self) -> None:
        """Begin to look."""
        self.node.hosting.cluster_received = self._received
        self.node.hosting.role_changed = self._role_changed
        self.node.hosting.peer_reached = self._tell
        self.node.hosting.peer_silent = self.leaders.lost
        self._pace.start(self.tick)

    def stop(self) -> None:
        """Look no more, and answer what waits."""
        self._pace.end()
        self.node.hosting.cluster_received = lambda message, attachment: None
        self.node.hosting.role_changed = lambda change: None
        self.node.hosting.peer_reached = self.node.hosting.peer_silent = lambda peer_id: None
        self.controller.end()
        self._barriers.end()
        self.commands.end("the node stops")

    def tick(self) -> None:
        """Look at everything once."""
        self._pace.looks()
        self._look_at_replicas()
        self.leaders.tick()
        self.commands.tick()
        self._tell_control()
        self._barriers.look(self.applied_index())
        self.controller.tick()
        self._complete()
        self.registration.tick()
        self._reconcile()
        for chore in self._chores:
            chore.tick()
        if self.commands or self._barriers:
            self._pace.soon()

    def applied(self) -> None:
        """This node's view of `__cluster` has come further."""
        self.commands.applied()
        self._barriers.look(self.applied_index())
        if self._complete_index is not None:
            self._complete()
        self._write_markers()

    def view_changed(self) -> None:
        """This node's view of `__cluster` has changed, in more than its consumer groups."""
        self.applied()
        self._pace.changed()
        self.leaders.groups_changed()
        self.controller.release()
        self._reconcile()

    # -- leaders ------------------------------------------------------------------------------

    def _role_changed(self, change: RoleChange) -> None:
        if change.group == CLUSTER_GROUP or change.group in self.view().groups:
            self._pace.changed()

    def _leaders_changed(self) -> None:
        self._pace.changed()
        self._changed()

    def _look_at_replicas(self) -> None:
        observed: dict[str, tuple[int, str | None]] = {}
        led = []
        for name in self.view().groups:
            replica = self.node.replicas.get(name)
            if replica is None:
                continue
            core = replica.core
            if core.role is not Role.LEADER:
                observed[name] = core.term, core.leader_id
            elif core.is_ready:
                led.append(LedGroup(name, core.term, _in_sync(replica)))
            else:
                self._pace.soon()
        self.leaders.observed(observed)
        now_ms = self.now_ms()
        if led != self._led or now_ms >= self._beat_ms:
            self._led, self._beat_ms = led, now_ms + BEAT_MS
            self.leaders.told(self._self_id, led, self._groups.not_made(self.view()))
            for peer_id in self._peers():
                self._tell(peer_id)

    def _tell(self, peer_id: str) -> None:
        """Say to another node which groups are led here."""
        message = Leading(
            local_id=self._self_id,
            remote_id=peer_id,
            groups=self._led,
            not_made=self._groups.not_made(self.view()),
        )
        self.node.links.send(peer_id, message)

    def _peers(self) -> list[str]:
        replica = self._cluster()
        ids = () if replica is None else replica.core.membership.ids
        return [node_id for node_id in ids if node_id != self._self_id]

    def _received(self, message: ClusterMessage, attachment: memoryview) -> None:
        if isinstance(message, Leading):
            self.leaders.told(message.local_id, message.groups, message.not_made)
        else:
            self.commands.received(message, attachment)

    # -- this node's part ---------------------------------------------------------------------

    def _cluster(self) -> Replica | None:
        return self.node.replicas.get(CLUSTER_GROUP)

    def _former_state(self) -> Forgetting | None:
        replica = self._cluster()
        return None if replica is None else replica.applier.former_state

    def _complete(self) -> None:
        """Find out how far `__cluster` had come when this node started, and when it is here."""
        replica, now_ms = self._cluster(), self.now_ms()
        if self.is_complete:
            return
        self._pace.soon()
        if replica is None:
            return
        if self._complete_index is not None:
            if replica.applied_index >= self._complete_index:
                self._complete_index = -1
                self._changed()
            return
        if now_ms < self._complete_ms:
            return
        self._complete_ms = now_ms + ORDER_MS

        def done(code: ResponseCode, text: str, index: int) -> None:
            self._complete_ms = self.now_ms() + COMPLETE_RETRY_MS
            if code is ResponseCode.SUCCESS and self._complete_index is None:
                self._complete_index = index
                self._complete()

        replica.pending_requests.read(done)

    def _reconcile(self) -> None:
        """Bring this node's groups and partitions in line with the view."""
        view, now_ms = self.view(), self.now_ms()
        known = view.broker_of(self._self_id)
        if known is not None:
            self._groups.reconcile(view, known.broker_id)
        for led in self._led:
            keeper = self._partitions.get(led.group)
            if keeper is None:
                keeper = PartitionKeeper(
                    led.group, self.node.config.limits, self.order, self.now_ms
                )
                self._partitions[led.group] = keeper
            replica = self.node.replicas.get(led.group)
            mark = view.version, led.term, now_ms // RECHECK_MS
            if replica is not None and (keeper.looked_at != mark or not keeper.is_settled):
                keeper.looked_at = mark
                keeper.reconcile(view, replica)
            if not keeper.is_settled:
                self._pace.soon()
        for name in self._partitions.keys() - view.groups.keys():
            del self._partitions[name]
        self._write_markers()

    def _write_markers(self) -> None:
        if self._markers.reconcile():
            self._pace.soon()

    def led_replicas(self) -> Iterator[tuple[str, Replica]]:
        """Yield the partition groups that are led here, with their replicas."""
        for led in self._led:
            replica = self.node.replicas.get(led.group)
            if replica is not None:
                yield led.group, replica

    # -- commands -----------------------------------------------------------------------------

    def order(self, command: AnyCommand, timeout_ms: int, done: Done) -> None:
        """Have `__cluster` apply a command; `done` is called once."""
        refusal = self._refusal(command)
        if refusal:  # here, too: an earlier release may lead, and knows nothing of the command
            done(ResponseCode.UNSUPPORTED_VERSION, refusal, None)
            return
        if isinstance(command, AlterUsers) and not self.view().security.decoys.secret:
            secret = self._environment.random_bytes(SECRET_BYTES)
            command = structs.replace(command, decoy_secret=secret)
        self._pace.soon()
        self.commands.execute(command, timeout_ms, done)

    def ask_for(self, command: AnyCommand) -> None:
        """See `ControllerNode`."""
        self.order(command, ORDER_MS, lambda code, text, result: None)

    def serve(self, data: bytes, timeout_ms: int, answer: Answer) -> None:
        """See `CommandNetwork`."""
        replica = self._cluster()
        if replica is None or replica.core.role is not Role.LEADER:
            answer(ResponseCode.NOT_LEADER, f"not the leader of {CLUSTER_GROUP}", b"", -1)
            return
        try:
            command = decode_envelope(data).command
        except UnexpectedArgumentError as error:
            answer(error.code, str(error), b"", -1)
            return
        refusal = self._refusal(command)
        if refusal:
            answer(ResponseCode.UNSUPPORTED_VERSION, refusal, b"", -1)
            return

        def go(code: ResponseCode, text: str) -> None:
            if code is ResponseCode.SUCCESS:
                self._propose(data, answer)
            else:
                answer(code, text, b"", -1)

        self.controller.admit(command, timeout_ms, go)

    def _refusal(self, command: AnyCommand) -> str:
        return refusal_of(command, self._peers(), self.node.links.features_of)

    def _propose(self, data: bytes, answer: Answer) -> None:
        replica, limits = self._cluster(), self.node.config.limits
        if replica is None:
            answer(ResponseCode.NOT_LEADER, f"{CLUSTER_GROUP} is closed", b"", -1)
            return

        def answered(response: AppendResponse, results: Sequence[bytes]) -> None:
            code, text = ResponseCode(response.code), response.text
            if code is ResponseCode.SUCCESS and not results[0]:
                # a snapshot was loaded meanwhile: the command's result is told when it comes again
                code, text = ResponseCode.TERM_CHANGED, "the result is not known any more"
            elif code is ResponseCode.TIMEOUT:  # committed, but not applied yet: the same
                code = ResponseCode.TERM_CHANGED
            result = results[0] if code is ResponseCode.SUCCESS else b""
            answer(code, text, result, response.first_index)

        block = memoryview(bytearray(encode_block([data])))
        try:
            parsed = parse_block(block, count=1, entry_bytes_max=limits.entry_bytes_max)
        except UnexpectedArgumentError as error:
            answer(error.code, str(error), b"", -1)
        else:
            replica.propose(parsed, answered)

    # -- reads --------------------------------------------------------------------------------

    def barrier(self, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Call `done` once the view has all that is committed now, or with False."""
        self._pace.soon()
        self._barriers.ask(self._cluster(), timeout_ms, done)

    # -- what the parts need ------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time of a monotonic clock."""
        return self._environment.now_ms()

    def wall_ms(self) -> int:
        """Return the Unix time."""
        return self._environment.wall_ms()

    def view(self) -> ClusterView:
        """Return what `__cluster` holds, as far as is known here."""
        return self._owner.view

    def leader(self) -> str | None:
        """Return the node that leads `__cluster`, as far as is known here."""
        replica = self._cluster()
        return None if replica is None else replica.core.leader_id

    def applied_index(self) -> int:
        """Return the index up to which the view has come."""
        replica = self._cluster()
        return -1 if replica is None else replica.applied_index

    def send(
        self, peer_id: str, message: ClusterMessage, attachments: Sequence[Buffer] = ()
    ) -> bool:
        """Send to another node."""
        return self.node.links.send(peer_id, message, attachments)

    def controls(self) -> bool:
        """Whether this node leads `__cluster`, and its view has all that earlier leaders did."""
        replica = self._cluster()
        if replica is None:
            return False
        core = replica.core
        if core.role is not Role.LEADER or not core.is_ready:
            return False
        if core.term != self._led_last.term:
            self._led_last = _Leadership(core.term, core.committed_index)
        return replica.applied_index >= self._led_last.ready_index

    def _tell_control(self) -> None:
        """Tell of the beginning of a term in which this node controls: coordinators take over."""
        if self.controls() and not self._led_last.is_told:
            self._led_last = self._led_last._replace(is_told=True)
            self._changed()

    def control_term(self) -> int:
        """Return the term in which this node `controls`; -1: it does not."""
        return self._led_last.term if self.controls() else -1

    def voters(self) -> int:
        """Return how many nodes vote in `__cluster`."""
        replica = self._cluster()
        return 1 if replica is None else len(replica.core.membership.voters)


def _in_sync(replica: Replica) -> list[str]:
    """Return the members that are in sync with the leader that this replica is, and itself."""
    peers = [
        peer.peer_id
        for peer in replica.core.peer_progress()
        if peer.live and 0 <= peer.lag <= IN_SYNC_ENTRIES
    ]
    return sorted([replica.core.self_id, *peers])
