"""What the sink refuses before a job begins, and what it makes of tasks' messages."""

import pickle
from types import SimpleNamespace

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from quorumlog.client.transactions import ProducerEpoch
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    NetworkError,
    UnexpectedArgumentError,
)
from quorumlog.sessions.entries import AcceptedAttempt, EndTransaction
from quorumlog.spark.data_source import QuorumlogSource
from quorumlog.spark.sink import writer
from quorumlog.spark.sink.options import check_columns, parse_write_options
from quorumlog.spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    RUN_ID,
    LogWriter,
    TaskCommitMessage,
    WriteContext,
    WrittenPart,
    _by_group,
    commit_batch,
    context_of,
)

SERVERS = {"servers": "127.0.0.1:7101"}


def options(**given):
    return parse_write_options({**SERVERS, "group": "g", **given})


def test_f99_rows_count_as_written_at_the_level_that_is_asked_for():
    assert options().level == "replication"
    assert options(level="all").level == "all"
    early = options(level="persistence", deliveryGuarantee="at-least-once")
    assert early.level == "persistence"
    for level in ("persistence", "receive", "one_way", "most"):
        with pytest.raises(UnexpectedArgumentError, match="level"):
            options(level=level)


TYPES = {"binary": BinaryType(), "string": StringType(), "int": IntegerType()}


def schema(text):
    fields = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


def test_defaults_are_exactly_once():
    found = options()
    assert found.is_transactional
    assert found.identity is None
    assert (found.transaction_timeout_ms, found.delivery_timeout_ms) == (300_000, 120_000)
    assert not options(deliveryGuarantee="at-least-once").is_transactional


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"deliveryGuarantee": "twice"}, "exactly-once (default)"),
        ({"transactionTimeoutMs": "16m"}, "at most 15m"),
        ({"transactionalId": "x"}, "give both or neither"),
        ({"batchId": "3"}, "give both or neither"),
        ({"channel": "x"}, "option channel=x: a channel is between 0 and"),
        ({"transactionalId": "x", "batchId": "-1"}, "batchId='-1' is wrong"),
        (
            {"transactionalId": "x", "batchId": "1", "deliveryGuarantee": "at-least-once"},
            "exactly-once",
        ),
        ({"topic": "x"}, "option 'topic' is not known"),
        ({"group": "no group!"}, "option 'group'"),
        ({"servers": "nowhere"}, "servers='nowhere' is wrong"),
    ],
)
def test_wrong_options_are_named(given, says):
    with pytest.raises(UnexpectedArgumentError) as raised:
        options(**given)
    assert says in str(raised.value)


def test_a_stream_has_a_name_of_its_own():
    named = options(transactionalId="app", batchId="7")
    assert named.identity == ("app", 7)
    with pytest.raises(UnexpectedArgumentError, match="a stream has a name"):
        named.for_stream()
    assert options().for_stream() == options()


@pytest.mark.parametrize(
    "text",
    ["body binary", "body string", "channel int, body binary", "group string, body binary"],
)
def test_these_columns_can_be_written(text):
    check_columns(schema(text), options())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("value string", "column 'value' cannot be written"),
        ("body int", "column body must be binary or string, not int"),
        ("body binary, channel string", "column channel must be an integer, not string"),
        ("channel int", "there is no column body"),
    ],
)
def test_other_columns_are_refused_in_words(text, says):
    with pytest.raises(UnexpectedArgumentError) as raised:
        check_columns(schema(text), options())
    assert says in str(raised.value)


def test_f93_the_channel_of_all_rows_is_an_option_or_a_column():
    assert options().channel is None
    assert options(channel="7").channel == 7
    check_columns(schema("body binary"), options(channel="7"))
    with pytest.raises(UnexpectedArgumentError, match="give one of them only"):
        check_columns(schema("body binary, channel int"), options(channel="7"))


def test_somebody_must_say_which_group():
    without = parse_write_options(SERVERS)
    check_columns(schema("group string, body binary"), without)
    with pytest.raises(UnexpectedArgumentError, match="option 'group' is missing"):
        check_columns(schema("body binary"), without)


def test_a_task_learns_from_spark_what_it_writes():
    properties = {QUERY_ID: "q", RUN_ID: "r", BATCH_ID: "12"}
    assert context_of(properties.get) == WriteContext("q", "r", 12)
    for name in properties:
        fewer = {key: value for key, value in properties.items() if key != name}
        with pytest.raises(UnexpectedArgumentError, match="this Spark does not pass") as raised:
            context_of(fewer.get)
        assert name in str(raised.value)
        assert "at-least-once" in str(raised.value)


def attempt(partition, producer_id):
    return AcceptedAttempt(partition, producer_id, 5, 9, 4, 77)


