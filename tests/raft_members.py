"""A simulated group whose members come, go and lose their disks, with requests made of its leader.

Each replica numbers its data directory; an emptied one gets another number. A read that is answered
must see everything that any replica had committed when it was asked.
"""

import itertools

from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import Member
from quorumlog.model.messages.peer import PushRequest
from quorumlog.raft import events as ev
from quorumlog.raft.config import RaftConfig
from raft_cluster import Cluster, Replica
from raft_messages import Contents


class Group(Cluster):
    """Begins with the votes of all its founders, unless it is `founded` already."""

    def __init__(self, count=3, seed=0, *, founded=False, **options):
        super().__init__(count, seed, **options)
        self.founders = tuple(self.ids)
        self.texts = {}
        self._requests = itertools.count(1)
        self._must_see = {}
        for replica in self.nodes.values():
            replica.founded = founded
            replica.directory = 0 if founded else 1

    def config_of(self, node_id):
        others = () if node_id in self.founders else (node_id,)
        return RaftConfig(
            group="g",
            self_id=node_id,
            members=(*self.founders, *others),
            incarnation=self.nodes[node_id].directory,
            **self.timing,
        )

    def start_stranger(self, node_id):
        """Start a node that the group does not know yet."""
        self.ids.append(node_id)
        replica = self.nodes[node_id] = Replica(node_id, Contents(), HardState())
        replica.founded, replica.directory, replica.up = False, 1, False
        return self.start(node_id)

    def wipe(self, node_id):
        """Empty the disk: whatever was promised is forgotten."""
        super().wipe(node_id)
        replica = self.nodes[node_id]
        replica.stored_state = HardState()
        replica.founded = False
        replica.directory += 1

    # -- requests -----------------------------------------------------------------------------

    def change(self, change, at=None):
        """Ask for a change of members; `answers[number]` is its outcome."""
        number = next(self._requests)
        self.step(self.nodes[at or self.leader], ev.ChangeRequested(number, change))
        return number

    def add(self, node_id, *, joining=False, at=None):
        return self.change(ev.AddMember(Member(node_id, joining=joining)), at)

    def promote(self, node_id, at=None):
        return self.change(ev.PromoteMember(node_id), at)

    def remove(self, node_id, at=None):
        return self.change(ev.RemoveMember(node_id), at)

    def transfer(self, target, at=None, term=-1):
        number = next(self._requests)
        self.step(self.nodes[at or self.leader], ev.TransferRequested(number, target, term))
        return number

    def read(self, at=None):
        """Ask for a read; `answers[number]` is an index, or the code of a refusal."""
        number = next(self._requests)
        self._must_see[number] = max(self.checker.committed, default=-1)
        self.step(self.nodes[at or self.leader], ev.ReadRequested(number))
        return number

    def outcome(self, number, limit_ms=20_000):
        self.run_until(lambda: number in self.answers, limit_ms)
        return self.answers[number]

    def commits(self, node_id=None, limit_ms=2_000):
        """Whether an append by the leader is committed in time."""
        number = self.propose(node_id)
        self.run_until(lambda: number in self.finished, limit_ms)
        return self.finished[number] is ResponseCode.SUCCESS

    def _Finished(self, replica, effect, event, entries):  # noqa: N802
        assert effect.request_id not in self.answers, "a request is answered once"
        self.texts[effect.request_id] = effect.text
        super()._Finished(replica, effect, event, entries)

    def _ReadReady(self, replica, effect, event, entries):  # noqa: N802
        assert effect.request_id not in self.answers, "a request is answered once"
        assert effect.index >= self._must_see[effect.request_id], "a stale read"
        super()._ReadReady(replica, effect, event, entries)

    # -- who belongs --------------------------------------------------------------------------

    def voters(self, node_id=None):
        return set(self.core(node_id or self.leader).membership.voters)

    def learners(self, node_id=None):
        return set(self.core(node_id or self.leader).membership.learners)

    def shut_down(self, *node_ids):
        for node_id in node_ids:
            self.crash(node_id)


def entries_to(*node_ids):
    """Chooses the pushes of entries to these."""
    return lambda message: carries_entries(message) and message.remote_id in node_ids


def entries_but_to(*node_ids):
    """Chooses the pushes of entries to all but these."""
    return lambda message: carries_entries(message) and message.remote_id not in node_ids


def carries_entries(message):
    return isinstance(message, PushRequest) and message.type is PushType.APPEND


def no_message(message):
    return False


def started_group(count=3, seed=0, **options):
    """A group that has started, all in step, and its leader."""
    group = Group(count, seed, **options).start()
    leader = group.elect()
    group.converge()
    return group, leader
