"""Where a new password is from: a file, the environment, or the terminal. Never an argument."""

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.client.contexts import NEW_PASSWORD_VARIABLE
from quorumlog.client.secret_sources import secret_from_environment, secret_from_file
from quorumlog.model.secrets import SECRET_BYTES_MAX

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="A file that has the password and nothing else; - is the standard input. Without it "
        f"the password is that of the variable {NEW_PASSWORD_VARIABLE}, or is asked for, twice.",
        show_default=False,
    ),
]


def new_password(file: Path | None, user: str) -> str:
    """Return the password that a user shall have. Raises `CommandError`, `ConfigError`.

    Files are read as those of contexts are, so that a password which is set logs in, too.
    """
    if str(file) == "-":
        return _one_line(_from_standard_input(), "the standard input")
    if file is not None:
        return _one_line(secret_from_file(file, "password file").reveal(), str(file))
    if NEW_PASSWORD_VARIABLE in os.environ:
        found = secret_from_environment(NEW_PASSWORD_VARIABLE, os.environ, "password")
        return _one_line(found.reveal(), NEW_PASSWORD_VARIABLE)
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(
            "there is no terminal to ask for a password at: give --password-file FILE, or set "
            f"{NEW_PASSWORD_VARIABLE}"
        )
    password = getpass.getpass(f"New password of {user}: ")
    if getpass.getpass("Once more: ") != password:
        raise CommandError("the two passwords differ; nothing was changed")
    return password


def _from_standard_input() -> str:
    """Return what is typed or piped; at a terminal one line is enough."""
    text = sys.stdin.readline() if sys.stdin.isatty() else sys.stdin.read(SECRET_BYTES_MAX + 2)
    for end in ("\r\n", "\n"):
        if text.endswith(end):
            return text.removesuffix(end)
    return text


def _one_line(text: str, where: str) -> str:
    if not text:
        raise CommandError(f"{where} has no password")
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise CommandError(f"{where} has more than one line: it shall have the password alone")
    return text
