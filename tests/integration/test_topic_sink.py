"""What Spark's tasks and its driver do to write a batch to topics, without Spark: each row once.

What was written is read by librdkafka, with read_committed.
"""

import itertools
import threading
import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaAdminClient

from kafka_coordinators import told
from quorumlog.local import LocalCluster
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.errors import (
    ProducerFencedError,
    TransactionAbortedError,
    UnexpectedArgumentError,
    UnsupportedError,
)
from quorumlog.spark.sink.topics import coordinator
from quorumlog.spark.sink.topics.coordinator import SinkBatch, SinkCoordinator
from quorumlog.spark.sink.topics.options import parse_topic_options
from quorumlog.spark.sink.topics.producer import TopicProducer
from quorumlog.spark.sink.topics.writer import (
    TopicStreamWriter,
    TopicTaskWriter,
    TopicWriter,
    abort_batch,
    end_batch,
)
from topic_rows import make_topics, read_rows, values_of

pytestmark = pytest.mark.processes

PARTITIONS = 2
TOPICS = ("first", "second")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = LocalCluster.create(tmp_path_factory.mktemp("sink") / "nodes", topics=True, kafka_port=0)
    made.up()
    yield made
    made.down()


@pytest.fixture
def topics(cluster):
    names = [f"{name}-{next(NUMBERS)}" for name in TOPICS]
    make_topics(cluster.bootstrap_servers, names, PARTITIONS)
    return names


def options_of(cluster, **given):
    return parse_topic_options({"servers": cluster.bootstrap_servers, **given})


def rows(topics, *values):
    """Return rows of which the first one goes to the first topic, and so on, in turns."""
    names = [name for name, _ in zip(itertools.cycle(topics), values, strict=False)]
    columns = {"topic": pa.array(names), "value": pa.array([one.encode() for one in values])}
    return iter([pa.record_batch(columns)])


def a_sink():
    return f"query-{next(NUMBERS)}"


def write(options, batch, topics, *values, part=0, attempt=0):
    return TopicTaskWriter(options, batch, part, attempt).write(rows(topics, *values))


def commit(options, messages, **more):
    end_batch(options, None, messages, commits=True, is_last=False, **more)


def ids_of(cluster):
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        listed = itertools.chain.from_iterable(told(admin.list_transactions).values())
        return {one.transactional_id: one.state.name.lower() for one in listed}
    finally:
        admin.close()


def coordinator_of(cluster):
    """Return the node that coordinates transactions."""
    with SinkCoordinator(cluster.bootstrap_servers, 60_000) as asked:
        asked.join(SinkBatch("probe", "probe", 0), attempt_id("probe", "0.0"))
        host, port = asked._connection.address
    return next(one for one in cluster.node_ids if cluster.kafka_address(one) == f"{host}:{port}")


def test_only_attempts_reported_to_the_driver_count(cluster, topics):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    messages = [write(options, batch, topics, f"{n}a", f"{n}b", part=n) for n in range(3)]
    write(options, batch, topics, "0a", "0b", part=0, attempt=1)  # a speculative twin, also done
    servers = cluster.bootstrap_servers
    assert values_of(servers, topics, PARTITIONS, isolation="read_uncommitted")
    commit(options, messages)
    commit(options, messages)  # the driver did not hear of it
    expected = sorted(f"{n}{half}".encode() for n in range(3) for half in "ab")
    assert values_of(servers, topics, PARTITIONS) == expected
    everything = values_of(servers, topics, PARTITIONS, isolation="read_uncommitted")
    assert len(everything) == 8


def test_a_batch_that_was_committed_is_not_written_again_however_it_is_divided(cluster, topics):
    options, sink = options_of(cluster), a_sink()
    for run, divided in (("run 1", [("a", "b"), ("c",)]), ("run 2", [("c", "a", "b")])):
        batch = SinkBatch(sink, run, 7)
        parts = [write(options, batch, topics, *some, part=n) for n, some in enumerate(divided)]
        commit(options, parts)
    for isolation in ("read_committed", "read_uncommitted"):
        found = values_of(cluster.bootstrap_servers, topics, PARTITIONS, isolation=isolation)
        assert found == [b"a", b"b", b"c"]


def test_a_run_that_was_succeeded_is_fenced_and_what_it_wrote_is_aborted(cluster, topics):
    options, sink = options_of(cluster), a_sink()
    old = write(options, SinkBatch(sink, "run 1", 0), topics, "old")
    new = write(options, SinkBatch(sink, "run 2", 0), topics, "new", part=1)
    with pytest.raises(ProducerFencedError):
        commit(options, [old])
    with pytest.raises(ProducerFencedError):
        write(options, SinkBatch(sink, "run 1", 0), topics, "late", part=2)
    commit(options, [new])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"new"]


