"""A state machine and its replica: entries and queries, failures, snapshots."""

import dataclasses

import pytest

from counting import Counter
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.entry import Entry
from quorumlog.model.errors import ConfigError, LeaderPendingFullError
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.model.wording import counted
from quorumlog.node.machines import machine_class
from quorumlog.node.replica import entry_applier
from quorumlog.node.replica import snapshotter as saves_module
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.machine_jobs import ApplyBatch, MachineError
from quorumlog.node.replica.queries import (
    ANSWER_BYTES_TOGETHER,
    QUERIES_TOGETHER,
    QUERY_WAIT_MS,
)
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.snapshotter import RETRY_MS as SAVE_RETRY_MS
from quorumlog.raft.events import TransferRequested
from quorumlog.sim.cluster import SimulatedCluster
from store_access import block_of

OK = ResponseCode.SUCCESS


class Traced(Counter):
    """Notes what it is asked to do; `fails` are the names of methods that raise."""

    def __init__(self):
        super().__init__()
        self.trace, self.fails = [], set()


def _noted(name):
    method = getattr(Counter, name)

    def call(self, *arguments):
        self.trace.append((name, *arguments))
        if name in self.fails:
            raise RuntimeError(f"{name} raises")
        return method(self, *arguments)

    setattr(Traced, name, call)


for _name in ("apply", "query", "save_snapshot", "load_snapshot", "freeze", "digest"):
    _noted(_name)
_noted("on_role_change")


class Gate:
    """Gives jobs to a door, holds them while `is_shut`, refuses the next `refusals`."""

    def __init__(self, door):
        self.door, self.held, self.is_shut, self.refusals = door, [], False, 0

    def run(self, work, done, failed):
        if self.refusals:
            self.refusals -= 1
            failed(LeaderPendingFullError("too much waits"))
        elif self.is_shut:
            self.held.append((work, done, failed))
        else:
            self.door.run(work, done, failed)

    def open(self):
        self.is_shut, held, self.held = False, self.held, []
        for job in held:
            self.door.run(*job)


class Group(SimulatedCluster):
    """Simulated nodes with machines; all of them run, and one leads."""

    def __init__(self, count=1, *, machine=Traced, prepare=None, **settings):
        self.machine_class = machine
        self.machines, self.gates, self.backgrounds = {}, {}, {}
        super().__init__(1, count, **{"state_machine": "counting:Counter", **settings})
        self.invariants = []
        if prepare is not None:
            prepare(self)
        for node in self.nodes.values():
            node.start()
        self.until(lambda: self.leader() is not None and self.leader().core.is_ready)

    def make_replica(self, group, core, opened, environment, limits, machine):
        name = core.self_id
        self.gates[name], self.backgrounds[name] = (
            Gate(environment.machines),
            Gate(environment.executor),
        )
        environment = dataclasses.replace(
            environment, machines=self.gates[name], executor=self.backgrounds[name]
        )
        machine = self.machines[name] = self.machine_class() if group.state_machine else None
        return Replica(group, core, opened, environment, limits, machine)

    def passes(self, milliseconds):
        self.run_until(self.clock.now_ms + milliseconds)

    def until(self, condition, limit_ms=20_000):
        end_ms = self.clock.now_ms + limit_ms
        while not condition():
            assert self.clock.now_ms < end_ms, self.describe()
            self.passes(10)

    @property
    def node(self):
        leader = self.leader()
        return self.nodes["n0"] if leader is None else leader

    replica = property(lambda self: self.node.running)
    applier = property(lambda self: self.replica.applier)
    machine = property(lambda self: self.applier.state.machine)
    gate = property(lambda self: self.gates[self.node.node_id])

    def append(self, *bodies):
        """Return what will hold the answer: (code, results)."""
        answers = []

        def answer(response, results):
            answers.append((response.code, list(results)))

        self.node.enter(lambda: self.replica.propose(block_of(bodies), answer))
        return answers

    def ask(self, index=-1, body=b"", **options):
        """Return what will hold the answer: (code, text, applied index, answer)."""
        answers = []

        def ask():
            self.applier.queries.ask(
                index, body, lambda *answer: answers.append(answer), None, **options
            )

        self.node.enter(ask)
        return answers

    def ask_to_save(self):
        answers = []
        self.node.enter(
            lambda: self.applier.snapshotter.ask(lambda *answer: answers.append(answer))
        )
        return answers

    def answered(self, answers):
        self.until(lambda: answers)
        (answer,) = answers
        return answer

    def filled(self, count, body=b"1"):
        """Append so many entries; each is acknowledged."""
        while count:
            together = min(count, 50)
            assert self.answered(self.append(*[body] * together))[0] is OK
            count -= together

    def restart(self):
        self.node.stop(power=False)
        self.nodes["n0"].start()


