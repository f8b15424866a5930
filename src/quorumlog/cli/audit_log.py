"""`quorumlog audit-log`: read the audit logs of nodes from their files, without a server."""

import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.auth.principals import USER
from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import AsJson
from quorumlog.cli.output import flush_every_line, print_json, print_line, print_note
from quorumlog.model.audit_events import AuditedEvent
from quorumlog.model.config import AUDIT_LOG_NAME
from quorumlog.model.wording import counted
from quorumlog.service.audit_files import earlier_files
from quorumlog.storage.files.os_files import OsFileSystem

POLL_S: Final = 0.2
"""Pause between two looks at files that are followed, in seconds."""
LINE_BYTES_MAX: Final = 1024 * 1024
"""A line that is longer is none of an audit log."""

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "-d",
        help="Directory of a node (storeBaseDir), or of a local cluster: all its nodes.",
        show_default=False,
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        help="A file of an audit log; repeatable.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")
]
Principal = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="USER",
        help="Only what one user did, or a principal such as Node:n0.",
        show_default=False,
    ),
]
Event = Annotated[
    AuditedEvent | None,
    typer.Option(
        "--event",
        metavar="KIND",
        help=f"Only events of one kind: {', '.join(AuditedEvent)}.",
        show_default=False,
    ),
]
Refused = Annotated[bool, typer.Option("--refused", help="Only what was not allowed.")]


