"""The last thing a person sees: a short table of figures, and what failed, if anything did."""

from rich.console import Console
from rich.table import Table

from quorumlog.demo.analyse import Analysis
from quorumlog.demo.failover import FailOver
from quorumlog.demo.load import Loaded
from quorumlog.demo.proof import Proof


def report(
    loaded: Loaded, fail_over: FailOver, analysis: Analysis, proof: Proof, console: Console
) -> None:
    """Print the table."""
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
