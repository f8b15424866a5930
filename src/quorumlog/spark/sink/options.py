"""The options for writing, and which columns can be written."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from quorumlog.client import Level
from quorumlog.client.transactions import TIMEOUT_MS
from quorumlog.model.config import check_name
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError
from quorumlog.sessions.transaction_table import TIMEOUT_MS_MAX
from quorumlog.spark.access import OPTIONS, AnyAccess, refuse_secrets, where_of
from quorumlog.spark.option_values import OptionValues, whole_number
from quorumlog.spark.source.options import channel_of

KNOWN = {
    "servers": "host:port,host:port: some of the cluster's nodes (this or context is required)",
    "group": "the group to write to (required unless there is a column group)",
    "channel": "the channel of all rows, unless there is a column channel (default: 0)",
    "deliveryGuarantee": (
        "exactly-once (default): rows count when their batch is committed, once however often it "
        "is written; or at-least-once: rows are there at once, and again when a task is run again"
    ),
    "transactionTimeoutMs": (
        "a batch to which no task adds anything for this long is aborted, at most 15m (default 5m)"
    ),
    "transactionalId": (
        "of a batch write: with batchId, the name under which it is written once, for foreachBatch"
    ),
    "batchId": "of a batch write: its number, rising with every batch of a transactionalId",
    "level": (
        "when rows count as written: replication (default) or all; with at-least-once also receive "
        "or persistence"
    ),
    "deliveryTimeoutMs": "how long an outage is ridden out (default 120000)",
    "failOnDataLoss": (
        "true (default): a batch with the number of the last one, but not as many rows, is an "
        "error; or false: it is taken for the same one, and not written"
    ),
    **OPTIONS,
}
_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "body": ((BinaryType, StringType), "binary or string"),
    "channel": (_INTEGERS, "an integer"),
    "group": ((StringType,), "a string"),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write and how. `identity`: transactional id and batch of a batch write, if named.

    `fails_on_data_loss`: whether a batch with the number of the last one, but not as many rows, is
    an error.
    """

    servers: AnyAccess
    group: str | None
    channel: int | None
    is_transactional: bool
    transaction_timeout_ms: int
    identity: tuple[str, int] | None
    delivery_timeout_ms: int
    level: Level = "replication"
    fails_on_data_loss: bool = True

    def for_stream(self) -> "WriteOptions":
        """Return these, or raise `UnexpectedArgumentError` for what only a batch write has."""
        check_stream(self.identity)
        return self


def check_stream(identity: tuple[str, int] | None) -> None:
    """Raise `UnexpectedArgumentError` if a stream has the identity of a batch write."""
    if identity is not None:
        raise UnexpectedArgumentError(
            "options transactionalId and batchId are for a batch write: a stream has a name "
            "of its own; leave them out"
        )


def writes_topics(raw: Mapping[str, str], schema: StructType) -> bool:
    """Whether rows go to topics: the options say so, or the columns."""
    names = {name.lower() for name in raw}
    is_named = "topic" in names or any(name.startswith("kafka.") for name in names)
    is_named = is_named or "bootstrap.servers" in names
    return is_named or ("group" not in names and "topic" in schema.names)


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Return the options. Raises `UnexpectedArgumentError` naming the option and what it may be."""
    refuse_secrets(raw)
    values = OptionValues(raw, KNOWN, {})
    group = values.text("group") or None
    if group is not None:
        try:
            check_name("group", group)
        except ConfigError as error:
            raise UnexpectedArgumentError(f"option 'group': {error}") from None
    timeout_ms = values.duration_ms("transactionTimeoutMs") or TIMEOUT_MS
    if timeout_ms > TIMEOUT_MS_MAX:
        raise values.wrong("transactionTimeoutMs")
    guarantees = {"exactly-once": True, "at-least-once": False}
    is_transactional = values.choice("deliveryGuarantee", guarantees)
    levels: dict[str, Level] = {"replication": "replication", "all": "all"}
    if not is_transactional:
        levels |= {"receive": "receive", "persistence": "persistence"}
    level = values.choice("level", levels)
    identity = _identity(values)
    if identity is not None and not is_transactional:
        raise UnexpectedArgumentError(
            "options transactionalId and batchId are for deliveryGuarantee=exactly-once"
        )
    return WriteOptions(
        servers=where_of(values, "servers"),
        group=group,
        channel=channel_of(values),
        is_transactional=is_transactional,
        transaction_timeout_ms=timeout_ms,
        identity=identity,
        delivery_timeout_ms=values.duration_ms("deliveryTimeoutMs") or 120_000,
        level=level,
        fails_on_data_loss=values.choice("failOnDataLoss", {"true": True, "false": False}),
    )


def _identity(values: OptionValues) -> tuple[str, int] | None:
    name, batch = values.text("transactionalId"), values.text("batchId")
    if not name and not batch:
        return None
    if not name or not batch:
        raise UnexpectedArgumentError("options transactionalId and batchId: give both or neither")
    number = whole_number(batch)
    if number is None:
        raise values.wrong("batchId")
    return name, number


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise `UnexpectedArgumentError` unless rows of a schema can be written."""
    for field in schema.fields:
        known = _COLUMNS.get(field.name)
        if known is None:
            raise UnexpectedArgumentError(
                f"column {field.name!r} cannot be written; a row has {', '.join(_COLUMNS)}: "
                "select those, and put everything else into body"
            )
        if not isinstance(field.dataType, known[0]):
            raise UnexpectedArgumentError(
                f"column {field.name} must be {known[1]}, not {field.dataType.simpleString()}"
            )
    if options.channel is not None and "channel" in schema.names:
        raise UnexpectedArgumentError(
            "option 'channel' and a column channel: give one of them only"
        )
    if "body" not in schema.names:
        raise UnexpectedArgumentError("there is no column body, binary or string, to be written")
    if options.group is None and "group" not in schema.names:
        raise UnexpectedArgumentError(f"option 'group' is missing: {KNOWN['group']}")
