"""Passwords and tokens: what holds one in memory, and where one is read from.

A secret is never an argument of a command, since others on the machine can list those: it comes
from a file that only its user can read, from a variable of the environment, or from a prompt.
"""

import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from quorumlog.model.errors import ConfigError

SECRET_BYTES_MAX: Final = 64 * 1024
"""Bytes of a password or token: far more than any has."""
PRIVATE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a private key, or of a file that names secrets."""
SHOWN: Final = "***"
"""What is shown in place of a secret."""
OTHERS: Final = 0o077
"""The rights of a file that its owner's group and others must not have if a secret is in it."""
OTHERS_CHANGE: Final = 0o022
"""The rights that they must not have if what is in it is relied on."""


class Secret:
    """A password or token. It is shown as `***`, and neither pickled, copied nor encoded.

    So it does not get into logs, tracebacks, answers or the plans of Spark unless somebody asks for
    it by `reveal`. Two are compared in a time that does not say where they differ.
    """

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        """Raises `ConfigError`, without the value, if it is empty, too long or not of UTF-8."""
        try:
            encoded = value.encode()
        except UnicodeEncodeError:
            # the error that is being handled has the value in it
            encoded = b""
        if not encoded:
            raise ConfigError("a secret is text that UTF-8 can encode, and not empty")
        if len(encoded) > SECRET_BYTES_MAX:
            raise ConfigError(f"a secret has at most {SECRET_BYTES_MAX} bytes")
        self.__value = encoded

    def reveal(self) -> str:
        """Return the secret itself, to be sent or compared and not to be kept."""
        return self.__value.decode()

    def __repr__(self) -> str:
        return SHOWN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.__value, other.__value)

    def __hash__(self) -> int:
        return hash(self.__value)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(
            "a secret is neither pickled nor copied; send the name of the file that has it, and "
            "read that where it is needed"
        )


def secret_from_file(path: str | Path, what: str) -> Secret:
    """Return the secret that a file holds, without a newline at its end.

    Raises `ConfigError` as `read_private`, or if there is no text in it.
    """
    raw = read_private(path, what, SECRET_BYTES_MAX + 2)
    for end in (b"\r\n", b"\n"):
        if raw.endswith(end):
            raw = raw[: -len(end)]
            break
    return _secret_of(raw, f"{what} {path}")


class SecretFile(msgspec.Struct, frozen=True):
    """A secret that is in a file, and may be another one there each time.

    What renews tokens moves a new file to the path of the old one. Only the path is kept.
    """

    path: str
    what: str

    def reveal(self) -> str:
        """Return the secret that the file has now. Raises `ConfigError` as `secret_from_file`."""
        return secret_from_file(self.path, self.what).reveal()


def secret_from_environment(name: str, environment: Mapping[str, str], what: str) -> Secret:
    """Return the secret that a variable of the environment holds.

    Raises `ConfigError` if it is not set, or empty.
    """
    value = environment.get(name)
    if not value:
        raise ConfigError(f"{what}: the environment variable {name} is not set, or empty")
    return _secret_of(os.fsencode(value), f"{what} in {name}")


def _secret_of(raw: bytes, where: str) -> Secret:
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        value = ""  # raised below: the error that is being handled has the secret in it
    if not value or "\0" in value:
        raise ConfigError(f"{where} is empty, or no text in UTF-8")
    try:
        return Secret(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


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


def read_own(path: str | Path, what: str, bytes_max: int) -> tuple[bytes, int]:
    """Return the content of a file that others may read, but not change, and the file's rights.

    Both are of the same file, also if another one takes its place meanwhile. Raises `OSError` if
    it cannot be read; `ConfigError` unless it is a regular file of this user or of root, whose
    group and others cannot write to it, and of at most `bytes_max` bytes.
    """
    # a FIFO that nobody writes to would be waited for
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        reason, raw = _why_not_own(found, path), b""
        if not reason:
            with open(descriptor, "rb", closefd=False) as file:
                raw = file.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(raw) > bytes_max:
        reason = f"has more than {bytes_max} bytes"
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


def _why_not_own(found: os.stat_result, path: str | Path) -> str:
    """Return why a file is not to be relied on, as the rest of a sentence; "" if it is."""
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if found.st_uid not in (os.geteuid(), 0):
        return (
            f"belongs to the user of number {found.st_uid}, who could change it; it must be yours "
            f"or root's: chown {os.geteuid()} {path}"
        )
    rights = stat.S_IMODE(found.st_mode)
    if rights & OTHERS_CHANGE:
        return f"can be changed by others than its owner (rights {rights:04o}): chmod 600 {path}"
    return ""
