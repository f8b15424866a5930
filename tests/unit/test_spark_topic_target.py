"""What an archive is produced into, by a producer that fails as librdkafka's does."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from quorumlog.model.errors import NetworkError
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.target import ConfluentTarget, Outgoing, Position
from quorumlog.spark.topics.part import Part

A0 = Part("a", 0)
RECORDS = [Outgoing(None, b"first", None, []), Outgoing(None, b"second", None, [])]


def raised(code, **more):
    return KafkaException(KafkaError(code, "said by librdkafka", **more))


class Producer:
    """Calls raise what `fails` has for them, each once; what was committed is kept."""

    def __init__(self, **fails):
        self.fails = {name: list(errors) for name, errors in fails.items()}
        self.sent, self.committed, self.aborted = [], [], 0

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
        self.sent.append(value)

    def send_offsets_to_transaction(self, at, group, timeout_s):
        self.call("offsets")

    def commit_transaction(self, timeout_s):
        self.call("commit")
        self.committed += self.sent

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


def produce(target, **fails):
    target._producer = Producer(**fails)
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
        produce(target, produce=[raised(KafkaError.MSG_SIZE_TOO_LARGE)])


def test_brokers_that_cannot_abort_are_an_outage(target):
    target._timeout_s = 0
    with pytest.raises(NetworkError, match="could not answer"):
        produce(target, produce=[raised(KafkaError._STATE)], abort=[raised(KafkaError._TIMED_OUT)])


def test_a_cluster_that_allows_no_transactions_of_that_length_says_what_to_do(target):
    target._producer = Producer(init=[raised(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True)])
    with pytest.raises(PipelineError, match=r"of 60000 ms .*--timeout"):
        target.take_over()
