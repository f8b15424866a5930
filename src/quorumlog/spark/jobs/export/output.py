"""The output of an export: written under another name next to its path, then renamed at once."""

import os
import re
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from quorumlog.model.errors import StoreLockedError
from quorumlog.spark.jobs.output_files import TOKEN_BYTES, OutputFileSystem
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import Lock

DESCRIPTION_NAME = "_export.json"
"""In a directory that an export made; Spark and Arrow do not take it for data."""
_COPY_BYTES = 1024 * 1024


class ExportOutput:
    """One export's output at `path`, a directory or (`single_file`) a file.

    Until it is published everything is in `directory`, next to the path. Files that an export left
    there when it died are removed by the next export to the same path. Use it as a context.
    """

    def __init__(self, path: Path, *, single_file: bool, overwrite: bool) -> None:
        self._path = path
        self._single_file = single_file
        self._overwrite = overwrite
        self._files = OutputFileSystem()
        token = secrets.token_hex(TOKEN_BYTES)
        self.directory = path.with_name(f".{path.name}.{token}.tmp")
        self._old = path.with_name(f".{path.name}.{token}.old")
        self._lock: Lock | None = None

    def __enter__(self) -> "ExportOutput":
        """Raise `PipelineError` if the path is taken, before any work is done."""
        self._files.make_directory(str(self._path.parent))
        self._recover()
        self._check_path()
        self._files.make_directory(str(self.directory))
        self._lock = self._files.lock(str(self.directory))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _recover(self) -> None:
        """Remove what dead exports of this path left; give one back that was being replaced."""
        name = re.compile(rf"\.{re.escape(self._path.name)}\.[0-9a-f]{{8}}\.(tmp|old)")
        for left in self._path.parent.iterdir():
            if not (found := name.fullmatch(left.name)):
                continue
            if found[1] == "old":
                if self._path.exists():
                    shutil.rmtree(left)
                else:
                    left.rename(self._path)
                continue
            with suppress(StoreLockedError):  # held: that export is at work
                lock = self._files.lock(str(left))
                shutil.rmtree(left)
                lock.release()

    def _check_path(self) -> None:
        """Raise `PipelineError` if publishing would replace what it must not."""
        path = self._path
        if not path.exists():
            return
        if not self._overwrite:
            raise PipelineError(
                f"{path} exists; choose another path, or replace it: overwrite=True (--overwrite)"
            )
        if self._single_file:
            replaceable = path.is_file()
        else:
            replaceable = path.is_dir() and (
                (path / DESCRIPTION_NAME).exists() or not any(path.iterdir())
            )
        if not replaceable:
            kind = "a single file" if self._single_file else "a directory that an export made"
            raise PipelineError(f"{path} is not {kind}, so it is not overwritten; choose another")

    # -- publishing ---------------------------------------------------------------------------

    def publish_directory(self, names: Iterable[str], description: bytes) -> None:
        """Give the directory the path; in it are the named files and a description, no others."""
        wanted, there = set(names), {file.name for file in self.directory.iterdir()}
        if missing := wanted - there:
            raise PipelineError(
                f"a task wrote {self.directory / min(missing)}, but it is not there: driver and "
                "executors must see the same directory under this path"
            )
        for orphan in there - wanted:
            (self.directory / orphan).unlink()  # of a task that was tried again
        self._write(self.directory / DESCRIPTION_NAME, [description])
        self._files.sync_directory(str(self.directory))
        self._check_path()
        is_replaced = self._path.exists()
        if is_replaced:
            self._path.rename(self._old)
        try:
            self.directory.rename(self._path)
        except OSError:
            if is_replaced:
                self._old.rename(self._path)
            raise
        self._files.sync_directory(str(self._path.parent))
        if is_replaced:
            shutil.rmtree(self._old)

    def publish_file(self, header: bytes, names: Iterable[str]) -> int:
        """Make one file of a header and the named ones, in order; return its size in bytes."""
        whole = self.directory / "whole"
        size = self._write(whole, self._pieces(header, names))
        if self._overwrite:
            self._check_path()
            whole.replace(self._path)
        else:
            self._link(whole)
        self._files.sync_directory(str(self._path.parent))
        return size

    def _pieces(self, header: bytes, names: Iterable[str]) -> Iterable[bytes]:
        yield header
        for name in names:
            part = self.directory / name
            with part.open("rb") as file:
                while chunk := file.read(_COPY_BYTES):
                    yield chunk
            part.unlink()  # all of it twice may be more than the disk has

    @staticmethod
    def _write(path: Path, chunks: Iterable[bytes]) -> int:
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def _link(self, whole: Path) -> None:
        """Name a file without replacing one that came meanwhile."""
        try:
            self._path.hardlink_to(whole)
        except FileExistsError:
            self._check_path()
            raise
        except OSError:  # a file system without hard links
            self._check_path()
            whole.replace(self._path)
