"""Which topics members may see that subscribe to whatever a regular expression matches.

What a member may not describe is not there for it, as in Kafka: neither its assignment nor an error
tells that its expression matches a hidden topic.
"""

from typing import Final, NamedTuple

from quorumlog.auth.acls import Operation, Resource, ResourceType
from quorumlog.auth.permits import Authorizer

KNOWN_MAX: Final = 100_000
"""Judgements that are remembered of all members, each member counted, too. What is judged beyond
is not remembered; once that is as much again, all of it is forgotten, as members may have gone."""


class Viewer(NamedTuple):
    """Who subscribes, and from where. `principal` None: it has not been heard since another node
    began to coordinate.
    """

    principal: str | None
    host: str


class VisibleTopics:
    """The topics that members may describe. `authorizer` None: all of them, and nothing is judged.

    What was judged is remembered until users, ACLs, or whether they are known, change.
    """

    def __init__(self, authorizer: Authorizer | None = None) -> None:
        self._authorizer = authorizer
        self._version = -1
        self._known: dict[Viewer, dict[str, bool]] = {}
        self._count = self._beyond = 0

    @property
    def are_judged(self) -> bool:
        """Whether members may see different topics."""
        return self._authorizer is not None

    @property
    def version(self) -> int:
        """Changes whenever members may see other topics than before."""
        authorizer = self._authorizer
        return -1 if authorizer is None or not authorizer.is_ready else authorizer.view().version

    def of(self, viewer: Viewer, names: frozenset[str]) -> frozenset[str]:
        """Return those of some topics that a member may see."""
        authorizer, (principal, host) = self._authorizer, viewer
        if authorizer is None:
            return names
        if principal is None:
            return frozenset()
        if self._version != self.version or self._beyond >= KNOWN_MAX:
            self._known.clear()
            self._version, self._count, self._beyond = self.version, 0, 0
        known = self._known.get(viewer, {})
        judged = {
            name: authorizer.shows(
                principal, host, Operation.DESCRIBE, Resource(ResourceType.TOPIC, name)
            )
            for name in names - known.keys()
        }
        self._remember(viewer, judged)
        return frozenset(name for name in names if known.get(name) or judged.get(name))

    def _remember(self, viewer: Viewer, judged: dict[str, bool]) -> None:
        count = len(judged) + (viewer not in self._known)
        if self._count + count <= KNOWN_MAX:
            self._known.setdefault(viewer, {}).update(judged)
            self._count += count
        else:
            self._beyond += count