# -- applying -----------------------------------------------------------------------------------


def backlog(group, count):
    """Have so many entries committed that the machine was not given yet; then let it go on."""
    group.gate.is_shut = True
    last = group.replica.log.end_index + count
    answers = [group.append(*[b"1"] * 50) for _ in range(count // 50)]
    group.until(lambda: group.replica.core.committed_index == last)
    group.machine.trace.clear()
    return answers


@pytest.mark.parametrize(("entries", "size", "most"), [(10, 1 << 20, 10), (1_000, 500, 10)])
def test_batches_are_bounded_by_entries_and_by_bytes(monkeypatch, entries, size, most):
    monkeypatch.setattr(entry_applier, "APPLY_ENTRIES", entries)
    monkeypatch.setattr(entry_applier, "APPLY_BYTES", size)
    group = Group()
    answers = backlog(group, 200)
    group.gate.open()
    assert [group.answered(answer)[0] for answer in answers] == [OK] * 4
    given = [len(rest[0]) for name, *rest in group.machine.trace if name == "apply"]
    assert sum(given) == group.machine.total == 200
    assert 2 <= max(given[1:]) <= most, "the first of them was prepared before"


def test_a_question_does_not_wait_for_a_long_backlog(monkeypatch):
    monkeypatch.setattr(entry_applier, "APPLY_ENTRIES", 5)
    group = Group()
    backlog(group, 500)
    asked = group.ask()
    group.gate.open()
    code, _, applied, answer = group.answered(asked)
    assert code is OK
    assert int(answer) <= 10, "after a batch or two, not after all"
    assert applied < group.replica.core.committed_index


def test_entries_do_not_wait_for_endless_questions(monkeypatch):
    monkeypatch.setattr(entry_applier, "APPLY_ENTRIES", 5)
    group = Group()
    answers = backlog(group, 100)
    asked = []

    def again(*answer):
        asked.append(answer)
        group.applier.queries.ask(-1, b"", again, None)

    group.node.enter(lambda: group.applier.queries.ask(-1, b"", again, None))
    group.gate.open()
    group.until(lambda: all(answers), limit_ms=2_000)
    assert group.machine.total == 100
    assert len(asked) > 5


def test_nothing_is_applied_beyond_what_is_committed_and_durable_here():
    group = Group(3)
    group.filled(10)
    group.node.stalled_until_us = group.clock.now_us + 400_000
    group.append(b"1", b"1")
    was_ahead = False
    for _ in range(80):
        group.passes(10)
        for node in group.nodes.values():
            core = node.core
            was_ahead |= core.committed_index > core.durable_index
            bound = min(core.committed_index, core.durable_index)
            assert node.running.applier.state.applied_index <= bound
    assert was_ahead
    group.until(lambda: {machine.total for machine in group.machines.values()} == {12})


def test_results_are_matched_to_the_appends_that_wait():
    group = Group()
    group.gate.is_shut = True
    sizes = [1, 7, 2, 50, 1, 1, 30, 3] * 4
    answers = [group.append(*[b"1"] * size) for size in sizes]
    group.passes(100)
    group.gate.open()
    total = 0
    for size, waiting in zip(sizes, answers, strict=True):
        code, results = group.answered(waiting)
        assert code is OK
        assert results == [b"%d" % n for n in range(total + 1, total + size + 1)]
        total += size


def test_results_are_the_right_ones_after_leadership_was_lost_in_between():
    group = Group(3)
    group.filled(3, b"1")
    old = group.node
    others = [name for name in group.nodes if name != old.node_id]
    cut = {pair for name in others for pair in ((name, old.node_id), (old.node_id, name))}
    group.network.cut |= cut
    lost = [group.append(b"1000", b"1000") for _ in range(5)]
    group.until(lambda: group.node is not old and group.node.core.is_ready)
    assert group.answered(group.append(b"10")) == (OK, [b"13"])
    group.network.cut -= cut
    group.until(lambda: old.core.committed_index == group.replica.core.committed_index)
    group.node.ask(lambda number: TransferRequested(number, old.node_id))
    group.until(lambda: group.leader() is old and old.core.is_ready)
    answers = [group.append(b"100", b"100") for _ in range(5)]
    for number, waiting in enumerate(answers):
        begin = 13 + 200 * number
        assert group.answered(waiting) == (OK, [b"%d" % (begin + 100), b"%d" % (begin + 200)])
    assert all(len(waiting) == 1 and waiting[0][0] is not OK for waiting in lost)


# -- questions ----------------------------------------------------------------------------------


def test_questions_of_one_turn_share_one_proof(monkeypatch):
    group = Group(3)
    group.filled(3)
    reads, answers = [], []
    read = group.replica.pending_requests.read
    monkeypatch.setattr(
        group.replica.pending_requests, "read", lambda done: (reads.append(done), read(done))
    )

    def ask():
        for _ in range(40):
            group.applier.queries.ask_linearizable(
                b"", lambda *answer: answers.append(answer), None
            )

    group.node.enter(ask)
    group.until(lambda: len(answers) == 40)
    assert len(reads) == 1
    assert {(code, answer) for code, _, _, answer in answers} == {(OK, b"3")}


def test_clients_take_turns_with_their_questions():
    group = Group()
    group.filled(3)
    group.gate.is_shut = True
    answered = []

    def ask(client):
        def answer(*_):
            answered.append(client)

        group.applier.queries.ask_linearizable(b"", answer, client)

    def ask_all():
        for client in ["many"] * (3 * QUERIES_TOGETHER) + ["one", "other"]:
            ask(client)

    group.node.enter(ask_all)
    group.passes(100)
    group.gate.open()
    group.until(lambda: len(answered) == 3 * QUERIES_TOGETHER + 2)
    # a job may be full before the others have asked
    assert max(answered.index("one"), answered.index("other")) < QUERIES_TOGETHER + 3


def test_questions_of_a_client_that_has_disconnected_are_not_answered():
    """Thousands of them, each with a large answer, had others wait for half a minute."""
    group = Group()
    group.filled(3)
    group.gate.is_shut = True
    answered, queries = [], group.applier.queries

    def ask(client):
        def answer(*_):
            answered.append(client)

        queries.ask_linearizable(b"", answer, client)
        queries.ask(-1, b"", answer, client)
        queries.ask(10_000, b"", answer, client, wait_ms=300)

    first = group.ask()  # the job that holds up all others
    group.node.enter(lambda: [ask(client) for client in ("gone", "here") * 5])
    group.node.enter(lambda: queries.forget("gone"))  # some are being confirmed
    group.passes(100)
    group.node.enter(lambda: [ask(client) for client in ("gone", "here") * 5])
    group.passes(100)
    group.node.enter(lambda: queries.forget("gone"))
    group.gate.open()
    group.until(lambda: first and len(answered) == 30, limit_ms=1_000)
    group.passes(1_000)
    assert answered == ["here"] * 30
    assert not queries.is_waiting


def test_a_question_waits_for_an_index_no_longer_than_a_fetch():
    """A client that asks for more repeats it: nobody can hold a node's memory for years."""
    group = Group()
    answers, began_ms = [], group.clock.now_ms
    request = QueryRequest(group="g", linearizable=False, after_index=10_000, wait_ms=1 << 50)
    queries, most_ms = group.applier.queries, group.replica.context.limits.fetch_wait_ms_max
    group.node.enter(
        lambda: queries.take(request, b"", lambda *answer: answers.append(answer), None)
    )
    group.until(lambda: answers, limit_ms=2 * most_ms)
    assert most_ms <= group.clock.now_ms - began_ms <= most_ms + 50
    assert answers[0][0] is OK


def test_questions_left_over_by_a_job_are_refused_in_time_if_the_machine_is_rebuilt(monkeypatch):
    group = Group(machine=Talkative)
    group.gate.is_shut = True
    first, answers = group.ask(), [group.ask() for _ in range(20)]
    group.gate.open()
    group.gate.is_shut = True
    group.until(lambda: first and group.gate.held)  # the second job has all others
    group.passes(QUERY_WAIT_MS + 100)  # their time is over meanwhile
    monkeypatch.setattr(type(group.applier), "is_eligible", False)
    group.gate.open()
    group.until(lambda: all(answers), limit_ms=3 * QUERY_WAIT_MS)
    codes = [answer[0] for (answer,) in answers]
    assert codes[:3] == [OK] * 3
    assert codes[3:] == [ResponseCode.TIMEOUT] * 17


class Talkative(Traced):
    """Answers with much."""

    def query(self, question):
        super().query(question)
        return bytes(ANSWER_BYTES_TOGETHER // 2 - 1)


def test_a_job_answers_no_more_questions_than_can_be_sent_together():
    group = Group(machine=Talkative)
    group.gate.is_shut = True
    answers = [group.ask() for _ in range(20)]
    group.passes(100)
    sizes, door = [], group.gate.door

    class Door:
        def run(self, work, done, failed):
            def weighed():
                found = work()
                sizes.append(sum(len(answer) for _, _, answer in found))
                return found

            door.run(weighed, done, failed)

    group.gate.door = Door()
    group.gate.open()
    group.until(lambda: all(answers))
    assert {answer[0] for (answer,) in answers} == {OK}
    assert len(sizes) >= 7
    assert max(sizes) < 2 * ANSWER_BYTES_TOGETHER


def test_a_question_whose_index_never_comes_is_refused_in_time():
    group = Group()
    waiting, begin_ms = group.ask(index=10_000), group.clock.now_ms
    code, text, applied, answer = group.answered(waiting)
    assert (code, applied, answer) == (ResponseCode.TIMEOUT, group.applier.state.applied_index, b"")
    assert "10000 is not applied here yet" in text
    assert QUERY_WAIT_MS - 5 <= group.clock.now_ms - begin_ms <= QUERY_WAIT_MS + 50


@pytest.mark.parametrize("wait_ms", [0, 300])
def test_a_patient_question_is_answered_at_its_deadline(wait_ms):
    group = Group()
    group.filled(2)
    waiting, begin_ms = group.ask(index=10_000, wait_ms=wait_ms), group.clock.now_ms
    code, _, applied, answer = group.answered(waiting)
    assert (code, applied, answer) == (OK, group.applier.state.applied_index, b"2")
    assert wait_ms - 5 <= group.clock.now_ms - begin_ms <= wait_ms + 50


def test_a_question_is_answered_as_soon_as_its_index_is_applied():
    group = Group()
    waiting = group.ask(index=group.applier.state.applied_index + 2)
    assert group.answered(group.append(b"5"))[0] is OK
    group.passes(50)
    assert not waiting
    group.append(b"6")
    assert group.answered(waiting)[3] == b"11"


# -- machines that raise ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["on_role_change", "apply", "freeze"])
def test_a_machine_that_raises_is_given_nothing_more(name):
    group = Group()
    group.filled(3)
    node, applier, machine = group.node, group.applier, group.machine
    waiting = group.ask(index=10_000)
    machine.fails.add(name)
    if name == "on_role_change":
        node.enter(lambda: applier.role_changed(9, Role.LEADER))
    elif name == "freeze":
        group.ask_to_save()
    else:
        group.append(b"1")
    assert group.answered(waiting)[0] is ResponseCode.INTERNAL_ERROR
    assert f"{name} raises" in applier.state.failed_text
    assert not applier.is_eligible
    group.passes(3_000)
    assert machine.trace[-1][0] == name
    asked = []
    node.enter(lambda: applier.queries.ask(-1, b"", lambda *answer: asked.append(answer), None))
    node.enter(lambda: applier.snapshotter.ask(lambda *answer: asked.append(answer)))
    assert [answer[0] for answer in asked] == [ResponseCode.INTERNAL_ERROR] * 2
    assert f"{name} raises" in asked[0][1]


@pytest.mark.parametrize(
    ("shut", "said"),
    [
        (False, "committed, but not executed here: the state machine of this replica failed"),
        (True, "committed, but the state machine did not execute it within 2500 ms"),
    ],
)
def test_a_committed_command_that_is_not_executed_in_time_is_not_called_uncommitted(shut, said):
    group = Group()
    group.filled(3)
    node, answers = group.node, []
    group.gate.is_shut = shut
    group.machine.fails.add("apply")
    node.enter(lambda: group.replica.propose(block_of([b"1"]), lambda *one: answers.append(one)))
    group.passes(3_000)
    ((response, results),) = answers
    assert (response.code, list(results)) == (ResponseCode.TIMEOUT, [])
    assert response.text.startswith(said)
    assert node.core.committed_index == node.log.end_index


def test_a_machine_that_cannot_load_its_snapshot_does_not_lead_and_says_why():
    group = Group()
    group.filled(3)
    assert group.answered(group.ask_to_save())[0] is OK

    class Broken(Traced):
        def load_snapshot(self, reader):
            raise RuntimeError("it does not fit")

    group.machine_class = Broken
    group.restart()
    group.until(lambda: group.applier.state.failed_text)
    assert "it does not fit" in group.applier.state.failed_text
    assert "loaded snapshot" in group.applier.state.failed_text
    assert group.machine.applied == []
    group.passes(3_000)
    assert group.leader() is None


# -- snapshots ----------------------------------------------------------------------------------

SOON = {"snapshot_threshold": 20, "reset_snapshot_entries_but_keep_last_entries_num": 0}


def spoil(group, how):
    """Make snapshots fail; return what ends it."""
    if how in ("save_snapshot", "digest"):
        group.machine.fails.add(how)
        return group.machine.fails.clear
    group.node.files.fail_next("snapshot/saving", how)
    return lambda: None


@pytest.mark.parametrize("how", ["EIO", "ENOSPC", "save_snapshot", "digest"])
def test_a_snapshot_that_cannot_be_saved_keeps_the_log_and_is_tried_again(how):
    group = Group(**SOON)
    end = spoil(group, how)
    group.filled(30)
    group.passes(500)
    saves = group.applier.snapshotter
    assert (
        saves.saved,
        group.applier.state.newest_index,
        group.replica.log.before_begin_index,
    ) == (0, -1, -1)
    end()
    spoil(group, how)
    code, text, index = group.answered(group.ask_to_save())
    assert (code, index, bool(text)) == (ResponseCode.DISK_ERROR, -1, True)
    assert group.answered(group.append(b"1")) == (OK, [b"31"]), "the machine goes on"
    end()
    group.passes(SAVE_RETRY_MS - 5_000)
    assert saves.saved == 0, "not in a tight loop"
    group.passes(10_000)
    assert saves.saved == 1
    assert group.replica.log.before_begin_index == group.applier.state.newest_index > 20
    group.restart()
    group.until(lambda: group.machine.total == 31)


def test_requests_for_a_snapshot_are_answered_in_every_case(monkeypatch):
    monkeypatch.setattr(saves_module, "REQUESTS_MAX", 2)
    group = Group()
    group.filled(3)
    group.gate.is_shut = True
    waiting = [group.ask_to_save() for _ in range(3)]
    assert waiting[2][0][0] is ResponseCode.LEADER_PENDING_FULL
    group.gate.open()
    index = group.applier.state.applied_index
    assert [group.answered(one) for one in waiting[:2]] == [(OK, "", index)] * 2
    assert group.ask_to_save() == [(OK, "", index)], "nothing is new: at once"
    assert group.applier.snapshotter.saved == 1
    plain = Group(state_machine="")
    assert plain.ask_to_save()[0][0] is ResponseCode.UNSUPPORTED


# -- what a machine is handed -------------------------------------------------------------------


def handed(count=5, first=10):
    return ApplyBatch([Entry(index=first + n, term=1, pos=0, body=b"%d" % n) for n in range(count)])


def test_handed_entries_are_a_sequence():
    entries = handed()
    assert len(entries) == 5
    assert [entry.index for entry in entries] == [10, 11, 12, 13, 14]
    assert (entries[0].index, entries[-1].index, entries[-5].index) == (10, 14, 10)
    assert [entry.index for entry in entries[1:3]] == [11, 12]
    assert [entry.index for entry in entries[::-2]] == [14, 12, 10]
    assert [entry.index for entry in reversed(entries)] == [14, 13, 12, 11, 10]
    assert entries[2] in entries
    for outside in (5, -6, 100):
        with pytest.raises(IndexError):
            entries[outside]


def by_for(entries):
    for entry in entries:
        _ = 1 // int(entry.body)


def by_enumerate(entries):
    return [1 // (3 - position) for position, entry in enumerate(entries)]


def by_index(entries):
    return [1 // (len(entries[n].body) - (n == 3)) for n in range(len(entries))]


def before_any(entries):
    return [1 // 0, *entries]


@pytest.mark.parametrize(
    ("apply", "index"),
    [
        (by_for, 10),
        (by_enumerate, 13),
        (by_index, 13),
        (before_any, 10),
    ],
)
def test_the_entry_that_was_looked_at_last_is_named_when_a_machine_raises(apply, index):
    machine = Counter()
    machine.apply = apply
    with pytest.raises(MachineError) as caught:
        handed().apply_to(machine, CommandResults())
    text = str(caught.value)
    assert text.startswith(
        f"ZeroDivisionError: integer division or modulo by zero at entry {index}\n"
    )
    assert apply.__name__ in text, "the traceback"


@pytest.mark.parametrize("results", [[], [b""] * 4, [b""] * 6, ["1"] * 5, [None] * 5, b"12345"])
def test_anything_but_bytes_for_each_entry_is_a_failure(results):
    machine = Counter()
    machine.apply = lambda entries: results
    with pytest.raises(
        MachineError, match=f"gave {counted(len(results), 'result')} for 5 entries from 10 on"
    ):
        handed().apply_to(machine, CommandResults())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nonsense", "neither one of kv nor module:Class"),
        ("no_such_module:Machine", "cannot be imported: No module named"),
        ("counting:Nobody", "cannot be imported: module 'counting' has no attribute 'Nobody'"),
        ("counting:", "cannot be imported"),
        ("store_access:Opened", "no subclass of quorumlog.machine.StateMachine"),
        ("store_access:config", "no subclass"),
        ("store_access:ENTRY_MAX", "no subclass"),
    ],
)
def test_a_name_that_names_no_machine_is_refused_with_the_reason(name, text):
    with pytest.raises(ConfigError, match=text) as caught:
        machine_class(name)
    assert repr(name) in str(caught.value)
