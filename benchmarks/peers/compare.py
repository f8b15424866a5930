"""quorumlog and its peers in turn under the same loads: A B A B, so that the machine is the same.

    python benchmarks/peers/compare.py --harness DIR [--with nats:lazy:batch ...] [--load NAME ...]
                                     [--rounds 3] [--seconds 6] [--out FILE.jsonl]

Each figure is a process of its own with new servers: ours of this interpreter, a peer's of the
harness, in the peer's virtual environment. After each load a table shows medians over the rounds.
"""

import argparse
import ctypes
import importlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import peer_quorumlog
from rich.console import Console
from rich.table import Table

OURS = peer_quorumlog.NAME
FIGURE_SECONDS = 600.0
"""A figure that takes longer, including the start and stop of its servers, is abandoned."""
STOP_SECONDS = 60.0
"""A process that receives SIGTERM may take this long to end its servers."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""
LAST_LINES = 5
PIPE_WIDTH = 10_000
"""Columns of a table that goes to a pipe or file: nothing is cut there."""
NOTHING = "-"
HEADINGS = {
    "msgs_s": "entries/s",
    "failover_ms": "ms",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "srv_cpu_s": "server CPU s",
    "other_cpu_s": "other CPU s",
}
"""What the tables call a metric of the harness."""
BESIDE = ("p50_ms", "p99_ms", "srv_cpu_s", "other_cpu_s")
"""What is shown beside the metric that a load is about."""

Figure: TypeAlias = dict[str, Any]
"""One JSON line of the harness; a metric is [median, min, max] over its runs: here, of one."""
Clients: TypeAlias = Mapping[str, int]
"""Clients of a system, the usual one first → entries that each has unacknowledged."""


@dataclass(frozen=True)
class Load:
    """One load, and the systems that can be put under it."""

    name: str
    says: str
    uses: Mapping[str, Clients]
    op: str = "append"
    metric: str = "msgs_s"
    """What the systems are compared by."""
    size: int = 1_024
    """Bytes of a body."""

    @property
    def better(self) -> str:
        """Which way the metric is better: times are, rates are not, when there is less of them."""
        return "more" if self.metric == "msgs_s" else "less"


@dataclass(frozen=True)
class System:
    """A system with a flush mode; `client` where a load can do with it, else the load's usual."""

    peer: str
    mode: str
    client: str | None = None

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.peer} {self.mode}"

    def client_under(self, load: Load) -> str | None:
        """Return the client to use; None if the load leaves no choice."""
        clients = load.uses[self.peer]
        return self.client if self.client in clients else next(iter(clients), None)


BUFFERED = 32_768
"""More than a producer's buffer of 32 MiB holds: the buffer is what bounds it."""
SINGLE = {
    OURS: ("append",),
    "nats": ("py", "raw"),
    "etcd": ("py",),
    "pysyncobj": ("inproc",),
    "redis": ("py", "raw"),
    "rabbitmq": ("default",),
}
"""Clients of which each message is an append of its own."""
LOADS = (
    Load(
        "producer-1k",
        "1 KiB bodies as fast as the client made for that takes them",
        {
            OURS: {"producer": BUFFERED, "batch": 512},
            "nats": {"batch": 512, "raw": 512, "py": 512},
            "etcd": {"txn": 512, "py": 512},
            "pysyncobj": {"inproc": 512, "extend": 512},
            "redis": {"raw": 512, "py": 512},
            "rabbitmq": {"default": 512},
        },
    ),
    Load(
        "single-1",
        "one append of 1 KiB after the other",
        {peer: dict.fromkeys(clients, 1) for peer, clients in SINGLE.items()},
        metric="p50_ms",
    ),
    Load(
        "single-64",
        "64 appends of 1 KiB at a time",
        {peer: dict.fromkeys(clients, 64) for peer, clients in SINGLE.items()},
    ),
    Load(
        "pipelined-512",
        "1 KiB bodies, 512 unacknowledged",
        {
            OURS: {"producer": 512, "append": 512, "batch": 512},
            "nats": {"raw": 512, "py": 512, "batch": 512},
            "etcd": {"py": 512, "txn": 512},
            "pysyncobj": {"inproc": 512, "extend": 512},
            "redis": {"raw": 512, "py": 512},
            "rabbitmq": {"default": 512},
        },
    ),
    Load(
        "read",
        "a log of 1 KiB bodies read from its beginning, each entry a Python object",
        {OURS: {"entries": 1}, "nats": {"py": 1}, "redis": {"py": 1}, "rabbitmq": {"default": 1}},
        op="read",
    ),
    Load(
        "read-blocks",
        "a log of 1 KiB bodies read from its beginning, entries only counted",
        {OURS: {"blocks": 1}, "nats": {"raw": 1}},
        op="read",
    ),
    Load(
        "failover",
        "leader killed with SIGKILL, until an append sent after that is acknowledged",
        {peer: {} for peer in SINGLE},
        op="failover",
        metric="failover_ms",
    ),
)


