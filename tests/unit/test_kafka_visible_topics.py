"""Members by the consumer protocol whose regular expressions match topics that they may not see."""

from dataclasses import replace

from consumer_protocol_world import A, B, World
from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.permits import Authorizer
from quorumlog.auth.view import NO_SECURITY
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import visible_topics
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroupState
from quorumlog.kafka.groups.consumers import AWAY
from quorumlog.kafka.groups.target_assignment import TargetAssignment
from quorumlog.kafka.groups.visible_topics import Viewer, VisibleTopics
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

    def judge_only(self, judged):
        """Note in a list what is judged from now on."""
        shows = self.authorizer.shows

        def noted(principal, host, operation, topic):
            judged.append((principal, host, topic.name))
            return shows(principal, host, operation, topic)

        self.authorizer.shows = noted

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


def looked_at(monkeypatch):
    """Return a list of the members whose topics are looked at from now on."""
    looked, names_of = [], TargetAssignment.names_of

    def noted(target, member):
        looked.append(member.member_id)
        return names_of(target, member)

    monkeypatch.setattr(TargetAssignment, "names_of", noted)
    return looked


def taken_over(world, count):
    """Have members be in a group, none of them heard yet; return them with their principals."""
    world.put("a", A, count)
    users = [f"u{number}" for number in range(count)]
    principals = {user: f"User:{user}" if world.authorizer else "" for user in users}
    for user in users:
        world.join(user, pattern="a|b", principal=principals[user])
    for user in users * 4:
        held = world.group.members.by_id[user].held
        world.beat(user, held.epoch, held.assigned, principal=principals[user])
    world.take_over()
    return principals


def first_heartbeats(world, principals):
    for user, principal in principals.items():
        held = world.group.members.by_id[user].held
        answer = world.beat(user, held.epoch, held.assigned, principal=principal)
        assert answer.error is ErrorCode.NONE


def test_after_a_change_of_coordinator_members_of_one_subscription_are_looked_at_once(monkeypatch):
    world = World()
    principals = taken_over(world, 20)
    looked = looked_at(monkeypatch)
    first_heartbeats(world, principals)
    assert len(looked) == 1


def test_after_a_change_of_coordinator_each_member_is_looked_at_when_it_is_heard(monkeypatch):
    world = Secured(**{f"u{number}": ["a"] for number in range(20)})
    principals = taken_over(world, 20)
    looked = looked_at(monkeypatch)
    first_heartbeats(world, principals)
    assert len(looked) == 20 + 20, "all of them once, then each that is heard"


def test_what_was_judged_is_remembered_though_there_is_no_room_for_all_of_it(monkeypatch):
    monkeypatch.setattr(visible_topics, "KNOWN_MAX", 40)
    world, judged = Secured(alice=["t1"]), []
    world.judge_only(judged)
    visible, names = VisibleTopics(world.authorizer), frozenset(f"t{one}" for one in range(9))
    viewers = [Viewer("User:alice", f"192.0.2.{number}") for number in range(5)]
    for viewer in viewers * 3:
        assert visible.of(viewer, names) == {"t1"}
    assert len(judged) == 5 * 9 + 2 * 9, "that of the last one is not remembered"
    for viewer in [viewers[4]] * 3:
        assert visible.of(viewer, names) == {"t1"}
    assert len(judged) == 5 * 9 + 5 * 9 - 9, "it is once the others were forgotten"


def test_members_who_match_no_topic_are_remembered_within_a_bound(monkeypatch):
    monkeypatch.setattr(visible_topics, "KNOWN_MAX", 10)
    visible = VisibleTopics(Secured().authorizer)
    for number in range(100):
        visible.of(Viewer("User:alice", f"192.0.2.{number}"), frozenset())
        assert len(visible._known) <= 10
