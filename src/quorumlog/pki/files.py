"""The only module here that touches files: keys, certificates, and the order of their renewal.

A node looks at its files every few seconds and takes a certificate and a key only if they fit each
other; otherwise it keeps those that it has. So a renewal may replace one after the other.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.log_events import reason_of
from quorumlog.pki.errors import PkiError

DIRECTORY_MODE: Final = 0o700
KEY_MODE: Final = 0o600
CERTIFICATE_MODE: Final = 0o644
OTHERS: Final = 0o077
"""The rights of everybody but the owner."""
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""More is no file of certificates; a revocation list of 100,000 has 4 MB."""
LOCK_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02


class Pair(NamedTuple):
    """The files of one party."""

    certificate: Path
    key: Path


def pair_in(directory: Path, name: str) -> Pair:
    """Return the files of somebody in a directory: `n0.pem`, `n0.key`."""
    return Pair(directory / f"{name}.pem", directory / f"{name}.key")


def make_directory(path: Path) -> None:
    """Make a directory for its owner alone, if there is none. Raises `PkiError`."""
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise PkiError(f"no directory can be made: {reason_of(error)}") from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other commands from working in a directory meanwhile.

    Raises `PkiError` when there is no such directory, or another command keeps it too long.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PkiError(reason_of(error)) from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PkiError(
                        f"{directory}: another command has been working there for more than "
                        f"{LOCK_SECONDS:.0f} s; try again when it has ended"
                    ) from None
                time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes:
    """Return what a file holds. Raises `PkiError` if it cannot be read, or is far too large."""
    try:
        with path.open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PkiError(reason_of(error)) from error
    if len(found) > FILE_BYTES_MAX:
        raise PkiError(f"{path}: too large for a file of certificates ({FILE_BYTES_MAX:,} bytes)")
    return found


def others_may(path: Path) -> int:
    """Return the rights to a file that anybody but its owner has; 0: none."""
    try:
        return path.stat().st_mode & OTHERS
    except OSError as error:
        raise PkiError(reason_of(error)) from error


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not be there yet, whole or not at all. Raises `PkiError`."""
    _write_beside(path, content, mode)
    _place(path, replace=False)
    _sync(path.parent)


def replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file, or put it in the place of an earlier one, whole or not at all."""
    _write_beside(path, content, mode)
    _place(path, replace=True)
    _sync(path.parent)


def check_free(pair: Pair) -> None:
    """Raise `PkiError` if one of these files is there."""
    for path in pair:
        if path.exists() or path.is_symlink():
            raise PkiError(
                f"{path} exists and is kept; choose another directory or name, or replace it with "
                "--force"
            )


def write_pair(pair: Pair, certificate: bytes, key: bytes, *, force: bool) -> None:
    """Write a certificate and its key; `force`: in the place of those there are.

    Both are durable under other names before either is placed, and the certificate is placed last,
    as its change is what programs look for. Whoever is killed between the two leaves
    `n0.pem.new`, which `finish_pair` puts in its place. The directory must be locked.
    """
    if not force:
        check_free(pair)
    _write_beside(pair.key, key, KEY_MODE)
    _write_beside(pair.certificate, certificate, CERTIFICATE_MODE)
    _place(pair.key, replace=force)
    _place(pair.certificate, replace=force)
    _sync(pair.certificate.parent)


def unplaced(path: Path) -> bytes | None:
    """Return the content that was to be placed at a path when a command was killed, if any."""
    try:
        return beside(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PkiError(reason_of(error)) from error


def finish_pair(pair: Pair) -> None:
    """Place the certificate of a renewal that was killed after it had placed the key."""
    _place(pair.certificate, replace=True)
    _sync(pair.certificate.parent)


def beside(path: Path) -> Path:
    """Return the name under which a file is written before it is placed."""
    return path.with_name(f"{path.name}.new")


def _write_beside(path: Path, content: bytes, mode: int) -> None:
    """Write and sync a file under another name, which nobody else may have made meanwhile."""
    target = beside(path)
    try:
        target.unlink(missing_ok=True)  # left by a command that was killed
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # whatever the umask
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            target.unlink()
        raise PkiError(f"cannot be written: {reason_of(error)}") from error


def _place(path: Path, *, replace: bool) -> None:
    """Give a file that is complete its name; not if one is there, unless it is to be replaced."""
    made = beside(path)
    try:
        if replace:
            made.replace(path)
        else:
            os.link(made, path)  # fails if the name is taken, as a renaming would not
            made.unlink()
    except FileExistsError:
        raise PkiError(f"{path} exists and is kept; replace it with --force") from None
    except OSError as error:
        raise PkiError(f"cannot be written: {reason_of(error)}") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_names(directory: Path, ending: str) -> list[str]:
    """Return the sorted names of files in a directory that end so; none: there is no such one."""
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(ending))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PkiError(reason_of(error)) from error


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise PkiError(f"cannot be removed: {reason_of(error)}") from error
