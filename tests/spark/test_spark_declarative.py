"""The declarative pipeline in `examples/`: Spark takes it, and resolves its flows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from quorumlog.spark.runtime.session import prepare_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PROJECT = Path(__file__).parents[2] / "examples" / "declarative_pipeline"


def test_the_example_of_a_declarative_pipeline_is_resolved(cluster, tmp_path):
    """What `run` does before anything is written; `run.py` there does all, in two minutes."""
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = yaml.safe_load((project / "spark-pipeline.yaml").read_text())
    spec["storage"] = (tmp_path / "storage").as_uri()
    spec["configuration"]["spark.quorumlog.servers"] = cluster.servers
    text = (project / "transformations" / "flights.py").read_text()
    (project / "transformations" / "flights.py").write_text(
        text.replace('"group", "flights"', '"group", "g"')
    )
    (project / "spark-pipeline.yaml").write_text(yaml.safe_dump(spec))
    prepare_environment()
    has_port = {"SPARK_TESTING": "1"}  # one that is free for Spark Connect, not always the same
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "dry-run"],
        cwd=project,
        env=os.environ | has_port | {"SPARK_CONF_DIR": str(project / "conf")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr
