"""What the members of a consumer group did, and what must be true of it.

Times are those of a clock that all processes of the machine share (`time.monotonic`), in seconds. A
member is one start of one consumer: a static member that comes back is another one here.
"""

import math
import threading
from collections import defaultdict
from dataclasses import dataclass, field

TOLD_MAX = 20
"""How many faults a report has."""
WAKING_S = 0.5
"""How long a member that has slept takes for what it was told meanwhile."""


@dataclass
class Owned:
    """A partition that a member used from `since_s` to `until_s`; None: it still does.

    `is_lost`: the member was told that others may have had it for some time.
    """

    member: str
    partition: int
    since_s: float
    until_s: float | None = None
    is_lost: bool = False

    @property
    def end_s(self):
        """When it ended; infinite if it has not."""
        return math.inf if self.until_s is None else self.until_s


@dataclass
class Commit:
    """What a member has consumed of a partition, from `begin` up to `end`, was to be committed.

    `answered_s`: when that was acknowledged; None: nobody knows whether it was applied.
    """

    member: str
    partition: int
    begin: int
    end: int
    answered_s: float | None = None


@dataclass
class Look:
    """The committed offsets of a group as somebody was told who asked at `asked_s`."""

    asked_s: float
    offsets: dict[int, int] = field(default_factory=dict)


