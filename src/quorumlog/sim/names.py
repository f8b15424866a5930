"""Names of files and directories twice: as processes see them, and as the disk holds them."""

import posixpath
from dataclasses import dataclass, field

from quorumlog.sim.content import Content, Survivors


@dataclass
class Directory:
    """A directory; the names in it are kept in `Names`."""

    modified_ms: int


@dataclass
class Obstacle:
    """Something that is neither a file nor a directory; `text` says what, such as "a FIFO"."""

    text: str
    modified_ms: int = 0


Node = Content | Directory | Obstacle
Change = dict[str, Node | None]
"""Names that change as one, to what they have then; None: nothing has the name."""


@dataclass
class _Waiting:
    """Changes of names that hang together and are not durable, oldest first."""

    names: set[str] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)


def _apply(change: Change, nodes: dict[str, Node]) -> None:
    for name, node in change.items():
        if node is None:
            nodes.pop(name, None)
        else:
            nodes[name] = node


class Names:
    """Absolute paths and what has them: `now` for processes, `durable` on the disk."""

    def __init__(self, now_ms: int) -> None:
        self.now: dict[str, Node] = {"/": Directory(now_ms)}
        self.durable = dict(self.now)
        self._waiting: list[_Waiting] = []

    def is_directory(self, name: str) -> bool:
        """Whether a directory has the name."""
        return isinstance(self.now.get(name), Directory)

    def within(self, directory: str) -> list[str]:
        """Return the sorted names in a directory, without its path."""
        start = directory.rstrip("/") + "/"
        rests = (name[len(start) :] for name in self.now if name.startswith(start))
        return sorted(rest for rest in rests if rest and "/" not in rest)

    def contents(self) -> list[Content]:
        """Return all files that have a name."""
        return [node for node in self.now.values() if isinstance(node, Content)]

    def change(self, change: Change) -> None:
        """Change names for processes; names that changed together wait together for the disk."""
        together, apart = _Waiting(), []
        for waiting in self._waiting:
            if waiting.names.isdisjoint(change):
                apart.append(waiting)
            else:
                together.names |= waiting.names
                together.changes += waiting.changes
        together.names.update(change)
        together.changes.append(change)
        self._waiting = [*apart, together]
        _apply(change, self.now)

    def sync(self, directory: str) -> None:
        """Make the names in a directory durable, with those that hang together with them."""
        apart = []
        for waiting in self._waiting:
            if any(posixpath.dirname(name) == directory for name in waiting.names):
                for change in waiting.changes:
                    _apply(change, self.durable)
            else:
                apart.append(waiting)
        self._waiting = apart

    def lose_power(self, survivors: Survivors) -> None:
        """Become what the disk holds: of changes that hang together, the first few survive."""
        for waiting in self._waiting:
            for change in waiting.changes[: survivors.count(len(waiting.changes))]:
                _apply(change, self.durable)
        self._waiting = []
        self.now = {}
        for name, node in sorted(self.durable.items()):
            if name == "/" or self.is_directory(posixpath.dirname(name)):
                self.now[name] = node
        self.durable = dict(self.now)
