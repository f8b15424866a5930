"""Options that several commands share."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from quorumlog.cli.output import print_note
from quorumlog.client import Level
from quorumlog.model.entry import SYSTEM_CHANNEL

ClusterDir = Annotated[
    Path, typer.Option("--dir", "-d", help="Directory of the local cluster.", show_default=False)
]
FromDir = Annotated[
    Path | None,
    typer.Option("--dir", "-d", help="Find the cluster in this directory.", show_default=False),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        "-s",
        metavar="HOST:PORT,...",
        help="Find the cluster at these addresses (any of its nodes).",
        show_default=False,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Find the cluster as this context says (quorumlog context list); default: what "
        "QUORUMLOG_CONTEXT or QUORUMLOG_SERVERS says, or the default context.",
        show_default=False,
    ),
]
Group = Annotated[
    str | None,
    typer.Option("--group", "-g", help="Group; default: the only one.", show_default=False),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this time.")
]
ReadFrom = Annotated[
    Literal["leader", "any"],
    typer.Option(
        "--read-from",
        help="Which replica answers: the leader, or any (also while there is no majority; it may "
        "lack the newest entries, and shows what it knows as committed).",
    ),
]
_one_channel = partial(typer.Option, "--channel", metavar="NUMBER", min=0, max=SYSTEM_CHANNEL - 1)
Channel = Annotated[
    int, _one_channel(help="Channel of the entries, by which readers can select them.")
]
OneChannel = Annotated[
    int | None, _one_channel(help="Only the entries on this channel.", show_default="all")
]
WriteLevelWord = Annotated[
    Level,
    typer.Option(
        "--level",
        help="When it is answered: not at all, once the leader has it in memory, on its disk, once "
        "a majority has it on disk, or all voters have.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Story = Annotated[bool, typer.Option("--story", hidden=True, help="The old name of --history.")]

TIMEOUT_SECONDS = 10.0


def wants_history(*, story: bool) -> bool:
    """Return whether the old name of --history was given, and warn of it on standard error."""
    if story:
        print_note("--story is now called --history; the old name will go")
    return story


def pairs_of(given: Sequence[str] | None, example: str) -> dict[str, str]:
    """Return what was given as KEY=VALUE, by key. Raises `typer.BadParameter`."""
    found = []
    for pair in given or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, such as {example}")
        found.append((key.strip(), value))
    check_once(key for key, _ in found)
    return dict(found)


def check_once(keys: Iterable[str]) -> None:
    """Raise `typer.BadParameter` if a key is given twice: nobody says which of them counts."""
    seen = set[str]()
    for key in keys:
        if key in seen:
            raise typer.BadParameter(f"{key} is given twice")
        seen.add(key)
