"""`quorumlog bench`: what a cluster does on this machine, beside what the machine does itself."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.cli.target import find_target
from quorumlog.local import LocalCluster
from quorumlog.model.limits import MIB

if TYPE_CHECKING:
    from quorumlog.bench.figures import Figure
    from quorumlog.bench.suite import Plan, Target

GROUP = "bench"
DATA_FILE_BYTES = 256 * MIB
TIMEOUT_S = 10.0


def bench_command(  # noqa: PLR0913, PLR0917  (one argument an option)
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", show_default="all", help="What to measure."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A local cluster that runs; it is only loaded.")
    ] = None,
    servers: Annotated[
        str | None, typer.Option("--servers", help="A cluster anywhere; it is only loaded.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Append to this group and read from it.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Of each load.")] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Of each load.")] = 3,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Bytes of bodies, joined by commas.")
    ] = "256,1024,16384",
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything: whether it works.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line and figure.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the figures, too.")
    ] = None,
) -> None:
    """Measure a cluster: one that is started for it, or one that is there.

    Cases: append, batch, producer, read; idle, failover, silence, catchup and restart only with a
    cluster of its own. All take some ten minutes. Every acknowledged entry is on a majority's
    disks. The machine's own disk, loopback and memory are measured in the same run.
    """
    from quorumlog.bench.report import COLUMNS, draw, row  # noqa: PLC0415  (nobody else's need)

    plan = _plan(seconds, rounds, sizes, quick=quick)
    chosen = _chosen(cases, own=directory is None and servers is None)
    figures: list[Figure] = []
    with _target(directory, servers, group) as (target, disk):
        uvloop.run(_collect(target, plan, chosen, disk, figures, as_json=as_json))
    if not as_json:
        print_table(COLUMNS, [row(figure) for figure in figures])
    if plot is not None:
        draw(figures, plot)
        if not as_json:
            print_line(f"drawn into {plot}")


def _plan(seconds: float, rounds: int, sizes: str, *, quick: bool) -> "Plan":
    from quorumlog.bench.suite import Plan  # noqa: PLC0415

    try:
        found = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise typer.BadParameter(f"--sizes {sizes!r}: give numbers of bytes, such as 256,1024")
    plan = Plan(seconds=seconds, rounds=rounds, sizes=found)
    return plan.quick() if quick else plan


def _chosen(cases: list[str] | None, *, own: bool) -> list[str]:
    """Return the cases to run. Raises `typer.BadParameter`."""
    from quorumlog.bench.suite import CASES, HURTING  # noqa: PLC0415

    allowed = [name for name in CASES if own or name not in HURTING]
    for name in cases or ():
        if name not in CASES:
            raise typer.BadParameter(f"there is no case {name!r}, only {', '.join(CASES)}")
        if name not in allowed:
            raise typer.BadParameter(
                f"{name} stops and kills nodes, or wants them idle: leave --dir and --servers out"
            )
    return cases or allowed


@contextmanager
def _target(
    directory: Path | None, servers: str | None, group: str | None
) -> Iterator[tuple["Target", Path | None]]:
    """Yield the group to measure, and the directory whose disk its nodes use, if that is here."""
    from quorumlog.bench.suite import Target  # noqa: PLC0415

    if directory is not None or servers is not None:
        found = find_target(directory, servers, group, TIMEOUT_S)
        cluster = None if directory is None else LocalCluster.open(directory)
        pids = cluster.running if cluster is not None else dict[str, int]
        yield Target(found.servers, found.group, pids), directory
        return
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as name:
        root = Path(name)
        wanted = group or GROUP
        own = LocalCluster.create(
            root / "cluster", groups=(wanted,), data_file_bytes=DATA_FILE_BYTES
        )
        try:
            own.up()
            yield Target(own.servers, wanted, own.running, own), root
        finally:
            own.down()


async def _collect(
    target: "Target",
    plan: "Plan",
    cases: list[str],
    disk: Path | None,
    figures: list["Figure"],
    *,
    as_json: bool,
) -> None:
    """Run the cases; JSON lines come at once, a terminal sees what was measured last."""
    from quorumlog.bench.suite import run  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    shown = Console(stderr=True)
    with Progress(
        *columns, console=shown, transient=True, disable=not shown.is_terminal
    ) as progress:
        task = progress.add_task("measuring the machine", total=None)
        async for figure in run(target, plan, cases, disk):
            figures.append(figure)
            if as_json:
                print_json(msgspec.to_builtins(figure))
            progress.update(task, description=f"{figure.case}: {figure.value:,.4g} {figure.unit}")
