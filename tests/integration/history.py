"""What clients asked of a log and got as answers, and whether one single log explains it all.

Every appended value is unique and the log itself gives the order, so that the check takes linear
time. The names of the anomalies are those of Jepsen's workload for logs.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, pairwise

from quorumlog.model.errors import Outcome, RequestError


class Fate(Enum):
    """What the client that appended was told."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Append:
    """One append; `completed` None: it was never answered."""

    value: bytes
    invoked: int
    completed: int | None = None
    fate: Fate = Fate.UNKNOWN
    index: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry as a reader saw it, and when; value None: bookkeeping, no user's entry."""

    index: int
    term: int
    value: bytes | None
    at: int


@dataclass(slots=True)
class Read:
    """What one reader saw from index `start` on, in the order in which it saw it."""

    reader: str
    start: int
    entries: list[Seen] = field(default_factory=list)

    @property
    def next_index(self) -> int:
        """The index that has to come next."""
        return self.entries[-1].index + 1 if self.entries else self.start


@dataclass(frozen=True, slots=True)
class Bound:
    """A linearizable read of the committed index."""

    reader: str
    invoked: int
    completed: int
    index: int


@dataclass(slots=True)
class History:
    """Everything that was asked, in the order in which it was."""

    appends: list[Append] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)

    def fates(self) -> Counter[Fate]:
        """How many appends had which fate."""
        return Counter(append.fate for append in self.appends)

    def acknowledged(self) -> list[Append]:
        """The acknowledged appends, by the time of the acknowledgement."""
        found = [append for append in self.appends if append.fate is Fate.ACKNOWLEDGED]
        return sorted(found, key=lambda append: append.completed)

    def longest_stall_s(self) -> float:
        """The longest time between two acknowledgements, in seconds (recorded with real time)."""
        times = [append.completed for append in self.acknowledged()]
        return max((late - early for early, late in pairwise(times)), default=0) / 1e9


class Recorder:
    """Does what clients do, and writes it down."""

    def __init__(self, clock=time.monotonic_ns) -> None:
        self.history = History()
        self.clock = clock

    async def append(self, client, value, **options) -> Append:
        """Append a value that nobody else appends; return what became of it."""
        record = Append(value, self.clock())
        self.history.appends.append(record)
        try:
            placed = await client.append(value, **options)
        except RequestError as error:
            failed = error.outcome is Outcome.DID_NOT_HAPPEN
            record.fate = Fate.FAILED if failed else Fate.UNKNOWN
            record.error = f"{type(error).__name__}: {error}"
        else:
            record.fate, record.index = Fate.ACKNOWLEDGED, placed.index
        record.completed = self.clock()
        return record

    async def bound(self, client, reader, *, leader_only=True) -> Bound:
        """Ask for the committed index, linearizably. Raises `RequestError`."""
        invoked = self.clock()
        _, index = await client.bounds(leader_only=leader_only, linearizable=True)
        found = Bound(reader, invoked, self.clock(), index)
        self.history.bounds.append(found)
        return found

    async def read(self, client, reader, start=0, *, follow=False, into=None, **options) -> Read:
        """Read on from where `into` ends, or a new read from `start`. Raises `RequestError`."""
        record = into
        if record is None:
            record = Read(reader, start)
            self.history.reads.append(record)
        entries = client.read(record.next_index, follow=follow, include_all=True, **options)
        async for entry in entries:
            value = entry.body if entry.is_data else None
            record.entries.append(Seen(entry.index, entry.term, value, self.clock()))
        return record


def check(history: History, final: Read) -> None:
    """Raise `AssertionError` that names every anomaly (the first few of each kind).

    `final`: the whole log, read from index 0 on after all operations had ended.
    """
    found = anomalies(history, final)
    shown = [text for kind in found.values() for text in kind[:5]]
    counts = ", ".join(f"{kind}: {len(texts)}" for kind, texts in found.items())
    assert not found, "\n".join([f"the history has anomalies ({counts})", *shown])


def anomalies(history: History, final: Read) -> dict[str, list[str]]:
    """Return the sentences that tell of anomalies, by kind."""
    reads = [*history.reads, final]
    checks = (
        _gaps(reads),
        _inconsistent(reads, final),
        _duplicates(final),
        _phantoms(history, reads),
        _lost(history, final),
        _reordered(history, final),
        _stale(history, final),
    )
    found: dict[str, list[str]] = {}
    for text in chain.from_iterable(checks):
        found.setdefault(text.partition(":")[0], []).append(text)
    return found


