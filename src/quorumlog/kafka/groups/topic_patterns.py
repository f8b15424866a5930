"""Regular expressions of topics' names, which consumers subscribe to (KIP-848).

They are of RE2's syntax, as in Kafka, and its library matches them: in time that grows with the
length of the name alone, whatever a stranger has thought up.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

from quorumlog.auth.permits import Authorizer
from quorumlog.kafka.groups.visible_topics import VisibleTopics
from quorumlog.model.patterns import PatternError, compile_pattern

PATTERN_MAX: Final = 1_024
"""Characters of a regular expression."""
_KEPT_MAX: Final = 100
"""Regular expressions whose topics are remembered. Others are matched anew when they are used."""


class Named(Protocol):
    """Whatever has topics by their names, with a version that rises when there are others."""

    @property
    def version(self) -> int:
        """Rises with every change."""
        ...

    @property
    def topics(self) -> Mapping[str, Any]:
        """All topics by name."""
        ...


class _Matches:
    """A compiled regular expression, the names that it was tried on, and those that it matches."""

    def __init__(self, pattern: str) -> None:
        self.version = -1
        self.compiled = compile_pattern(pattern)
        self.tried: frozenset[str] = frozenset()
        self.found: frozenset[str] = frozenset()


class TopicPatterns:
    """Which topics regular expressions match; each is tried once on each name.

    `visible`: which of them a member may see, as `authorizer` judges; None: all of them.
    """

    def __init__(self, named: Named, authorizer: Authorizer | None = None) -> None:
        self.visible = VisibleTopics(authorizer)
        self._named = named
        self._known: OrderedDict[str, _Matches] = OrderedDict()
        self._names: tuple[int, frozenset[str]] = (-1, frozenset())

    def matched(self, pattern: str) -> frozenset[str]:
        """Return the names of the topics that a regular expression matches, as a whole.

        None if `problem_of` has anything to say of it.
        """
        known = self._known.pop(pattern, None)
        if known is None:
            if self.problem_of(pattern):
                return frozenset()
            known = _Matches(pattern)
        self._known[pattern] = known
        while len(self._known) > _KEPT_MAX:
            self._known.popitem(last=False)
        names = self._present()
        if known.version != self._names[0]:
            new = frozenset(one for one in names - known.tried if known.compiled.fullmatch(one))
            known.found = (known.found & names) | new
            known.tried, known.version = names, self._names[0]
        return known.found

    def _present(self) -> frozenset[str]:
        if self._names[0] != self._named.version:
            self._names = self._named.version, frozenset(self._named.topics)
        return self._names[1]

    @staticmethod
    def problem_of(pattern: str) -> str:
        """Return what is wrong with a regular expression; empty: nothing."""
        if len(pattern) > PATTERN_MAX:
            return f"a regular expression has at most {PATTERN_MAX} characters"
        try:
            compile_pattern(pattern)
        except PatternError as error:
            return str(error)
        return ""
