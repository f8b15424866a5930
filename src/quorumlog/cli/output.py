"""The form of results: JSON lines for programs, columns for people.

Bodies are anybody's bytes: nothing of them reaches a terminal unless it is printable.
"""

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quorumlog.model.block import COMPATIBLE_CONFIG, HEADER_SIZE, own_magic
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL, Entry
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.model.wording import printable_text

PIPE_WIDTH = 10_000
"""Columns of a table that goes to a pipe or file: nothing is cut there."""
GAP_COLUMNS: Final = 3
"""Between two columns; one less in a terminal that is too narrow for that."""
BAD_STYLE = "bold red"
GOOD_STYLE = "green"
QUIET_STYLE = "dim"


def print_json(value: dict[str, object]) -> None:
    """Print one object as one line; what is not printable is escaped, as JSON does."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(
            one if one.isprintable() else json.dumps(one).removeprefix('"').removesuffix('"')
            for one in text
        )
    sys.stdout.write(f"{text}\n")


def print_line(text: str) -> None:
    """Print one line, with all that is not printable escaped: strangers choose names."""
    sys.stdout.write(printable_text(text) + "\n")


def print_lines(text: str) -> None:
    """Print lines; apart from where they end, it is as with `print_line`."""
    for line in text.split("\n"):
        print_line(line)


def print_note(text: str) -> None:
    """Print a line for people that is not part of the result, on standard error.

    What is not printable is escaped, as by `print_line`.
    """
    print(f"quorumlog: {printable_text(text)}", file=sys.stderr, flush=True)


def channel_text(channel: int) -> str:
    """Return a channel as DLedger's Java programs see it: the system channel is -1."""
    return "-1" if channel == SYSTEM_CHANNEL else str(channel)


def flush_every_line() -> None:
    """Let every line reach its reader at once; for output that waits for news."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print columns under their names; a name that starts with `>` is a column of numbers.

    In a terminal that is too narrow for that, values other than numbers, and names of columns, are
    continued on the next line, between two words. If a column has no room for its longest word,
    each row is printed as a block of lines, one for each value that is not empty.
    """
    cells = [
        [Text(printable_text(cell)) if isinstance(cell, str) else cell for cell in row]
        for row in rows
    ]
    screen = console()
    natural = [
        max(len(name.lstrip(">")), *(cell.cell_len for cell in column), 0)
        for name, column in zip(columns, zip(*cells, strict=True), strict=bool(cells))
    ] or [len(name.lstrip(">")) for name in columns]
    for gap in (GAP_COLUMNS, GAP_COLUMNS - 1):
        if sum(natural) + gap * (len(columns) - 1) <= screen.width:
            _show(screen, _table(columns, cells, gap, natural))
            return
    least = [
        width if number == 0 else _least_width(name, [row[number] for row in cells])
        for number, (name, width) in enumerate(zip(columns, natural, strict=True))
    ]
    spare = screen.width - sum(least) - (GAP_COLUMNS - 1) * (len(columns) - 1)
    if spare >= 0:
        screen.print(_table(columns, cells, GAP_COLUMNS - 1, _widened(least, natural, spare)))
        return
    for row in cells:
        _print_block(screen, columns, row)


def _show(screen: Console, table: Table) -> None:
    """Print a table; in a file or a pipe, without blanks at the ends of lines."""
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        screen.file.write(f"{line.rstrip()}\n")


def _least_width(name: str, cells: Sequence[Text]) -> int:
    """Return the columns that a column takes at least: numbers are not continued, its name is."""
    if name.startswith(">"):
        return max(_longest_word(name.lstrip(">")), *(cell.cell_len for cell in cells), 0)
    return _longest_word(name, *(cell.plain for cell in cells))


def _longest_word(*texts: str) -> int:
    """Return how many columns the longest word of these texts takes."""
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _widened(least: Sequence[int], natural: Sequence[int], spare: int) -> list[int]:
    """Return widths of columns: from the first on, each has what it needs while there is room."""
    widths = []
    for width, wanted in zip(least, natural, strict=True):
        more = min(wanted - width, spare)
        widths.append(width + more)
        spare -= more
    return widths


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[Text]], gap: int, widths: Sequence[int]
) -> Table:
    """Return a table whose columns are so wide; words that are longer are continued."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        side: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=side, overflow="fold", width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _print_block(screen: Console, columns: Sequence[str], row: Sequence[Text]) -> None:
    """Print one row of a table with a line for each of its columns.

    Long values go on below, between two words; a word that has no room even there is left whole.
    """
    names = [name.lstrip(">") for name in columns]
    screen.print(Text(f"{names[0]} ", style="bold") + row[0], soft_wrap=True)
    start = 2 + max(map(len, names[1:])) + 2
    for name, cell in zip(names[1:], row[1:], strict=True):
        width = max(screen.width - start, _longest_word(cell.plain))
        for number, line in enumerate(cell.wrap(screen, width) if cell.plain else ()):
            line.rstrip()
            head = f"  {name}" if number == 0 else ""
            screen.print(Text(head.ljust(start)) + line, soft_wrap=True)


def console() -> Console:
    """Return a console for standard output: plain text unless it is a terminal."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def entry_object(entry: Entry) -> dict[str, object]:
    """Return an entry as every `--json` shows it."""
    return {
        "index": entry.index,
        "term": entry.term,
        "pos": entry.pos,
        "size": HEADER_SIZE + len(entry.body),
        "magic": int(entry.magic),
        "channel": entry.channel,
        "body_base64": base64.b64encode(entry.body).decode("ascii"),
    }


def magic_name(magic: int) -> str:
    """Return the name of an entry kind, or the number if it has none."""
    try:
        return Magic(magic).name
    except ValueError:
        return str(magic)


def body_text(entry: Entry, length_max: int | None = None) -> str:
    """Return a body as one line of printable text, cut after `length_max` characters."""
    kind = own_magic(entry.magic, entry.channel, entry.body_crc, entry.body)
    if kind == Magic.CONFIG_CHANGE:
        skipped = 0 if entry.magic == kind else len(COMPATIBLE_CONFIG)
        return f"({membership_text(entry.body[skipped:])})"
    if kind != Magic.NORMAL:
        return f"({magic_name(kind)})"
    cut = length_max is not None and len(entry.body) > length_max
    text = printable(entry.body[:length_max])
    if length_max is not None and len(text) > length_max:
        text, cut = text[:length_max], True
    return text + "…" if cut else text


def membership_text(body: bytes) -> str:
    """Return the membership that a CONFIG_CHANGE entry names."""
    try:
        found = Membership.decode(body)
    except UnexpectedArgumentError:
        return "CONFIG_CHANGE"
    text = f"voters {', '.join(found.voters)}"
    if found.is_joint:
        text += f", before {', '.join(found.outgoing)}"
    return text + (f"; learners {', '.join(found.learners)}" if found.learners else "")


def printable(raw: bytes) -> str:
    r"""Return bytes as text in which everything not printable is written as an escape (`\n`)."""
    return printable_text(raw.decode("utf-8", "backslashreplace"))
