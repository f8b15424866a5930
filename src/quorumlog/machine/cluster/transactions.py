"""Transactions of Kafka's producers: who holds a transactional id, and what its transaction is in.

The coordinator judges what producers ask, by the record that it sees, and its commands name the
version of that record: a command that comes late changes nothing. The leaders of partition groups
write the markers of a transaction that was decided, and say so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    CommitOffsets,
    DecideTransaction,
    ForgetTransactions,
    GroupsChanged,
    InitTransaction,
    MarkersWritten,
)
from quorumlog.machine.cluster.consumer_groups import (
    CommittedOffset,
    ConsumerGroups,
    Partition,
)
from quorumlog.model.codes import ResponseCode

TRANSACTIONAL_IDS_MAX: Final = 10_000
"""Transactional ids of a cluster."""
PLACES_MAX: Final = 100_000
"""Partitions and consumer groups in the transactions of all ids together."""
CONSUMER_GROUPS_MAX: Final = 100
"""Consumer groups whose offsets one transaction commits."""

TransactionState: TypeAlias = Literal[
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"
]
"""Kafka's names. One that is prepared is decided; its markers are being written."""
STATES: Final = get_args(TransactionState)
PREPARED: Final = ("PrepareCommit", "PrepareAbort")


class TransactionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A transactional id, its producer, and its last transaction, which may be ongoing.

    `last_producer_id` and `last_epoch` are those that the same producer had before, -1 if it is
    another one. `number` counts its transactions. `decided_term`: of `__cluster`, in which the
    last one was decided. `started_ms` and `changed_ms`: when it began, and when the record was
    changed, in Unix time. `partitions`: those that it may have records in; without markers yet,
    once it is decided. `offsets`: what is committed with it, by consumer group. `is_last`: the id
    is forgotten once the transaction has ended everywhere.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    last_producer_id: int = -1
    last_epoch: int = -1
    state: TransactionState = "Empty"
    version: int = 1
    number: int = 0
    decided_term: int = 0
    started_ms: int = 0
    changed_ms: int = 0
    partitions: tuple[Partition, ...] = ()
    offsets: Mapping[str, Mapping[Partition, CommittedOffset]] = {}
    is_last: bool = False

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided, and markers are being written."""
        return self.state in PREPARED

    @property
    def is_open(self) -> bool:
        """Whether it has begun and has not ended everywhere."""
        return self.state == "Ongoing" or self.is_prepared

    @property
    def commits(self) -> bool:
        """Whether it was decided to be committed."""
        return self.state in ("PrepareCommit", "CompleteCommit")


class Ending(NamedTuple):
    """How transactions end: decided in which term of `__cluster`, and when, in Unix time.

    `is_last`: their transactional ids are used no more.
    """

    term: int
    at_ms: int
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class TransactionView:
    """All transactional ids at one moment.

    `ids`: by producer id. `prepared`: those whose transaction is decided, and lacks markers.
    `pending`: those whose transaction may commit offsets, by consumer group.
    """

    records: Mapping[str, TransactionRecord] = field(default_factory=dict)
    ids: Mapping[int, str] = field(default_factory=dict)
    prepared: Mapping[str, TransactionRecord] = field(default_factory=dict)
    pending: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of_producer(self, producer_id: int) -> TransactionRecord | None:
        """Return the record of the transactional id whose producer has this id."""
        name = self.ids.get(producer_id)
        return None if name is None else self.records.get(name)

    def has_pending(self, group: str, place: Partition) -> bool:
        """Whether an ongoing transaction may commit an offset of a group in a partition."""
        names = self.pending.get(group, ())
        return any(place in self.records[name].offsets[group] for name in names)


@dataclass(slots=True)
class Transactions:
    """All transactional ids. Records are replaced, never changed."""

    records: dict[str, TransactionRecord] = field(default_factory=dict)
    place_count: int = 0
    offsets_added: int = 0
    """Commands that have added offsets: their number is that of what they have added."""
    _ids: dict[int, str] = field(default_factory=dict)
    _prepared: dict[str, TransactionRecord] = field(default_factory=dict)
    _pending: dict[str, frozenset[str]] = field(default_factory=dict)
    _view: TransactionView | None = None

    # -- commands -----------------------------------------------------------------------------

    def init(self, command: InitTransaction, at_ms: int) -> GroupsChanged:
        """Give a transactional id to a producer: an earlier one can do nothing any more."""
        before = self.records.get(command.transactional_id)
        if before is None and command.version:
            return _UNKNOWN
        if before is not None and (before.version != command.version or before.is_open):
            return _outdated(before)
        if before is None and len(self.records) >= TRANSACTIONAL_IDS_MAX:
            return _full(f"a cluster has at most {TRANSACTIONAL_IDS_MAX} transactional ids")
        last = _NOBODY
        if before is not None and command.is_same:
            last = before.producer_id, before.epoch
        self._put(
            TransactionRecord(
                command.transactional_id,
                command.producer_id,
                command.epoch,
                command.timeout_ms,
                *last,
                version=command.version + 1,
                number=0 if before is None else before.number,
                changed_ms=at_ms if before is None else max(before.changed_ms, at_ms),
            )
        )
        return _DONE

    def add(
        self,
        command: AddToTransaction,
        topics: Mapping[bytes, object],
        groups: ConsumerGroups,
        at_ms: int,
    ) -> GroupsChanged:
        """A transaction goes to further partitions, or commits offsets of further groups."""
        before = self._judged(command)
        if isinstance(before, GroupsChanged):
            return before
        if before.is_prepared:
            return _outdated(before)
        is_new = before.state != "Ongoing"
        known = () if is_new else before.partitions
        there = set(known)
        more = tuple(
            dict.fromkeys(
                one for one in command.partitions if one not in there and one[0] in topics
            )
        )
        offsets = {} if is_new else dict(before.offsets)
        new_groups = [one for one in dict.fromkeys(command.groups) if one not in offsets]
        offsets |= {one: {} for one in new_groups}
        if self.place_count + len(more) + len(new_groups) > PLACES_MAX:
            text = f"transactions of a cluster have at most {PLACES_MAX} partitions and groups"
            return _full(text)
        if len(offsets) > CONSUMER_GROUPS_MAX:
            return _full(f"a transaction commits offsets of at most {CONSUMER_GROUPS_MAX} groups")
        if not groups.have_room_for(one for one in new_groups if one not in self._pending):
            return _full("the cluster has no room for more consumer groups")
        self._put(
            msgspec.structs.replace(
                before,
                state="Ongoing",
                version=before.version + 1,
                number=before.number + is_new,
                started_ms=at_ms if is_new else before.started_ms,
                changed_ms=max(before.changed_ms, at_ms),
                partitions=known + more,
                offsets=offsets,
            )
        )
        return _DONE

    def add_offsets(
        self,
        command: AddTransactionOffsets,
        topics: Mapping[bytes, object],
        groups: ConsumerGroups,
        at_ms: int,
    ) -> GroupsChanged:
        """Offsets are to be committed with a transaction, if it is; none of who reads a log."""
        before = self._judged(command)
        if isinstance(before, GroupsChanged):
            return before
        if before.state != "Ongoing" or command.group not in before.offsets:
            return _outdated(before)
        if groups.is_late(command):
            text = f"a later generation of {command.group} was saved, or the member has gone"
            return GroupsChanged(ResponseCode.CONSUMER_FENCED, text)
        self.offsets_added += 1
        number = self.offsets_added
        offsets, codes = dict(before.offsets.get(command.group, {})), []
        for one in command.offsets:
            place = one.topic_id, one.partition
            offset = CommittedOffset(one.offset, one.leader_epoch, one.metadata, at_ms, number)
            if not groups.has_partition(command.group, topics, place):
                codes.append(ResponseCode.UNKNOWN_TOPIC)
            elif not groups.reserve(command.group, place, offset, offsets.get(place)):
                codes.append(ResponseCode.CLUSTER_FULL)
            else:
                offsets[place] = offset
                codes.append(ResponseCode.SUCCESS)
        self._put(
            msgspec.structs.replace(
                before,
                version=before.version + 1,
                changed_ms=max(before.changed_ms, at_ms),
                offsets={**before.offsets, command.group: offsets},
            )
        )
        return GroupsChanged(ResponseCode.SUCCESS, codes=codes)

    def has_offsets(self, group: str) -> bool:
        """Whether ongoing transactions may commit offsets of a consumer group."""
        return any(self.records[name].offsets[group] for name in self._pending.get(group, ()))

    def superseded(
        self, command: CommitOffsets, codes: Iterable[ResponseCode], groups: ConsumerGroups
    ) -> None:
        """A consumer group has committed offsets itself: older ones of transactions are void.

        `codes`: of each offset of the command; none if it was refused as a whole.
        """
        if command.group not in self._pending:  # as a rule
            return
        following = self.offsets_added + 1
        committed = {
            (one.topic_id, one.partition): following
            for one, code in zip(command.offsets, codes, strict=False)
            if code is ResponseCode.SUCCESS
        }
        self._void(command.group, committed, groups)

    def _void(self, group: str, committed: Mapping[Partition, int], groups: ConsumerGroups) -> None:
        """Have ongoing transactions not commit what is older than an offset that is committed.

        `committed`: partitions of a group, and the number that their offset has, or would have.
        """
        for name in self._pending.get(group, ()):
            record = self.records[name]
            known = record.offsets[group]
            places = known.keys() & committed.keys()
            gone = {one: known[one] for one in places if known[one].number < committed[one]}
            if gone:
                groups.release(gone.values())
                left = {place: one for place, one in known.items() if place not in gone}
                self._put(
                    msgspec.structs.replace(
                        record,
                        version=record.version + 1,
                        offsets={**record.offsets, group: left},
                    )
                )

    def decide(
        self, command: DecideTransaction, groups: ConsumerGroups, at_ms: int
    ) -> GroupsChanged:
        """A transaction is committed, with its offsets, or aborted: there is no way back."""
        before = self._judged(command)
        if isinstance(before, GroupsChanged):
            return before
        if before.state != "Ongoing":
            return _outdated(before)
        ending = Ending(command.term, at_ms)
        after = self._decided(before, ending, groups, epoch=command.epoch, commits=command.commits)
        if command.epoch != before.epoch:
            last = (before.producer_id, before.epoch) if command.is_same else _NOBODY
            after = msgspec.structs.replace(after, last_producer_id=last[0], last_epoch=last[1])
        self._put(_completed(after))
        return _DONE

    def end(
        self, before: TransactionRecord, ending: Ending, groups: ConsumerGroups, *, commits: bool
    ) -> None:
        """End the transaction of a producer, which can write nothing more: its epoch is over.

        One that has none, and could still begin one, cannot do that either.
        """
        if before.state == "Ongoing":
            epoch = before.epoch + 1
            after = self._decided(before, ending, groups, epoch=epoch, commits=commits)
        elif before.state == "Empty":
            after = msgspec.structs.replace(
                before,
                epoch=before.epoch + 1,
                state="CompleteAbort",
                version=before.version + 1,
                changed_ms=max(before.changed_ms, ending.at_ms),
            )
        elif ending.is_last:
            after = msgspec.structs.replace(before, version=before.version + 1)
        else:
            return  # it was ended like this before
        after = msgspec.structs.replace(
            after, last_producer_id=-1, last_epoch=-1, is_last=ending.is_last
        )
        self._put(_completed(after))

    def _decided(
        self,
        before: TransactionRecord,
        ending: Ending,
        groups: ConsumerGroups,
        *,
        epoch: int,
        commits: bool,
    ) -> TransactionRecord:
        """Return the record of a transaction that was ongoing and is decided, with its offsets.

        Of two transactions with an offset of a group in a partition that counts which was added
        last, as in Kafka, whichever of them is committed first.
        """
        for group, offsets in before.offsets.items():
            groups.release(offsets.values())
            if commits and offsets:
                groups.put_offsets(group, offsets, ending.at_ms)
                numbers = {place: one.number for place, one in offsets.items()}
                self._void(group, numbers, groups)
        return msgspec.structs.replace(
            before,
            epoch=epoch,
            state="PrepareCommit" if commits else "PrepareAbort",
            version=before.version + 1,
            decided_term=ending.term,
            changed_ms=max(before.changed_ms, ending.at_ms),
            offsets={},
        )

    def markers_written(self, command: MarkersWritten) -> int:
        """Partitions have their markers. Return of how many transactions this is news."""
        changed = 0
        for at, (name, number, partitions) in enumerate(command.written):
            before = self.records.get(name)
            if before is None or before.number != number or not before.is_prepared:
                continue
            if command.producer_ids[at : at + 1] not in ([], [before.producer_id]):
                continue  # of the same id before it was forgotten
            written = set(partitions)
            left = tuple(one for one in before.partitions if one not in written)
            if len(left) < len(before.partitions):
                changed += 1
                after = msgspec.structs.replace(before, version=before.version + 1, partitions=left)
                self._put(_completed(after))
        return changed

    def forget(self, command: ForgetTransactions) -> GroupsChanged:
        """Forget transactional ids that nobody has used since."""
        codes = []
        for name in command.transactional_ids:
            found = self.records.get(name)
            since_ms = command.unchanged_since_ms
            if found is None or found.is_open or found.changed_ms > since_ms:
                codes.append(ResponseCode.CHANGE_IN_PROGRESS)
            else:
                self._remove(found)
                codes.append(ResponseCode.SUCCESS)
        return GroupsChanged(ResponseCode.SUCCESS, codes=codes)

    def forget_topic(self, topic_id: bytes, groups: ConsumerGroups) -> None:
        """A topic is deleted: no marker is written to it, and no offset of it committed."""
        for record in list(self.records.values()):
            left = tuple(one for one in record.partitions if one[0] != topic_id)
            offsets = dict(record.offsets)
            for group, known in record.offsets.items():
                gone = [one for place, one in known.items() if place[0] == topic_id]
                if gone:
                    groups.release(gone)
                    offsets[group] = {
                        place: one for place, one in known.items() if place[0] != topic_id
                    }
            if len(left) < len(record.partitions) or offsets != record.offsets:
                after = msgspec.structs.replace(
                    record, version=record.version + 1, partitions=left, offsets=offsets
                )
                self._put(_completed(after))

    def _judged(
        self, command: AddToTransaction | AddTransactionOffsets | DecideTransaction
    ) -> TransactionRecord | GroupsChanged:
        """Return the record that a command was judged by, or why it is refused."""
        found = self.records.get(command.transactional_id)
        if found is None:
            return _UNKNOWN
        return found if found.version == command.version else _outdated(found)

    def _remove(self, record: TransactionRecord) -> None:
        """Forget an id that has no transaction."""
        del self.records[record.transactional_id], self._ids[record.producer_id]
        self._view = None

    def _put(self, record: TransactionRecord) -> None:
        name = record.transactional_id
        before = self.records.get(name)
        self.place_count += len(record.partitions) + len(record.offsets)
        if before is not None:
            self.place_count -= len(before.partitions) + len(before.offsets)
            del self._ids[before.producer_id]
        self.records[name], self._ids[record.producer_id] = record, name
        if record.is_prepared:
            self._prepared[name] = record
        else:
            self._prepared.pop(name, None)
        for group in (before.offsets if before is not None else {}).keys() - record.offsets.keys():
            left = self._pending[group] - {name}
            if left:
                self._pending[group] = left
            else:
                del self._pending[group]
        for group in record.offsets:
            self._pending[group] = self._pending.get(group, frozenset()) | {name}
        self._view = None
        if record.is_last and not record.is_open:
            self._remove(record)

    # -- as a whole ---------------------------------------------------------------------------

    def view(self) -> TransactionView:
        """Return what others may read while the records go on; the same one if none changed."""
        if self._view is None:
            self._view = TransactionView(
                dict(self.records), dict(self._ids), dict(self._prepared), dict(self._pending)
            )
        return self._view

    @classmethod
    def restored(
        cls, records: Iterable[TransactionRecord], groups: ConsumerGroups, offsets_added: int
    ) -> "Transactions":
        """Return the transactions of a snapshot; room for their offsets is reserved."""
        found = cls(offsets_added=offsets_added)
        for record in records:
            found._put(record)
            for offsets in record.offsets.values():
                for offset in offsets.values():
                    groups.keep_room(offset)
        return found


def _completed(record: TransactionRecord) -> TransactionRecord:
    """Return a record, whose transaction has ended if it was decided and all have markers."""
    if not record.is_prepared or record.partitions:
        return record
    return msgspec.structs.replace(
        record, state="CompleteCommit" if record.commits else "CompleteAbort"
    )


_NOBODY: Final = (-1, -1)
_DONE: Final = GroupsChanged(ResponseCode.SUCCESS)
_UNKNOWN: Final = GroupsChanged(ResponseCode.INCONSISTENT_TERM, "the transactional id is unknown")


def _outdated(record: TransactionRecord) -> GroupsChanged:
    text = f"{record.transactional_id} is at version {record.version} already"
    return GroupsChanged(ResponseCode.INCONSISTENT_TERM, text)


def _full(text: str) -> GroupsChanged:
    return GroupsChanged(ResponseCode.CLUSTER_FULL, text)