class FigureError(Exception):
    """A figure could not be taken; the text says why, in a few lines."""


@dataclass
class Comparison:
    """Takes the figures of all loads in turn and prints them.

    `seconds` is how long an append figure lasts, `messages` how many entries are read. Figures are
    added to the file `out`, if there is one, as the harness printed them, with load and round.
    """

    harness: Path
    systems: Sequence[System]
    rounds: int
    seconds: float
    messages: int
    out: Path | None
    console: Console
    failures: int = field(default=0, init=False)

    def run(self, load: Load) -> None:
        """Take all figures of a load, the systems in turn, and print its table."""
        present = [system for system in self.systems if system.peer in load.uses]
        for system in self.systems:
            if system not in present:
                self.console.print(f"{load.name}: {system.name} cannot be put under this load")
        figures: dict[System, list[Figure]] = {system: [] for system in present}
        for number in range(1, self.rounds + 1):
            for system in present:
                who = f"{system.name} {system.client_under(load) or ''}".rstrip()
                prefix = f"{load.name}, round {number} of {self.rounds}, {who}: "
                try:
                    figure = self._take(load, system)
                except FigureError as error:
                    self.failures += 1
                    self.console.print(f"{prefix}FAILED\n{error}")
                    continue
                figures[system].append(figure)
                value = number_of(figure[load.metric][0])
                self.console.print(f"{prefix}{HEADINGS[load.metric]} {value}")
                self._keep(load, number, figure)
        if any(figures.values()):
            versions = {figure["version"]: None for taken in figures.values() for figure in taken}
            self.console.print(f"\n{load.name}: {load.says}; {load.better} is better", style="bold")
            self.console.print(table_of(load, figures))
            self.console.print("; ".join(versions) + "\n")

    def _take(self, load: Load, system: System) -> Figure:
        os.sync()  # nobody is to wait for what the system before has left to be written
        if system.peer != OURS:
            return figure_of(self._command(load, system))
        try:
            return figure_of(self._command(load, system))
        finally:
            # of a figure that had to be killed, too, before the next one begins
            peer_quorumlog.Cluster(system.mode).stop()

    def _command(self, load: Load, system: System) -> list[str]:
        if system.peer == OURS:
            command = [sys.executable, str(peer_quorumlog.__file__)]
        else:
            command = [sys.executable, str(self.harness / "run.py"), "--peer", system.peer]
        options = {
            "mode": system.mode,
            "op": load.op,
            "size": load.size,
            "seconds": self.seconds,
            "runs": 1,
            "msgs": self.messages,
        }
        client = system.client_under(load)
        if client is not None:
            options |= {"client": client, "inflight": load.uses[system.peer][client]}
        return command + [
            part for name, value in options.items() for part in (f"--{name}", f"{value}")
        ]

    def _keep(self, load: Load, number: int, figure: Figure) -> None:
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps({"load": load.name, "round": number} | figure) + "\n")


def figure_of(command: Sequence[str]) -> Figure:
    """Run a process that takes one figure and return what it printed. Raises `FigureError`."""
    # a session of its own: an interrupt of the terminal reaches only us, and it gets one signal
    process = subprocess.Popen(  # noqa: S603  (this interpreter, programs named by the user)
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509  (there are no threads)
    )
    try:
        printed, errors = process.communicate(timeout=FIGURE_SECONDS)
    except subprocess.TimeoutExpired:
        raise FigureError(f"given up after {FIGURE_SECONDS:.0f} s\n{ended(process)}") from None
    except BaseException:
        ended(process)
        raise
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        said = last_lines(errors) or last_lines(printed)
        raise FigureError(f"exit status {process.returncode}\n{said}")
    figure: Figure = json.loads(lines[-1])
    return figure


def end_with_parent() -> None:
    """Have this new process receive SIGTERM when the one that started it has ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def ended(process: subprocess.Popen[str]) -> str:
    """End a process, so that it can end its servers; return its last lines."""
    process.terminate()
    try:
        _, errors = process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    return last_lines(errors)


def last_lines(text: str) -> str:
    """Return the end of what a process said, indented."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-LAST_LINES:])


# -- tables -----------------------------------------------------------------------------------


