"""What TLS, certificates and rights cost a whole cluster, as ratios measured in one run.

    python benchmarks/security_cost.py [--seconds 3] [--rounds 5]

Two local clusters of three nodes, one plain and one as `quorumlog cluster up --secure` makes it,
are loaded by turns, each round in another order: what else the machine does hits both alike. Each
ratio is that of the medians, beside the lowest and the highest of single rounds. Figures count only
from a machine that does nothing else.
"""

import argparse
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from quorumlog.bench import loads
from quorumlog.bench.figures import Sample
from quorumlog.cli.local_certificates import make_missing
from quorumlog.client import Client
from quorumlog.local import LocalCluster, ending_in_order, guarded

GROUP: Final = "bench"
BODY_BYTES: Final = 1_024
SCANNED: Final = 200_000
"""Entries that each scan reads."""
FILE_BYTES: Final = 256 << 20
TIMEOUT_MS: Final = 60_000


@dataclass
class Case:
    """What is measured, in `unit`, and the ratio (secure / plain) that is wanted."""

    name: str
    unit: str
    measure: Callable[[Client], Awaitable[float]]
    goal: float
    is_least: bool
    """Whether the ratio has to be at least, or at most `goal`."""
    plain: list[float] = field(default_factory=list)
    secure: list[float] = field(default_factory=list)

    def line(self) -> str:
        """Return the ratio and what it is made of."""
        ratio = median(self.secure) / median(self.plain)
        single = [of / to for of, to in zip(self.secure, self.plain, strict=True)]
        is_met = ratio >= self.goal if self.is_least else ratio <= self.goal
        return (
            f"{self.name:24}  {ratio:.2f}  ({min(single):.2f} to {max(single):.2f})  "
            f"goal {'>=' if self.is_least else '<='} {self.goal}: {'met' if is_met else 'MISSED'}  "
            f"plain {median(self.plain):,.4g}, secure {median(self.secure):,.4g} {self.unit}"
        )


def p50_ms(sample: Sample) -> float:
    """Return the median of latencies, in milliseconds."""
    return median(sample.latencies) * 1_000


def cases(seconds: float, entries: int) -> list[Case]:
    """Return what is measured."""

    async def produced(log: Client) -> float:
        return (await loads.produced(log, BODY_BYTES, seconds)).rate

    async def appended(log: Client) -> float:
        return p50_ms(await loads.single_appends(log, BODY_BYTES, 1, seconds))

    async def scanned(log: Client) -> float:
        begin, _ = await log.bounds()
        return (await loads.read_blocks(log, begin, begin + entries - 1)).rate

    return [
        Case("Producer, 1 KiB", "entries/s", produced, 0.7, is_least=True),
        Case("one append, 1 KiB, p50", "ms", appended, 1.2, is_least=False),
        Case("scan, as blocks", "entries/s", scanned, 0.6, is_least=True),
    ]


async def measure(
    plain: LocalCluster, secure: LocalCluster, measured: list[Case], rounds: int, entries: int
) -> None:
    """Run all cases on both clusters, `rounds` times."""
    async with (
        Client(plain.context, GROUP, timeout_ms=TIMEOUT_MS) as to_plain,
        Client(secure.context, GROUP, timeout_ms=TIMEOUT_MS) as to_secure,
    ):
        for log in (to_plain, to_secure):
            await loads.fill(log, BODY_BYTES, entries)
        for number in range(rounds):
            for case in measured:
                turns = [(to_plain, case.plain), (to_secure, case.secure)]
                for log, values in turns if number % 2 == 0 else turns[::-1]:
                    values.append(await case.measure(log))


def started(directory: Path, *, is_secure: bool) -> LocalCluster:
    """Make a cluster and start it."""
    cluster = LocalCluster.create(
        directory, groups=(GROUP,), data_file_bytes=FILE_BYTES, secure=is_secure
    )
    if cluster.tls_directory is not None:
        make_missing(cluster.tls_directory, cluster.node_ids)
    cluster.up()
    return cluster


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=5, help="of each load on each cluster")
    parser.add_argument("--entries", type=int, default=SCANNED, help="that each scan reads")
    given = parser.parse_args()
    measured = cases(given.seconds, given.entries)
    base = Path(tempfile.mkdtemp(prefix="quorumlog-security-cost-"))
    with ending_in_order(), guarded(base, remove=True):
        plain = started(base / "plain", is_secure=False)
        secure = started(base / "secure", is_secure=True)
        uvloop.run(measure(plain, secure, measured, given.rounds, given.entries))
        plain.down()
        secure.down()
    for case in measured:
        print(case.line())


if __name__ == "__main__":
    main()
