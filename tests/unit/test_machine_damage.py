"""Machines that are damaged, or unlike the others: found, rebuilt, never believed."""

import errno
from dataclasses import replace

import pytest

from counting import Counter
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import (
    CorruptionError,
    LeaderPendingFullError,
    NoSpaceError,
    OutOfDescriptorsError,
    StorageError,
)
from quorumlog.model.messages.peer import DigestQuery, StateDigest
from quorumlog.node.replica import entry_applier, machine_scrub
from quorumlog.node.replica.queries import QUERY_WAIT_MS
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.status import status_of
from quorumlog.sim.cluster import SimulatedCluster
from store_access import block_of

OK = ResponseCode.SUCCESS
SETTINGS = {"state_machine": "counting:Counter", "digest_entries": 10}
TRIMMED = {
    "snapshot_threshold": 12,
    "max_snapshot_reserved_num": 1,
    "reset_snapshot_entries_but_keep_last_entries_num": 0,
    "follower_retention_bytes": 0,
}


class Sick(Counter):
    """`ails` maps methods to what they raise; `is_rotten`: a check finds it."""

    def __init__(self):
        super().__init__()
        self.ails, self.is_rotten = {}, False

    def check(self):
        if self.is_rotten:
            raise CorruptionError("a record is damaged", "counter", 0)


def _sick(name):
    method = getattr(Counter, name)

    def call(self, *arguments):
        if name in self.ails:
            raise self.ails[name]
        return method(self, *arguments)

    setattr(Sick, name, call)


for _name in (
    "apply",
    "query",
    "save_snapshot",
    "load_snapshot",
    "freeze",
    "digest",
    "on_role_change",
):
    _sick(_name)


class Group(SimulatedCluster):
    def __init__(self, count=3, **settings):
        super().__init__(1, count, **{**SETTINGS, **settings})
        self.invariants = []
        for node in self.nodes.values():
            node.start()
        self.until(lambda: self.leader() is not None and self.leader().core.is_ready)

    def make_replica(self, group, core, opened, environment, limits, machine):
        return Replica(group, core, opened, environment, limits, Sick())

    def until(self, condition, limit_ms=30_000):
        end_ms = self.clock.now_ms + limit_ms
        while not condition():
            assert self.clock.now_ms < end_ms, self.describe()
            self.run_until(self.clock.now_ms + 10)

    def machine(self, node):
        return node.running.applier.state.machine

    def followers(self):
        return [node for node in self.nodes.values() if node is not self.leader()]

    def append(self, body=b"1"):
        """Return what will hold the answer: (code, results)."""
        answers = []
        node = self.leader()

        def answer(response, results):
            answers.append((response.code, list(results)))

        node.enter(lambda: node.running.propose(block_of([body]), answer))
        return answers

    def fill(self, count):
        for _ in range(count):
            self.until(lambda: self.leader() is not None and self.leader().core.is_ready)
            answers = self.append()
            self.until(lambda a=answers: a)

    def totals(self):
        return {self.machine(node).total for node in self.nodes.values()}

    def rebuilds(self):
        return {name: n.running.counters.machine_rebuilds for name, n in self.nodes.items()}

    def converge(self, total):
        def has_converged():
            fit = all(node.running.applier.is_eligible for node in self.nodes.values())
            return fit and self.totals() == {total}

        self.until(has_converged)

    def ask(self, node, **how):
        answers = []
        applier = node.running.applier
        node.enter(
            lambda: applier.queries.ask(
                -1, b"", lambda *answer: answers.append(answer), "a client", **how
            )
        )
        return answers


def test_a_follower_that_compares_after_each_entry_applies_what_it_missed_at_once():
    group = Group(digest_entries=1)
    follower = group.followers()[0]
    follower.stop(power=False)
    group.fill(200)
    follower.start()
    group.until(lambda: follower.core.committed_index == group.leader().core.committed_index)
    group.until(lambda: group.machine(follower).total == 200, limit_ms=1_000)


def test_states_that_are_equal_are_found_equal_and_nothing_is_made_again():
    group = Group()
    group.fill(45)
    group.converge(45)
    assert group.rebuilds() == {"n0": 0, "n1": 0, "n2": 0}
    indexes = {node.running.applier.comparisons.agreed_index for node in group.nodes.values()}
    assert indexes == {39}
    assert status_of(group.leader().running, "n0").machine_compared_index == 39


