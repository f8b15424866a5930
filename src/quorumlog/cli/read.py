"""`quorumlog get` and `quorumlog tail`: committed entries."""

from collections import deque
from itertools import islice
from typing import Annotated, Literal

import typer

from quorumlog.cli.options import TIMEOUT_SECONDS, AsJson, FromDir, Group, Servers, Timeout
from quorumlog.cli.output import (
    body_text,
    entry_object,
    flush_every_line,
    magic_name,
    print_json,
    print_line,
)
from quorumlog.cli.target import find_target
from quorumlog.client import Isolation, SyncClient
from quorumlog.model.entry import Entry

LAST_ENTRIES = 10


def get_command(
    index: Annotated[int, typer.Argument(metavar="INDEX", min=0, help="Index of the entry.")],
    directory: FromDir = None,
    servers: Servers = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print one committed entry."""
    with find_target(directory, servers, group, timeout).client() as client:
        entry = client.get(index)
    if as_json:
        print_json(entry_object(entry))
        return
    fields = entry_object(entry)
    print_line(
        f"index {entry.index}   term {entry.term}   pos {entry.pos}   size {fields['size']}   "
        f"magic {magic_name(entry.magic)}   channel {entry.channel}"
    )
    print_line(body_text(entry))


def tail_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|INDEX",
            help="Where to begin.",
            show_default="the last -n entries",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Wait for new entries.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            min=0,
            help="Without --from: begin so many entries before the end. "
            "With it: stop after so many.",
            show_default=f"{LAST_ENTRIES}, or with --from no end",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also NOOPs, bookkeeping, and what transactions have not accepted (yet)."
        ),
    ] = False,
    directory: FromDir = None,
    servers: Servers = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print committed entries, by default the last ten; -f goes on with new ones until Ctrl-C."""
    begin = _parse_start(start)
    if follow:
        flush_every_line()
    with find_target(directory, servers, group, timeout).client() as client:
        if begin is None:
            begin = index_of_last(client, LAST_ENTRIES if count is None else count, everything)
            count = None
        entries = client.read(
            begin, follow=follow, include_all=everything, isolation=_isolation(everything)
        )
        for entry in islice(entries, count):
            _print_entry(entry, as_json)


def index_of_last(client: SyncClient, count: int, everything: bool) -> int:
    """Return the index from which on there are `count` entries that a reader sees."""
    isolation = _isolation(everything)
    first, last = client.bounds(isolation=isolation)
    window = count
    while window:
        begin = max(first, last + 1 - window)
        seen = client.read(
            begin, end=last, follow=False, include_all=everything, isolation=isolation
        )
        indexes = deque((entry.index for entry in seen), maxlen=count)
        if len(indexes) == count:
            return indexes[0]
        if begin <= first:
            return max(first, 0)
        window *= 2  # some of them were NOOPs or bookkeeping: look further back
    return last + 1


def _isolation(everything: bool) -> Isolation:
    return "read_uncommitted" if everything else "read_committed"


def _parse_start(text: str | None) -> int | Literal["earliest", "latest"] | None:
    match text:
        case None | "earliest" | "latest":
            return text
        case _ if text.isdecimal():
            return int(text)
    raise typer.BadParameter(f"--from {text}: neither earliest, latest nor an index")


def _print_entry(entry: Entry, as_json: bool) -> None:
    if as_json:
        print_json(entry_object(entry))
    else:
        print_line(f"{entry.index:>8}  {body_text(entry)}")
