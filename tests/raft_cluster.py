"""A simulated group of Raft cores: network, disks and time from one seed, checked at every step.

The cores are the real ones. Around each stands a replica as simple as can be: its log is a list,
its disk makes writes durable a little later (all that waited, at once) and forgets the others in a
crash. Messages can be delayed, lost, duplicated, reordered and cut off.

A `SafetyChecker` is asked after every step.
"""

import heapq
import itertools
import random
from collections import Counter, deque

import msgspec

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.hard_state import HardState
from quorumlog.model.messages.peer import HeartBeatRequest, PushRequest
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.core import RaftCore
from raft_checker import SafetyChecker
from raft_messages import Contents, chained, named
from raft_snapshots import Snapshots

ENTRY_BYTES = 100
TIMING = {
    "heartbeat_ms": 100,
    "election_timeout_min_ms": 500,
    "election_timeout_max_ms": 1_000,
    "push_timeout_ms": 1_000,
    "push_bytes_max": 10 * ENTRY_BYTES,
    "push_window_bytes": 40 * ENTRY_BYTES,
    "push_window_requests": 8,
    "push_quota_bytes": 20 << 20,
    "transfer_timeout_ms": 1_000,
    "transfer_lag_max": 1_000,
}


class Replica:
    """One member: what survives a crash, and what does not."""

    def __init__(self, node_id, contents, hard_state):
        self.id = node_id
        self.stored = contents
        self.stored_state = hard_state
        self.stored_commit = -1
        self.unreadable = 0
        self.founded = True
        self.is_full = False
        self.core = None

    def start(self, config, seed, now_ms):
        self.log = self.stored.copy()
        self.writes = deque()
        self.syncing = 0
        self.durable_token = 0
        self.held = []
        self.reads = {}
        self.pending = {}
        self.wake_ms = None
        self.checked_to = -1
        boot = BootState(
            hard_state=self.stored_state,
            before_begin_index=self.log.base,
            before_begin_term=self.log.base_term,
            term_runs=self.log.runs(),
            end_index=self.log.end,
            committed_index=self.stored_commit,
            memberships=self.log.memberships(config.founders if self.founded else None),
        )
        self.core = RaftCore(config, boot, random.Random(seed), now_ms)

    def persist(self, write):
        kind, *details = write
        if kind == "state":
            (self.stored_state,) = details
        else:
            getattr(self.stored, kind)(*details)


