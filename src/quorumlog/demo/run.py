"""`make demo`, step by step."""

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from quorumlog.demo.analyse import Analysis, analyse, delay_table
from quorumlog.demo.failover import FailOver, kill_leader_and_restart
from quorumlog.demo.flights import RECORDS_IN_ALL, flight_bodies
from quorumlog.demo.load import Loaded, load
from quorumlog.demo.proof import Proof, compare_files, compare_replicas, prove_content
from quorumlog.local import LocalCluster, ending_in_order, guarded
from quorumlog.model.errors import ConfigError
from quorumlog.model.wording import counted
from quorumlog.spark.runtime.java import java_home

GROUP = "flights"
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class StepFailed(Exception):  # noqa: N818  (says which step, in a person's words)
    """A step of the demonstration failed."""


@contextmanager
def _step(console: Console, number: int, title: str) -> Iterator[None]:
    """Announce a step; an error in it is reported with its title."""
    console.print(f"\n[bold]{number}. {title}[/bold]")
    try:
        yield
    except (KeyboardInterrupt, StepFailed):
        raise
    except Exception as error:
        causes = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        reasons = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        raise StepFailed(f"step {number}, {title}: {reasons}") from error


class _HalfWay:
    """Runs the fail-over on a thread while the load goes on."""

    def __init__(self, cluster: LocalCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fail-over")
        self.result: FailOver | None = None

    def __call__(self) -> "Future[None]":
        return self._pool.submit(self._run)

    def _run(self) -> None:
        self.result = kill_leader_and_restart(self._cluster, GROUP, self._console)


def run_demo(records: int | None, keep: bool, directory: Path | None) -> int:
    """Run all steps; return 0 if everything was proved, 1 otherwise.

    `records`: how many flights (None: all). `keep` leaves the cluster's files, `directory` is
    where they go (None: a new temporary directory). Output files always stay. Raises `ConfigError`
    if there is a cluster already.
    """
    console = Console()
    base = directory or Path(tempfile.mkdtemp(prefix="quorumlog-demo-"))
    output = base / "output"
    output.mkdir(parents=True, exist_ok=True)
    cluster_directory = base / "cluster"
    if cluster_directory.exists():
        raise ConfigError(f"{cluster_directory} exists; choose another directory with --dir")
    stop: list[Callable[[], object]] = []
    with ending_in_order(), guarded(cluster_directory, remove=not keep):
        try:
            status = _steps(console, records, cluster_directory, output, stop)
        except KeyboardInterrupt:
            console.print("\ninterrupted; stopping the cluster")
            status = EXIT_INTERRUPTED
        except StepFailed as error:
            console.print(f"[bold red]FAILED[/bold red] {error}")
            status = EXIT_FAILED
        finally:
            for end in stop:
                end()
    if keep:
        console.print(
            f"cluster files: {cluster_directory}; start it again with "
            f"'quorumlog cluster up --dir {cluster_directory}'",
            soft_wrap=True,
        )
    written = ", ".join(sorted(path.name for path in output.iterdir()))
    console.print(f"output: {output} ({written or 'nothing yet'})", soft_wrap=True)
    return status


def _steps(
    console: Console,
    records: int | None,
    cluster_directory: Path,
    output: Path,
    stop: list[Callable[[], object]],
) -> int:
    total = min(records or RECORDS_IN_ALL, RECORDS_IN_ALL)
    with _step(console, 1, "A cluster of three node processes"):
        cluster = LocalCluster.create(cluster_directory, groups=(GROUP,))
        stop.append(cluster.down)
        console.print(f"  directory {cluster_directory}", soft_wrap=True)
        for node_id in cluster.node_ids:
            ports = f"{cluster.address(node_id)}, admin port {cluster.admin_address(node_id)}"
            console.print(f"  {node_id} listens on {ports}", soft_wrap=True)
        cluster.up()
        console.print(f"  servers {cluster.servers}", soft_wrap=True)
        console.print(f"  {cluster.leader(GROUP)} leads group {GROUP}")
    half_way = _HalfWay(cluster, console)
    with _step(console, 2, f"{total:,} flights through the Producer; half-way the leader dies"):
        loaded = load(cluster.servers, GROUP, flight_bodies(total), total, half_way, console)
        fail_over = _checked(loaded, half_way, total)
    with _step(console, 3, "A Spark job on the committed log"):
        console.print(f"  {java_home().text}")
        analysis = analyse(cluster.servers, GROUP, output, console)
        _show(analysis, console)
    with _step(console, 4, "The proof"):
        proof = Proof()
        prove_content(proof, loaded, analysis.parquet)
        compare_replicas(proof, cluster, GROUP)
        cluster.down()
        compare_files(proof, cluster, GROUP)
    _report(loaded, fail_over, analysis, proof, console)
    return EXIT_FAILED if proof.failures else EXIT_OK


def _checked(loaded: Loaded, half_way: _HalfWay, total: int) -> FailOver:
    if half_way.result is None:
        raise StepFailed("the leader was never killed: too few records for a half-way point")
    if loaded.entries != total:
        raise StepFailed(f"only {loaded.entries:,} of {counted(total, 'record')} acknowledged")
    return half_way.result


def _show(analysis: Analysis, console: Console) -> None:
    console.print(delay_table("Departure delay by carrier", "carrier", analysis.by_carrier))
    console.print(delay_table("Departure delay by hour", "hour", analysis.by_hour))
    console.print(f"  chart: {analysis.chart}", soft_wrap=True)


def _report(
    loaded: Loaded, fail_over: FailOver, analysis: Analysis, proof: Proof, console: Console
) -> None:
    """Print a short table of figures, and what failed, if anything did."""
    table = Table(title="Figures", title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rate = loaded.entries / loaded.seconds
    for name, value in (
        ("records acknowledged", f"{loaded.entries:,}"),
        ("appended in, fail-over included", f"{loaded.seconds:.1f} s"),
        ("rate", f"{rate:,.0f} entries/s, {loaded.body_bytes / loaded.seconds / 1e6:.1f} MB/s"),
        ("appends stood still for", f"{loaded.longest_pause_seconds:.2f} s"),
        ("new leader after", f"{fail_over.seconds_to_new_leader:.2f} s"),
        ("killed node back and caught up in", f"{fail_over.seconds_to_catch_up:.2f} s"),
        ("Spark start, job", f"{analysis.start_seconds:.1f} s, {analysis.job_seconds:.1f} s"),
        ("records in Parquet", f"{proof.in_parquet:,}"),
        ("missing", f"{proof.missing:,}"),
        ("sent again around the kill", f"{loaded.stats.entries_resent_after_unknown:,}"),
        ("there more than once", f"{proof.duplicates:,}"),
        ("content digest (SHA-256)", proof.content_digest[:16] + "…"),
        ("replicas with identical logs", f"{proof.replicas} up to {proof.committed_index:,}"),
    ):
        table.add_row(name, value)
    console.print(table)
    for failure in proof.failures:
        console.print(f"[bold red]FAILED[/bold red] {failure}")
    if not proof.failures:
        console.print(
            "[bold green]PROVED[/bold green] every acknowledged record is in Parquet exactly as "
            "sent; the replicas' logs are identical."
        )
