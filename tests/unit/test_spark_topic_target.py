"""What an archive is produced into, by a producer that fails as librdkafka's does."""

from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from quorumlog.model.errors import NetworkError
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.target import (
    ConfluentTarget,
    Outgoing,
    Position,
    RecordTooLargeError,
)
from quorumlog.spark.topics.part import Part

A0 = Part("a", 0)
RECORDS = [Outgoing(None, b"first", None, [], 0), Outgoing(None, b"second", None, [], 1)]


def raised(code, **more):
    return KafkaException(KafkaError(code, "said by librdkafka", **more))


class Producer:
    """Calls raise what `fails` has for them, each once; what was committed is kept."""

    def __init__(self, **fails):
        self.fails = {name: list(errors) for name, errors in fails.items()}
        self.sent, self.committed, self.aborted = [], [], 0
        self.refuses = lambda value: None
        self.reported = None
        """`on_delivery` of the producer."""

    def call(self, name):
        if errors := self.fails.get(name):
            error = errors.pop(0)
            if error is not None:
                raise error

    def begin_transaction(self):
        self.call("begin")
        self.sent = []

    def produce(self, topic, value, key, partition, **more):
        self.call("produce")
        self.sent.append((topic, partition, key, value))

    def flush(self, timeout_s):
        """Return how many records are not delivered: one that is refused keeps back the others."""
        for number, (*place, value) in enumerate(self.sent):
            if code := self.refuses(value):
                names = ("topic", "partition", "key", "value")
                found = zip(names, (*place, value), strict=True)
                message = {name: partial(lambda one: one, one) for name, one in found}
                self.reported(KafkaError(code), SimpleNamespace(**message))
                return len(self.sent) - number
        return 0

    def poll(self, timeout_s):
        self.flush(timeout_s)

    def send_offsets_to_transaction(self, at, group, timeout_s):
        self.call("offsets")

    def commit_transaction(self, timeout_s):
        self.call("commit")
        assert not self.flush(0), "librdkafka waits for records that are never delivered"
        self.committed += [value for *_, value in self.sent]

    def abort_transaction(self, timeout_s):
        self.call("abort")
        self.aborted += 1

    def init_transactions(self, timeout_s):
        self.call("init")


@pytest.fixture
def target():
    made = ConfluentTarget("127.0.0.1:1", "replay", timeout_ms=60_000)
    yield made
    made.close()


def produce(target, refuses=lambda value: None, **fails):
    target._producer = Producer(**fails)
    target._producer.refuses, target._producer.reported = refuses, target._note_refused
    target.produce(A0, RECORDS, Position(2, 0, "a"))
    return target._producer


@pytest.mark.parametrize("code", [KafkaError._STATE, KafkaError._FATAL])
def test_a_transaction_that_failed_while_records_were_produced_is_tried_again(target, code):
    """The next record is refused only because there is no transaction any more."""
    done = produce(target, produce=[None, raised(code)])
    assert (done.committed, done.aborted) == ([b"first", b"second"], 1)


def test_a_transaction_that_must_be_aborted_is_tried_again(target):
    failed = raised(KafkaError.INVALID_TXN_STATE, txn_requires_abort=True)
    done = produce(target, commit=[failed])
    assert (done.committed, done.aborted) == ([b"first", b"second"], 1)


def test_why_a_producer_failed_for_good_is_said_by_the_attempt_to_abort(target):
    fenced = raised(KafkaError._FENCED, fatal=True)
    with pytest.raises(PipelineError, match="another replay of this archive"):
        produce(target, produce=[raised(KafkaError._STATE)], abort=[fenced])


def test_an_error_that_is_no_consequence_of_another_ends_the_replay(target):
    with pytest.raises(PipelineError, match="refused it: said by librdkafka"):
        produce(target, produce=[raised(KafkaError.INVALID_RECORD)])


def test_a_record_that_is_too_large_for_its_topic_is_named(target):
    refuses = {b"second": KafkaError.MSG_SIZE_TOO_LARGE}.get
    reason = (
        r"a-0 refuses a batch .* has 6 bytes: .*topic alter a --config max\.message\.bytes=1048588"
    )
    failed = raised(KafkaError.MSG_SIZE_TOO_LARGE, txn_requires_abort=True)
    for fails in ({}, {"offsets": [failed]}):  # it may come before the report
        with pytest.raises(RecordTooLargeError, match=reason) as found:
            produce(target, refuses, **fails)
        assert found.value.offset == 1
        assert (target._producer.committed, target._producer.aborted) == ([], 1)


def test_a_record_that_is_too_large_for_any_broker_is_named(target):
    with pytest.raises(RecordTooLargeError, match=r"a-0 refuses a batch .* has 6 bytes") as found:
        produce(target, produce=[None, raised(KafkaError.MSG_SIZE_TOO_LARGE)])
    assert (found.value.offset, target._producer.aborted) == (1, 1)


def test_a_record_that_was_refused_for_another_reason_is_tried_again(target):
    reasons = [KafkaError.INVALID_TXN_STATE]
    done = produce(target, lambda value: reasons.pop() if reasons else None)
    assert (done.committed, done.aborted) == ([b"first", b"second"], 1)
    target._timeout_s = 0
    with pytest.raises(NetworkError, match=r"no transaction could be committed .*invalid state"):
        produce(target, lambda value: KafkaError.INVALID_TXN_STATE)


def test_brokers_that_cannot_abort_are_an_outage(target):
    target._timeout_s = 0
    with pytest.raises(NetworkError, match="could not answer"):
        produce(target, produce=[raised(KafkaError._STATE)], abort=[raised(KafkaError._TIMED_OUT)])


def test_a_cluster_that_allows_no_transactions_of_that_length_says_what_to_do(target):
    target._producer = Producer(init=[raised(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True)])
    with pytest.raises(PipelineError, match=r"of 60000 ms .*--timeout"):
        target.take_over()
