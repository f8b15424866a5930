"""Credentials that Spark's tasks carry: what files of the driver hold, for executors without them.

`credentials=driver` asks for it. A task has them in its bytes, which Spark sends to executors, and
in no option, so no plan, no event log and no page of Spark shows them. An executor keeps them in
its memory. Spark's own connections have to be encrypted: see `can_carry`.
"""

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from quorumlog.client.contexts import Access, OpenContext
from quorumlog.client.outgoing_tls import outgoing_tls
from quorumlog.client.security import SYSTEM_CA, Security
from quorumlog.log_events import reason_of
from quorumlog.model.errors import ConfigError
from quorumlog.model.secrets import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of each file that a task carries."""
FILES_MAX: Final = 256
"""Different files that a process keeps for the tasks that it has run: each is a descriptor.

They are renewals of certificates and keys, of which one a day is many.
"""
ENCRYPTED: Final = (
    {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"},
    {"spark.ssl.rpc.enabled": "true"},
)
"""Settings of Spark by which what a driver sends to its executors is encrypted: one of these."""
WHY_NOT_CARRIED: Final = (
    "tasks carry credentials in local mode, or where Spark encrypts what it sends: "
    + ", or ".join(" and ".join(f"{k}={v}" for k, v in each.items()) for each in ENCRYPTED)
)

READS_MAX: Final = 10
"""How often files are read that do not fit each other, or change meanwhile."""
RENEWAL_S: Final = 0.05
"""Pause between, in seconds."""

_files: dict[bytes, BinaryIO] = {}
"""What this process was sent, by content; these files are never closed."""
_names: dict[str, str] = {}
"""Their paths here → their paths on the driver."""
_lock = threading.Lock()  # guards both tables


def can_carry(spark: "SparkSession") -> bool:
    """Whether what the driver sends to tasks stays in its process, or is encrypted.

    The settings of the application count, which it was started with. False for sessions of Spark
    Connect.
    """
    if not hasattr(spark, "_jsparkSession"):  # of Spark Connect: it says nothing that is sure
        return False
    # those of the session may be others, and are no more than words
    context = spark.sparkContext
    master = context.master or ""
    if master == "local" or master.startswith("local["):
        return True
    found = dict(context.getConf().getAll())
    return any(
        all(found.get(name, "false").lower() == value for name, value in each.items())
        for each in ENCRYPTED
    )


@dataclass(frozen=True, slots=True, repr=False)
class _Contents:
    """What the driver has read: see `OpenContext` and `Security`. It shows nothing of it."""

    servers: str
    kafka: str
    settings: dict[str, str]
    """Attributes of `Security` that are neither files nor secrets."""
    files: dict[str, tuple[str, bytes]]
    """Attributes that are files: path of the driver, and content."""
    secrets: dict[str, str]

    def open(self) -> OpenContext:
        paths = {name: _path_of(content, path) for name, (path, content) in self.files.items()}
        secrets = {name: Secret(value) for name, value in self.secrets.items()}
        settings: dict[str, Any] = {**self.settings, **paths, **secrets}
        return OpenContext(self.servers, self.kafka, Security(**settings))


class Carried:
    """An `Access` that takes along what it needs when it is sent to another process.

    What it takes is read each time it is sent, so later tasks of a stream have newer certificates
    and tokens. Where it was made, it is used as the `Access` itself is.
    """

    __slots__ = ("_received", "access")

    def __init__(self, access: Access, received: _Contents | None = None) -> None:
        self.access = access
        self._received = received

    def open(self) -> OpenContext:
        """Return addresses and secrets. Raises `ConfigError`."""
        return self.access.found().open() if self._received is None else self._received.open()

    def __reduce__(self) -> tuple[Callable[..., "Carried"], tuple[Access, _Contents]]:
        """Raises `ConfigError` if a file of the driver cannot be used."""
        return Carried, (self.access, self._received or _contents_of(self.access))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Carried):
            return NotImplemented
        return (self.access, self._received) == (other.access, other._received)

    def __hash__(self) -> int:
        return hash(self.access)

    def __str__(self) -> str:
        return str(self.access)

    def __repr__(self) -> str:
        return f"Carried({self.access!r})"


def _contents_of(access: Access) -> _Contents:
    found = access.found().open()
    security = found.security
    if security is None:
        raise ConfigError(f"{access} has no credentials that the driver could send")
    files = _files_of(security)
    settings = {"verify_name": security.verify_name, "cluster_id": security.cluster_id}
    settings |= {"mechanism": security.mechanism, "user": security.user, "ca": security.ca}
    secrets = {
        name: secret.reveal()
        for name in ("password", "token")
        if (secret := getattr(security, name)) is not None
    }
    return _Contents(found.servers, found.kafka, settings, files, secrets)


def _files_of(security: Security) -> dict[str, tuple[str, bytes]]:
    """Return the files that are named, which fit each other: they may be renewed just now."""
    paths = {
        name: path
        for name in ("ca", "certificate", "key")
        if (path := getattr(security, name)) and path != SYSTEM_CA
    }
    for number in range(READS_MAX):
        files = {name: (path, _read(path)) for name, path in paths.items()}
        try:
            outgoing_tls(security)  # its errors name the file and the reason
        except ConfigError:
            if number == READS_MAX - 1:
                raise
        else:
            if files == {name: (path, _read(path)) for name, path in paths.items()}:
                return files
        time.sleep(RENEWAL_S)
    raise ConfigError(f"{', '.join(paths.values())}: they are written again and again")


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return content


def in_words_of_driver(text: str) -> str:
    """Return a text in which files that a task carried have their names on the driver."""
    for path, name in list(_names.items()):
        text = re.sub(rf"{path}\b", partial(_of_driver, name), text)
    return text


def _of_driver(name: str, _found: re.Match[str]) -> str:
    return f"{name} of the driver"


def _path_of(content: bytes, name: str) -> str:
    """Return a path by which this process opens a content, which is on no disk.

    It is the same path for the same content, and never one of another content. `name`: of the
    driver's file. Raises `ConfigError` beyond `FILES_MAX`.
    """
    with _lock:
        file = _files.get(content)
        if file is None:
            if len(_files) >= FILES_MAX:
                raise ConfigError(
                    f"this process was sent {FILES_MAX} different certificates and keys, and keeps "
                    "no more: start the Spark application again"
                )
            file = _files[content] = _in_memory(content)
        path = f"/proc/self/fd/{file.fileno()}"
        _names[path] = name
        return path


def _in_memory(content: bytes) -> BinaryIO:
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "this system has no files that are only in memory (memfd_create): put the files of "
            "credentials on this machine"
        )
    try:
        with ExitStack() as stack:
            file = stack.enter_context(open(os.memfd_create("quorumlog"), "wb"))
            os.fchmod(file.fileno(), 0o600)  # else it is one that everybody may read
            file.write(content)
            file.flush()
            stack.pop_all()
    except OSError as error:
        raise ConfigError(f"credentials cannot be kept in memory: {reason_of(error)}") from None
    return file
