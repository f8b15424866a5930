"""`quorumlog simulate`: whole groups from seeds, with everything going wrong that may."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import AsJson, Story, wants_history
from quorumlog.cli.output import print_json, print_line
from quorumlog.model.wording import counted, entries_text

if TYPE_CHECKING:
    from quorumlog.sim.campaign import Plan
    from quorumlog.sim.finding import Outcome

EXIT_FOUND = 1
SEEDS = 20
SECONDS = 30.0
REPORT_SECONDS = 30.0
"""How often a run without end says how far it has come."""


def simulate_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    seeds: Annotated[
        int, typer.Option("--seeds", "-n", min=0, help="How many runs; 0: until stopped.")
    ] = SEEDS,
    first_seed: Annotated[
        int, typer.Option("--first-seed", "-k", min=0, help="Seed of the first run.")
    ] = 0,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Simulated time with faults in each run.")
    ] = SECONDS,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=7, help="Founders.")] = 3,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes.", show_default="all cores")
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Only runs of a group that holds partitions.")
    ] = False,
    brokers: Annotated[
        bool,
        typer.Option(
            "--brokers", help="Only runs of brokers, with consumer groups and transactions."
        ),
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Print what happened in every run, found or not.")
    ] = False,
    story: Story = False,
    as_json: AsJson = False,
) -> None:
    """Run groups of real replicas over a simulated network, disks and clocks, and check them.

    The same seed gives the same run. Stops at the first finding, with status 1, the history of all
    nodes and the command that repeats it.
    """
    # no other command needs the simulator
    from quorumlog.sim.campaign import Plan, cores, run_all  # noqa: PLC0415

    if partitions and brokers:
        raise typer.BadParameter("runs are of one group (--partitions), or of brokers (--brokers)")
    plan = Plan(first_seed, seeds or None, seconds, nodes, partitions or None, brokers or None)
    total = _Total(endless=not seeds)
    prints_history = history or wants_history(story=story)
    for outcome in run_all(plan, jobs or cores()):
        total.add(outcome)
        if as_json:
            print_json(_object(outcome, plan))
        elif prints_history:
            _print_run(outcome)
        if outcome.finding is not None:
            if not as_json:
                _print_finding(outcome, plan)
            raise typer.Exit(EXIT_FOUND)
        total.report()
    if not as_json:
        print_line(f"nothing found in {total.text()}")


class _Total:
    """What all runs so far came to."""

    def __init__(self, *, endless: bool) -> None:
        self._endless = endless
        self._started = self._reported = time.monotonic()
        self._runs = self._simulated_ms = self._events = self._appended = 0

    def add(self, outcome: "Outcome") -> None:
        """Add a run."""
        self._runs += 1
        self._simulated_ms += outcome.simulated_ms
        self._events += outcome.events
        self._appended += outcome.appended

    def text(self) -> str:
        """Return it as a sentence."""
        hours = self._simulated_ms / 3_600_000
        elapsed = max(0.001, time.monotonic() - self._started)
        return (
            f"{counted(self._runs, 'run')}, {hours:.2f} simulated hours, "
            f"{counted(self._events, 'event')}, "
            f"{entries_text(self._appended)} acknowledged; "
            f"{self._simulated_ms / 1_000 / elapsed:.0f} simulated seconds a second"
        )

    def report(self) -> None:
        """Say now and then how far a run without end has come."""
        now = time.monotonic()
        if self._endless and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            print(self.text(), file=sys.stderr, flush=True)


def _object(outcome: "Outcome", plan: "Plan") -> dict[str, object]:
    finding = outcome.finding
    return {
        "seed": outcome.seed,
        "found": finding.invariant if finding is not None else None,
        "text": finding.text if finding is not None else "",
        "simulated_seconds": outcome.simulated_ms / 1_000,
        "events": outcome.events,
        "appended": outcome.appended,
        "reads": outcome.reads,
        "digest": outcome.digest,
        "faults": outcome.faults,
        "command": plan.command(outcome.seed),
        "stories": outcome.histories if finding is not None else {},
    }


def _print_run(outcome: "Outcome") -> None:
    print_line(
        f"seed {outcome.seed}: {counted(outcome.events, 'event')}, "
        f"{entries_text(outcome.appended)} "
        f"acknowledged, {counted(outcome.reads, 'read')}; "
        f"{', '.join(outcome.faults) or 'no faults'}; {outcome.digest}"
    )
    for name, lines in outcome.histories.items():
        print_line(f"-- {name}")
        for line in lines:
            print_line(f"  {line}")


def _print_finding(outcome: "Outcome", plan: "Plan") -> None:
    finding = outcome.finding
    if finding is None:
        return
    for name, lines in outcome.histories.items():
        print_line(f"-- {name}")
        for line in lines:
            print_line(f"  {line}")
    print_line("")
    print_line(f"seed {outcome.seed}, {outcome.simulated_ms} ms: {finding.invariant} does not hold")
    print_line(f"  {finding.text}")
    print_line(f"repeat it with: {plan.command(outcome.seed)}")
