"""What a session needs before there is one: addresses, workers' Python, names loaded when used."""

import os
import socket
import subprocess
import sys
import tempfile

import pyspark
import pytest

import quorumlog.spark
from quorumlog.model.errors import ConfigError
from quorumlog.spark.runtime import class_archive
from quorumlog.spark.runtime.java import JavaChoice
from quorumlog.spark.runtime.session import (
    SOCKET_PATH_MAX,
    own_address,
    prepare_environment,
    socket_settings,
)


@pytest.fixture
def environment(monkeypatch):
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def test_executors_elsewhere_find_the_driver_by_its_own_address(environment):
    environment.setattr(socket, "gethostbyname", lambda name: "192.0.2.8")
    assert own_address() == "192.0.2.8"
    environment.setenv("SPARK_LOCAL_IP", "192.0.2.7")
    assert own_address() == "192.0.2.7"


def test_a_machine_whose_name_has_no_address_is_an_error_that_says_what_to_set(environment):
    def unresolvable(name):
        raise OSError("no such name")

    environment.setattr(socket, "gethostbyname", unresolvable)
    with pytest.raises(ConfigError, match="set SPARK_LOCAL_IP"):
        own_address()


@pytest.mark.parametrize("longest", [True, False])
def test_sockets_have_a_directory_in_which_their_paths_are_short_enough(
    environment, tmp_path, longest
):
    room = SOCKET_PATH_MAX - len("/quorumlog-12345678/.123e4567-e89b-12d3-a456-426614174000.sock")
    base = "/tmp/".ljust(room + (0 if longest else 1), "x")
    made = []
    environment.setattr(tempfile, "gettempdir", lambda: base)
    environment.setattr(tempfile, "mkdtemp", lambda prefix: made.append(prefix) or str(tmp_path))
    settings = socket_settings()
    assert settings.get("spark.python.unix.domain.socket.dir") == (
        str(tmp_path) if longest else None
    )
    assert made == (["quorumlog-"] if longest else [])


def test_local_workers_run_this_interpreter_and_others_what_the_user_says(environment):
    environment.setenv("PYSPARK_PYTHON", "/opt/workers/bin/python")
    prepare_environment("192.0.2.7", own_python=False)
    assert os.environ["PYSPARK_PYTHON"] == "/opt/workers/bin/python"
    assert os.environ["SPARK_LOCAL_IP"] == "192.0.2.7"
    prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "192.0.2.7", "what is set already stays"


def test_every_name_of_the_package_is_there_and_none_is_loaded_before_its_use():
    for name in quorumlog.spark.__all__:
        assert callable(getattr(quorumlog.spark, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        quorumlog.spark.nothing  # noqa: B018
    done = subprocess.run(
        [sys.executable, "-c", "import sys, quorumlog.spark; print('pyspark' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


JAVA = JavaChoice("/jdk", "17.0.15", "Java 17")


@pytest.fixture
def maker(monkeypatch):
    """Stands for the process that makes an archive; `leaves` is what it does with the path."""
    made = []

    def run(arguments, **options):
        made.append(arguments[-1])
        maker.leaves(arguments[-1])
        return subprocess.CompletedProcess(arguments, 0, "", "no such option")

    monkeypatch.setattr(class_archive.subprocess, "run", run)
    maker = run
    maker.made = made
    return maker


def test_an_archive_of_classes_is_made_once_for_each_java_and_spark(maker, tmp_path):
    maker.leaves = lambda path: open(path, "w").close()
    directory = tmp_path / "new" / "classes"
    for _ in range(2):
        options = class_archive.class_archive_options(directory, JAVA)
    (archive,) = directory.iterdir()
    assert archive.name == f"spark-{pyspark.__version__}-java-17.0.15.jsa"
    assert options.startswith(f"-XX:SharedArchiveFile={archive} -Xshare:auto")
    assert len(maker.made) == 1


def test_a_java_that_makes_no_archive_is_an_error_and_leaves_no_file(maker, tmp_path):
    maker.leaves = lambda path: None
    with pytest.raises(ConfigError, match=r"made no class archive; .*no such option"):
        class_archive.class_archive_options(tmp_path, JAVA)
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_blank_which_java_would_cut_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="blank"):
        class_archive.class_archive_options(tmp_path / "my classes", JAVA)
