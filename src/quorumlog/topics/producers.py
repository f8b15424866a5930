"""Idempotent producers of record batches: what a partition remembers of each, and what it takes.

Every replica derives this from the headers of the batches in the log, so a new leader knows which
batches were appended. The rules are Kafka's (KIP-98): the sequences of a producer in a partition
go on without gaps from batch to batch; one that is sent again is known by its first and last
sequence and gets the answer of the first time; a higher epoch begins at 0 and ends the lower one.
"""

from typing import Final

import msgspec

from quorumlog.model.codes import ResponseCode
from quorumlog.records.batch import BatchHeader

BATCHES_REMEMBERED: Final = 5
"""Newest batches of a producer in a partition that are known when they come again; clients have
no more under way (`max.in.flight.requests.per.connection`)."""
_SEQUENCES: Final = 1 << 31
"""After the largest sequence comes 0."""
_BEFORE_ALL: Final = -1
"""The sequence after which the first one comes; no batch has it."""


class ProducerBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch that was appended; its entry is at `index`.

    `append_time` is the time that its leader gave it, -1 if its records keep their own.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    index: int
    append_time: int


class ProducerState(msgspec.Struct, frozen=True, array_like=True):
    """What a partition remembers of one producer: its epoch and its newest batches, if any."""

    epoch: int
    batches: tuple[ProducerBatch, ...]

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1: it is not known."""
        return self.batches[-1].last_sequence if self.batches else -1


class BatchCheck(msgspec.Struct, frozen=True):
    """The check of a batch: `appended` already, refused with a code, or to be added."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    appended: ProducerBatch | None = None


TO_BE_ADDED: Final = BatchCheck()


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence that comes `count` after another."""
    return (sequence + count) % _SEQUENCES


def is_later(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another one of the same producer.

    After the last sequence comes 0, so one that is ahead by less than half of all is later.
    """
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


def state_after(before: ProducerState | None, header: BatchHeader, index: int) -> ProducerState:
    """Return what is remembered of a producer after one more batch of it.

    No leader appends one of an epoch that is over. If the log has one, the epoch stays over.
    """
    if before is not None and before.epoch > header.producer_epoch:
        return before
    last = sequence_after(header.base_sequence, header.last_offset_delta)
    append_time = header.max_timestamp if header.is_log_append_time else -1
    batch = ProducerBatch(header.base_sequence, last, header.base_offset, index, append_time)
    if before is None or before.epoch != header.producer_epoch:
        return ProducerState(header.producer_epoch, (batch,))
    return ProducerState(before.epoch, (*before.batches, batch)[-BATCHES_REMEMBERED:])


def state_after_marker(before: ProducerState | None, epoch: int, index: int) -> ProducerState:
    """Return what is remembered of a producer whose transaction was ended in an epoch.

    It may be a later one than that of its batches: who was fenced appends nothing more, and who
    goes on with that epoch begins at sequence 0. One that was forgotten may go on anywhere.
    """
    if before is None:
        return ProducerState(epoch, ())
    if before.epoch < epoch:
        nothing = ProducerBatch(_BEFORE_ALL, _BEFORE_ALL, -1, index, -1)
        return ProducerState(epoch, (nothing,))
    return before


def check_sequence(
    state: ProducerState | None, header: BatchHeader, *, begins_anywhere: bool = False
) -> BatchCheck:
    """Decide on a batch of an idempotent producer that a leader is asked to append.

    `begins_anywhere`: a producer of which nothing is known may begin at any sequence, as it may
    have been forgotten.
    """
    who = f"producer {header.producer_id}"
    epoch, first = header.producer_epoch, header.base_sequence
    if state is None:
        return _first_batch(who, first, begins_anywhere=begins_anywhere)
    if epoch < state.epoch:
        text = f"{who} of epoch {epoch} was succeeded by epoch {state.epoch}"
        return BatchCheck(ResponseCode.PRODUCER_FENCED, text)
    if epoch > state.epoch:
        if not first:
            return TO_BE_ADDED
        text = f"{who} begins its epoch {epoch} at {first}, not at 0"
        return BatchCheck(ResponseCode.SEQUENCE_GAP, text)
    last = sequence_after(first, header.last_offset_delta)
    for batch in state.batches:
        if (batch.first_sequence, batch.last_sequence) == (first, last):
            return BatchCheck(appended=batch)
    if not state.batches:  # all that is known of it is that a transaction ended
        return _first_batch(who, first, begins_anywhere=begins_anywhere)
    following = sequence_after(state.batches[-1].last_sequence, 1)
    if first == following:
        return TO_BE_ADDED
    text = f"{who} must go on at {following}, not at {first}"
    is_gap = is_later(first, following)
    return BatchCheck(ResponseCode.SEQUENCE_GAP if is_gap else ResponseCode.SEQUENCE_MISMATCH, text)


def _first_batch(who: str, first: int, *, begins_anywhere: bool) -> BatchCheck:
    """Decide on a batch of a producer of which none is known."""
    if not first or begins_anywhere:
        return TO_BE_ADDED
    text = f"{who} is not known here (any more), but goes on at {first}"
    return BatchCheck(ResponseCode.UNKNOWN_PRODUCER, text)