class GroupHistory:
    """The history of one group, which may be written by several threads."""

    def __init__(self):
        self.owned = []
        self.commits = []
        self.looks = []
        self.lost = 0
        self.told = []
        """What became of members, in words: for whoever looks into a run that has failed."""
        self._lock = threading.Lock()
        self._using = {}
        self._owners = defaultdict(set)
        self._asked = {}

    # -- what members say -----------------------------------------------------------------------

    def assigned(self, member, at_s, generation, partitions, added, owner=None):
        """A member has `partitions` in a generation (or epoch), of which some are `added`.

        `owner`: the name of a static member, which has them again in the same generation after it
        was started again.
        """
        with self._lock:
            self._tell(at_s, member, f"is assigned {sorted(added)} in {generation}", partitions)
            for one in added:
                owned = Owned(member, one, at_s)
                self._using[member, one] = owned
                self.owned.append(owned)
            for one in partitions if generation >= 0 else ():
                self._owners[generation, one].add(owner or member)

    def revoked(self, member, at_s, partitions, *, is_lost=False):
        """A member does not use some partitions any more."""
        with self._lock:
            self._tell(at_s, member, "loses" if is_lost else "gives up", partitions)
            self.lost += is_lost
            for one in partitions:
                owned = self._using.pop((member, one), None)
                if owned is not None:
                    owned.until_s, owned.is_lost = at_s, is_lost
            if is_lost:
                self._lost_before(member, at_s)

    def _lost_before(self, member, at_s):
        """What it gave up as it woke up was lost as well: it had been told before, and slept."""
        for one in self.owned:
            if one.member == member and one.until_s is not None and at_s - one.until_s < WAKING_S:
                one.is_lost = True

    def _tell(self, at_s, member, what, partitions):
        self.told.append(f"{at_s:.3f} {member} {what}: {sorted(partitions)}")

    def noted(self, member, at_s, what):
        """Something else has happened to a member."""
        with self._lock:
            self._tell(at_s, member, what, [])

    def ended(self, member, at_s):
        """A member has ended, or was killed."""
        self._tell(at_s, member, "has ended", [])
        self.revoked(member, at_s, [one for name, one in list(self._using) if name == member])

    def committing(self, member, ranges):
        """A member is about to commit what it has consumed, as (begin, end) by partition."""
        with self._lock:
            for partition, (begin, end) in ranges.items():
                commit = Commit(member, partition, begin, end)
                self._asked[member, partition] = commit
                self.commits.append(commit)

    def committed(self, member, at_s, partitions):
        """The last commit of a member was acknowledged for some partitions."""
        with self._lock:
            for one in partitions:
                self._asked[member, one].answered_s = at_s

    def looked(self, asked_s, offsets):
        """Somebody was told what is committed."""
        with self._lock:
            self.looks.append(Look(asked_s, offsets))

    # -- what is so now -------------------------------------------------------------------------

    def owners(self):
        """Return the members that use each partition."""
        found = defaultdict(list)
        with self._lock:
            for member, partition in self._using:
                found[partition].append(member)
        return dict(found)

    def counts(self):
        """Return how much of everything there was."""
        with self._lock:
            return {
                "assignments": len(self.owned),
                "generations": len({generation for generation, _ in self._owners}),
                "acknowledged commits": sum(one.answered_s is not None for one in self.commits),
                "unsure commits": sum(one.answered_s is None for one in self.commits),
                "assignments lost": self.lost,
                "looks": len(self.looks),
            }

    # -- judgement ------------------------------------------------------------------------------

    def faults(self, ends, *, has_generations=True):
        """Return what was wrong, once all is consumed up to `ends`, by partition.

        Without generations: two of them may have had the same number.
        """
        with self._lock:
            found = [
                f"partition {partition} had owners {sorted(members)} in generation {generation}"
                for (generation, partition), members in sorted(self._owners.items())
                if len(members) > 1 and has_generations
            ]
            for partition, end in ends.items():
                found += self._shared(partition)
                found += self._unchained(partition, end)
                found += self._gone_back(partition, end)
        return found

    def _shared(self, partition):
        """Nobody uses a partition beside another, unless one of them is told that it is late."""
        owned = [one for one in self.owned if one.partition == partition and not one.is_lost]
        longest = None
        for one in sorted(owned, key=lambda one: one.since_s):
            if longest is not None and longest.member != one.member and longest.end_s > one.since_s:
                yield (
                    f"partition {partition}: {one.member} had it from {one.since_s:.3f} s on, and "
                    f"{longest.member} until {longest.end_s:.3f} s"
                )
            if longest is None or one.end_s > longest.end_s:
                longest = one

    def _unchained(self, partition, end):
        """Each acknowledged commit begins where one before it ended: each record counts once."""
        commits = [one for one in self.commits if one.partition == partition]
        unsure = sorted(
            (one for one in commits if one.answered_s is None), key=lambda one: (one.begin, one.end)
        )
        places = {0}
        for one in sorted(
            (one for one in commits if one.answered_s is not None),
            key=lambda one: (one.end, one.begin),
        ):
            places = _reached(places, unsure)
            if one.begin not in places:
                at = max((place for place in places if place <= one.end), default=0)
                what = "twice" if one.begin < at else "never"
                yield (
                    f"partition {partition}: {one.member} committed {one.begin} to {one.end} "
                    f"after {at}: some records count {what}"
                )
            places = {one.end}
        if end not in _reached(places, unsure):
            yield f"partition {partition}: committed up to {max(places)}, and it ends at {end}"

    def _gone_back(self, partition, end):
        """What is committed is never lower than what was told before, or acknowledged."""
        acknowledged = sorted(
            (one.answered_s, one.end)
            for one in self.commits
            if one.partition == partition and one.answered_s is not None
        )
        least, number = 0, 0
        for look in sorted(self.looks, key=lambda one: one.asked_s):
            while number < len(acknowledged) and acknowledged[number][0] < look.asked_s:
                least = max(least, acknowledged[number][1])
                number += 1
            told = look.offsets.get(partition)
            if told is None:
                continue
            if max(told, 0) < least:
                yield f"partition {partition}: {told} was told as committed after {least}"
            least = max(least, told)
        if least > end:
            yield f"partition {partition}: {least} was committed, and it ends at {end}"


def _reached(places, unsure):
    """Return where a group may be that was at one of some places; `unsure` begin ever later."""
    found = set(places)
    for one in unsure:
        if one.begin in found:
            found.add(one.end)
    return found
