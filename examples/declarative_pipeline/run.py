"""Spark Declarative Pipelines on the log: run twice, with new flights in between.

    python examples/declarative_pipeline/run.py [RECORDS]        # default 5000

A cluster of three processes is started in a temporary directory; half of the flights go into its
group `flights`; `spark-pipelines run` makes the tables; the other half follows, and the second run
reads only that. Late flights are written back, to the group `late`, once each.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from quorumlog import SyncProducer
from quorumlog.demo.flights import flight_bodies
from quorumlog.local import Guard, LocalCluster
from quorumlog.spark import session
from quorumlog.spark.runtime.session import prepare_environment

PROJECT = Path(__file__).parent
SPEC = "spark-pipeline.yaml"

records = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
directory = Path(tempfile.mkdtemp(prefix="quorumlog-pipeline-"))
guard = Guard(directory)  # ends the nodes if this script does not come to its end
cluster = LocalCluster.create(directory / "nodes", groups=("flights", "late"))
cluster.up()

# The project as it is, with this directory's storage and this cluster's servers.
project = directory / "project"
shutil.copytree(PROJECT, project)
spec = yaml.safe_load((PROJECT / SPEC).read_text())
spec["storage"] = (directory / "storage").as_uri()
spec["configuration"]["spark.quorumlog.servers"] = cluster.servers
(project / SPEC).write_text(yaml.safe_dump(spec))
COMMAND = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]

prepare_environment()
bodies = list(flight_bodies(records))
for part in (bodies[: records // 2], bodies[records // 2 :]):
    with SyncProducer(cluster.servers, "flights") as producer:
        for body in part:
            producer.send(body)
    print(f"{len(part):,} flights appended; spark-pipelines run", flush=True)
    subprocess.run(  # noqa: S603  (the one beside this interpreter)
        COMMAND, cwd=project, env=os.environ | {"SPARK_CONF_DIR": str(project / "conf")}, check=True
    )

spark = session("late flights")
late = (
    spark.read.format("quorumlog")
    .option("servers", cluster.servers)
    .option("group", "late")
    .load()
    .selectExpr("cast(body AS string) AS late_flight")
)
print(f"{late.count():,} late flights are in the second group, such as")
late.limit(3).show(truncate=False)
for table in ("flights", "delays", "worst_days"):
    path = project / "spark-warehouse" / table
    print(f"{table}: {spark.read.parquet(str(path)).count():,} rows")
spark.stop()
cluster.down()
guard.close()
