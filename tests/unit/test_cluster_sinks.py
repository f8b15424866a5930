"""Sinks in the state of `__cluster`: all of a batch is committed, or nothing, and once."""

import io

import msgspec
import pytest

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.machine.cluster import sinks
from quorumlog.machine.cluster.commands import (
    UNKNOWN_ROWS,
    AddToTransaction,
    BeginSinkRun,
    EndSinkBatch,
    ForgetSinks,
    InitTransaction,
    MarkersWritten,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.sinks import EARLIER_RUNS_MAX, SinkRecord, attempt_id, sink_of
from quorumlog.model.codes import ResponseCode

OK, LATE = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_TERM
GONE, FENCED = ResponseCode.INVALID_TRANSACTION_STATE, ResponseCode.PRODUCER_FENCED
PLACES = [(ORDERS, 0), (BILLS, 1)]


class Cluster(Coordinated):
    """The state, with two topics; commands name the present versions."""

    @property
    def sink(self):
        return self.machine.view.sinks["s"]

    @property
    def ids(self):
        return self.machine.view.transactions.records

    def begin(self, run="run 1", version=None, sink="s", at_ms=5):
        if version is None:
            version = (
                self.machine.view.sinks[sink].version if sink in self.machine.view.sinks else 0
            )
        return self.do(BeginSinkRun(TERM, sink, version, run), at_ms).code

    def attempt(self, name="0.0", producer_id=7, epoch=0, *, sink="s", writes=True):
        """Have an attempt write; return what its task says to the driver."""
        key = attempt_id(sink, name)
        version = self.ids[key].version if key in self.ids else 0
        self.do(InitTransaction(TERM, key, version, producer_id, epoch, 60_000, False))
        if writes:
            self.do(AddToTransaction(TERM, key, self.ids[key].version, PLACES))
        return name, producer_id, epoch

    def end(
        self,
        *attempts,
        batch=0,
        run="run 1",
        commits=True,
        is_last=False,
        sink="s",
        term=TERM,
        rows=5,
    ):
        command = EndSinkBatch(term, sink, run, batch, commits, list(attempts), is_last, rows)
        return self.do(command, term=TERM)

    def state_of(self, name, sink="s"):
        return self.ids[attempt_id(sink, name)].state

    def mark(self, name, number=1):
        self.do(MarkersWritten([(attempt_id("s", name), number, PLACES)]))


@pytest.fixture
def cluster():
    made = Cluster()
    made.begin()
    return made


def test_names_of_attempts_say_which_sink_they_are_of():
    assert sink_of(attempt_id("a:b", "0.0")) == "a:b"
    assert sink_of("chain-0") is None
    assert sink_of("quorumlog-sink:") is None


def test_accepted_attempts_are_committed_and_all_others_aborted_by_one_command(cluster):
    accepted = [cluster.attempt("0.0", 1), cluster.attempt("1.0", 2)]
    cluster.attempt("1.1", 3)
    cluster.attempt("2.0", 4, writes=False)
    found = cluster.end(*accepted, batch=4)
    assert (found.code, found.last_batch, found.committed, found.aborted) == (OK, 4, 2, 1)
    states = [cluster.state_of(name) for name in ("0.0", "1.0", "1.1", "2.0")]
    assert states == ["PrepareCommit", "PrepareCommit", "PrepareAbort", "CompleteAbort"]
    assert all(one.epoch == 1 for one in cluster.ids.values()), "none can write any more"
    assert cluster.sink.last_batch == 4
    cluster.mark("0.0")
    assert cluster.state_of("0.0") == "CompleteCommit"


@pytest.mark.parametrize("gone", [("1.0", 2, 1), ("1.0", 9, 0), ("3.0", 2, 0), ("2.0", 4, 0)])
def test_nothing_is_committed_if_one_attempt_is_not_ongoing_any_more(cluster, gone):
    """It has another epoch or producer, is not known, or has not begun."""
    first = cluster.attempt("0.0", 1)
    cluster.attempt("1.0", 2)
    cluster.attempt("2.0", 4, writes=False)
    before = cluster.machine.digest()
    found = cluster.end(first, gone)
    assert found.code is GONE
    assert attempt_id("s", gone[0]) in found.text
    assert (cluster.state_of("0.0"), cluster.sink.last_batch) == ("Ongoing", -1)
    assert cluster.machine.digest() != before, "the answer is remembered"
    assert cluster.end(first, ("1.0", 2, 0)).code is OK


def test_a_batch_that_comes_again_changes_nothing(cluster):
    attempt = cluster.attempt()
    assert cluster.end(attempt).code is OK
    ids, sink = dict(cluster.ids), cluster.sink
    found = cluster.end(attempt)
    assert (found.code, found.last_batch, found.committed) == (OK, 0, 0)
    assert cluster.end(commits=False).code is OK, "it is too late to abort it"
    assert (dict(cluster.ids), cluster.sink) == (ids, sink)


def test_how_many_rows_the_last_batch_has_is_told_when_it_comes_again(cluster):
    assert cluster.end(cluster.attempt(), batch=3, rows=100).last_rows == 100
    assert cluster.end(batch=4, commits=False, rows=7).last_rows == 100
    assert cluster.end(batch=3, rows=350, run="run 2").last_rows == 100
    assert cluster.end(batch=4, rows=0).last_rows == 0
    assert cluster.end(batch=5, rows=UNKNOWN_ROWS).last_rows == UNKNOWN_ROWS


def test_a_sink_and_a_command_of_earlier_versions_tell_no_rows():
    encoded = msgspec.msgpack.encode(["s", "run 1", 3, 7, False, 5, []])
    assert msgspec.msgpack.decode(encoded, type=SinkRecord).last_rows == UNKNOWN_ROWS
    encoded = msgspec.msgpack.encode(["EndSinkBatch", TERM, "s", "run 1", 7, True, [], False])
    assert msgspec.msgpack.decode(encoded, type=EndSinkBatch).rows == UNKNOWN_ROWS


def test_a_late_command_does_nothing_to_the_next_batch(cluster):
    first = cluster.attempt()
    cluster.end(first)
    cluster.mark("0.0")
    second = cluster.attempt(epoch=2)
    for late in ({"commits": True}, {"commits": False}):
        cluster.end(first, batch=0, **late)
        assert cluster.state_of("0.0") == "Ongoing"
    assert cluster.end(second, batch=1).committed == 1


def test_an_attempt_at_a_batch_that_was_committed_is_aborted(cluster):
    cluster.end(cluster.attempt("0.0", 1), batch=3)
    again = cluster.attempt("1.0", 2)
    other = cluster.attempt("2.0", 3)
    assert cluster.end(again, batch=3).last_batch == 3
    assert (cluster.state_of("1.0"), cluster.state_of("2.0")) == ("PrepareAbort", "Ongoing")
    assert cluster.end(other, batch=4).committed == 1


def test_an_aborted_batch_may_be_written_again(cluster):
    first = cluster.attempt()
    assert cluster.end(first, commits=False).aborted == 1
    assert cluster.end(first).code is GONE, "a decision that comes late"
    cluster.mark("0.0")
    assert cluster.end(cluster.attempt(epoch=2)).committed == 1


def test_another_run_aborts_what_the_one_before_has_written(cluster):
    old = cluster.attempt()
    cluster.attempt("1.0", 8, writes=False)
    cluster.attempt("0.0", 9, sink="other")
    assert cluster.begin("run 2") is OK
    assert cluster.state_of("0.0") == "PrepareAbort"
    assert cluster.state_of("1.0") == "CompleteAbort"
    assert cluster.state_of("0.0", "other") == "Ongoing"
    assert cluster.end(old).code is FENCED
    assert cluster.sink.earlier_runs == ("run 1",)
    for number in range(3, 3 + EARLIER_RUNS_MAX):
        cluster.begin(f"run {number}")
    assert len(cluster.sink.earlier_runs) == EARLIER_RUNS_MAX


def test_a_batch_that_was_committed_has_ended_for_a_run_that_never_began(cluster):
    cluster.end(cluster.attempt())
    present = cluster.attempt("1.0", 8)
    ended = cluster.end(run="run 0")
    assert (ended.code, ended.last_batch) == (OK, 0)
    assert cluster.sink.run_id == "run 1"
    assert cluster.end(present, batch=1).committed == 1


def test_a_run_that_begins_late_does_not_fence_the_present_one(cluster):
    assert cluster.begin("run 2", version=0) is LATE
    version = cluster.sink.version
    cluster.begin("run 3")
    assert cluster.begin("run 2", version=version) is LATE
    assert cluster.sink.run_id == "run 3"


def test_a_decision_of_a_former_coordinator_does_nothing(cluster):
    attempt = cluster.attempt()
    assert cluster.end(attempt, term=TERM - 1).code is ResponseCode.NOT_LEADER
    assert cluster.state_of("0.0") == "Ongoing"


def test_ids_are_forgotten_once_the_last_batch_has_its_markers(cluster):
    attempt = cluster.attempt("0.0", 1)
    cluster.attempt("0.1", 2)
    cluster.attempt("1.0", 3, writes=False)
    cluster.end(attempt, is_last=True)
    assert set(cluster.ids) == {attempt_id("s", "0.0"), attempt_id("s", "0.1")}
    cluster.mark("0.0")
    cluster.mark("0.1")
    assert not cluster.ids
    assert cluster.sink.is_over
    assert cluster.machine.view.transactions.ids == {}


def test_sinks_that_are_over_make_room(monkeypatch):
    monkeypatch.setattr(sinks, "SINKS_MAX", 2)
    cluster = Cluster()
    for number, sink in enumerate(("s", "t")):
        assert cluster.begin(sink=sink, at_ms=number) is OK
    assert cluster.begin(sink="u") is ResponseCode.CLUSTER_FULL
    cluster.end(sink="t", is_last=True)
    assert cluster.begin(sink="u") is OK
    assert set(cluster.machine.view.sinks) == {"s", "u"}


def test_sinks_that_nobody_uses_are_forgotten(cluster):
    cluster.begin(sink="t", at_ms=50)
    found = cluster.do(ForgetSinks(TERM, ["s", "t", "none"], 20))
    assert found.codes == [OK, ResponseCode.CHANGE_IN_PROGRESS, ResponseCode.CHANGE_IN_PROGRESS]
    assert set(cluster.machine.view.sinks) == {"t"}
    assert cluster.end(run="run 1").code is ResponseCode.UNKNOWN_PRODUCER


def test_a_sink_is_not_forgotten_while_an_attempt_of_it_is_used(cluster):
    """By a command that was given before the attempt began."""
    cluster.end(batch=3)
    cluster.begin(sink="t", run="run 1")
    attempt = cluster.attempt()
    assert cluster.do(ForgetSinks(TERM, ["s", "t"], 5)).codes == [
        ResponseCode.CHANGE_IN_PROGRESS,
        OK,
    ]
    late = ForgetSinks(TERM, ["s"], 10_000)
    assert cluster.do(late).codes == [ResponseCode.CHANGE_IN_PROGRESS], "it is ongoing"
    assert cluster.end(attempt, batch=4).last_batch == 4
    assert cluster.do(late).codes == [ResponseCode.CHANGE_IN_PROGRESS], "it lacks markers"
    cluster.mark("0.0")
    assert cluster.do(late).codes == [OK]


def test_sinks_are_in_snapshots(cluster):
    cluster.end(cluster.attempt(), batch=2)
    data = cluster.machine._state.encode()
    copied = ClusterMachine()
    copied.load_snapshot(io.BytesIO(data))
    assert copied.digest() == cluster.machine.digest()
    assert copied.view.sinks == cluster.machine.view.sinks
