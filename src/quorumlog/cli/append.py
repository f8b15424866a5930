"""`quorumlog append`: entries from arguments or standard input."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    Channel,
    ContextName,
    FromDir,
    Group,
    Servers,
    Timeout,
    WriteLevelWord,
)
from quorumlog.cli.output import print_json, print_line
from quorumlog.cli.target import find_target
from quorumlog.client import Level, SyncClient
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import Outcome, RequestError
from quorumlog.model.limits import DEFAULT_LIMITS

READ_BYTES = 1024 * 1024
"""How much of standard input is taken at a time."""
BATCH_BYTES = 1024 * 1024
"""Bytes of a batch of lines of standard input, headers included."""


def append_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    bodies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BODY]...",
            help="Bodies; without any, every line of standard input is one.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="All or none, with consecutive indexes.")
    ] = False,
    channel: Channel = 0,
    level: WriteLevelWord = "replication",
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    group: Group = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Append entries; each is printed once a majority has it on disk (see --level)."""
    if not bodies and sys.stdin is None:
        raise CommandError("nothing to append: no body is given, and standard input is closed")
    target = find_target(directory, servers, group, timeout, context)
    noun = "body" if bodies else "line"
    given: Iterable[list[bytes]] = (
        ([os.fsencode(body)] for body in bodies)
        if bodies
        else lines_in_batches(read_lines(sys.stdin.fileno()))
    )
    if batch:
        given = [_all_in_one(given)]
    with target.client() as client:
        first = 1
        for part in given:
            name = f"batch of {len(part)}" if batch else _name(noun, first, len(part))
            _append(client, part, name, as_json, channel, level)
            first += len(part)


def _all_in_one(parts: Iterable[list[bytes]]) -> list[bytes]:
    """Return everything as one batch; stops reading soon after it is too much for one."""
    bodies: list[bytes] = []
    size = 0
    for part in parts:
        bodies += part
        size += sum(HEADER_SIZE + len(body) for body in part)
        if size > DEFAULT_LIMITS.block_bytes_max:
            raise CommandError(
                f"nothing appended: more than the {DEFAULT_LIMITS.block_bytes_max} bytes of the "
                "largest batch; append without --batch"
            )
    return bodies


def _name(noun: str, first: int, count: int) -> str:
    """Say which of the given bodies are meant: `line 7`, `lines 7 to 9`."""
    if count == 1:
        return f"{noun} {first}"
    plural = "bodies" if noun == "body" else f"{noun}s"
    return f"{plural} {first} to {first + count - 1}"


def _append(
    client: SyncClient,
    bodies: list[bytes],
    name: str,
    as_json: bool,
    channel: int,
    level: Level,
) -> None:
    """Append some bodies as one batch and print where they went.

    Raises `CommandError` saying whether it may have happened all the same.
    """
    try:
        done = client.append_batch(bodies, channel=channel, level=level)
    except RequestError as error:
        if error.outcome is Outcome.DID_NOT_HAPPEN:
            raise CommandError(f"{name} not appended: {error}") from error
        if error.outcome is Outcome.HAPPENED:
            raise CommandError(f"{name} appended, but {error}") from error
        raise CommandError(
            f"{name}: the append may have happened, check before you repeat it: {error}"
        ) from error
    for number, pos in enumerate(done.positions):
        index = -1 if done.level == "one_way" else done.first_index + number
        if as_json:
            place = {"index": index, "term": done.term, "pos": pos, "channel": channel}
            print_json({**place, "level": done.level})
        elif done.level != "one_way":
            proved = "" if done.level == "replication" else f"   level {done.level}"
            print_line(f"index {index}   term {done.term}   pos {pos}{proved}")
    sys.stdout.flush()


def read_lines(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the lines that one read brought, without their newlines, as soon as they come.

    Raises `CommandError` for a line that is longer than an entry may be.
    """
    length_max = DEFAULT_LIMITS.entry_bytes_max - HEADER_SIZE
    unfinished, number = b"", 1
    while piece := os.read(descriptor, READ_BYTES):
        *lines, unfinished = (unfinished + piece).split(b"\n")
        number += len(lines)
        if lines:
            yield lines
        if len(unfinished) > length_max:
            raise CommandError(
                f"line {number} not appended: it is longer than the {length_max} bytes of the "
                "largest body"
            )
    if unfinished:
        yield [unfinished]


def lines_in_batches(pieces: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Cut lines into batches within the limits of one append."""
    for lines in pieces:
        batch: list[bytes] = []
        size = 0
        for line in lines:
            added = HEADER_SIZE + len(line)
            if batch and (
                size + added > BATCH_BYTES or len(batch) == DEFAULT_LIMITS.block_entries_max
            ):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += added
        yield batch