def test_what_the_tasks_wrote_is_gathered_by_group():
    writing = WriteContext("q", "r", 3)
    messages = [
        TaskCommitMessage(
            writing, (WrittenPart("a", 1, attempt(0, 11)), WrittenPart("b", 2, None))
        ),
        None,
        TaskCommitMessage(writing, ()),
        TaskCommitMessage(writing, (WrittenPart("a", 1, attempt(2, 12)),)),
    ]
    assert _by_group(messages) == {
        "a": (writing, 1, [attempt(0, 11), attempt(2, 12)]),
        "b": (writing, 2, []),
    }
    assert _by_group([None, TaskCommitMessage(None, ())]) == {}
    assert pickle.loads(pickle.dumps(messages[0])) == messages[0]


class Ended:
    """A group in which batch 3 is committed, with some rows at index 70, as clients see it.

    `index` -1: its server does not say where; `rows` None: the entry was removed.
    """

    def __init__(self, monkeypatch, rows, index=70):
        self.rows, self.index = rows, index
        monkeypatch.setattr(writer, "client_for", lambda *_: self)
        monkeypatch.setattr(writer, "SyncTransactions", lambda *_, **__: self)

    def init(self):
        return ProducerEpoch(1, 3, self.index)

    def get(self, index, *, linearizable=False):
        assert index == 70
        if not linearizable:
            raise IndexOutOfRangeError("index 70 is beyond the end of a former leader")
        if self.rows is None:
            raise IndexRemovedError("index 70 is gone")
        attempts = tuple(AcceptedAttempt(n, n, 1, 2, count, 0) for n, count in enumerate(self.rows))
        entry = EndTransaction(b"q" * 16, 1, 3, attempts).encode()
        return SimpleNamespace(body=entry[HEADER_SIZE:])


def comes_again(*rows, **given):
    parts = [(WrittenPart("a", 1, None, 3, count),) for count in rows]
    writing = WriteContext("q", "r", 3)
    commit_batch(options(**given), [TaskCommitMessage(writing, one) for one in parts])


def test_a_batch_that_has_ended_may_come_again_with_as_many_rows(monkeypatch):
    Ended(monkeypatch, [30, 0, 12])
    comes_again(42)
    comes_again(40, 2)


def test_another_batch_with_the_number_of_the_last_one_is_an_error(monkeypatch, caplog):
    Ended(monkeypatch, [30, 12])
    wanted = (
        r"batch 3 of q is not written to group a, as a batch 3 was committed there before, "
        r"with 42 rows and not 1,041: .* failOnDataLoss=false .* checkpoint .* transactionalId"
    )
    with pytest.raises(UnexpectedArgumentError, match=wanted):
        comes_again(1_000, 41)
    comes_again(1_000, 41, failOnDataLoss="false")
    assert "with 42 rows and not 1,041; going on" in caplog.text


def test_a_batch_of_which_the_group_does_not_know_the_rows_is_taken_for_the_same(monkeypatch):
    """Its end was removed by retention, or the server is of an earlier version."""
    Ended(monkeypatch, None)
    comes_again(7)
    Ended(monkeypatch, [30], index=-1)
    comes_again(7)


def test_a_batch_that_comes_before_one_that_has_ended_is_an_error(monkeypatch):
    """So does that of a query whose checkpoint was restored from a backup."""
    Ended(monkeypatch, [0])

    def ended(last_batch):
        parts = (WrittenPart("a", 1, None, 2), WrittenPart("b", 1, None, last_batch))
        return [None, TaskCommitMessage(WriteContext("q", "r", 3), parts)]

    commit_batch(options(), ended(3))  # the last one may come again
    with pytest.raises(UnexpectedArgumentError, match=r"batch 3 of q .* group b, as batch 4 .*"):
        commit_batch(options(), ended(4))


def test_every_batch_write_has_a_name_of_its_own_unless_it_is_named():
    first, second = LogWriter(options())._context, LogWriter(options())._context
    assert first.transactional_id != second.transactional_id
    named = options(transactionalId="app", batchId="7")
    first, second = LogWriter(named)._context, LogWriter(named)._context
    assert (first.transactional_id, first.batch_id) == ("app", 7)
    assert first.run_id != second.run_id
    assert pickle.loads(pickle.dumps(LogWriter(named)))._context.batch_id == 7


def writer_of(**named):
    options = {"servers": "127.0.0.1:1", "group": "g", "deliveryTimeoutMs": "200", **named}
    schema = StructType([StructField("body", BinaryType())])
    return QuorumlogSource(options).writer(schema, overwrite=False)


def test_a_batch_write_to_servers_that_do_not_answer_is_refused_before_its_tasks_run():
    with pytest.raises(NetworkError, match=r"none of the servers 127.0.0.1:1 answered within 0.2"):
        writer_of()


def test_a_batch_of_a_query_rides_out_an_outage():
    writer_of(transactionalId="a query", batchId="7")
