"""Where a new password is from: a file, the environment, or the terminal. Never an argument."""

import getpass
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from quorumlog.cli.errors import CommandError

VARIABLE: Final = "QUORUMLOG_NEW_PASSWORD"
"""The variable of the environment that may hold it."""
FILE_BYTES_MAX: Final = 16 * 1024

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Its first line is the password; - is the standard input. Without it the password is "
        f"that of the variable {VARIABLE}, or is asked for, twice.",
        show_default=False,
    ),
]


def new_password(file: Path | None, user: str) -> str:
    """Return the password that a user shall have. Raises `CommandError`."""
    if file is not None:
        return _first_line(sys.stdin.readline() if str(file) == "-" else _content(file), str(file))
    if VARIABLE in os.environ:
        return _first_line(os.environ[VARIABLE], VARIABLE)
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(
            "there is no terminal to ask for a password at: give --password-file FILE, or set "
            f"{VARIABLE}"
        )
    password = getpass.getpass(f"New password of {user}: ")
    if getpass.getpass("Once more: ") != password:
        raise CommandError("the two passwords differ; nothing was changed")
    return password


def _content(file: Path) -> str:
    """Return what is in a file that nobody else may read."""
    with file.open("rb") as opened:
        found = os.fstat(opened.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            raise CommandError(
                f"others may read or change the password in {file}: run chmod 600 {file}"
            )
        content = opened.read(FILE_BYTES_MAX)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{file} has no password in UTF-8") from None


def _first_line(text: str, where: str) -> str:
    lines = text.splitlines()
    if not lines or not lines[0]:
        raise CommandError(f"{where} has no password in its first line")
    return lines[0]
