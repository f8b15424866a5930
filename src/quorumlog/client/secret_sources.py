"""Where passwords and tokens come from: a file that only its user can read, or the environment.

A secret is never an argument of a command, since others on the machine can list those.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quorumlog.model.errors import ConfigError
from quorumlog.model.secrets import SECRET_BYTES_MAX, Secret
from quorumlog.transport.private_files import read_private


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
