"""Spark's sink for topics, by a coordinator that says what it is told to: what is written again."""

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.sink.topics import writer
from quorumlog.spark.sink.topics.coordinator import Ended, Joined, SinkBatch
from quorumlog.spark.sink.topics.options import parse_topic_options
from quorumlog.spark.sink.topics.writer import TopicStreamWriter, TopicTaskWriter, TopicWriter

BATCH = SinkBatch("query", "run 2", 10)


class Coordinator:
    """It has committed batch `last_batch`, with `last_rows`; tasks that join first see `seen`."""

    def __init__(self, last_batch, last_rows, seen=()):
        self.last_batch, self.last_rows, self.seen = last_batch, last_rows, list(seen)
        self.told = []

    def __call__(self, servers, timeout_ms):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def join(self, batch, transactional_id):
        last_batch = self.seen.pop(0) if self.seen else self.last_batch
        return Joined(last_batch, 7, 0, is_ongoing=False)

    def end(self, batch, attempts, *, rows, commits, is_last):
        self.told.append(rows)
        return Ended(self.last_batch, self.last_rows)


@pytest.fixture
def coordinates(monkeypatch):
    def coordinate(*args, **more):
        made = Coordinator(*args, **more)
        monkeypatch.setattr(writer, "SinkCoordinator", made)
        return made

    return coordinate


def options(**given):
    return parse_topic_options({"servers": "127.0.0.1:9092", "topic": "t", **given})


def task(*sizes):
    """Have a task given batches of these sizes; return its message as the driver gets it."""
    batches = iter([pa.record_batch({"value": pa.array(["v"] * size)}) for size in sizes])
    message = TopicTaskWriter(options(), BATCH, 0).write(batches)
    assert next(batches, None) is None, "Spark wants all rows to be taken"
    return pickle.loads(pickle.dumps(message))


def commit(*messages, **given):
    TopicStreamWriter(options(**given)).commit(list(messages), BATCH.batch_id)


def test_a_batch_with_the_number_of_the_last_one_and_other_rows_is_an_error(coordinates):
    """So Spark plans it again after its checkpoint was restored from a backup."""
    told = coordinates(10, 100).told
    with pytest.raises(
        UnexpectedArgumentError, match=r"batch 10 .* with 100 rows and not 350: .* backup"
    ):
        commit(task(200, 50), task(100))
    assert told == [350]


@pytest.mark.parametrize("divided", [[(100,)], [(30, 0, 20), (), (50,)]])
def test_the_last_batch_may_come_again_however_it_is_divided(coordinates, divided):
    coordinates(10, 100)
    commit(*(task(*sizes) for sizes in divided))


def test_a_task_that_hears_late_that_its_batch_is_committed_counts_its_rows(
    coordinates, monkeypatch
):
    coordinates(10, 100, seen=[9])
    monkeypatch.setattr(writer, "TopicProducer", lambda options, name: SimpleNamespace())
    assert task(60, 50).rows == 110


def test_a_query_goes_on_after_another_number_of_rows_if_it_is_told_to(coordinates, caplog):
    coordinates(10, 1)
    commit(task(2), failOnDataLoss="false")
    assert "with 1 row and not 2; going on, as failOnDataLoss=false" in caplog.text
    coordinates(11, 2)
    with pytest.raises(UnexpectedArgumentError, match="batch 11"):
        commit(task(2), failOnDataLoss="false")


def test_of_a_batch_that_was_committed_by_an_earlier_version_no_rows_are_known(coordinates):
    coordinates(10, -1)
    commit(task(2))


def test_two_queries_under_one_transactional_id_get_an_error(coordinates):
    named = TopicWriter(options(transactionalId="app", batchId="10"))
    coordinates(10, 3)
    named.commit([task(3)])
    with pytest.raises(UnexpectedArgumentError, match="another one use this transactionalId"):
        named.commit([task(4)])
