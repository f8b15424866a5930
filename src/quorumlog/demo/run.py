"""`make demo`, step by step."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from quorumlog.client import Context
from quorumlog.demo.analyse import Analysis, analyse, delay_table, started
from quorumlog.demo.failover import FailOver, kill_leader_and_restart
from quorumlog.demo.flights import RECORDS_IN_ALL, flight_bodies
from quorumlog.demo.load import Loaded, load
from quorumlog.demo.partition_reads import (
    PartitionRead,
    has_kcat,
    read_with_aiokafka,
    read_with_kcat,
    read_with_spark,
)
from quorumlog.demo.proof import (
    Proof,
    compare_files,
    compare_partitions,
    compare_replicas,
    prove_content,
)
from quorumlog.demo.topic import (
    PARTITIONS,
    RECORDS_MAX,
    TOPIC,
    Produced,
    create_topic,
    produce,
)
from quorumlog.local import LocalCluster, ending_in_order, guarded
from quorumlog.model.errors import ConfigError
from quorumlog.model.wording import counted
from quorumlog.spark.runtime.java import java_home

GROUP = "flights"
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
Certify: TypeAlias = Callable[[Path, Sequence[str]], None]


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


@dataclass(slots=True)
class _TopicReads:
    """What each reader found in the partitions of the topic."""

    cluster: Context
    console: Console
    found: dict[str, dict[int, PartitionRead]] = field(default_factory=dict)

    def add(
        self, reader: str, read: Callable[[Context, str, int], dict[int, PartitionRead]]
    ) -> None:
        """Have a reader read all partitions, and say what it read."""
        before = time.monotonic()
        found = read(self.cluster, TOPIC, PARTITIONS)
        seconds = time.monotonic() - before
        self.found[reader] = found
        records = sum(one.records for one in found.values())
        self.console.print(f"  {reader} read {counted(records, 'record')} in {seconds:.1f} s")


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


def run_demo(
    records: int | None, keep: bool, directory: Path | None, certify: Certify | None = None
) -> int:
    """Run all steps; return 0 if everything was proved, 1 otherwise.

    `records`: how many flights (None: all). `keep` leaves the cluster's files, `directory` is
    where they go (None: a new temporary directory). Output files always stay. `certify` makes the
    certificates of nodes and of the user admin in a directory; None: the cluster has no TLS, and
    everybody may do everything. Raises `ConfigError` if there is a cluster already.
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
            status = _steps(console, records, cluster_directory, output, stop, certify)
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
        if certify is not None:
            console.print(
                f"'quorumlog status --dir {cluster_directory}' and other commands with --dir show "
                "the certificate of admin",
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
    certify: Certify | None,
) -> int:
    total = min(records or RECORDS_IN_ALL, RECORDS_IN_ALL)
    with _step(console, 1, "A cluster of three node processes"):
        cluster = LocalCluster.create(
            cluster_directory,
            groups=(GROUP,),
            topics=True,
            kafka_port=0,
            secure=certify is not None,
        )
        stop.append(cluster.down)
        if certify is not None and cluster.tls_directory is not None:
            certify(cluster.tls_directory, cluster.node_ids)
        console.print(f"  directory {cluster_directory}", soft_wrap=True)
        for node_id in cluster.node_ids:
            console.print(
                f"  {node_id} listens on {cluster.address(node_id)}, for Kafka's clients on "
                f"{cluster.kafka_address(node_id)}, admin port {cluster.admin_address(node_id)}",
                soft_wrap=True,
            )
        cluster.up()
        console.print(f"  servers {cluster.servers}", soft_wrap=True)
        _show_security(cluster.context, console)
        console.print(f"  {cluster.leader(GROUP)} leads group {GROUP}")
    half_way = _HalfWay(cluster, console)
    with _step(console, 2, f"{total:,} flights through the Producer; half-way the leader dies"):
        loaded = load(cluster.context, GROUP, flight_bodies(total), total, half_way, console)
        fail_over = _checked(loaded, half_way, total)
    in_topic = min(total, RECORDS_MAX)
    reads = _TopicReads(cluster.context, console)
    with _step(console, 3, f"{in_topic:,} flights through Kafka's clients; again a leader dies"):
        create_topic(cluster)
        produced = produce(cluster, flight_bodies(in_topic), in_topic, console)
        console.print(
            f"  librdkafka produced {counted(produced.records, 'record')} to {PARTITIONS} "
            f"partitions in {produced.seconds:.1f} s"
        )
        reads.add("aiokafka", read_with_aiokafka)
        if has_kcat():
            reads.add("kcat", read_with_kcat)
    with _step(console, 4, "A Spark job on the committed log, and one on the topic"):
        console.print(f"  {java_home().text}")
        with started(output, console) as (spark, start_seconds):
            analysis = analyse(spark, cluster.context, GROUP, output)
            reads.add("Spark", partial(read_with_spark, spark))
        _show(analysis, console)
    with _step(console, 5, "The proof"):
        proof = Proof()
        prove_content(proof, loaded, analysis.parquet)
        sent = produced.partitions()
        for reader, found in reads.found.items():
            compare_partitions(proof, reader, sent, found)
        compare_replicas(proof, cluster, GROUP)
        cluster.down()
        compare_files(proof, cluster, GROUP)
    figures = (
        *_log_figures(loaded, fail_over, proof),
        ("Spark start, job", f"{start_seconds:.1f} s, {analysis.job_seconds:.1f} s"),
        *_topic_figures(produced, reads, proof),
    )
    _report(figures, proof, console)
    return EXIT_FAILED if proof.failures else EXIT_OK