def _gaps(reads):
    """Every reader sees one entry after the other: it neither skips nor goes back."""
    for read in reads:
        expected = read.start
        for entry in read.entries:
            if entry.index != expected:
                yield f"gap: {read.reader} saw index {entry.index} where {expected} comes next"
            expected = entry.index + 1


def _inconsistent(reads, final):
    """All readers see the same at the same index, and what they saw stays."""
    log = {entry.index: entry for entry in final.entries}
    for read in reads:
        for seen in read.entries:
            stays = log.get(seen.index)
            if stays is None:
                yield (
                    f"lost write: {read.reader} saw {seen.value} at index {seen.index}, which the "
                    f"log ({len(log)} entries) does not hold any more"
                )
            elif (seen.term, seen.value) != (stays.term, stays.value):
                yield (
                    f"inconsistent index: at {seen.index} {read.reader} saw {seen.value} of term "
                    f"{seen.term}, but {final.reader} {stays.value} of term {stays.term}"
                )


def _duplicates(final):
    """Every append happened at most once, also those of unknown outcome."""
    places = {}
    for entry in final.entries:
        if entry.value is None:
            continue
        first = places.setdefault(entry.value, entry.index)
        if first != entry.index:
            yield f"duplicate: {entry.value} is at index {first} and at {entry.index}"


def _phantoms(history, reads):
    """Nobody sees what was not appended, not appended yet, or refused."""
    appends = {append.value: append for append in history.appends}
    for read in reads:
        for seen in read.entries:
            if seen.value is None:
                continue
            append = appends.get(seen.value)
            where = f"{read.reader} saw {seen.value} at index {seen.index}"
            if append is None:
                yield f"phantom: {where}, which nobody appended"
            elif seen.at < append.invoked:
                yield f"phantom: {where} before anybody appended it"
            elif append.fate is Fate.FAILED:
                yield f"aborted read: {where}, but the append had failed with {append.error}"


def _lost(history, final):
    """An acknowledged append is in the log, where the acknowledgement said."""
    places = {entry.value: entry.index for entry in reversed(final.entries)}
    held = {(entry.index, entry.value) for entry in final.entries}
    for append in history.acknowledged():
        if append.value not in places:
            yield f"lost write: {append.value}, acknowledged at {append.index}, is nowhere"
        elif (append.index, append.value) not in held:
            yield (
                f"inconsistent index: {append.value} was acknowledged at {append.index}, but is "
                f"at {places[append.value]}"
            )


def _reordered(history, final):
    """What was acknowledged before another append began stands before it.

    Also if that other one was never acknowledged and is there all the same.
    """
    places = {entry.value: entry.index for entry in final.entries}
    done = iter(history.acknowledged())
    earlier, highest = next(done, None), None
    for append in sorted(history.appends, key=lambda append: append.invoked):
        while earlier is not None and earlier.completed < append.invoked:
            if highest is None or earlier.index > highest.index:
                highest = earlier
            earlier = next(done, None)
        index = append.index if append.fate is Fate.ACKNOWLEDGED else places.get(append.value)
        if highest is not None and index is not None and index <= highest.index:
            yield (
                f"reordered: {append.value} is at index {index}, though {highest.value} had been "
                f"acknowledged at {highest.index} before it was appended"
            )


def _stale(history, final):
    """A linearizable read knows all that was acknowledged, or read so, before it began."""
    known = [
        (append.completed, append.index, f"{append.value} had been acknowledged")
        for append in history.acknowledged()
    ]
    known += [(b.completed, b.index, f"{b.reader} had read") for b in history.bounds]
    known.sort(key=lambda fact: fact[0])
    facts, highest = iter(known), None
    fact = next(facts, None)
    for bound in sorted(history.bounds, key=lambda bound: bound.invoked):
        while fact is not None and fact[0] < bound.invoked:
            if highest is None or fact[1] > highest[1]:
                highest = fact
            fact = next(facts, None)
        if highest is not None and bound.index < highest[1]:
            yield (
                f"stale linearizable read: {bound.reader} was told index {bound.index}, though "
                f"{highest[2]} index {highest[1]} before it asked"
            )
        if bound.index >= final.next_index:
            yield (
                f"lost write: {bound.reader} was told that index {bound.index} is committed, but "
                f"the log ends at {final.next_index - 1}"
            )