@pytest.mark.parametrize("whose", ["follower", "leader"])
def test_who_differs_from_a_majority_begins_again(whose):
    group = Group()
    group.fill(15)
    node = group.leader() if whose == "leader" else group.followers()[0]
    group.machine(node).total += 1_000
    group.fill(20)
    group.converge(35)
    assert [name for name, count in group.rebuilds().items() if count] == [node.node_id]
    assert node.running.counters.alarms >= 1


def test_what_it_saved_meanwhile_is_not_believed_and_a_peer_gives_what_is_right():
    group = Group(**TRIMMED, count=3)
    group.fill(15)
    node = group.followers()[0]
    group.machine(node).total += 1_000
    node.running.applier.comparisons.agreed_index = -1
    asked = []
    node.enter(lambda: node.running.applier.snapshotter.ask(lambda *answer: asked.append(answer)))
    group.until(lambda: asked)
    group.fill(30)
    group.converge(45)
    assert group.rebuilds()[node.node_id] == 1
    group.fill(15)
    for each in group.nodes.values():
        each.stop(power=False)
        each.start()
    group.converge(60)


def quarantined(node):
    names = node.files.names("/node/g/snapshot")
    return sorted(int(name.removeprefix("aside_")) for name in names if name.startswith("aside_"))


def distrust(node, trusted_index=-1):
    node.enter(lambda: node.running.applier.rebuild("a test says so", trusted_index=trusted_index))


def test_snapshots_that_nobody_trusts_are_used_when_there_are_no_others():
    """Nothing is left of the state elsewhere: the log begins after them everywhere."""
    group = Group(**TRIMMED)
    group.fill(45)
    group.converge(45)
    assert min(node.running.log.before_begin_index for node in group.nodes.values()) >= 0
    for node in group.nodes.values():
        distrust(node)
    group.until(lambda: all(quarantined(node) for node in group.nodes.values()))
    group.until(
        lambda: all(node.running.applier.is_eligible for node in group.nodes.values()), 120_000
    )
    group.converge(45)
    assert any(node.running.counters.alarms for node in group.nodes.values())
    group.fill(15)
    group.converge(60)


def test_a_snapshot_that_is_not_trusted_is_kept_until_the_state_was_found_equal_again():
    group = Group(**TRIMMED)
    group.fill(45)
    group.converge(45)
    node = group.followers()[0]
    before = node.running.applier.state.newest_index
    distrust(node)
    group.until(lambda: quarantined(node))
    group.converge(45)
    assert quarantined(node) == [before]
    assert node.running.applier.state.newest_index >= 0, "a peer gave one"
    group.fill(20)
    group.converge(65)
    group.until(lambda: not quarantined(node))
    assert node.running.counters.alarms == 0