class AuditReader:
    """Yields the lines of one file; one that is followed goes on in the file that takes its place.

    Raises `OSError` if the file cannot be read; one that is not there yet has no lines.
    """

    def __init__(self, path: Path, *, is_followed: bool = False) -> None:
        self._path = path
        self._is_followed = is_followed
        self._part = b""
        self.unreadable = 0
        self._file = self._opened()

    def _opened(self) -> BufferedReader | None:
        try:
            return self._path.open("rb")
        except FileNotFoundError:  # it is being rotated, or nothing was written yet
            return None

    @property
    def inode(self) -> int | None:
        """The number of the file that is read; None: there is none."""
        return None if self._file is None else os.fstat(self._file.fileno()).st_ino

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what was added since the last call. Raises `OSError` if it cannot be read."""
        while True:
            self._file = self._file or self._opened()
            if self._file is None:
                return
            is_replaced = self._is_followed and self._is_replaced()  # before its end is read
            yield from self._rest(self._file)
            if not is_replaced:
                return
            self._file.close()
            self._file, self._part = None, b""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _is_replaced(self) -> bool:
        with suppress(FileNotFoundError):
            return os.stat(self._path).st_ino != self.inode
        return False

    def _rest(self, file: BufferedReader) -> Iterator[dict[str, Any]]:
        while line := file.readline(LINE_BYTES_MAX):
            self._part += line
            if not self._part.endswith(b"\n") and len(self._part) < LINE_BYTES_MAX:
                continue  # it is still being written
            whole, self._part = self._part, b""
            try:
                found = json.loads(whole)
            except ValueError:
                found = None
            if isinstance(found, dict):
                yield found
            else:
                self.unreadable += 1


def audit_log_command(
    directory: Directory = None,
    files: Files = None,
    follow: Follow = False,
    principal: Principal = None,
    event: Event = None,
    refused: Refused = False,
    as_json: AsJson = False,
) -> None:
    """Show who did what on nodes, and who was refused: the files of their audit logs.

    This is the record of what people and programs did. Whether an archive holds what a group or
    topic does is what `quorumlog pipeline audit` finds out.
    """
    flush_every_line()
    old, readers = _opened(directory, files, is_followed=follow)
    if principal and ":" not in principal:
        principal = USER + principal
    shown = _Shown(principal, event, is_refused=refused, as_json=as_json)
    # each file is in order, and so are those of one node together
    for line in heapq.merge(*(one.lines() for one in (*old, *readers)), key=_at):
        shown.show(line)
    for one in old:
        one.close()
    while follow:
        for line in heapq.merge(*(one.lines() for one in readers), key=_at):
            shown.show(line)
        time.sleep(POLL_S)
    _note_unreadable((*old, *readers))


def lines_of(directory: Path | None, files: list[Path] | None) -> Iterator[dict[str, Any]]:
    """Yield what audit logs have, in the order of its times, and say what was left out.

    Raises `typer.BadParameter`, and `CommandError` if there is none.
    """
    old, newest = _opened(directory, files, is_followed=False)
    readers = (*old, *newest)
    yield from heapq.merge(*(one.lines() for one in readers), key=_at)
    for one in readers:
        one.close()
    _note_unreadable(readers)


def _note_unreadable(readers: Iterable[AuditReader]) -> None:
    unreadable = sum(one.unreadable for one in readers)
    if unreadable:
        print_note(f"{counted(unreadable, 'line')} left out: cut off by a crash, or no JSON")


def _opened(
    directory: Path | None, files: list[Path] | None, *, is_followed: bool
) -> tuple[list[AuditReader], list[AuditReader]]:
    """Open the audit logs that options name: the earlier files, and the newest ones."""
    if (directory is None) == (not files):
        raise typer.BadParameter("give either --dir DIR or --file FILE")
    if directory is not None:
        return _opened_in(directory, is_followed=is_followed)
    return [], [AuditReader(path, is_followed=is_followed) for path in files or ()]


def _opened_in(
    directory: Path, *, is_followed: bool
) -> tuple[list[AuditReader], list[AuditReader]]:
    """Open the audit logs of the nodes in a directory: the earlier files, and the newest ones."""
    nodes = [directory, *sorted(path for path in _inside(directory) if path.is_dir())]
    earlier, newest = [], []
    for node in nodes:
        reader = AuditReader(node / AUDIT_LOG_NAME, is_followed=is_followed)
        before = earlier_files(OsFileSystem(), str(node))
        if not before and reader.inode is None:
            continue
        newest.append(reader)
        # files only move to the next number, also meanwhile: none is missed, some are met twice
        known = {reader.inode}
        for number in range(1, max(before, default=0) + 2):
            one = AuditReader(node / f"{AUDIT_LOG_NAME}.{number}")
            if one.inode in (None, *known):
                one.close()
            else:
                known.add(one.inode)
                earlier.append(one)
    if not newest:
        raise CommandError(
            f"there is no audit log in {directory} ({AUDIT_LOG_NAME}): give the storeBaseDir of a "
            "node, or the directory of a local cluster"
        )
    return earlier[::-1], newest


def _inside(directory: Path) -> Iterable[Path]:
    if not directory.is_dir():
        raise CommandError(f"there is no directory {directory}")
    return directory.iterdir()


def _at(line: dict[str, Any]) -> str:
    return str(line.get("at", ""))


class _Shown:
    """Prints the lines that were asked for."""

    def __init__(
        self,
        principal: str | None,
        event: AuditedEvent | None,
        *,
        is_refused: bool,
        as_json: bool,
    ) -> None:
        self._principal = principal
        self._event = event
        self._is_refused = is_refused
        self._as_json = as_json

    def show(self, line: dict[str, Any]) -> None:
        """Print a line, if it is wanted."""
        if self._principal not in (None, line.get("principal")):
            return
        if self._event not in (None, line.get("event")):
            return
        if self._is_refused and line.get("allowed") is not False:
            return
        if self._as_json:
            print_json(line)
        else:
            print_line(_text_of(line))


def _text_of(line: dict[str, Any]) -> str:
    """Return a line for people."""
    who = " ".join(
        part
        for name, word in (("principal", ""), ("address", "from "), ("client", "client "))
        if (value := line.get(name)) and (part := f"{word}{value}")
    )
    did = " ".join(str(line[name]) for name in ("operation", "resource") if line.get(name))
    asked = f" ({line['request']})" if line.get("request") else ""
    outcome = "" if line.get("allowed", True) else ": refused"
    if line.get("reason"):
        outcome += f": {line['reason']}"
    times = f" [{line['n']} times]" if line.get("n", 1) != 1 else ""
    head = f"{line.get('at', '?')}  {line.get('node', '?')}  {line.get('event', '?')}"
    rest = "  ".join(filter(None, (who, f"{did}{asked}")))
    return f"{head}  {rest}{outcome}{times}".rstrip()
