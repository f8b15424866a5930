"""`quorumlog store`: look into data files without a server."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.options import AsJson
from quorumlog.cli.output import body_text, entry_object, magic_name, print_json, print_line
from quorumlog.storage.files import OsFileSystem
from quorumlog.storage.layout import DATA
from quorumlog.storage.offline import scan_store

PREVIEW_CHARACTERS = 60
COLUMNS = "{:>10}  {:>6}  {:>12}  {:>8}  {:<13}  {:>10}  {}"

app = typer.Typer(help="Look into a store's files, without a server.", no_args_is_help=True)


@app.callback()
def _family() -> None:
    pass


@app.command(name="dump")
def dump_command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A group's directory (it contains data/), ours or DLedger's."
        ),
    ],
    start: Annotated[int, typer.Option("--from", metavar="INDEX", help="First index.")] = 0,
    count: Annotated[
        int | None,
        typer.Option("--count", min=0, help="At most so many entries.", show_default="all"),
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print whole bodies.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a store as they lie on disk, committed or not."""
    found = scan_store(OsFileSystem(), str(_group_directory(directory)))
    wanted = (row for row in found if row[0].index >= start)
    last_file = ""
    for entry, file, offset in islice(wanted, count):
        if as_json:
            print_json({**entry_object(entry), "file": file, "offset": offset})
            continue
        if file != last_file:
            print_line(f"{file}:")
            print_line(COLUMNS.format("INDEX", "TERM", "POS", "SIZE", "MAGIC", "CHANNEL", "BODY"))
            last_file = file
        fields = entry_object(entry)
        print_line(
            COLUMNS.format(
                *(fields[name] for name in ("index", "term", "pos", "size")),
                magic_name(entry.magic),
                entry.channel,
                body_text(entry, None if body else PREVIEW_CHARACTERS),
            )
        )


def _group_directory(directory: Path) -> Path:
    """Return the directory if it is a group's, else say which ones below it are."""
    if (directory / DATA).is_dir():
        return directory
    if not directory.is_dir():
        raise CommandError(f"{directory}: no such directory")
    below = sorted(str(found.parent) for found in directory.glob(f"*/{DATA}") if found.is_dir())
    hint = f"; try {' or '.join(below)}" if below else ""
    raise CommandError(f"{directory} is no group's directory: it contains no {DATA}/{hint}")