def _show_security(context: Context, console: Console) -> None:
    """Say how clients reach a cluster that has TLS."""
    if not context.is_secure:
        return
    console.print(
        "  all ports speak TLS 1.3; nobody has a right that was not given\n"
        "  clients and Spark show the certificate of the super user admin:"
    )
    for name in ("ca", "certificate", "key"):
        console.print(f"  {name} {getattr(context, name)}", soft_wrap=True)


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


def _log_figures(loaded: Loaded, fail_over: FailOver, proof: Proof) -> tuple[tuple[str, str], ...]:
    """Return what is said of the flights in the group's log."""
    rate = loaded.entries / loaded.seconds
    return (
        ("records acknowledged", f"{loaded.entries:,}"),
        ("appended in, fail-over included", f"{loaded.seconds:.1f} s"),
        ("rate", f"{rate:,.0f} entries/s, {loaded.body_bytes / loaded.seconds / 1e6:.1f} MB/s"),
        ("appends stood still for", f"{loaded.longest_pause_seconds:.2f} s"),
        ("new leader after", f"{fail_over.seconds_to_new_leader:.2f} s"),
        ("killed node back and caught up in", f"{fail_over.seconds_to_catch_up:.2f} s"),
        ("records in Parquet", f"{proof.in_parquet:,}"),
        ("missing", f"{proof.missing:,}"),
        ("sent again around the kill", f"{loaded.stats.entries_resent_after_unknown:,}"),
        ("there more than once", f"{proof.duplicates:,}"),
        ("content digest (SHA-256)", proof.content_digest[:16] + "…"),
        ("replicas with identical logs", f"{proof.replicas} up to {proof.committed_index:,}"),
    )


def _topic_figures(
    produced: Produced, reads: _TopicReads, proof: Proof
) -> tuple[tuple[str, str], ...]:
    """Return what is said of the flights in the topic."""
    return (
        ("topic: records acknowledged", f"{produced.records:,}"),
        ("topic: acknowledged by later records", f"{produced.without_offset:,}"),
        ("topic: produced in, fail-over included", f"{produced.seconds:.1f} s"),
        ("topic: new leader after", f"{produced.seconds_to_new_leader:.2f} s"),
        ("topic: read by", ", ".join(reads.found)),
        ("topic: missing", f"{proof.missing_in_topic:,}"),
        ("topic: there more than once", f"{proof.duplicates_in_topic:,}"),
    )


def _report(figures: Iterable[tuple[str, str]], proof: Proof, console: Console) -> None:
    """Print a short table of figures, and what failed, if anything did."""
    table = Table(title="Figures", title_justify="left", title_style="bold", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in figures:
        table.add_row(name, value)
    console.print(table)
    for failure in proof.failures:
        console.print(f"[bold red]FAILED[/bold red] {failure}")
    if not proof.failures:
        console.print(
            "[bold green]PROVED[/bold green] every acknowledged record is in Parquet exactly as "
            "sent; the replicas' logs are identical; every record acknowledged to Kafka's producer "
            "is in the topic once, at its offset, for every reader."
        )