def test_nothing_is_committed_if_one_attempt_is_not_there_any_more(cluster, topics):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    messages = [write(options, batch, topics, f"{n}", part=n) for n in range(2)]
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    thief = Producer({**settings, "transactional.id": attempt_id(batch.sink, "1.0")})
    thief.init_transactions(60)  # a task of an earlier batch that was slow
    with pytest.raises(TransactionAbortedError, match="Nothing of the batch is committed"):
        commit(options, messages)
    abort_batch(options, batch, messages, is_last=False)
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == []


def test_an_aborted_batch_does_not_hold_up_readers_and_can_be_written_again(cluster, topics):
    options, sink = options_of(cluster), a_sink()
    batch = SinkBatch(sink, "run 1", 0)
    write(options, batch, topics, "lost")  # this task was killed before it could say so
    abort_batch(options, batch, [], is_last=False)
    with pytest.raises(ProducerFencedError, match="the batch was aborted"):
        write(options, batch, topics, "late", part=1)
    assert all(state != "ongoing" for state in ids_of(cluster).values())
    commit(options, [write(options, SinkBatch(sink, "run 2", 0), topics, "kept")])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"kept"]


def test_a_task_that_takes_its_id_after_its_batch_was_aborted_begins_nothing(
    cluster, topics, monkeypatch
):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    join, joined = SinkCoordinator.join, []

    def aborted_after_the_first(asked, *given):
        found = join(asked, *given)
        if not joined:
            abort_batch(options, batch, [], is_last=False)
        joined.append(found)
        return found

    monkeypatch.setattr(SinkCoordinator, "join", aborted_after_the_first)
    with pytest.raises(ProducerFencedError, match="the batch was aborted"):
        write(options, batch, topics, "late")
    assert ids_of(cluster)[attempt_id(batch.sink, "0.0")] == "empty"


def test_a_task_that_fails_ends_its_transaction(cluster, topics):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)

    transactional_id = attempt_id(batch.sink, "0.0")

    def failing():
        yield from rows(topics, "some")
        deadline = time.monotonic() + 60
        while ids_of(cluster)[transactional_id] != "ongoing":
            assert time.monotonic() < deadline
        raise OSError("the task before it failed")

    with pytest.raises(OSError, match="the task before it failed"):
        TopicTaskWriter(options, batch, 0).write(failing())
    assert ids_of(cluster)[transactional_id] in ("prepare_abort", "complete_abort")
    commit(options, [write(options, batch, topics, "again", attempt=1)])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"again"]


def test_a_late_attempt_of_an_ended_batch_cannot_write(cluster, topics, monkeypatch):
    """It takes its transactional id before the decision, and begins after it."""
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    done = write(options, batch, topics, "done")
    begin = TopicProducer.begin

    def begin_late(producer):
        monkeypatch.setattr(TopicProducer, "begin", begin)
        commit(options, [done])
        begin(producer)

    monkeypatch.setattr(TopicProducer, "begin", begin_late)
    with pytest.raises(TransactionAbortedError):
        write(options, batch, topics, "late", attempt=1)
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"done"]


def test_an_attempt_of_a_stage_that_is_run_again_takes_another_name(cluster, topics):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    messages = [write(options, batch, topics, "same") for _ in range(2)]
    assert [one.attempt.name for one in messages] == ["0.0", "0.0.1"]
    commit(options, messages[:1])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"same"]


def test_ids_of_attempts_are_used_again_and_forgotten_after_the_last_batch(cluster, topics):
    options, sink = options_of(cluster), a_sink()
    for number in range(3):
        batch = SinkBatch(sink, "run 1", number)
        message = write(options, batch, topics, f"{number}")
        end_batch(options, batch, [message], commits=True, is_last=number == 2)
        ids = [one for one in ids_of(cluster) if one.startswith(attempt_id(sink, ""))]
        assert len(ids) == (0 if number == 2 else 1)
    with pytest.raises(ProducerFencedError):
        write(options, SinkBatch(sink, "run 1", 3), topics, "3")
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"0", b"1", b"2"]


def test_two_sinks_do_not_know_of_each_other(cluster, topics):
    options, name = options_of(cluster), a_sink()
    one, other = SinkBatch(name, "run 1", 0), SinkBatch(f"{name}:0", "run 1", 0)
    first, second = write(options, one, topics, "one"), write(options, other, topics, "other")
    commit(options, [first])
    commit(options, [second])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"one", b"other"]


# -- what goes wrong ----------------------------------------------------------------------------