class Cluster(Snapshots):
    """Members n0, n1 … and the time they live in."""

    def __init__(self, count=3, seed=0, logs=None, states=None, **options):
        self.random = random.Random(seed)
        self.now = 1_000
        self.timing = {**TIMING, **options}
        self.ids = [f"n{number}" for number in range(count)]
        self.delay_ms = (2, 2)
        self.sync_ms = (1, 5)
        self.read_ms = (0, 0)
        self.loss = self.duplicates = 0.0
        self.cuts = set()
        self.drop = lambda message: False
        self.checker = SafetyChecker()
        self.sent, self.alarms, self.changes = [], [], []
        self.failed = Counter()
        self.finished = {}
        self.answers = {}
        self.events_seen = 0
        self._agenda, self._order = [], itertools.count()
        self._payloads = itertools.count(1)
        self._noops = set()
        self._proposals = itertools.count(1)
        self._incarnations = itertools.count(1)
        self.nodes = {}
        for node_id in self.ids:
            contents = (logs or {}).get(node_id, Contents())
            newest = contents.entries[-1].term if contents.entries else 0
            state = (states or {}).get(node_id, HardState(newest, None))
            self.nodes[node_id] = Replica(node_id, contents.copy(), state)
            self.nodes[node_id].up = False

    # -- members ------------------------------------------------------------------------------

    def start(self, *node_ids):
        for node_id in node_ids or self.ids:
            replica = self.nodes[node_id]
            replica.start(self.config_of(node_id), self.random.random(), self.now)
            replica.incarnation = next(self._incarnations)
            replica.up = True
            self._wake(replica)
            for other in self.live():
                if other is not replica and (node_id, other.id) not in self.cuts:
                    self.step(other, ev.PeerConnected(node_id))
                    self.step(replica, ev.PeerConnected(other.id))
        return self

    def config_of(self, node_id):
        return RaftConfig(group="g", self_id=node_id, members=tuple(self.ids), **self.timing)

    def crash(self, node_id):
        """Lose what is not durable; some of what was being written may have got through."""
        replica = self.nodes[node_id]
        replica.up = False
        for _, write in itertools.islice(
            replica.writes, self.random.randint(0, len(replica.writes))
        ):
            replica.persist(write)
        replica.writes.clear()
        if self.random.random() < 0.5:
            replica.stored_commit = replica.core.committed_index

    def wipe(self, node_id):
        self.crash(node_id)
        self.nodes[node_id].stored = Contents()
        self.nodes[node_id].stored_commit = -1

    def live(self):
        return [replica for replica in self.nodes.values() if replica.up]

    def core(self, node_id):
        return self.nodes[node_id].core

    def leaders(self):
        return [node.id for node in self.live() if node.core.role is Role.LEADER]

    @property
    def leader(self):
        """The leader of the newest term, or None."""
        leaders = [node for node in self.live() if node.core.role is Role.LEADER]
        return max(leaders, key=lambda node: node.core.term).id if leaders else None

    def followers(self):
        return [node.id for node in self.live() if node.id != self.leader]

    # -- network ------------------------------------------------------------------------------

    def cut(self, source, target, *, both=True):
        self.cuts.add((source, target))
        if both:
            self.cuts.add((target, source))

    def isolate(self, node_id):
        for other in self.ids:
            if other != node_id:
                self.cut(node_id, other)

    def split(self, *sides):
        for one, two in itertools.combinations(sides, 2):
            for pair in itertools.product(one, two):
                self.cut(*pair)

    def heal(self):
        was, self.cuts = self.cuts, set()
        for source, target in sorted(was):
            if self.nodes[source].up and self.nodes[target].up:
                self.step(self.nodes[source], ev.PeerConnected(target))

    def reconnect(self, source, target):
        """Everything under way from source to target is lost, then the link is back."""
        self._agenda = [
            item
            for item in self._agenda
            if item[2] != self._arrive or not self._between(item[3][0], source, target)
        ]
        heapq.heapify(self._agenda)
        if source != target and self.nodes[source].up and self.nodes[target].up:
            self.step(self.nodes[source], ev.PeerConnected(target))

    @staticmethod
    def _between(message, source, target):
        return (message.local_id, message.remote_id) == (source, target)

    def deliver(self, message, entries=(), chain_matches=True):
        """Hand over a message at once; return what is sent in answer, now or when durable."""
        replica = self.nodes[message.remote_id]
        event = ev.Received(message, chain_matches, memberships=named(message, entries))
        effects = self.step(replica, event, entries)
        return [effect.message for effect in effects if isinstance(effect, fx.Send)]

    def _transmit(self, replica, message, entries=()):
        self.checker.promised(replica, message)
        self.sent.append(message)
        if isinstance(message, PushRequest) and message.type in (
            PushType.COMPARE,
            PushType.APPEND,
        ):
            chain = replica.log.chain_at(message.prev_index)
            message = msgspec.structs.replace(message, prev_chain_crc=chain)
        if isinstance(message, HeartBeatRequest) and message.committed_index >= 0:
            chain = replica.log.chain_at(message.committed_index)
            message = msgspec.structs.replace(message, committed_chain_crc=chain)
        for _ in range(2 if self.random.random() < self.duplicates else 1):
            if self.random.random() >= self.loss:
                self._later(self.random.randint(*self.delay_ms), self._arrive, message, entries)

    def _arrive(self, message, entries):
        if message.remote_id not in self.nodes:
            return
        target = self.nodes[message.remote_id]
        blocked = (message.local_id, message.remote_id) in self.cuts
        if blocked or not target.up or self.drop(message):
            return
        matches = True
        if isinstance(message, PushRequest) and target.log.base < message.prev_index:
            compared = message.type in (PushType.COMPARE, PushType.APPEND)
            if compared and message.prev_index <= target.log.end:
                matches = target.log.chain_at(message.prev_index) == message.prev_chain_crc
        if isinstance(message, HeartBeatRequest):
            matches = self._heartbeat_matches(target, message)
        event = ev.Received(
            message,
            matches,
            disk_full=target.is_full and not self._is_one_noop(entries),
            memberships=named(message, entries),
        )
        self.step(target, event, entries)

    def _is_one_noop(self, entries):
        return len(entries) == 1 and entries[0].payload in self._noops

    @staticmethod
    def _heartbeat_matches(target, message):
        index = message.committed_index
        if not target.log.base < index <= target.core.committed_index:
            return True
        return message.committed_chain_crc in (0, target.log.chain_at(index))

    # -- time ---------------------------------------------------------------------------------

    def run_for(self, duration_ms):
        until = self.now + duration_ms
        while self._agenda and self._agenda[0][0] <= until:
            self._next()
        self.now = until

    def run_until(self, condition, limit_ms=20_000):
        until = self.now + limit_ms
        while not condition():
            assert self._agenda, "nothing will happen any more"
            assert self._agenda[0][0] <= until, "it did not happen in time"
            self._next()

    def _next(self):
        self.now, _, action, arguments = heapq.heappop(self._agenda)
        action(*arguments)

    def _later(self, delay_ms, action, *arguments):
        heapq.heappush(self._agenda, (self.now + delay_ms, next(self._order), action, arguments))

    def _wake(self, replica):
        deadline = replica.core.signals.due_ms
        if deadline < (1 << 50) and (replica.wake_ms is None or deadline < replica.wake_ms):
            replica.wake_ms = deadline
            delay = max(0, deadline - self.now)
            self._later(delay, self._tick, replica, replica.incarnation)

    def _tick(self, replica, incarnation):
        if not replica.up or replica.incarnation != incarnation:
            return
        replica.wake_ms = None
        if replica.core.next_deadline_ms() <= self.now:
            self.step(replica, ev.Ticked())
            assert replica.core.next_deadline_ms() > self.now, "a core must not spin"
        self._wake(replica)

    # -- one step -----------------------------------------------------------------------------

    def propose(self, node_id=None, count=1):
        """Propose entries; `finished[number]` is True when committed, False when refused."""
        replica = self.nodes[node_id or self.leader]
        number = next(self._proposals)
        self.step(replica, ev.Proposed(number, count, count * ENTRY_BYTES))
        return number

    def step(self, replica, event, entries=()):
        self.events_seen += 1
        committed = replica.core.committed_index
        effects = replica.core.step(event, self.now)
        for effect in effects:
            followed = getattr(self, "_" + type(effect).__name__)(replica, effect, event, entries)
            effects = [*effects, *(followed or ())]
        replica.core.validate()
        assert replica.core.end_index == replica.log.end, "core and log agree"
        assert replica.core.committed_index >= committed, "committed never falls"
        self.checker.durable(replica)
        stores = fx.AppendReceived | fx.TruncateLog | fx.ResetLog
        if any(isinstance(effect, stores) for effect in effects):
            self.checker.logs_match(replica, [node for node in self.live() if node is not replica])
        if replica.up:
            self._sync(replica)
            self._wake(replica)
        return effects

    def _write(self, replica, token, *write):
        replica.writes.append((token, write))

    def _sync(self, replica):
        if replica.writes and not replica.syncing:
            replica.syncing = len(replica.writes)
            delay = self.random.randint(*self.sync_ms)
            self._later(delay, self._synced, replica, replica.incarnation)

    def _synced(self, replica, incarnation):
        if not replica.up or replica.incarnation != incarnation:
            return
        for _ in range(replica.syncing):
            replica.durable_token, write = replica.writes.popleft()
            replica.persist(write)
        replica.syncing = 0
        token = replica.durable_token
        ready = [effect for effect in replica.held if effect.after <= token]
        replica.held = [effect for effect in replica.held if effect.after > token]
        for effect in ready:
            self._transmit(replica, effect.message)
        self.step(replica, ev.WritesDurable(token))

    def fail_disk(self, node_id):
        replica = self.nodes[node_id]
        replica.held.clear()
        return self.step(replica, ev.StorageFailed("the disk said EIO"))

    # -- effects ------------------------------------------------------------------------------

    def _SaveHardState(self, replica, effect, event, entries):  # noqa: N802
        self._write(replica, effect.token, "state", effect.hard_state)

    def _append(self, replica, effect, first, last, term, payloads):
        before = replica.log.chain_at(replica.log.end)
        new = []
        for payload in payloads:
            new.append(chained(before, term, payload))
            before = new[-1].chain
        replica.log.put(first, new)
        assert replica.log.end == last
        self._write(replica, effect.token, "put", first, new)

    def _AppendProposal(self, replica, effect, event, entries):  # noqa: N802
        payloads = [next(self._payloads) for _ in range(event.count)]
        self._append(replica, effect, effect.first_index, effect.last_index, effect.term, payloads)
        replica.pending[effect.last_index] = (effect.proposal_id, payloads)

    def _AppendNoop(self, replica, effect, event, entries):  # noqa: N802
        payload = next(self._payloads)
        self._noops.add(payload)
        self._append(replica, effect, effect.index, effect.index, effect.term, [payload])

    def _AppendMembership(self, replica, effect, event, entries):  # noqa: N802
        payload = effect.membership
        self._append(replica, effect, effect.index, effect.index, effect.term, [payload])

    def _MembershipChanged(self, replica, effect, event, entries):  # noqa: N802
        core = replica.core
        assert effect.index < core.membership_index or effect.membership == core.membership

    def _ReadReady(self, replica, effect, event, entries):  # noqa: N802
        self.answers[effect.request_id] = effect.index

    def _Finished(self, replica, effect, event, entries):  # noqa: N802
        self.answers[effect.request_id] = effect.code

    def _AppendReceived(self, replica, effect, event, entries):  # noqa: N802
        start = effect.first_index - event.message.first_index
        new = entries[start : start + effect.last_index - effect.first_index + 1]
        replica.log.put(effect.first_index, new)
        assert replica.log.end == effect.last_index
        self._write(replica, effect.token, "put", effect.first_index, new)

    def _TruncateLog(self, replica, effect, event, entries):  # noqa: N802
        assert effect.from_index > replica.core.committed_index, "committed entries stay"
        replica.log.cut(effect.from_index)
        self._write(replica, effect.token, "cut", effect.from_index)

    def _Send(self, replica, effect, event, entries):  # noqa: N802
        if effect.after is None or effect.after <= replica.durable_token:
            self._transmit(replica, effect.message)
        else:
            replica.held.append(effect)

    def _ReadEntries(self, replica, effect, event, entries):  # noqa: N802
        if replica.unreadable:
            replica.unreadable -= 1
            failed = ev.EntriesUnreadable(effect.peer_id, effect.request_id, "damaged")
            self._later(1, self._read, replica, replica.incarnation, failed)
            return
        count = max(1, effect.bytes_max // ENTRY_BYTES)
        last = min(effect.last_index, effect.first_index + count - 1)
        found = [replica.log.at(index) for index in range(effect.first_index, last + 1)]
        replica.reads[effect.request_id] = found
        answer = ev.EntriesRead(effect.peer_id, effect.request_id, last, len(found) * ENTRY_BYTES)
        self._later(
            self.random.randint(*self.read_ms), self._read, replica, replica.incarnation, answer
        )

    def _MeasureLag(self, replica, effect, event, entries):  # noqa: N802
        lag = replica.core.end_index - effect.match_index
        answer = ev.LagMeasured(effect.peer_id, lag * ENTRY_BYTES)
        self._later(1, self._measured, replica, replica.incarnation, answer)

    def _measured(self, replica, incarnation, answer):
        if replica.up and replica.incarnation == incarnation:
            self.step(replica, answer)

    def _read(self, replica, incarnation, answer):
        if replica.up and replica.incarnation == incarnation:
            self.step(replica, answer)
            replica.reads.pop(answer.request_id, None)

    def _PushEntries(self, replica, effect, event, entries):  # noqa: N802
        message = effect.message
        entries = replica.reads.get(message.request_id)
        if entries is None:  # they came with the proposal
            indexes = range(message.first_index, message.last_index + 1)
            entries = [replica.log.at(index) for index in indexes]
        self._transmit(replica, message, entries)

    def _RefuseProposal(self, replica, effect, event, entries):  # noqa: N802
        self.finished[effect.proposal_id] = effect.code

    def _Committed(self, replica, effect, event, entries):  # noqa: N802
        self.checker.advanced(replica, replica.checked_to + 1, effect.index)
        replica.checked_to = effect.index
        for last in [last for last in replica.pending if last <= effect.index]:
            number, payloads = replica.pending.pop(last)
            assert number not in self.finished, "an append is answered once"
            self.finished[number] = ResponseCode.SUCCESS
            self.checker.acknowledged.update(payloads)

    def _FailPending(self, replica, effect, event, entries):  # noqa: N802
        self.failed[replica.id] += 1
        for number, _ in replica.pending.values():
            self.finished[number] = effect.code
        replica.pending.clear()

    def _RoleChanged(self, replica, effect, event, entries):  # noqa: N802
        self.changes.append((replica.id, effect.role, effect.term, effect.leader_id))
        if effect.role is Role.LEADER:
            self.checker.elected(replica, effect.term)

    def _Alarm(self, replica, effect, event, entries):  # noqa: N802
        self.alarms.append((replica.id, effect.text))

    # -- what tests ask for -------------------------------------------------------------------

    def elect(self, node_id=None):
        """Run until there is a leader known to all, or make `node_id` the one."""
        if node_id is not None:
            core = self.core(node_id)
            self.now = max(self.now, core.next_deadline_ms())
            self.step(self.nodes[node_id], ev.Ticked())
            self.run_until(lambda: core.role is Role.LEADER)
        self.run_until(self.agreed)
        return self.leader

    def agreed(self):
        """Whether every live member knows the one leader."""
        known = {(node.core.leader_id, node.core.term) for node in self.live()}
        return len(known) == 1 and self.leader is not None and self.leader in str(known)

    def in_step(self):
        """Whether all live logs are equal, durable and committed to their end."""
        ends = {
            (
                node.core.end_index,
                node.core.committed_index,
                node.core.durable_index,
                node.log.chain_at(node.log.end),
            )
            for node in self.live()
        }
        return self.agreed() and len(ends) == 1 and all(e[0] == e[1] == e[2] for e in ends)

    def converge(self, limit_ms=20_000):
        self.run_until(self.in_step, limit_ms)
        return self

    def ask(self, message, entries=(), chain_matches=True):
        """Deliver one request, let the disk finish; return the one answer to its sender."""
        (answer,) = self.deliver(message, entries, chain_matches)
        self.run_for(self.sync_ms[1] + 1)
        return answer

    def terms(self, node_id):
        return [entry.term for entry in self.nodes[node_id].log.entries]

    def pushes(self, kind, target=None):
        sent = [message for message in self.sent if isinstance(message, PushRequest)]
        to = [message for message in sent if target in (None, message.remote_id)]
        return [message for message in to if message.type is kind]
