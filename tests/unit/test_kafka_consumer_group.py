"""A consumer group by itself: Kafka's rules of the classic protocol, one after the other."""

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.group import BYTES_MAX, ConsumerGroup, GroupSettings, GroupState
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest, SyncRequest
from quorumlog.machine.cluster.commands import MEMBERS_MAX, SavedMember
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000
RANGE = (GroupProtocol("range", b"topics"),)


class Store:
    """What a group needs; saves are done at once unless they are held."""

    term = 7

    def __init__(self):
        self.saved, self.held, self.is_holding, self.ids = [], [], False, 0
        self.rebalances = 0
        self.time_ms = 1_000

    def now_ms(self):
        return self.time_ms

    def new_member_id(self, prefix):
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def generation_began(self):
        self.rebalances += 1

    def save(self, group, done):
        self.held.append((group, done))
        if not self.is_holding:
            self.release()

    def release(self, error=ErrorCode.NONE):
        held, self.held = self.held, []
        for group, done in held:
            if error is ErrorCode.NONE:
                self.saved.append(group)
            done(error)


class Consumers:
    """Consumers of one group, by the names of their clients, and what they were answered."""

    def __init__(self, **settings):
        settings = {"initial_delay_ms": 0, **settings}
        self.store, self.now_ms = Store(), 1_000
        self.group = ConsumerGroup("g", GroupSettings(**settings), self.store)
        self.joined, self.synced = {}, {}

    def join(self, client, member_id=None, **fields):
        """Ask to join; the id is the one that this client was given last."""
        if member_id is None:
            member_id = self.joined[client].member_id if client in self.joined else ""
        self.joined.pop(client, None)
        fields = {"instance_id": None, "protocols": RANGE, "knows_ids": False, **fields}
        request = JoinRequest(
            client_id=client,
            client_host="127.0.0.1",
            member_id=member_id,
            session_timeout_ms=fields.pop("session_ms", SESSION_MS),
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type=fields.pop("protocol_type", "consumer"),
            **fields,
        )
        self.group.join(
            request, self.now_ms, lambda answer: self.joined.__setitem__(client, answer)
        )
        return self.joined.get(client)

    def sync(self, client, assignments=None, **fields):
        known = self.joined[client]
        self.synced.pop(client, None)
        request = SyncRequest(
            fields.get("member_id", known.member_id),
            fields.get("instance_id"),
            fields.get("generation", known.generation),
            None,
            fields.get("protocol"),
            assignments or {},
        )
        self.group.sync(
            request, self.now_ms, lambda answer: self.synced.__setitem__(client, answer)
        )
        return self.synced.get(client)

    def heartbeat(self, client):
        known = self.joined[client]
        return self.group.heartbeat(known.member_id, None, known.generation, self.now_ms)

    def leave(self, client):
        return self.group.leave(self.joined[client].member_id, None, self.now_ms)

    def commits(self, client, generation=None):
        known = self.joined[client]
        generation = known.generation if generation is None else generation
        return self.group.may_commit(known.member_id, None, generation, self.now_ms)

    def wait(self, time_ms):
        """Let time pass, in steps in which all that is due is done."""
        end_ms = self.now_ms + time_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 100)
            self.group.tick(self.now_ms)

    def stable(self, *clients):
        """Have these join and be assigned their own names; the first one leads."""
        for client in clients:
            self.join(client)
        for client in clients[:-1]:  # a newcomer has them join again
            self.join(client)
        assignments = {self.joined[one].member_id: one.encode() for one in clients}
        for client in clients:
            self.sync(client, assignments if self.leads(client) else None)
        assert self.group.state is GroupState.STABLE
        return self

    def id_of(self, client):
        return next(one.member_id for one in self.group.members if one.client_id == client)

    def leads(self, client):
        return self.joined[client].leader == self.joined[client].member_id


@pytest.fixture
def consumers():
    return Consumers()


def test_b4_the_first_member_leads_and_is_told_all(consumers):
    answer = consumers.join("a")
    assert (answer.error, answer.generation, answer.protocol) == (ErrorCode.NONE, 1, "range")
    assert answer.leader == answer.member_id
    assert [(one.member_id, one.metadata) for one in answer.members] == [
        (answer.member_id, b"topics")
    ]
    assert consumers.sync("a", {answer.member_id: b"all"}).assignment == b"all"


