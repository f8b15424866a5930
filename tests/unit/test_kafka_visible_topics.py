"""Members by the consumer protocol whose regular expressions match topics that they may not see."""

from dataclasses import replace

from consumer_protocol_world import A, B, World
from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.permits import Authorizer
from quorumlog.auth.view import NO_SECURITY
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroupState
from quorumlog.kafka.groups.consumers import AWAY
from quorumlog.machine.cluster.commands import AlterAcls
from quorumlog.machine.cluster.security import Security

READ = Operation.READ, Permission.ALLOW


class Secured(World):
    """Members whose regular expressions match what they may not see, too."""

    def __init__(self, **seen):
        self.security = NO_SECURITY
        self.authorizer = Authorizer(lambda: self.security)
        self.allow(**seen)
        super().__init__()
        self.put("hidden", B, 2)

    def allow(self, **seen):
        """Have users see topics."""
        acls = Security()
        added = [
            Acl(ResourceType.TOPIC, topic, PatternType.LITERAL, f"User:{user}", "*", *READ)
            for user, topics in seen.items()
            for topic in topics
        ]
        acls.alter_acls(AlterAcls("", "", added, []))
        self.security = replace(acls.view(), version=self.security.version + 1)

    def as_user(self, *users):
        """Have members, named as their users, do what they are told until nothing changes."""
        for _ in range(8):
            for user in users:
                held = self.group.members.by_id[user].held
                self.beat(user, held.epoch, held.assigned, principal=f"User:{user}")

    def topics_of(self, user):
        return {topic_id for topic_id, _ in self.group.members.by_id[user].held.assigned}


def test_a_hidden_topic_that_a_regular_expression_matches_is_not_there():
    world = Secured(alice=["a"])
    answer = world.join("alice", pattern=".*", principal="User:alice")
    assert answer.error is ErrorCode.NONE
    assert {topic_id for topic_id, _ in answer.assigned} == {A}
    assert world.group.subscribed == {"a"}

    without = Secured(alice=["a"])
    del without.topics["hidden"]
    told = without.join("alice", pattern=".*", principal="User:alice")
    assert told == answer, "nothing tells that there is a topic more"


def test_members_who_see_different_topics_have_all_that_anybody_sees():
    world = Secured(alice=["a"], bob=["a", "hidden"])
    world.join("alice", pattern=".*", principal="User:alice")
    world.join("bob", pattern=".*", principal="User:bob")
    world.as_user("alice", "bob")
    assert world.topics_of("alice") == {A}
    assert {(B, 0), (B, 1)} <= world.group.members.by_id["bob"].held.assigned
    assert world.group.state is ProtocolGroupState.STABLE
    assert len(world.group.members.owners) == 6, "each partition has somebody"


def test_a_right_that_is_given_or_taken_away_changes_what_a_member_is_assigned():
    world = Secured(alice=["a"])
    world.join("alice", pattern=".*", principal="User:alice")
    world.as_user("alice")
    epoch = world.group.epoch
    world.as_user("alice")
    assert world.group.epoch == epoch, "nothing has changed"
    world.allow(alice=["a", "hidden"])
    world.as_user("alice")
    assert world.topics_of("alice") == {A, B}
    world.allow(alice=["a"])
    world.as_user("alice")
    assert world.topics_of("alice") == {A}


def test_a_right_that_is_taken_away_counts_at_once_in_a_large_group():
    world = Secured(alice=["a", "hidden"])
    world.put("a", A, 5_000)
    world.join("alice", pattern=".*", principal="User:alice")
    world.now_ms += 10_000
    world.as_user("alice")
    world.put("a", A, 5_001)  # the next target has to wait from now on
    world.as_user("alice")
    world.allow(alice=["a"])
    held = world.group.members.by_id["alice"].held
    told = world.beat("alice", held.epoch, held.assigned, principal="User:alice")
    assert {topic_id for topic_id, _ in told.assigned} == {A}


def test_members_have_what_they_had_until_the_next_coordinator_hears_of_them():
    world = Secured(alice=["a"], bob=["a", "hidden"])
    world.join("alice", pattern=".*", principal="User:alice")
    world.join("bob", pattern=".*", principal="User:bob")
    world.as_user("alice", "bob")
    epoch, had = world.group.epoch, dict(world.group.members.owners)
    world.take_over()
    world.as_user("alice")
    assert world.group.members.owners == had
    world.as_user("alice", "bob")
    assert (world.group.epoch, world.group.members.owners) == (epoch, had)


def test_a_static_member_that_comes_back_sees_what_it_may():
    world = Secured(alice=["a"])
    alice = {"instance_id": "i", "principal": "User:alice"}
    world.join("alice", pattern=".*", **alice)
    world.beat("alice", AWAY, **alice)
    answer = world.join("again", pattern=".*", **alice)
    assert {topic_id for topic_id, _ in answer.assigned} == {A}