def test_what_is_not_trusted_is_not_used_after_a_restart_either():
    group = Group(**TRIMMED)
    group.fill(45)
    group.converge(45)
    node = group.followers()[0]
    group.machine(node).total += 1_000
    saved = []
    group.fill(1)
    group.until(lambda: node.running.applied_index == group.leader().running.applied_index)
    node.enter(lambda: node.running.applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    distrust(node)
    group.until(lambda: quarantined(node))
    node.stop(power=True)
    node.start()
    group.converge(46)
    assert quarantined(node)


@pytest.mark.parametrize("later", [7, -1])
def test_less_that_is_trusted_while_a_machine_is_made_again_counts(later, caplog):
    group = Group(1, **{**TRIMMED, "max_snapshot_reserved_num": 3})
    group.fill(50)
    node = group.leader()
    group.converge(50)
    node.enter(lambda: node.running.applier.rebuild("damage"))
    distrust(node, 40)
    distrust(node, later)
    kept = node.running.applier.snapshotter._snapshots.indexes()
    assert len(kept) == 3
    group.until(lambda: not node.running.applier.condition)
    group.converge(50)  # alone, it has taken them back at once
    assert [f"snapshot {index} is quarantined" in caplog.text for index in kept] == [True] * 3


def test_while_no_majority_agrees_those_that_differ_check_themselves():
    group = Group(2)
    group.fill(5)
    [node] = group.followers()
    group.machine(node).total += 1_000
    group.machine(node).is_rotten = True
    group.fill(10)
    group.converge(15)
    assert [name for name, count in group.rebuilds().items() if count] == [node.node_id]
    group.machine(node).total += 1_000  # whole by its own check: who is right is not known
    group.fill(10)
    assert sum(group.rebuilds().values()) == 1
    assert node.running.counters.alarms >= 2


def told(target, sender, index, *, term, request_id=0, **kind):
    """Have a replica told a digest in a member's name."""
    lie = StateDigest(
        group="g",
        local_id=sender.node_id,
        remote_id=target.node_id,
        term=term,
        index=index,
        digest=b"nonsense",
        request_id=request_id,
        **kind,
    )
    target.enter(lambda: target.running.receive(lie, memoryview(b"")))


VERDICT = {"is_verdict": True, "is_majority": True}


@pytest.mark.parametrize("request_id", [0, 1, 12_345])
def test_verdicts_and_reports_that_nobody_asked_for_change_nothing(request_id):
    """Neither of entries that are applied nor of those to come."""
    group = Group(**TRIMMED)
    group.fill(45)
    for node in group.nodes.values():  # what they agreed about is not known any more
        node.stop(power=False)
        node.start()
    group.until(lambda: group.leader() is not None and group.leader().core.is_ready)
    group.converge(45)
    leader, followers = group.leader(), group.followers()
    term = leader.core.term
    for _ in range(25):
        for node in followers:
            point = leader.running.applier.comparisons.points.after(leader.running.applied_index)
            for index in (point - 10, point):
                told(node, leader, index, term=term, request_id=request_id, **VERDICT)
                told(leader, node, index, term=term, request_id=request_id)
        group.fill(1)
    group.converge(70)
    assert sum(group.rebuilds().values()) == 0
    assert {node.running.applier.state.newest_index for node in group.nodes.values()} != {-1}


def test_a_question_in_anothers_name_brings_nobody_to_believe_what_follows():
    group = Group()
    group.fill(15)
    leader, (one, other) = group.leader(), group.followers()
    for target, sender in ((leader, one), (one, leader), (one, other)):
        question = DigestQuery(
            group="g",
            local_id=sender.node_id,
            remote_id=target.node_id,
            term=leader.core.term,
            request_id=7,
            index=9,
        )
        target.enter(lambda t=target, m=question: t.running.receive(m, memoryview(b"")))
        told(target, sender, 9, term=leader.core.term, request_id=7)
        told(target, sender, 9, term=leader.core.term, request_id=7, **VERDICT)
    group.fill(15)
    group.converge(30)
    assert sum(group.rebuilds().values()) == 0


@pytest.mark.parametrize("name", ["apply", "query", "save_snapshot", "freeze", "digest"])
@pytest.mark.parametrize("error", [CorruptionError("rotten", "counter", 0), StorageError("EIO")])
def test_damage_that_a_machine_meets_has_it_made_again(name, error):
    group = Group(1)
    group.fill(7)
    node = group.leader()
    first = group.machine(node)
    first.ails[name] = error
    asked, answers = [], []
    if name == "query":
        asked = group.ask(node)
    elif name == "apply":
        answers = group.append()
    elif name == "digest":
        group.append(), group.append(), group.append()
    else:
        node.enter(
            lambda: node.running.applier.snapshotter.ask(lambda *answer: asked.append(answer))
        )
    if (name, type(error)) == ("save_snapshot", StorageError):
        group.until(lambda: asked)
        assert asked[0][0] is ResponseCode.DISK_ERROR
        group.fill(1)
        assert group.rebuilds() == {"n0": 0}, "it says nothing of the state"
        assert group.machine(node) is first
        del first.ails[name]
        node.enter(
            lambda: node.running.applier.snapshotter.ask(lambda *answer: asked.append(answer))
        )
        group.until(lambda: len(asked) == 2)
        assert asked[1][0] is OK
        return
    group.until(lambda: group.machine(node) is not first)
    group.until(lambda: node.running.applier.is_eligible)
    assert group.rebuilds() == {"n0": 1}
    if name == "apply":
        group.until(lambda: answers)
    if name == "query":
        group.until(lambda: asked)
        assert (asked[0][0], asked[0][3]) == (OK, b"7"), "asked again of what is whole"
    group.until(lambda: group.leader() is not None and group.leader().core.is_ready)
    before = group.machine(node).total
    group.fill(1)
    assert group.machine(node).total == before + 1


def test_a_machine_that_keeps_its_state_applies_again_once_the_disk_has_room():
    group = Group(1)
    group.fill(3)
    node = group.leader()
    machine = group.machine(node)
    applier = node.running.applier
    type(machine).applied_index = property(lambda self: applier.state.applied_index)
    try:
        machine.ails["apply"] = NoSpaceError("the disk is full")
        answers = group.append()
        group.run_until(group.clock.now_ms + 1_500)
        assert not answers
        assert not applier.state.failed_text
        del machine.ails["apply"]
        group.until(lambda: applier.state.applied_index == node.core.committed_index)
        assert group.machine(node) is machine
        assert machine.total == 4
    finally:
        del type(machine).applied_index


NO_DESCRIPTOR = [
    OutOfDescriptorsError("state.mdb: opening failed: Too many open files"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENFILE, "Too many open files in system"),
]


def status_text(node):
    return status_of(node.running, node.node_id).machine_text


@pytest.mark.parametrize("error", NO_DESCRIPTOR, ids=repr)
@pytest.mark.parametrize("call", ["apply", "on_role_change"])
def test_a_machine_without_descriptors_ends_nothing_says_so_and_goes_on_later(call, error, caplog):
    group = Group(1)
    group.fill(3)
    node = group.leader()
    machine, applier = group.machine(node), node.running.applier
    type(machine).applied_index = property(lambda self: applier.state.applied_index)
    try:
        machine.ails[call] = error
        if call == "on_role_change":
            node.enter(lambda: applier.role_changed(99, Role.LEADER))
        group.append()
        group.until(lambda: status_text(node))
        assert "Too many open files" in status_text(node)
        assert "entries cannot be applied now" in caplog.text
        group.run_until(group.clock.now_ms + 2_500)
        assert not applier.state.failed_text
        assert group.rebuilds() == {"n0": 0}
        del machine.ails[call]
        group.until(lambda: machine.total == 4)
        group.until(lambda: not status_text(node))
    finally:
        del type(machine).applied_index


@pytest.mark.parametrize("error", [*NO_DESCRIPTOR, NoSpaceError("the disk is full")], ids=repr)
@pytest.mark.parametrize("call", ["digest", "freeze"])
def test_a_comparison_or_snapshot_that_cannot_be_had_now_costs_no_more_than_itself(call, error):
    group = Group(1)
    group.fill(3)
    node = group.leader()
    machine, applier = group.machine(node), node.running.applier
    machine.ails[call] = error
    node.enter(lambda: applier.snapshotter.ask(lambda *_: None))
    group.fill(12)  # beyond where states are compared
    group.until(lambda: machine.total == 15)
    del machine.ails[call]
    group.converge(15)
    assert not applier.state.failed_text
    assert group.rebuilds() == {"n0": 0}


@pytest.mark.parametrize("error", NO_DESCRIPTOR, ids=repr)
def test_a_machine_in_memory_that_could_not_apply_all_is_made_again(error):
    group = Group(1)
    group.fill(3)
    node = group.leader()
    group.machine(node).ails["apply"] = error
    group.append()
    group.converge(4)
    assert not node.running.applier.state.failed_text
    assert group.rebuilds() == {"n0": 1}


@pytest.mark.parametrize("error", [*NO_DESCRIPTOR, NoSpaceError("the disk is full")], ids=repr)
def test_a_question_that_cannot_be_answered_now_harms_nothing(error):
    group = Group(1)
    group.fill(3)
    node = group.leader()
    group.machine(node).ails["query"] = error
    answers = group.ask(node)
    group.until(lambda: answers)
    expected = ResponseCode.INTERNAL_ERROR
    if not isinstance(error, OSError):
        expected = ResponseCode.LEADER_PENDING_FULL
    assert answers[0][0] is expected
    assert group.rebuilds() == {"n0": 0}


@pytest.mark.parametrize("error", NO_DESCRIPTOR, ids=repr)
def test_a_snapshot_that_cannot_be_loaded_for_want_of_descriptors_is_loaded_later(error):
    group = Group(1)
    group.fill(3)
    node, saved = group.leader(), []
    machine, applier = group.machine(node), node.running.applier
    node.enter(lambda: applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    machine.ails["load_snapshot"] = error
    node.enter(lambda: applier.load(applier.state.newest))
    group.until(lambda: status_text(node))
    assert "Too many open files" in status_text(node)
    assert applier.is_loading
    assert not applier.state.failed_text
    del machine.ails["load_snapshot"]
    group.until(lambda: not applier.is_loading)
    assert group.rebuilds() == {"n0": 0}
    assert machine.total == 3


def test_the_scrub_finds_a_damaged_snapshot_before_it_is_needed_and_another_is_saved():
    group = Group(1, scrub_interval_hours=0.001)
    group.fill(20)
    node, saved = group.leader(), []
    node.enter(lambda: node.running.applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    index = saved[0][2]
    path = f"/node/g/snapshot/snapshot_{index:020d}"
    node.files.flip(path, 0, 1)
    group.fill(3)
    group.until(lambda: node.running.counters.snapshots_damaged == 1)
    group.until(lambda: node.running.applier.state.newest_index > index)
    assert not node.files.exists(path)


def test_the_scrub_finds_a_damaged_state_and_has_it_made_again():
    group = Group(1, scrub_interval_hours=0.001)
    group.fill(7)
    node = group.leader()
    group.machine(node).is_rotten = True
    group.until(lambda: group.rebuilds() == {"n0": 1})
    group.converge(7)
    assert not status_of(node.running, "n0").machine_text


def test_a_machine_that_is_made_again_is_not_shown_before_it_has_what_it_had(monkeypatch):
    """Brokers saw a past state of the cluster, and aborted transactions that were not in it."""
    monkeypatch.setattr(entry_applier, "APPLY_ENTRIES", 3)
    shown = []

    class Shown(Group):
        def make_replica(self, group, core, opened, environment, limits, machine):
            environment = replace(environment, applied=lambda one: shown.append(one.total))
            return super().make_replica(group, core, opened, environment, limits, machine)

    group, saved = Shown(1), []
    group.fill(10)
    applier = group.leader().running.applier
    group.leader().enter(lambda: applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    group.fill(10)
    group.leader().enter(lambda: applier.rebuild("a test says so"))
    group.until(lambda: group.rebuilds() == {"n0": 1})
    group.converge(20)
    assert shown[-1] == 20
    assert shown == sorted(shown)
    group.fill(1)
    assert shown[-1] == 21


def test_questions_wait_until_the_machine_has_again_what_it_had():
    group = Group(1)
    group.fill(7)
    node = group.leader()
    node.enter(lambda: node.running.applier.rebuild("a test says so"))
    asked = group.ask(node)
    status = status_of(node.running, "n0")
    assert not status.healthy
    assert "rebuilt" in status.health_text
    assert status.install_state == "rebuilding"
    group.until(lambda: asked)
    assert asked[0][3] == b"7", "not from an empty one"


@pytest.mark.parametrize("how", [{}, {"wait_ms": 0}, {"wait_ms": 1_000}], ids=repr)
def test_questions_do_not_wait_for_longer_than_they_may_while_a_machine_is_made_again(how):
    group = Group()
    group.fill(15)
    group.converge(15)
    node = group.followers()[0]
    distrust(node)
    group.converge(15)
    distrust(node)  # which waits for a minute now
    began_ms = group.clock.now_ms
    asked = group.ask(node, **how)
    group.until(lambda: asked)
    code, text, _, _ = asked[0]
    assert code is ResponseCode.TIMEOUT
    assert "rebuilt" in text
    waits_ms = QUERY_WAIT_MS + how.get("wait_ms", 0)
    assert waits_ms <= group.clock.now_ms - began_ms <= waits_ms + 50
    group.until(lambda: node.running.applier.is_eligible, 90_000)
    later = group.ask(node, **how)
    group.until(lambda: later)
    assert later[0][0] is OK


def test_a_machine_that_failed_has_nothing_to_do_any_more():
    group = Group(1, scrub_interval_hours=0.001)
    group.fill(5)
    node = group.leader()
    group.machine(node).ails["apply"] = ValueError("a bug")
    group.append()
    group.until(lambda: node.running.applier.state.failed_text)
    group.run_until(group.clock.now_ms + 20_000)  # beyond the next scrub
    assert node.running.context.timers.next_due_ms() > group.clock.now_ms


def test_a_replica_whose_disk_failed_is_not_woken_for_what_it_leaves_alone():
    group = Group(1)
    group.fill(5)
    replica = group.leader().running
    replica.write_failed(StorageError("a write failed"))
    group.run_until(group.clock.now_ms + 60_000)
    assert replica.context.timers.next_due_ms() > group.clock.now_ms


class _Crowded:
    """Has no thread for the calls of these numbers."""

    def __init__(self, executor, refused):
        self.executor, self.refused, self.calls = executor, refused, 0

    def run(self, work, done, failed):
        self.calls += 1
        if self.calls in self.refused:
            failed(LeaderPendingFullError("too much waits"))
        else:
            self.executor.run(work, done, failed)


def test_a_snapshot_is_read_on_from_where_it_was_when_no_thread_was_free(monkeypatch):
    monkeypatch.setattr(machine_scrub, "STEP_BYTES", 4)
    group = Group(1, scrub_interval_hours=1_000)
    group.fill(5)
    node, saved = group.leader(), []
    applier = node.running.applier
    node.enter(lambda: applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    begun, snapshots = [], applier.snapshotter._snapshots
    checking = type(snapshots).checking

    def counted(self, index):
        begun.append(index)
        return checking(self, index)

    monkeypatch.setattr(type(snapshots), "checking", counted)
    crowded = _Crowded(applier._environment.executor, {1, 3})
    applier.scrub._environment = replace(applier._environment, executor=crowded)
    node.enter(lambda: applier.scrub.suspect(saved[0][2]))
    group.until(lambda: begun and applier.scrub._to_check is None)
    assert crowded.calls > 4
    assert begun == [saved[0][2]]


def test_a_snapshot_that_could_not_be_opened_for_want_of_descriptors_is_read_later(monkeypatch):
    group = Group(1, scrub_interval_hours=1_000)
    group.fill(5)
    node, saved = group.leader(), []
    applier = node.running.applier
    node.enter(lambda: applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    index = saved[0][2]
    node.files.flip(f"/node/g/snapshot/snapshot_{index:020d}", 0, 1)
    snapshots, errors = applier.snapshotter._snapshots, [NO_DESCRIPTOR[0]]
    checking = type(snapshots).checking

    def short(self, index):
        if errors:
            raise errors.pop()
        return checking(self, index)

    monkeypatch.setattr(type(snapshots), "checking", short)
    node.enter(lambda: applier.scrub.suspect(index))
    group.until(lambda: node.running.counters.snapshots_damaged == 1)


class _Beside:
    """Knows when something runs beside the loop."""

    depth = 0

    def __init__(self, threads):
        self.threads = threads

    def run(self, work, done, failed):
        def noted():
            _Beside.depth += 1
            try:
                return work()
            finally:
                _Beside.depth -= 1

        self.threads.run(noted, done, failed)


def test_which_snapshot_is_the_newest_is_looked_for_beside_the_loop(monkeypatch):
    group = Group(1)
    group.fill(20)
    node, saved, called = group.leader(), [], []
    applier = node.running.applier
    node.enter(lambda: applier.snapshotter.ask(lambda *answer: saved.append(answer)))
    group.until(lambda: saved)
    environment = applier._environment
    beside = {
        "executor": _Beside(environment.executor),
        "machines": _Beside(environment.machines),
    }
    for part in (applier, applier.snapshotter, applier.scrub):
        part._environment = replace(environment, **beside)
    kind = type(applier.snapshotter._snapshots)

    def noting(name):
        method = getattr(kind, name)

        def noted(self, *arguments):
            called.append((name, _Beside.depth > 0))
            return method(self, *arguments)

        return noted

    for name in ("newest", "remove_broken", "quarantine", "restore_quarantined"):
        monkeypatch.setattr(kind, name, noting(name))
    index = saved[0][2]
    node.files.flip(f"/node/g/snapshot/snapshot_{index:020d}", 0, 1)
    node.enter(lambda: applier.scrub.suspect(index))
    group.until(lambda: applier.snapshotter.saved == 2)
    distrust(node)
    group.converge(20)
    node.files.flip(f"/node/g/snapshot/snapshot_{index:020d}", 0, 1)
    node.enter(lambda: applier.load(applier.state.newest))
    group.until(lambda: not applier.is_loading)
    assert {name for name, _ in called} >= {"newest", "remove_broken", "quarantine"}
    assert {name for name, is_beside in called if not is_beside} == set()
