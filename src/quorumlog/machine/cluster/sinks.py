"""Sinks: who writes batches to topics by tasks, all of a batch in one decision.

A sink is known by a name. Its tasks write as *attempts*, each a producer with a transactional id of
its own, and leave their transactions ongoing. One command ends the batch: the transactions of the
attempts that it names are committed, all others of the sink aborted, and the number of the batch is
noted. A batch that comes again has ended already; a run of the sink that was succeeded by another
one can do nothing any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from quorumlog.machine.cluster.commands import (
    UNKNOWN_ROWS,
    BeginSinkRun,
    EndSinkBatch,
    ForgetSinks,
    GroupsChanged,
    SinkBatchEnded,
)
from quorumlog.machine.cluster.consumer_groups import ConsumerGroups
from quorumlog.machine.cluster.transactions import Ending, TransactionRecord, Transactions
from quorumlog.model.codes import ResponseCode

SINKS_MAX: Final = 10_000
"""Sinks of a cluster. Above it the one that was over first is forgotten."""
EARLIER_RUNS_MAX: Final = 16
"""Earlier runs of a sink by which a task is known that belongs to one of them."""
NO_BATCH: Final = -1
"""Instead of the number of the last batch that was committed: none was."""
_PREFIX: Final = "quorumlog-sink:"


def attempt_id(sink: str, attempt: str) -> str:
    """Return the transactional id of an attempt, whose name has no colon."""
    return f"{_PREFIX}{sink}:{attempt}"


def sink_of(transactional_id: str) -> str | None:
    """Return the sink whose attempt has a transactional id; None: it is of no sink."""
    if not transactional_id.startswith(_PREFIX):
        return None
    name, colon, _ = transactional_id.removeprefix(_PREFIX).rpartition(":")
    return name if colon else None


class SinkRecord(msgspec.Struct, frozen=True, array_like=True):
    """A sink: its present run, and the last batch that was committed, with the number of its rows.

    `is_over`: it was for one batch, which has ended; nothing more is written.
    """

    name: str
    run_id: str
    version: int = 1
    last_batch: int = NO_BATCH
    is_over: bool = False
    changed_ms: int = 0
    earlier_runs: tuple[str, ...] = ()
    last_rows: int = UNKNOWN_ROWS


@dataclass(slots=True)
class Sinks:
    """All sinks. Records are replaced, never changed."""

    records: dict[str, SinkRecord] = field(default_factory=dict)
    _view: Mapping[str, SinkRecord] | None = None

    def begin_run(
        self, command: BeginSinkRun, transactions: Transactions, groups: ConsumerGroups, at_ms: int
    ) -> GroupsChanged:
        """Another run of a sink begins: what attempts of earlier ones have written is aborted."""
        before = self.records.get(command.sink)
        if command.version != (0 if before is None else before.version):
            return GroupsChanged(ResponseCode.INCONSISTENT_TERM, "the sink has changed since")
        if before is None and len(self.records) >= SINKS_MAX and not self._make_room():
            text = f"a cluster has at most {SINKS_MAX} sinks"
            return GroupsChanged(ResponseCode.CLUSTER_FULL, text)
        end_attempts(transactions, command.sink, {}, Ending(command.term, at_ms), groups)
        if before is None:
            after = SinkRecord(command.sink, command.run_id, changed_ms=at_ms)
        else:
            after = msgspec.structs.replace(
                before,
                run_id=command.run_id,
                version=before.version + 1,
                changed_ms=max(before.changed_ms, at_ms),
                earlier_runs=(*before.earlier_runs, before.run_id)[-EARLIER_RUNS_MAX:],
            )
        self._put(after)
        return GroupsChanged(ResponseCode.SUCCESS)

    def end_batch(
        self, command: EndSinkBatch, transactions: Transactions, groups: ConsumerGroups, at_ms: int
    ) -> SinkBatchEnded:
        """A batch is committed, or aborted: the transactions of all attempts of the sink end.

        If one of those to be committed is not ongoing any more, nothing changes. Nothing does if
        the batch, or a later one, was committed before, by whichever run: only what the command
        itself names is aborted then, if it is ongoing. The answer says how many rows the last batch
        has: if one that comes again has another number, it is not the same.
        """
        before = self.records.get(command.sink)
        if before is None:
            return SinkBatchEnded(ResponseCode.UNKNOWN_PRODUCER, "the sink is not known")
        is_ended = command.batch_id <= before.last_batch
        if before.run_id != command.run_id and not is_ended:
            text = "another run of the sink has begun"
            return SinkBatchEnded(ResponseCode.PRODUCER_FENCED, text)
        named = {
            attempt_id(command.sink, name): (producer_id, epoch)
            for name, producer_id, epoch in command.attempts
        }
        ending = Ending(command.term, at_ms, is_last=command.is_last)
        if is_ended:
            for name, producer in named.items():
                record = transactions.records.get(name)
                if record is not None and _fault(record, producer) is None:
                    transactions.end(record, ending, groups, commits=False)
            return SinkBatchEnded(
                ResponseCode.SUCCESS, last_batch=before.last_batch, last_rows=before.last_rows
            )
        if command.commits:
            for name, producer in named.items():
                fault = _fault(transactions.records.get(name), producer)
                if fault is not None:
                    text = f"the transaction of {name} {fault}"
                    return SinkBatchEnded(ResponseCode.INVALID_TRANSACTION_STATE, text)
        accepted = named if command.commits else {}
        aborted = end_attempts(transactions, command.sink, accepted, ending, groups)
        after = msgspec.structs.replace(
            before,
            version=before.version + 1,
            last_batch=command.batch_id if command.commits else before.last_batch,
            last_rows=command.rows if command.commits else before.last_rows,
            is_over=command.is_last,
            changed_ms=max(before.changed_ms, at_ms),
        )
        self._put(after)
        return SinkBatchEnded(
            ResponseCode.SUCCESS,
            last_batch=after.last_batch,
            committed=len(accepted),
            aborted=aborted,
            last_rows=after.last_rows,
        )

    def forget(self, command: ForgetSinks, transactions: Transactions) -> GroupsChanged:
        """Forget sinks that nobody has used since a time: neither they nor attempts of them were
        changed, and no transaction of an attempt is open.

        A run that is known begins a batch without a change of its sink.
        """
        used = used_sinks(transactions.records, command.unchanged_since_ms)
        codes = []
        for name in command.sinks:
            found = self.records.get(name)
            if found is None or found.changed_ms > command.unchanged_since_ms or name in used:
                codes.append(ResponseCode.CHANGE_IN_PROGRESS)
            else:
                self._remove(name)
                codes.append(ResponseCode.SUCCESS)
        return GroupsChanged(ResponseCode.SUCCESS, codes=codes)

    def _make_room(self) -> bool:
        """Forget the sink that was over first; return whether there was one."""
        over = [one for one in self.records.values() if one.is_over]
        if over:
            self._remove(min(over, key=lambda one: one.changed_ms).name)
        return bool(over)

    def _put(self, record: SinkRecord) -> None:
        self.records[record.name] = record
        self._view = None

    def _remove(self, name: str) -> None:
        del self.records[name]
        self._view = None

    # -- as a whole ---------------------------------------------------------------------------

    def view(self) -> Mapping[str, SinkRecord]:
        """Return what others may read while the records go on; the same one if none changed."""
        if self._view is None:
            self._view = dict(self.records)
        return self._view


def used_sinks(records: Mapping[str, TransactionRecord], since_ms: int) -> set[str]:
    """Return the sinks of which an attempt has an open transaction, or was changed after a time."""
    names = (
        sink_of(name)
        for name, record in records.items()
        if record.is_open or record.changed_ms > since_ms
    )
    return {name for name in names if name is not None}


def end_attempts(
    transactions: Transactions,
    sink: str,
    accepted: Mapping[str, object],
    ending: Ending,
    groups: ConsumerGroups,
) -> int:
    """Commit the transactions of accepted attempts of a sink, and abort its others; return how
    many these are.

    No producer of an attempt can write any more then, not even one that has yet to begin.
    """
    aborted = 0
    for name in list(transactions.records):
        if sink_of(name) != sink:
            continue
        record = transactions.records[name]  # another one's end may have changed it
        aborted += record.state == "Ongoing" and name not in accepted
        transactions.end(record, ending, groups, commits=name in accepted)
    return aborted


def _fault(record: TransactionRecord | None, producer: tuple[int, int]) -> str | None:
    """Return why the transaction of an attempt cannot be committed; None: it can."""
    if record is None:
        return "was forgotten"
    if (record.producer_id, record.epoch) != producer:
        return "was aborted: it took longer than its time-out, or another attempt took its place"
    if record.state != "Ongoing":
        return f"is not ongoing, but {record.state}"
    return None
