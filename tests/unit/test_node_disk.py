"""The disk thread: group commit, order, and what happens after the first failure."""

import threading
from collections import deque

import pytest

from quorumlog.model.errors import StorageError
from quorumlog.node.disk import DiskWorker


class Plan:
    def __init__(self, name, size_bytes=10):
        self.name = name
        self.size_bytes = size_bytes
        self.done = False

    def completed(self):
        self.done = True


class GatedStore:
    """Each execute waits until the test opens the gate; remembers what it was given."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.executed = []
        self.fail_with = None
        self.is_closed = self.is_abandoned = False

    def execute(self, plans, *, sync):
        self.entered.release()
        self.gate.acquire(timeout=60)
        if self.fail_with is not None:
            raise self.fail_with
        self.executed.append(([plan.name for plan in plans], sync))

    def idle(self):
        return False

    def close(self):
        self.is_closed = True

    def abandon(self):
        self.is_abandoned = True


class Owner:
    def __init__(self):
        self.news = []

    def written(self, token, plan):
        self.news.append(token)

    def writes_completed(self):
        self.news.append("completed")

    def write_failed(self, error):
        self.news.append(str(error))


class Loop:
    """Stands for call_soon_threadsafe: the test runs the calls."""

    def __init__(self):
        self.calls = deque()
        self.arrived = threading.Semaphore(0)

    def call_soon(self, function, *arguments):
        self.calls.append((function, arguments))
        self.arrived.release()

    def run_next(self):
        assert self.arrived.acquire(timeout=60)
        function, arguments = self.calls.popleft()
        function(*arguments)


@pytest.fixture
def world():
    store, loop, failures = GatedStore(), Loop(), []
    worker = DiskWorker(store, loop.call_soon, lambda *_: None, failures.append)
    worker.start()
    yield store, loop, worker, failures
    for _ in range(20):
        store.gate.release()
    worker.stop()
    worker.join()


def test_all_that_arrives_during_an_fsync_shares_the_next(world):
    store, loop, worker, _ = world
    owner = Owner()
    worker.submit(owner, 1, Plan("a"))
    assert store.entered.acquire(timeout=60)
    for token, name in ((2, "b"), (3, "c"), (4, "d")):
        worker.submit(owner, token, Plan(name))
    assert worker.queued_bytes == 40
    store.gate.release()
    store.gate.release()
    loop.run_next()
    loop.run_next()
    assert store.executed == [(["a"], True), (["b", "c", "d"], True)]
    assert owner.news == [1, "completed", 2, 3, 4, "completed"]
    assert worker.queued_bytes == 0


def test_nothing_is_reported_before_it_is_durable(world):
    store, loop, worker, _ = world
    owner, plan = Owner(), Plan("a")
    worker.submit(owner, 1, plan)
    assert store.entered.acquire(timeout=60)
    assert owner.news == []
    assert not plan.done
    store.gate.release()
    loop.run_next()
    assert plan.done


def test_the_first_failure_ends_everything(world):
    store, loop, worker, failures = world
    owners = Owner(), Owner()
    worker.submit(owners[0], 1, Plan("a"))
    assert store.entered.acquire(timeout=60)
    worker.submit(owners[1], 1, Plan("b"))
    store.fail_with = StorageError("fdatasync: no more")
    store.gate.release()
    loop.run_next()
    assert owners[0].news == owners[1].news == ["fdatasync: no more"]
    assert len(failures) == 1
    worker.submit(owners[0], 2, Plan("c"))
    assert store.executed == []


def test_after_a_failure_the_store_lets_go_of_its_files_when_the_node_stops(world):
    store, loop, worker, _ = world
    store.fail_with = StorageError("fdatasync: no more")
    worker.submit(Owner(), 1, Plan("a"))
    store.gate.release()
    loop.run_next()
    assert not store.is_abandoned, "its directory is in use until then"
    worker.stop()
    worker.join()
    assert store.is_abandoned
    assert not store.is_closed, "nothing may be made durable any more, or be removed"


def test_a_failure_while_the_last_writes_are_written_lets_go_of_the_files_too(world):
    store, _, worker, _ = world
    worker.submit(Owner(), 1, Plan("a"))
    store.fail_with = StorageError("fdatasync: no more")
    store.gate.release()
    worker.stop()
    worker.join()
    assert store.is_abandoned
    assert not store.is_closed


def test_a_failure_of_the_settler_that_the_disk_thread_finds_too_is_reported_once(world):
    store, loop, worker, failures = world
    owner, error = Owner(), StorageError("g/data/0: fdatasync: no more")
    worker.submit(owner, 1, Plan("a"))
    assert store.entered.acquire(timeout=60)
    worker.fail(error)
    store.fail_with = error
    store.gate.release()
    for _ in range(2):
        loop.run_next()
    assert failures == [error]
    assert owner.news == [str(error)]


def test_what_is_written_after_a_failure_of_the_settler_is_not_reported(world):
    store, loop, worker, _ = world
    owner = Owner()
    worker.submit(owner, 1, Plan("a"))
    assert store.entered.acquire(timeout=60)
    worker.fail(StorageError("g/data/0: fdatasync: no more"))
    store.gate.release()
    for _ in range(2):
        loop.run_next()
    assert owner.news == ["g/data/0: fdatasync: no more"]


def test_stopping_writes_what_is_queued(world):
    store, _, worker, _ = world
    worker.submit(Owner(), 1, Plan("a"))
    store.gate.release()
    store.gate.release()
    worker.stop()
    worker.join()
    assert [names for names, _ in store.executed if names] == [["a"]]
    assert store.is_closed


@pytest.mark.parametrize("failure", [None, StorageError("fdatasync: no more")])
def test_owners_are_told_of_nothing_once_it_is_stopped(world, failure):
    store, loop, worker, failures = world
    owner = Owner()
    worker.submit(owner, 1, Plan("a"))
    store.fail_with = failure
    for _ in range(3):
        store.gate.release()
    worker.stop()
    worker.join()
    loop.run_next()
    assert owner.news == []
    assert failures == ([] if failure is None else [failure])


def test_unsafe_mode_reports_first_and_fsyncs_soon_after():
    store, loop = GatedStore(), Loop()
    for _ in range(10):
        store.gate.release()
    worker = DiskWorker(
        store, loop.call_soon, lambda *_: None, lambda error: None, sync_interval_ms=5
    )
    worker.start()
    owner = Owner()
    worker.submit(owner, 1, Plan("a"))
    loop.run_next()
    assert owner.news == [1, "completed"]
    assert store.entered.acquire(timeout=60)
    assert store.entered.acquire(timeout=60)
    worker.stop()
    worker.join()
    assert store.executed[0] == (["a"], False)
    assert store.executed[1] == ([], True)


@pytest.fixture
def turn():
    """A worker that is given what was submitted when the test ends the turn."""
    store, loop, ends = GatedStore(), Loop(), []
    worker = DiskWorker(
        store, loop.call_soon, lambda *_: None, lambda error: None, at_end=ends.append
    )
    worker.start()

    def end():
        ended, ends[:] = list(ends), []
        for action in ended:
            action()

    yield store, loop, worker, end
    for _ in range(20):
        store.gate.release()
    worker.stop()
    worker.join()


def test_what_all_groups_write_in_one_turn_takes_one_group_commit(turn):
    store, loop, worker, end = turn
    owners = [Owner() for _ in range(3)]
    for token, owner in enumerate(owners):
        worker.submit(owner, token, Plan(f"a{token}"))
    assert worker.queued_bytes == 30
    end()
    assert store.entered.acquire(timeout=60)
    worker.submit(owners[0], 3, Plan("b"))
    end()
    for _ in range(2):
        store.gate.release()
        loop.run_next()
    assert store.executed == [(["a0", "a1", "a2"], True), (["b"], True)]
    assert [owner.news for owner in owners] == [
        [0, "completed", 3, "completed"],
        [1, "completed"],
        [2, "completed"],
    ]
    assert worker.queued_bytes == 0


def test_what_was_submitted_in_a_turn_that_does_not_end_is_written_at_the_stop(turn):
    store, _, worker, _ = turn
    worker.submit(Owner(), 1, Plan("a"))
    store.gate.release()
    worker.stop()
    worker.join()
    assert store.executed[0] == (["a"], True)