def test_b4_an_empty_group_waits_for_more_members():
    consumers = Consumers(initial_delay_ms=DELAY_MS)
    assert consumers.join("a") is None
    consumers.wait(DELAY_MS - 500)
    assert consumers.join("b") is None
    consumers.wait(DELAY_MS - 500)
    assert consumers.joined == {}
    consumers.wait(500)
    assert {one.generation for one in consumers.joined.values()} == {1}
    assert [len(one.members) for one in consumers.joined.values()] == [2, 0]


def test_b4_members_that_keep_coming_delay_the_first_generation_by_the_rebalance_time_at_most():
    consumers = Consumers(initial_delay_ms=DELAY_MS)
    for number in range(REBALANCE_MS // 2_000 + 1):
        consumers.join(f"c{number}")
        consumers.wait(2_000)
    assert consumers.group.generation == 1


def test_b4_a_consumer_comes_again_with_the_id_that_it_is_given(consumers):
    answer = consumers.join("a", knows_ids=True)
    assert (answer.error, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "a-1")
    assert consumers.group.generation == 0
    answer = consumers.join("a", knows_ids=True)
    assert (answer.error, answer.member_id, answer.generation) == (ErrorCode.NONE, "a-1", 1)


def test_b4_an_id_that_was_given_and_not_used_in_time_is_unknown(consumers):
    consumers.join("a", knows_ids=True)
    consumers.wait(SESSION_MS)
    assert consumers.group.is_unused
    assert consumers.join("a", knows_ids=True).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_a_newcomer_has_all_join_again(consumers):
    consumers.stable("a")
    assert consumers.join("b") is None
    assert consumers.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumers.sync("a").error is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumers.join("a").generation == 2
    assert consumers.joined["b"].generation == 2
    assert len(consumers.joined["a"].members) == 2


def test_b4_who_does_not_join_again_in_time_is_removed(consumers):
    consumers.stable("a", "b")
    consumers.join("c")
    consumers.join("a")
    for _ in range(REBALANCE_MS // 5_000):
        consumers.heartbeat("b")  # it is alive, and too slow
        consumers.wait(5_000)
    assert {one.client_id for one in consumers.group.members} == {"a", "c"}
    assert consumers.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_who_is_silent_for_a_session_is_removed_and_the_others_join_again(consumers):
    consumers.stable("a", "b")
    consumers.wait(SESSION_MS - 100)
    assert consumers.heartbeat("a") is ErrorCode.NONE
    consumers.wait(100)
    assert consumers.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert [one.member_id for one in consumers.join("a").members] == [consumers.id_of("a")]
    assert consumers.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_who_leaves_is_removed_at_once(consumers):
    consumers.stable("a", "b")
    assert consumers.leave("b") is ErrorCode.NONE
    assert consumers.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumers.leave("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_a_group_whose_last_member_leaves_is_empty_and_saved_so(consumers):
    consumers.stable("a")
    consumers.leave("a")
    assert consumers.group.state is GroupState.EMPTY
    assert (consumers.store.saved[-1].generation, consumers.store.saved[-1].members) == (2, [])


def test_b4_nobody_is_told_an_assignment_that_is_not_saved(consumers):
    consumers.stable("a")
    consumers.store.is_holding = True
    consumers.join("b")
    consumers.join("a")
    assert consumers.sync("b") is None
    assert consumers.sync("a", {consumers.id_of("b"): b"all"}) is None
    consumers.store.release()
    assert consumers.synced["b"].assignment == b"all"
    saved = {one.member_id: one.assignment for one in consumers.store.saved[-1].members}
    assert saved[consumers.id_of("b")] == b"all"


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_MAX_SIZE_REACHED], ids=str
)
def test_b4_if_saving_fails_members_are_told_why(consumers, error):
    consumers.store.is_holding = True
    consumers.join("a")
    consumers.sync("a", {consumers.id_of("a"): b"all"})
    consumers.store.release(error)
    assert consumers.synced["a"].error is error
    assert consumers.group.state is GroupState.COMPLETING


def test_c4_ids_and_names_of_members_count_as_what_they_say(consumers):
    long = "x" * 249
    protocols = tuple(GroupProtocol(f"{long}{number}", b"") for number in range(9))
    for number in range(MEMBERS_MAX):
        answer = consumers.join(f"{number:04}{long}", protocols=protocols)
        if answer is not None and answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            break
    assert 100 < number < BYTES_MAX // (9 * 249)


def test_b4_an_assignment_that_is_saved_too_late_is_told_nobody(consumers):
    consumers.store.is_holding = True
    consumers.join("a")
    consumers.sync("a", {consumers.id_of("a"): b"all"})
    consumers.join("b")
    assert consumers.synced["a"].error is ErrorCode.REBALANCE_IN_PROGRESS
    consumers.store.release()
    assert consumers.group.state is GroupState.PREPARING
    consumers.join("a")
    assert [one.assignment for one in consumers.group.members] == [b"", b""]


def test_b4_without_the_leaders_assignment_the_leader_is_removed(consumers):
    consumers.join("a")
    consumers.join("b")
    consumers.join("a")
    consumers.sync("b")
    for _ in range(REBALANCE_MS // 5_000):
        consumers.heartbeat("a")
        consumers.wait(5_000)
    assert consumers.synced["b"].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumers.join("b").leader == consumers.id_of("b")


def test_b4_a_member_that_missed_the_answer_joins_the_same_generation(consumers):
    consumers.stable("a", "b")
    generation = consumers.group.generation
    assert consumers.join("b").generation == generation
    assert consumers.sync("b").assignment == b"b"
    assert consumers.group.state is GroupState.STABLE


def test_b4_a_leader_that_joins_again_wants_to_assign_anew(consumers):
    consumers.stable("a", "b")
    assert consumers.join("a") is None
    assert consumers.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS


def test_b4_a_member_that_is_subscribed_to_something_else_has_all_join_again(consumers):
    consumers.stable("a", "b")
    assert consumers.join("b", protocols=(GroupProtocol("range", b"others"),)) is None
    assert consumers.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_b4_the_protocol_is_one_that_all_know_and_most_like_best(consumers):
    one, two, three = (GroupProtocol(name, name.encode()) for name in ("one", "two", "three"))
    consumers.join("a", protocols=(one, two, three))
    consumers.join("b", protocols=(two, three))
    consumers.join("c", protocols=(three, two))
    consumers.join("a", consumers.id_of("a"), protocols=(one, two, three))
    assert consumers.group.protocol == "two"
    assert {one.metadata for one in consumers.joined["a"].members} == {b"two"}


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": (GroupProtocol("sticky", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_b4_a_member_that_shares_no_protocol_is_refused(consumers, fields):
    consumers.stable("a")
    assert consumers.join("b", **fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert consumers.heartbeat("a") is ErrorCode.NONE


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_g4_a_session_time_out_beyond_the_clusters_is_refused(consumers, session_ms):
    answer = consumers.join("a", session_ms=session_ms)
    assert answer.error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_c4_a_group_has_so_many_members_and_no_more(consumers):
    for number in range(MEMBERS_MAX):
        consumers.join(f"c{number}", knows_ids=True)
    assert consumers.join("late").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert consumers.join("c0", knows_ids=True).error is ErrorCode.NONE


def test_c4_members_say_no_more_than_can_be_saved(consumers):
    half = (GroupProtocol("range", bytes(BYTES_MAX // 2 + 1)),)
    assert consumers.join("a", protocols=half).error is ErrorCode.NONE
    assert consumers.join("b", protocols=half).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_c4_a_leader_assigns_no_more_than_can_be_saved(consumers):
    consumers.join("a")
    answer = consumers.sync("a", {consumers.id_of("a"): bytes(BYTES_MAX)})
    assert answer.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_b5_offsets_are_committed_by_members_of_this_generation(consumers):
    consumers.stable("a")
    assert consumers.commits("a") is ErrorCode.NONE
    assert consumers.commits("a", generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert consumers.group.may_commit("stranger", None, 1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert consumers.group.may_commit("", None, -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_b5_offsets_are_committed_while_members_join_and_not_before_they_are_assigned(consumers):
    consumers.stable("a")
    consumers.join("b")
    assert consumers.commits("a") is ErrorCode.NONE
    consumers.join("a")
    assert consumers.commits("a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_b5_without_members_anybody_may_commit(consumers):
    assert consumers.group.may_commit("", None, -1, 0) is ErrorCode.NONE
    assert consumers.group.may_commit("id-of-before-joining", None, -1, 0) is ErrorCode.NONE
    consumers.stable("a")
    assert consumers.group.may_commit("", None, -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID


# -- static members -------------------------------------------------------------------------------


def test_b4_a_static_member_that_comes_back_is_assigned_the_same_without_a_rebalance(consumers):
    consumers.stable("a")
    consumers.join("b", instance_id="two")
    consumers.join("a")
    consumers.sync("a", {consumers.id_of("b"): b"half"})
    old = consumers.joined["b"].member_id
    answer = consumers.join("b", "", instance_id="two")
    assert (answer.error, answer.generation) == (ErrorCode.NONE, 2)
    assert answer.member_id != old
    assert consumers.sync("b", instance_id="two").assignment == b"half"
    assert consumers.heartbeat("a") is ErrorCode.NONE
    assert consumers.group.heartbeat(old, "two", 2, 0) is ErrorCode.FENCED_INSTANCE_ID
    assert consumers.group.may_commit(old, "two", 2, 0) is ErrorCode.FENCED_INSTANCE_ID


def test_b4_a_static_leader_that_comes_back_need_not_assign(consumers):
    first = consumers.join("a", instance_id="one")
    consumers.sync("a", {first.member_id: b"all"}, instance_id="one")
    again = consumers.join("a", "", instance_id="one", may_skip=True)
    assert (again.leader, again.skips_assignment) == (again.member_id, True)
    assert [one.member_id for one in again.members] == [again.member_id]
    older = consumers.join("a", "", instance_id="one", may_skip=False)
    assert (older.leader, older.members) == (again.member_id, ())


def test_b4_a_static_member_that_joins_no_more_stays_until_its_session_is_over(consumers):
    consumers.stable("a")
    consumers.join("b", instance_id="two")
    consumers.join("a")
    consumers.sync("a", {consumers.id_of("b"): b"half"})
    consumers.sync("b", instance_id="two")
    consumers.wait(SESSION_MS - 100)
    consumers.heartbeat("a")
    consumers.wait(100)
    assert consumers.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    assert consumers.group.members.static == {}


def test_b4_a_static_member_that_a_generation_began_without_does_not_commit_in_it():
    """It may know one of this number from a coordinator that could not save it (full disks)."""
    protocols = SavedMember("s-1", "s", "s", "h", 300_000, REBALANCE_MS, b"topics", b"1")
    other = SavedMember("d-1", None, "d", "h", 300_000, REBALANCE_MS, b"topics", b"0")
    consumers = Consumers()
    record = ConsumerGroupRecord("g", 5, "consumer", "range", "d-1", (protocols, other))
    consumers.group.restore(record, consumers.now_ms)
    changed = (GroupProtocol("range", b"other topics"),)
    consumers.join("d", "d-1", session_ms=300_000, protocols=changed)
    consumers.now_ms += REBALANCE_MS
    consumers.group.tick(consumers.now_ms)
    assert consumers.joined["d"].generation == 6
    consumers.sync("d", {"d-1": b"0", "s-1": b"1"})
    group, illegal = consumers.group, ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("s-1", "s", 6, consumers.now_ms) is illegal
    assert group.may_commit("s-1", "s", 6, consumers.now_ms) is illegal
    joined = consumers.join("s", "s-1", instance_id="s", protocols=RANGE)
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 6)
    assert group.may_commit("s-1", "s", 6, consumers.now_ms) is ErrorCode.NONE


def restored(saved):
    """Return consumers of the same group at another coordinator."""
    later = Consumers()
    record = ConsumerGroupRecord(
        "g", saved.generation, saved.protocol_type, saved.protocol, saved.leader, saved.members
    )
    later.group.restore(record, later.now_ms)
    return later


@pytest.mark.parametrize("leads", [True, False])
def test_b4_the_next_coordinator_knows_the_id_that_a_static_member_got_in_a_rebalance(leads):
    """It was fenced as a former one with its own instance id, and ended."""
    consumers = Consumers()
    if leads:
        first = consumers.join("s", instance_id="static")
        consumers.sync("s", {first.member_id: b"all"}, instance_id="static")
    else:
        consumers.stable("a")
        consumers.join("s", instance_id="static")
        consumers.join("a")
        consumers.sync("a", {consumers.id_of("s"): b"half"})
    old = consumers.joined["s"].member_id
    assert consumers.join("new") is None, "all are to join again"
    store = consumers.store
    store.is_holding = True
    consumers.join("s", "", instance_id="static")
    if not leads:
        consumers.join("a")
    assert "s" not in consumers.joined, "its new id is not saved yet"
    store.release()
    answer = consumers.joined["s"]
    assert (answer.error, answer.generation) == (ErrorCode.NONE, consumers.group.generation)
    later = restored(store.saved[-1])
    known, heartbeat = answer.member_id, later.group.heartbeat
    now_ms = later.now_ms
    assert heartbeat(known, "static", answer.generation, now_ms) is ErrorCode.ILLEGAL_GENERATION
    assert heartbeat(known, "static", later.group.generation, now_ms) is ErrorCode.NONE
    assert heartbeat(old, "static", answer.generation, now_ms) is ErrorCode.FENCED_INSTANCE_ID
    assert (later.group.leader == known) is leads


@pytest.fixture
def renaming(consumers):
    """A static member has come back in a rebalance, and its new id is being saved."""
    first = consumers.join("s", instance_id="static")
    consumers.sync("s", {first.member_id: b"all"}, instance_id="static")
    consumers.join("new")
    consumers.store.is_holding = True
    consumers.join("s", "", instance_id="static")
    assert "s" not in consumers.joined
    return consumers


def test_b4_a_static_member_whose_new_id_is_being_saved_is_answered_when_another_coordinates(
    renaming,
):
    renaming.group.end(ErrorCode.NOT_COORDINATOR)
    assert renaming.joined["s"].error is ErrorCode.NOT_COORDINATOR
    renaming.store.release()
    assert renaming.group.state is GroupState.DEAD


def test_b4_whoever_has_the_instance_id_meanwhile_is_told_its_new_id(renaming):
    renaming.joined.pop("s", None)
    renaming.join("other", "", instance_id="static")
    assert renaming.joined["s"].error is ErrorCode.FENCED_INSTANCE_ID
    renaming.store.release()
    answer = renaming.joined["other"]
    assert (answer.error, answer.member_id) == (ErrorCode.NONE, renaming.id_of("other"))
    saved = {one.member_id for one in renaming.store.saved[-1].members}
    assert answer.member_id in saved


def test_b4_a_generation_that_begins_while_an_id_is_saved_is_followed_by_another_one(renaming):
    renaming.wait(REBALANCE_MS)
    assert renaming.joined["new"].generation == 2
    assert "s" not in renaming.joined
    renaming.store.release()
    renaming.join("new")
    assert renaming.joined["s"].generation == renaming.joined["new"].generation == 3


def test_b4_a_static_member_that_was_removed_in_the_rebalance_has_its_new_id_saved():
    consumers = Consumers()
    consumers.stable("a")
    consumers.join("s", instance_id="static")
    consumers.join("a")
    consumers.sync("a", {consumers.id_of("s"): b"half"})
    old = consumers.joined["s"].member_id
    consumers.group.leave(old, "static", consumers.now_ms)
    consumers.join("s", "", instance_id="static")
    consumers.join("a")
    later = restored(consumers.store.saved[-1]).group
    new, generation = consumers.joined["s"].member_id, later.generation
    assert new != old
    assert later.heartbeat(new, "static", generation, 1_000) is ErrorCode.NONE


def test_b4_an_absent_static_member_is_not_removed_for_a_sync_that_nobody_asked_of_it(consumers):
    consumers.stable("a")
    consumers.join("s", instance_id="static", session_ms=600_000)
    consumers.join("a", session_ms=600_000)
    consumers.sync("a", {consumers.id_of("s"): b"half"})
    consumers.join("new", session_ms=600_000)
    consumers.join("a", session_ms=600_000)
    consumers.wait(REBALANCE_MS)
    assert consumers.joined["a"].generation == 3
    consumers.wait(REBALANCE_MS)
    assert "static" in consumers.group.members.static


def test_b4_a_static_member_whose_new_id_cannot_be_saved_joins_again(consumers):
    first = consumers.join("s", instance_id="static")
    consumers.sync("s", {first.member_id: b"all"}, instance_id="static")
    consumers.join("new")
    consumers.store.is_holding = True
    consumers.join("s", "", instance_id="static")
    consumers.store.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert consumers.joined["s"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    consumers.store.is_holding = False
    assert consumers.join("s", "", instance_id="static").error is ErrorCode.NONE
    assert consumers.joined["new"].error is ErrorCode.NONE


def test_b4_a_static_member_is_removed_by_its_instance_id(consumers):
    consumers.join("b", instance_id="two")
    assert consumers.group.leave("", "two", consumers.now_ms) is ErrorCode.NONE
    assert consumers.group.leave("", "two", consumers.now_ms) is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_the_next_coordinator_goes_on_with_the_saved_generation(consumers):
    consumers.stable("a", "b")
    later = restored(consumers.store.saved[-1])
    later.joined = consumers.joined
    later.wait(SESSION_MS - 100)
    assert (later.heartbeat("a"), later.heartbeat("b")) == (ErrorCode.NONE, ErrorCode.NONE)
    assert later.sync("b").assignment == b"b"
    later.wait(SESSION_MS)
    assert later.group.state is GroupState.EMPTY


def test_b4_all_who_wait_are_answered_when_the_coordinator_changes(consumers):
    consumers.stable("a")
    consumers.join("b")
    consumers.group.end(ErrorCode.NOT_COORDINATOR)
    assert consumers.joined["b"].error is ErrorCode.NOT_COORDINATOR
