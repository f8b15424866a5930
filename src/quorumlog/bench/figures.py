"""What is measured, as values: samples of single runs, and the figures made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

MEGABYTE = 1_000_000
"""Rates of bytes are in 10^6 a second, as disks and networks are sold."""


@dataclass(slots=True)
class Sample:
    """One run of a load: `count` entries in `seconds`; `latencies` in seconds.

    `node_cpu_seconds` by node, where the nodes run on this machine; `memory_bytes` is the largest
    that one of them held meanwhile.
    """

    count: int
    seconds: float
    latencies: Sequence[float] = ()
    node_cpu_seconds: dict[str, float] = field(default_factory=dict)
    client_cpu_seconds: float = 0.0
    memory_bytes: int = 0

    @property
    def rate(self) -> float:
        """Entries a second."""
        return self.count / self.seconds


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the table: the median of several runs, with the least and the most.

    `unit` says what `value` counts. Latencies are of all runs together, in milliseconds. CPU
    seconds are those of the median run, which took `seconds`. `of_limit` is the value as a share
    or multiple of what the machine itself does, `limit` says of what.
    """

    case: str
    unit: str
    value: float
    least: float
    most: float
    runs: int = 1
    body_bytes: int | None = None
    megabytes_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    seconds: float | None = None
    node_cpu_seconds: dict[str, float] = {}
    client_cpu_seconds: float | None = None
    memory_mb: float | None = None
    of_limit: float | None = None
    limit: str = ""
    note: str = ""


def percentiles_ms(latencies: Sequence[float]) -> tuple[float, float, float] | None:
    """Return p50, p99 and p99.9 in milliseconds of latencies in seconds; None of none."""
    if not len(latencies):
        return None
    p50, p99, p999 = np.percentile(np.asarray(latencies) * 1_000, (50, 99, 99.9))
    return float(p50), float(p99), float(p999)


def rate_figure(case: str, samples: Sequence[Sample], body_bytes: int) -> Figure:
    """Return the figure of a load that does as much as it can. There is at least one sample."""
    ordered = sorted(samples, key=lambda sample: sample.rate)
    median = ordered[len(ordered) // 2]
    taken = percentiles_ms([latency for sample in samples for latency in sample.latencies])
    p50, p99, p999 = taken or (None, None, None)
    return Figure(
        case=case,
        unit="entries/s",
        value=median.rate,
        least=ordered[0].rate,
        most=ordered[-1].rate,
        runs=len(samples),
        body_bytes=body_bytes,
        megabytes_per_second=median.rate * body_bytes / MEGABYTE,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        seconds=median.seconds,
        node_cpu_seconds=median.node_cpu_seconds,
        client_cpu_seconds=median.client_cpu_seconds,
        memory_mb=max(sample.memory_bytes for sample in samples) / MEGABYTE or None,
    )


def value_figure(case: str, unit: str, values: Sequence[float], *, note: str = "") -> Figure:
    """Return the figure of something measured several times, at least once."""
    ordered = sorted(values)
    return Figure(
        case=case,
        unit=unit,
        value=ordered[len(ordered) // 2],
        least=ordered[0],
        most=ordered[-1],
        runs=len(values),
        note=note,
    )


def pause_figure(case: str, seconds: Sequence[float]) -> Figure:
    """Return the figure of pauses, in milliseconds, with their percentiles."""
    figure = value_figure(case, "ms", [one * 1_000 for one in seconds])
    p50, p99, p999 = percentiles_ms(seconds) or (math.nan, math.nan, math.nan)
    return msgspec.structs.replace(figure, p50_ms=p50, p99_ms=p99, p999_ms=p999)
