"""Files that are relied on: keys and others that nobody else may change, or even read."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from quorumlog.model.errors import ConfigError

PRIVATE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a private key, or of a file that names secrets."""
PUBLIC_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a file of certificates or revocation lists: these have 150,000 entries then."""
OTHERS: Final = 0o077
"""The rights of a file that its owner's group and others must not have if a secret is in it."""
OTHERS_CHANGE: Final = 0o022
"""The rights that they must not have if what is in it is relied on."""


def read_private(path: str | Path, what: str, bytes_max: int) -> bytes:
    """Return the content of a file that nobody but its user and root can read or change.

    `what` begins each error, such as "password file". Raises `ConfigError`, which has the command
    that sets the rights, unless it is a regular file of this user or of root, without any right for
    its group and for others, and of at most `bytes_max` bytes.
    """
    try:
        raw, rights = read_own(path, what, bytes_max)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"{what} {str(path)!r} cannot be read: {error}") from None
    check_private(rights, path, what)
    return raw


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """Return the content of a file. Raises `OSError` if it cannot be read.

    Whoever waits for it does not wait for ever: it must be a regular file of at most `bytes_max`
    bytes, or else the `OSError` says so.
    """
    raw, _, reason = _read(path, bytes_max, _why_not_regular)
    if reason:
        raise OSError(errno.EINVAL, f"it {reason}")
    return raw


def _read(
    path: str | Path, bytes_max: int, why_not: Callable[[os.stat_result], str]
) -> tuple[bytes, os.stat_result, str]:
    """Return a file's content, what it is, and why it is not taken; "": it is.

    Raises `OSError` if it cannot be read.
    """
    # a FIFO that nobody writes to would be waited for
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        reason, raw = why_not(found), b""
        if not reason:
            with open(descriptor, "rb", closefd=False) as file:
                raw = file.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(raw) > bytes_max:
        reason = f"has more than {bytes_max} bytes"
    return raw, found, reason


def read_own(path: str | Path, what: str, bytes_max: int) -> tuple[bytes, int]:
    """Return the content of a file that others may read, but not change, and the file's rights.

    Both are of the same file, also if another one takes its place meanwhile. Raises `OSError` if
    it cannot be read; `ConfigError` unless it is a regular file of this user or of root, whose
    group and others cannot write to it, and of at most `bytes_max` bytes.
    """
    raw, found, reason = _read(path, bytes_max, partial(_why_not_own, path))
    if reason:
        raise ConfigError(f"{what} {path} {reason}")
    return raw, stat.S_IMODE(found.st_mode)


def check_private(rights: int, path: str | Path, what: str) -> None:
    """Raise `ConfigError`, with the command that helps, if others have any of a file's rights."""
    if rights & OTHERS:
        raise ConfigError(
            f"{what} {path} can be used by others than its owner (rights {rights:04o}): "
            f"chmod 600 {path}"
        )


def _why_not_regular(found: os.stat_result) -> str:
    return "" if stat.S_ISREG(found.st_mode) else "is no regular file"


def _why_not_own(path: str | Path, found: os.stat_result) -> str:
    """Return why a file is not to be relied on, as the rest of a sentence; "" if it is."""
    if reason := _why_not_regular(found):
        return reason
    if found.st_uid not in (os.geteuid(), 0):
        return (
            f"belongs to the user of number {found.st_uid}, who could change it; it must be yours "
            f"or root's: chown {os.geteuid()} {path}"
        )
    rights = stat.S_IMODE(found.st_mode)
    if rights & OTHERS_CHANGE:
        return f"can be changed by others than its owner (rights {rights:04o}): chmod 600 {path}"
    return ""
