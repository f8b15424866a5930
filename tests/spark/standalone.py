"""Topics on a standalone Spark cluster whose worker runs as another user than the brokers.

    python tests/spark/standalone.py --python ENVIRONMENT/bin/python --user nobody

The environment has quorumlog with its extra `spark`, and that user may run it; who starts the
program may become that user. The files of the nodes are closed to it, so that everything is sent.
The program prints what topics_everywhere.py prints, and fails if that is not what it has to be.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import topics_everywhere
from topics_everywhere import AGAIN, EXPECTED, INPUT, OUTPUT, PARTITIONS, ROWS

sys.path.insert(0, str(Path(__file__).parents[1]))

from quorumlog.local import LocalCluster, ending_in_order
from topic_rows import make_topics

LOOPBACK = "127.0.0.1"
START_S = 120.0
CORES = 2


def free_port():
    with socket.create_server((LOOPBACK, 0)) as found:
        return found.getsockname()[1]


@contextmanager
def spark_process(python, kind, arguments, log, **settings):
    """Run a master or a worker of a standalone cluster, and end it."""
    home = subprocess.run(
        [python, "-c", "import pyspark; print(pyspark.__path__[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{kind}", *arguments]
    environment = os.environ | {"SPARK_HOME": home, "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd="/",
            **settings,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for(log, text):
    """Wait until a log has a text."""
    ends_s = time.monotonic() + START_S
    while text not in log.read_text():
        if time.monotonic() > ends_s:
            raise AssertionError(log.read_text())
        time.sleep(0.1)


@contextmanager
def standalone(directory, python, user):
    """Start a master, and a worker of that user; yield the address for drivers."""
    port = free_port()
    places = ["--host", LOOPBACK, "--port", str(port), "--webui-port", "0"]
    with ExitStack() as stack:
        log = directory / "master.log"
        stack.enter_context(spark_process(python, "master.Master", places, log))
        wait_for(log, "New state: ALIVE")
        work, log = directory / "work", directory / "worker.log"
        work.mkdir()
        shutil.chown(work, user)
        master = f"spark://{LOOPBACK}:{port}"
        options = ["--host", LOOPBACK, "--webui-port", "0", "-c", str(CORES), "-m", "2g"]
        options += ["-d", str(work), master]
        worker = spark_process(python, "worker.Worker", options, log, user=user, extra_groups=[])
        stack.enter_context(worker)
        wait_for(log, "Successfully registered with master")
        yield master


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--dir", type=Path, help="which that user may enter; otherwise a new one")
    options = parser.parse_args()
    base = options.dir or Path(tempfile.mkdtemp(prefix="standalone-"))
    base.chmod(0o755)
    shared = base / "shared"
    for path in (shared, shared / "archive"):  # driver and tasks write to both
        path.mkdir()
        path.chmod(0o777)
    cluster = LocalCluster.create(base / "nodes", topics=True, kafka_port=0)
    (base / "nodes").chmod(0o700)
    with ending_in_order(), standalone(base, options.python, options.user) as master:
        cluster.up()
        try:
            servers = cluster.bootstrap_servers
            make_topics(servers, [INPUT, OUTPUT, AGAIN], PARTITIONS)
            command = [options.python, topics_everywhere.__file__, master, servers, str(shared)]
            environment = os.environ | {
                "SPARK_LOCAL_IP": LOOPBACK,
                "PYSPARK_PYTHON": str(options.python),
                "PYSPARK_DRIVER_PYTHON": str(options.python),
            }
            environment.pop("PYTHONPATH", None)  # workers have the quorumlog of their environment
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, env=environment, check=False
            )
        finally:
            cluster.down()
    print(done.stdout, end="")
    if done.returncode:
        raise AssertionError(f"the driver failed; see {base}")
    found, stats = map(json.loads, done.stdout.splitlines())
    if found != EXPECTED or stats["records"] != ROWS:
        raise AssertionError(f"{EXPECTED} was to be found; see {base}")
    if not any((base / "work").iterdir()):
        raise AssertionError("no task ran on the worker")
    shutil.rmtree(base)
    print("nothing found")


if __name__ == "__main__":
    main()
