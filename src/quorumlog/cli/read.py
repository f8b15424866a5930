"""`quorumlog get` and `quorumlog tail`: committed entries."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Literal

import typer

from quorumlog.cli.errors import BeyondEndError, CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Group,
    OneChannel,
    ReadFrom,
    Servers,
    Timeout,
)
from quorumlog.cli.output import (
    body_text,
    entry_object,
    flush_every_line,
    magic_name,
    print_json,
    print_line,
    print_note,
)
from quorumlog.cli.target import Target, find_target
from quorumlog.client import Isolation, SyncClient
from quorumlog.model.entry import Entry
from quorumlog.model.errors import NoLeaderError, NotLeaderError
from quorumlog.model.wording import entries_text

LAST_ENTRIES = 10
SEARCHED_MAX = 1_000_000
"""Entries that are looked through, from the end of the log, for the last ones that are wanted."""


def get_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    index: Annotated[int, typer.Argument(metavar="INDEX", min=0, help="Index of the entry.")],
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    read_from: ReadFrom = "leader",
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print one committed entry; exit status 3 if its index is beyond the end of the log."""
    with _reading(find_target(directory, servers, group, timeout, context), read_from) as client:
        entry = client.get(index, leader_only=read_from == "leader")
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
            help="Where to start.",
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
            help="Without --from: start this many entries before the end. "
            "With it: stop after this many.",
            show_default=f"{LAST_ENTRIES}, or with --from no end",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also NOOPs, bookkeeping, and what transactions have not accepted (yet)."
        ),
    ] = False,
    channel: OneChannel = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    read_from: ReadFrom = "leader",
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Print committed entries, by default the last ten; -f goes on with new ones until Ctrl-C.

    Exit status 3 if --from lies beyond the end of the log, and -f does not wait for it.
    """
    begin = _parse_start(start)
    if follow:
        flush_every_line()
    target = find_target(directory, servers, group, timeout, context)
    leader_only = read_from == "leader"
    with _reading(target, read_from) as client:
        if begin is None:
            wanted = LAST_ENTRIES if count is None else count
            begin = index_of_last(
                client, wanted, everything, leader_only=leader_only, channel=channel
            )
            count = None
        elif isinstance(begin, int):
            isolation = _isolation(everything)
            _, last = client.bounds(leader_only=leader_only, isolation=isolation)
            if begin > last:
                _refuse_or_wait_beyond(target.group, begin, last, follow=follow)
        entries = client.read(
            begin,
            follow=follow,
            include_all=everything,
            leader_only=leader_only,
            isolation=_isolation(everything),
            channel=channel,
        )
        for entry in islice(entries, count):
            _print_entry(entry, as_json)


@contextmanager
def _reading(target: Target, read_from: str) -> Iterator[SyncClient]:
    """Yield a client; if there is no leader, the error says how to read all the same."""
    try:
        with target.client() as client:
            yield client
    except (NoLeaderError, NotLeaderError) as error:
        if read_from != "leader":
            raise
        hint = "'--read-from any' shows what a replica has without one"
        raise CommandError(f"{error}; {hint}") from error


def _refuse_or_wait_beyond(group: str, begin: int, last: int, *, follow: bool) -> None:
    """Raise `BeyondEndError` for an index beyond the end; with `follow`, print that it waits."""
    end = f"its last index is {last}" if last >= 0 else "it has no committed entry"
    if not follow:
        text = f"index {begin} is beyond the end of the log of group {group}: {end}"
        raise BeyondEndError(f"{text}; -f waits for it")
    print_note(f"waiting for index {begin} of group {group}: {end}")


def index_of_last(
    client: SyncClient,
    count: int,
    everything: bool,
    *,
    leader_only: bool = True,
    channel: int | None = None,
) -> int:
    """Return the index from which on there are `count` entries that a reader sees.

    Of the first entries of a log, and of those before the last `SEARCHED_MAX`, there may be fewer.
    """
    isolation = _isolation(everything)
    first, last = client.bounds(leader_only=leader_only, isolation=isolation)
    first, lowest = max(first, 0), max(first, 0, last + 1 - SEARCHED_MAX)
    found: list[int] = []
    end, window = last, count
    while len(found) < count and end >= lowest:
        begin = max(lowest, end + 1 - window)
        seen = client.read(
            begin,
            end=end,
            follow=False,
            include_all=everything,
            leader_only=leader_only,
            isolation=isolation,
            channel=channel,
        )
        indexes = deque((entry.index for entry in seen), maxlen=count - len(found))
        found = [*indexes, *found]
        end = begin - 1
        window *= 2  # some of them were NOOPs, bookkeeping or on other channels: search on
    if len(found) < count and lowest > first:
        print_note(
            f"{len(found)} of {entries_text(count)} are among the last {SEARCHED_MAX:,}; --from "
            f"INDEX "
            "shows earlier ones"
        )
    elif len(found) < count:
        return first
    return found[0] if found else last + 1


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