def test_the_answer_to_a_decision_is_lost(cluster, topics, monkeypatch):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    message, ask, lost = write(options, batch, topics, "once"), coordinator._Connection.ask, []

    def losing(connection, request, response, timeout_s):
        found = ask(connection, request, response, timeout_s)
        if response is coordinator.EndSinkBatchResponse and not lost:
            lost.append(found)
            raise ConnectionResetError
        return found

    monkeypatch.setattr(coordinator._Connection, "ask", losing)
    commit(options, [message])
    assert lost
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == [b"once"]


@pytest.mark.parametrize("when", ["between", "at"])
def test_the_coordinator_is_killed_between_the_tasks_and_the_decision_or_at_it(
    cluster, topics, when
):
    options, sink = options_of(cluster), a_sink()
    coordinates = coordinator_of(cluster)
    for number in range(2):
        batch = SinkBatch(sink, "run 1", number)
        messages = [write(options, batch, topics, f"{number}{n}", part=n) for n in range(3)]
        deciding = threading.Thread(target=commit, args=(options, messages))
        if number == 0 and when == "between":
            cluster.kill(coordinates)
        deciding.start()
        if number == 0 and when == "at":
            cluster.kill(coordinates)
        deciding.join(60)
        assert not deciding.is_alive()
    cluster.start(coordinates)
    expected = sorted(f"{number}{n}".encode() for number in range(2) for n in range(3))
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == expected


def test_a_batch_that_takes_longer_than_its_transactions_is_refused(cluster, topics):
    options = options_of(cluster, transactionTimeoutMs="5s")
    batch = SinkBatch(a_sink(), "run 1", 0)
    message = write(options, batch, topics, "late")
    deadline = time.monotonic() + 30
    while "ongoing" in ids_of(cluster)[attempt_id(batch.sink, "0.0")]:
        assert time.monotonic() < deadline
    with pytest.raises(TransactionAbortedError, match="transactionTimeoutMs, which is 5000"):
        commit(options, [message])
    assert values_of(cluster.bootstrap_servers, topics, PARTITIONS) == []


def test_what_cannot_be_written_is_said_in_one_line(cluster, topics):
    one = topics[0]
    large = pa.record_batch({"value": pa.array([bytes(2 << 20)])})
    nowhere = pa.record_batch({"value": pa.array([b"x"]), "partition": pa.array([7], pa.int32())})
    nameless = pa.record_batch({"value": [b"x"], "topic": pa.array([None], pa.string())})
    too_long = options_of(cluster, topic=one, transactionTimeoutMs="16m")
    for options, batch, says in (
        (options_of(cluster, topic=one), large, "max.message.bytes"),
        (options_of(cluster, topic=one), nowhere, "partition 7, but topic '"),
        (options_of(cluster), nameless, "a row has no topic"),
        (too_long, large, "transactionTimeoutMs=960000 is above"),
    ):
        asked = SinkBatch(a_sink(), "run 1", 0)
        with pytest.raises(UnexpectedArgumentError, match=says) as raised:
            TopicTaskWriter(options, asked, 0).write(iter([batch]))
        assert "\n" not in str(raised.value)
        abort_batch(options, asked, [], is_last=True)


def test_a_batch_of_too_many_tasks_is_refused_before_the_last_one_writes(cluster):
    options, batch = options_of(cluster), SinkBatch(a_sink(), "run 1", 0)
    TopicTaskWriter(options, batch, 9_999)
    with pytest.raises(UnexpectedArgumentError, match="more than 10,000 tasks"):
        TopicTaskWriter(options, batch, 10_000)
    TopicTaskWriter(options, None, 10_000)  # at least once, there is no decision


def test_rows_have_keys_headers_partitions_and_times(cluster, topics):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([b"k", None]),
        "value": pa.array(["text", None]),
        "partition": pa.array([1, None], pa.int32()),
        "timestamp": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "headers": pa.array(
            [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], kind
        ),
    }
    options = options_of(cluster, topic=topics[0], deliveryGuarantee="at-least-once")
    TopicTaskWriter(options, None, 0).write(iter([pa.record_batch(columns)]))
    found = read_rows(cluster.bootstrap_servers, topics[:1], PARTITIONS)
    keyed, tombstone = sorted(found, key=lambda one: one.key() is None)
    assert (keyed.key(), keyed.value(), keyed.partition()) == (b"k", b"text", 1)
    assert keyed.timestamp()[1] == 1_700_000_000_123
    assert keyed.headers() == [("h", b"1"), ("h", None)]
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (None, None, None)


