"""Class data sharing: Spark's classes as the JVM has loaded them once, kept in a file.

Half of the time that Spark takes to start goes into loading and checking some ten thousand classes.
A JVM that is given such a file maps it instead (JEP 350).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from quorumlog.model.errors import ConfigError
from quorumlog.spark.runtime.java import JavaChoice

MAKE_SECONDS = 300.0
"""How long making the file may take; it is some 15 seconds of work."""
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
"""A file that does not fit is ignored; the JVM would warn about it on standard output."""
RECORDER = "quorumlog.spark.runtime.record_classes"
"""The module that another process runs to make the file."""


def class_archive_options(directory: Path, java: JavaChoice) -> str:
    """Return the Java options that use the file for this Java and this Spark; make it if need be.

    Raises `ConfigError` if it cannot be made.
    """
    path = directory / f"spark-{pyspark.__version__}-java-{java.version}.jsa"
    if any(character.isspace() for character in str(path)):
        raise ConfigError(f"Java takes no class archive with a blank in its path: '{path}'")
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        _make(path)
    return f"-XX:SharedArchiveFile={path} {QUIET}"


def _make(path: Path) -> None:
    """Have another process start Spark, use it, and save its classes; in place when complete."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=path.parent) as directory:
        made = Path(directory) / path.name
        try:
            done = subprocess.run(  # noqa: S603  (this interpreter)
                [sys.executable, "-m", RECORDER, str(made)],
                capture_output=True,
                text=True,
                timeout=MAKE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"making {path} took over {MAKE_SECONDS:g} seconds") from error
        if not made.exists():
            said = (done.stderr + done.stdout).strip()[-2000:]
            raise ConfigError(f"this Java made no class archive; leave it out. It said: {said}")
        made.replace(path)
