"""The options of a producer, checked, and what follows from them."""

import secrets
from dataclasses import dataclass
from typing import TypedDict

from quorumlog.client import options
from quorumlog.client.options import whole_number
from quorumlog.client.results import Level
from quorumlog.model.codes import WriteLevel
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import ConfigError
from quorumlog.model.limits import Limits
from quorumlog.sessions.entries import (
    ID_SIZE,
    SESSION_ENTRY_SIZE,
    TRANSACTIONAL_ENTRY_SIZE,
    TransactionPart,
)
from quorumlog.sessions.producer_table import BLOCKS_REMEMBERED

BATCH_BYTES = 256 * 1024
"""A block of this size is sent at once, if it can be."""
BATCH_BYTES_MAX = 1024 * 1024
"""A block that cannot be sent yet may grow to this size: larger blocks cost less per entry."""
BUFFER_BYTES_MAX = 1 << 40
IN_FLIGHT_BLOCKS_MAX = 1_024


class ProducerOptions(TypedDict, total=False):
    """The options of a `Producer`; see there."""

    batch_bytes: int | None
    linger_ms: float
    buffer_bytes: int
    in_flight_blocks: int
    request_timeout_ms: float
    delivery_timeout_ms: float
    retry_unknown: bool
    channel: int
    idempotent: bool
    producer_id: int | None
    epoch: int
    part: TransactionPart | None
    level: Level


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The options of one producer, in bytes and seconds.

    `grown_bytes` bounds a block that cannot be sent yet, `lead_bytes` is the size of the session
    entry that goes before the entries of a block, `last_ordinal` is the number, counted from 0, of
    the last entry that fits into a block.
    """

    batch_bytes: int
    grown_bytes: int
    buffer_bytes: int
    linger_s: float
    in_flight_blocks: int
    request_timeout_s: float
    delivery_timeout_s: float
    retry_unknown: bool
    channel: int
    is_idempotent: bool
    producer_id: int
    epoch: int
    part: TransactionPart | None
    entry_bytes_max: int
    lead_bytes: int
    last_ordinal: int
    level: WriteLevel


def checked_settings(  # noqa: PLR0913  (one argument an option)
    limits: Limits,
    *,
    batch_bytes: int | None,
    linger_ms: float,
    buffer_bytes: int,
    in_flight_blocks: int,
    request_timeout_ms: float,
    delivery_timeout_ms: float,
    retry_unknown: bool,
    channel: int,
    idempotent: bool,
    producer_id: int | None,
    epoch: int,
    part: TransactionPart | None,
    level: Level,
) -> ProducerSettings:
    """Return the settings. Raises `ConfigError` for an option of a wrong type or value."""
    sizes = _batch_sizes(limits, batch_bytes, buffer_bytes)
    linger_s = options.milliseconds("linger_ms", linger_ms) / 1000
    whole_number("in_flight_blocks", in_flight_blocks, 1, IN_FLIGHT_BLOCKS_MAX)
    options.flag("idempotent", idempotent)
    if idempotent and in_flight_blocks > BLOCKS_REMEMBERED:
        raise ConfigError(
            f"in_flight_blocks {in_flight_blocks} is above {BLOCKS_REMEMBERED}, the number of "
            "blocks that a group remembers of an idempotent producer"
        )
    if not idempotent:
        _check_plain(producer_id, epoch, part)
    own_id = secrets.randbits(63) if producer_id is None else producer_id
    whole_number("producer_id", own_id, 0, (1 << 64) - 1)
    whole_number("epoch", epoch, 0, (1 << 32) - 1)
    if part is not None:
        checked_part(part)
    lead_bytes = SESSION_ENTRY_SIZE if part is None else TRANSACTIONAL_ENTRY_SIZE
    milliseconds = options.milliseconds
    return ProducerSettings(
        *sizes,
        linger_s=linger_s,
        in_flight_blocks=in_flight_blocks,
        request_timeout_s=milliseconds("request_timeout_ms", request_timeout_ms, least=1) / 1000,
        delivery_timeout_s=milliseconds("delivery_timeout_ms", delivery_timeout_ms, least=1) / 1000,
        retry_unknown=options.flag("retry_unknown", retry_unknown),
        channel=whole_number("channel", channel, 0, SYSTEM_CHANNEL - 1),
        is_idempotent=idempotent,
        producer_id=own_id,
        epoch=epoch,
        part=part,
        entry_bytes_max=limits.entry_bytes_max,
        lead_bytes=lead_bytes if idempotent else 0,
        last_ordinal=limits.block_entries_max - 2,  # of a block that has a session entry
        level=_checked_level(level, is_idempotent=idempotent),
    )


def _checked_level(level: Level, *, is_idempotent: bool) -> WriteLevel:
    """Return a level. Raises `ConfigError` for one at which a producer cannot be answered."""
    known = [each.word for each in WriteLevel if each > WriteLevel.ONE_WAY]
    if level not in known:
        raise ConfigError(f"level is one of {', '.join(known)}, not {level!r}")
    found = WriteLevel[level.upper()]
    if is_idempotent and found < WriteLevel.REPLICATION:
        raise ConfigError(
            f"level {level!r} needs idempotent=False: what no majority has may be lost, and cannot "
            "be stored exactly once"
        )
    return found


def _batch_sizes(
    limits: Limits, batch_bytes: int | None, buffer_bytes: int
) -> tuple[int, int, int]:
    """Return the size at which a block is sent, the size it may grow to, and the buffer's."""
    most = limits.block_bytes_max - TRANSACTIONAL_ENTRY_SIZE
    if batch_bytes is None:
        batch_bytes, grown_bytes = min(BATCH_BYTES, most), min(BATCH_BYTES_MAX, most)
    else:
        grown_bytes = whole_number("batch_bytes", batch_bytes, 1, most)
    whole_number("buffer_bytes", buffer_bytes, 1, BUFFER_BYTES_MAX)
    if buffer_bytes < batch_bytes:
        raise ConfigError(
            f"buffer_bytes {buffer_bytes} must be at least batch_bytes, {batch_bytes}"
        )
    return batch_bytes, grown_bytes, buffer_bytes


def _check_plain(producer_id: object, epoch: object, part: object) -> None:
    """Raise `ConfigError` if a producer that is not idempotent is given what only those have."""
    if part is not None:
        raise ConfigError("a part of a transaction is written by an idempotent producer")
    if producer_id is not None or epoch != 0:
        raise ConfigError(
            "producer_id and epoch are those of an idempotent producer; with idempotent=False "
            "nothing bears them"
        )


def checked_part(part: TransactionPart) -> TransactionPart:
    """Return a part of a transaction. Raises `ConfigError` for one that cannot be."""
    if not isinstance(part, TransactionPart):
        raise ConfigError(f"part is a TransactionPart, not {part!r}")
    if not isinstance(part.transactional_id, bytes) or len(part.transactional_id) != ID_SIZE:
        raise ConfigError(f"a transactional id has {ID_SIZE} bytes, not {part.transactional_id!r}")
    whole_number("epoch", part.epoch, 0, (1 << 32) - 1)
    whole_number("batch_id", part.batch_id, 0, (1 << 64) - 1)
    whole_number("partition", part.partition, 0, (1 << 32) - 1)
    return part