def test_a_time_at_the_beginning_of_1970_is_not_taken_for_none(cluster, topics):
    values = {"value": pa.array(["first", "second", "now"])}
    times = {"timestamp": pa.array([999, 1_000, None], pa.timestamp("us", "UTC"))}
    options = options_of(cluster, topic=topics[0], deliveryGuarantee="at-least-once")
    TopicTaskWriter(options, None, 0).write(iter([pa.record_batch(values | times)]))
    found = read_rows(cluster.bootstrap_servers, topics[:1], PARTITIONS)
    written = {one.value(): one.timestamp()[1] for one in found}
    assert written.pop(b"now") > 1_700_000_000_000
    assert written == {b"first": 1, b"second": 1}
    too_early = {"timestamp": pa.array([-1, 1, None], pa.timestamp("us", "UTC"))}
    with pytest.raises(UnexpectedArgumentError, match="before 1970"):
        TopicTaskWriter(options, None, 0).write(iter([pa.record_batch(values | too_early)]))


def test_a_batch_that_comes_before_one_that_was_committed_is_an_error(cluster, topics):
    """So begins a query with a new checkpoint, under the name of another one."""

    def write_as(run, number):
        named = {"topic": topics[0], "transactionalId": topics[0], "batchId": str(number)}
        options = options_of(cluster, **named)
        batch = SinkBatch(options.identity[0], run, number)
        writer = TopicWriter(options)
        writer._batch = batch
        task = TopicTaskWriter(options, batch, 0)
        writer.commit([task.write(iter([pa.record_batch({"value": ["v"]})]))])

    for run, number in (("run 1", 0), ("run 1", 1), ("run 2", 1)):
        write_as(run, number)
    with pytest.raises(
        UnexpectedArgumentError, match=r"batch 0 is not .* batch 1 of .* was committed before"
    ):
        write_as("run 3", 0)
    write_as("run 4", 2)
    assert len(values_of(cluster.bootstrap_servers, topics, PARTITIONS)) == 3


def test_a_stream_whose_checkpoint_went_back_gets_an_error(cluster, topics):
    options, sink = options_of(cluster), a_sink()
    writer = TopicStreamWriter(options)

    def write_as(run, number, *values):
        writer.commit([write(options, SinkBatch(sink, run, number), topics, *values)], number)

    for run, number in (("run 1", 0), ("run 1", 1), ("run 2", 1), ("run 2", 2)):
        write_as(run, number, "v")
    with pytest.raises(UnexpectedArgumentError, match=r"batch 1 .* batch 2 .* checkpoint"):
        write_as("run 3", 1, "v")
    with pytest.raises(UnexpectedArgumentError, match=r"with 1 row and not 2: .* checkpoint"):
        write_as("run 3", 2, "v", "w")
    assert len(values_of(cluster.bootstrap_servers, topics, PARTITIONS)) == 3


def test_a_cluster_that_has_no_sinks_says_so(cluster, monkeypatch):
    monkeypatch.setattr(coordinator.JoinSinkRequest, "_json", {"apiKey": 20_999}, raising=False)
    with (
        SinkCoordinator(cluster.bootstrap_servers, 5_000) as asked,
        pytest.raises(UnsupportedError, match="deliveryGuarantee=at-least-once"),
    ):
        asked.join(SinkBatch("s", "run 1", 0), attempt_id("s", "0.0"))


def test_a_topic_is_created_if_the_cluster_does_that_and_else_the_error_says_what_to_do(cluster):
    made, missing = f"made-{next(NUMBERS)}", f"missing-{next(NUMBERS)}"
    row = pa.record_batch({"value": pa.array([b"x"])})
    plain = {"deliveryGuarantee": "at-least-once"}
    TopicTaskWriter(options_of(cluster, topic=made, **plain), None, 0).write(iter([row]))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partitions = len(admin.list_topics(made, 60).topics[made].partitions)
    assert values_of(cluster.bootstrap_servers, [made], partitions) == [b"x"]
    creates_topics(cluster, "false")
    try:
        with pytest.raises(UnexpectedArgumentError, match="does not create topics by itself"):
            TopicTaskWriter(options_of(cluster, topic=missing, **plain), None, 0).write(iter([row]))
    finally:
        creates_topics(cluster, "true")


def creates_topics(cluster, value):
    """Set whether topics are created by themselves, and wait until all brokers know."""
    name = "auto.create.topics.enable"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    change = ConfigEntry(name, value)
    change.incremental_operation = AlterConfigOpType.SET
    broker = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[change])
    admin.incremental_alter_configs([broker])[broker].result(60)
    for number in range(len(cluster.node_ids)):
        asked, deadline = ConfigResource(ConfigResource.Type.BROKER, str(number)), time.monotonic()
        while admin.describe_configs([asked])[asked].result(60)[name].value != value:
            assert time.monotonic() < deadline + 60
