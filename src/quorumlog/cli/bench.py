"""`quorumlog bench`: measures a cluster on this machine, and the machine's own limits."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from quorumlog.cli.local_certificates import make_missing
from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.cli.target import find_target
from quorumlog.local import LocalCluster, ending_in_order, guarded_directory
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import DEFAULT_LIMITS, MIB

if TYPE_CHECKING:
    from quorumlog.bench.cases import Plan, Target
    from quorumlog.bench.figures import Figure

GROUP = "bench"
DATA_FILE_BYTES = 256 * MIB
TIMEOUT_S = 10.0
Number = TypeVar("Number", int, float)


def bench_command(  # noqa: PLR0913, PLR0917  (one argument an option)
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE]...", show_default="all", help="What to measure."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", "-d", help="A local cluster that runs; only loaded.")
    ] = None,
    servers: Annotated[
        str | None, typer.Option("--servers", "-s", help="A cluster anywhere; only loaded.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="The cluster of this context; only loaded.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Append to this group and read from it.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Of each load.")] = 3.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Of each load.")] = 3,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Bytes of bodies, joined by commas.")
    ] = "256,1024,16384",
    gib: Annotated[
        str, typer.Option("--gib", help="Lengths of the log for the case length, joined by commas.")
    ] = "1,5,10",
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything: whether it works.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="The cluster that is started has TLS, logins and rights."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object a line and figure.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the figures, too.")
    ] = None,
) -> None:
    """Measure a cluster: one that is started for it, or one that is there.

    Cases: append, batch, producer, read; idle, failover, silence, catchup and restart only with a
    cluster of its own. All these take some ten minutes. How cost grows is measured when it is asked
    for: clients, groups, length (of the log), steady (memory over ten minutes). Every acknowledged
    entry is on a majority's disks. The machine's own disk, loopback and memory are measured in the
    same run.
    """
    from quorumlog.bench.report import COLUMNS, draw, row  # noqa: PLC0415  (nobody else's need)

    plan = _plan(seconds, rounds, sizes, gib, plot, quick=quick)
    of_others = directory or servers or context
    if secure and of_others is not None:
        raise typer.BadParameter(
            "--secure is for a cluster that is started for it; one that is there has TLS or not"
        )
    chosen = _chosen(cases, own=of_others is None)
    figures: list[Figure] = []
    try:
        with (
            ending_in_order(),
            _target(directory, servers, group, context, secure=secure) as (target, disk),
        ):
            uvloop.run(_collect(target, plan, chosen, disk, figures, as_json=as_json))
    finally:  # if a case fails, the figures of those before it are printed all the same
        if figures and not as_json:
            print_table(COLUMNS, [row(figure) for figure in figures])
    if plot is not None:
        draw(figures, plot)
        if not as_json:
            print_line(f"drawn into {plot}")


def _plan(
    seconds: float, rounds: int, sizes: str, gib: str, plot: Path | None, *, quick: bool
) -> "Plan":
    from quorumlog.bench.cases import Plan  # noqa: PLC0415
    from quorumlog.bench.report import check_plot  # noqa: PLC0415

    if plot is not None:
        check_plot(plot)
    plan = Plan(
        seconds=seconds,
        rounds=rounds,
        sizes=_numbers("--sizes", sizes, int, "numbers of bytes, such as 256,1024"),
        lengths_gib=_numbers("--gib", gib, float, "lengths in GiB, such as 1,10,50"),
    )
    largest = DEFAULT_LIMITS.entry_bytes_max - HEADER_SIZE
    if max(plan.sizes) > largest:
        raise typer.BadParameter(f"--sizes {sizes!r}: a body has {largest:,} bytes at most")
    return plan.quick() if quick else plan


def _numbers(option: str, given: str, kind: type[Number], wanted: str) -> tuple[Number, ...]:
    """Return the numbers above 0 of an option. Raises `typer.BadParameter`."""
    try:
        found = tuple(kind(part) for part in given.split(","))
    except ValueError:
        found = ()
    if not found or not min(found) > 0:
        raise typer.BadParameter(f"{option} {given!r}: give {wanted}")
    return found


def _chosen(cases: list[str] | None, *, own: bool) -> list[str]:
    """Return the cases to run. Raises `typer.BadParameter`."""
    from quorumlog.bench.suite import CASES, ON_DEMAND, OWN  # noqa: PLC0415

    allowed = [name for name in CASES if own or name not in OWN]
    for name in cases or ():
        if name not in CASES:
            raise typer.BadParameter(f"there is no case {name!r}, only {', '.join(CASES)}")
        if name not in allowed:
            raise typer.BadParameter(
                f"{name} stops and kills nodes, or wants some of its own: leave --dir and "
                "--servers out"
            )
    return cases or [name for name in allowed if name not in ON_DEMAND]


@contextmanager
def _target(
    directory: Path | None,
    servers: str | None,
    group: str | None,
    context: str | None,
    *,
    secure: bool,
) -> Iterator[tuple["Target", Path | None]]:
    """Yield the group to measure, and the directory whose disk its nodes use, if that is here."""
    from quorumlog.bench.cases import Target  # noqa: PLC0415

    if directory is not None or servers is not None or context is not None:
        found = find_target(directory, servers, group, TIMEOUT_S, context)
        cluster = None if directory is None else LocalCluster.open(directory)
        pids = cluster.running if cluster is not None else dict[str, int]
        yield Target(found.cluster, found.group, pids), directory
        return
    with guarded_directory("quorumlog-bench-") as guard:
        root, wanted = guard.directory, group or GROUP
        try:
            own = LocalCluster.create(
                root / "cluster",
                groups=(wanted,),
                data_file_bytes=DATA_FILE_BYTES,
                secure=secure,
            )
            certify = make_missing if secure else None
            if own.tls_directory is not None:
                make_missing(own.tls_directory, own.node_ids)
            own.up()
            yield Target(own.context, wanted, own.running, own, certify), root
        except UnexpectedArgumentError:  # there was nothing to be measured
            raise
        except Exception:
            guard.keep()
            print(f"quorumlog: logs and files of the nodes are kept in {root}", file=sys.stderr)
            raise
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
