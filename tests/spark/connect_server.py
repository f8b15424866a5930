"""A Spark Connect server in a process of its own, on the loopback address."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyspark

from quorumlog.local.ports import free_ports
from quorumlog.spark.runtime.java import JAVA_OPTIONS
from quorumlog.spark.runtime.session import prepare_environment

START_SECONDS = 120.0
STOP_SECONDS = 60.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(directory):
    """Start one that keeps its files in a directory; yield its address for clients."""
    prepare_environment()
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.warehouse.dir": directory / "warehouse",
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *(
            "--master",
            "local[2]",
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    log = directory / "connect.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # what it still does is nobody's any more
            server.kill()
            server.wait()