def table_of(load: Load, figures: Mapping[System, Sequence[Figure]]) -> Table:
    """Return the table of a load: a line for each system that has a figure, the first one ours."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    columns = columns_of(load, {system: taken for system, taken in figures.items() if taken})
    for heading in columns:
        is_text = heading in ("system", "flush mode", "client")
        table.add_column(heading, justify="left" if is_text else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def columns_of(load: Load, figures: Mapping[System, Sequence[Figure]]) -> dict[str, list[str]]:
    """Return heading → cells of a table, without columns of which no system has anything."""
    ours = next((taken for system, taken in figures.items() if system.peer == OURS), [])
    columns = {
        "system": [system.peer for system in figures],
        "flush mode": [system.mode for system in figures],
        "client": [str(taken[0].get("client", NOTHING)) for taken in figures.values()],
        "in flight": [str(taken[0].get("inflight", NOTHING)) for taken in figures.values()],
        HEADINGS[load.metric]: [spread_of(taken, load.metric) for taken in figures.values()],
        "ours/theirs": [
            NOTHING if taken is ours else ratio_of(ours, taken, load.metric)
            for taken in figures.values()
        ],
    }
    for metric in BESIDE:
        if metric != load.metric:
            columns[HEADINGS[metric]] = [spread_of(taken, metric) for taken in figures.values()]
    return {heading: cells for heading, cells in columns.items() if set(cells) != {NOTHING}}


def values_of(figures: Sequence[Figure], metric: str) -> list[float]:
    """Return a metric of all rounds; nothing if the figures do not have it."""
    return [float(figure[metric][0]) for figure in figures if metric in figure]


def spread_of(figures: Sequence[Figure], metric: str) -> str:
    """Return `median [min, max]` of a metric over the rounds."""
    values = values_of(figures, metric)
    if not values:
        return NOTHING
    median = number_of(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} [{number_of(min(values))}, {number_of(max(values))}]"


def ratio_of(ours: Sequence[Figure], theirs: Sequence[Figure], metric: str) -> str:
    """Return our median of a metric divided by theirs."""
    of_ours, of_theirs = values_of(ours, metric), values_of(theirs, metric)
    if not of_ours or not of_theirs or not statistics.median(of_theirs):
        return NOTHING
    return number_of(statistics.median(of_ours) / statistics.median(of_theirs))


def number_of(value: float) -> str:
    """Return three digits, or all before the point."""
    if math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- command line -----------------------------------------------------------------------------


def system_named(text: str) -> System:
    """Return the system of PEER[:MODE[:CLIENT]]; the harness has to be loaded.

    Raises `argparse.ArgumentTypeError` when the harness has no such peer, mode or client: its own
    programs take some names that mean nothing for something else.
    """
    peer, mode, client, *more = [*text.split(":"), "", ""]
    peers = dict.fromkeys(peer for load in LOADS for peer in load.uses)
    if peer not in peers or any(more):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not PEER[:MODE[:CLIENT]] with a PEER of {', '.join(peers)}"
        )
    try:
        module = importlib.import_module(f"peer_{peer}")
    except ModuleNotFoundError as error:
        raise argparse.ArgumentTypeError(f"the harness has no {peer}: {error}") from error
    if mode and mode not in module.MODES:
        raise argparse.ArgumentTypeError(f"{peer} has modes {', '.join(module.MODES)}, not {mode}")
    clients = dict.fromkeys([*module.CLIENTS, *module.READERS])
    if client and client not in clients:
        raise argparse.ArgumentTypeError(f"{peer} has clients {', '.join(clients)}, not {client}")
    return System(peer, mode or module.MODES[0], client or None)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [load.name for load in LOADS]
    parser.add_argument(
        "--harness", metavar="DIR", help=f"default: {peer_quorumlog.HARNESS_VARIABLE}"
    )
    parser.add_argument(
        "--with",
        dest="peers",
        metavar="PEER[:MODE[:CLIENT]]",
        action="append",
        default=[],
        help="a peer to compare with; the mode is its first unless given, the client is taken where"
        " a load can do with it; repeatable; without, quorumlog alone is measured",
    )
    parser.add_argument(
        "--load", action="append", choices=names, help="repeatable; without, all of them"
    )
    parser.add_argument("--rounds", type=int, default=3, help="figures of each system and load")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of an append figure")
    parser.add_argument("--messages", type=int, default=500_000, help="entries to read")
    parser.add_argument("--out", type=Path, help="append all figures to this file")
    given = parser.parse_args()
    given.common = peer_quorumlog.load_harness(given.harness)
    try:
        given.peers = [system_named(text) for text in given.peers]
    except argparse.ArgumentTypeError as error:
        parser.error(f"--with: {error}")
    return given


def main() -> int:
    """Measure and print; return the exit status: 1 if a figure could not be taken."""
    given = arguments()
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    systems = [System(OURS, peer_quorumlog.MODES[0])]
    for system in given.peers:
        environment = Path(given.common.ROOT) / f"venv-{system.peer}"
        if system.peer == OURS or (environment / "bin" / "python3").exists():
            systems.append(system)
        else:
            console.print(
                f"{system.name} is left out: there is no virtual environment {environment} "
                "(the harness' README tells how to make it)"
            )
    comparison = Comparison(
        Path(given.common.__file__).parent,
        list(dict.fromkeys(systems)),
        given.rounds,
        given.seconds,
        given.messages,
        given.out,
        console,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the figure under way is ended
    for load in LOADS:
        if not given.load or load.name in given.load:
            comparison.run(load)
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
