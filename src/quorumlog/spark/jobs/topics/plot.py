"""A picture of what topics hold: records by partition, and the rate over time."""

from pathlib import Path
from typing import TYPE_CHECKING

from quorumlog.model.wording import counted
from quorumlog.spark.jobs.audit.report import size_text
from quorumlog.spark.jobs.stats.plot import (
    BANDS,
    BLUE,
    DAY_MS,
    GREY,
    ORANGE,
    panels,
    save,
    shortened,
    show_dates,
    thousands,
    unit_of,
)
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.stats import TopicPeriod, TopicStats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = (BLUE, ORANGE, GREY)
TOPICS_NAMED = 12
"""Topics that are named in the picture, so that their names do not overlap."""


def draw_topics(stats: TopicStats, path: str | Path) -> None:
    """Draw a PNG (or what the path's ending says).

    Raises `PipelineError` without matplotlib, or when there are no records to draw.
    """
    if not stats.records:
        raise PipelineError(f"{stats.source} hold no records, so there is nothing to draw")
    figure, (amount, rate) = panels((1.0, 1.4))
    _draw_partitions(amount, stats)
    _draw_rate(rate, stats)
    held = f"{counted(stats.records, 'record')}, {size_text(stats.bytes)}"
    save(figure, f"{shortened(stats.source)}: {held}", path)


def _draw_partitions(axes: "Axes", stats: TopicStats) -> None:
    """Draw bytes by partition; the colour changes with the topic."""
    sizes = [one.key_bytes + one.value_bytes for one in stats.partitions]
    divisor, unit = unit_of(max(sizes))
    topics = list(dict.fromkeys(one.topic for one in stats.partitions))
    colors = [BANDS[topics.index(one.topic) % 2] for one in stats.partitions]
    axes.bar(range(len(sizes)), [size / divisor for size in sizes], color=colors, linewidth=0)
    if len(topics) <= TOPICS_NAMED:
        of_topic = [one.topic for one in stats.partitions]
        middles = [of_topic.index(one) + (of_topic.count(one) - 1) / 2 for one in topics]
        axes.set_xticks(middles, topics, rotation=30)
    else:
        thousands(axes.xaxis)
    axes.set_title("amount by partition")
    axes.set_xlabel("partitions of topics, from 0 on")
    axes.set_ylabel(f"{unit} of keys and values")


def _draw_rate(axes: "Axes", stats: TopicStats) -> None:
    """Draw how many records a second have which timestamps; topics in colours that repeat."""
    by_topic: dict[str, list[TopicPeriod]] = {}
    for one in stats.periods:
        by_topic.setdefault(one.topic, []).append(one)
    for number, (topic, periods) in enumerate(by_topic.items()):
        times: list[float] = []
        rates: list[float] = []
        for one in periods:
            if times and times[-1] < one.from_ms:  # nothing in between
                times += [times[-1], one.from_ms]
                rates += [0.0, 0.0]
            times += [one.from_ms, one.to_ms]
            rates += [one.records * 1_000 / (one.to_ms - one.from_ms)] * 2
        days = [time / DAY_MS for time in times]
        axes.fill_between(days, rates, alpha=0.6, color=COLORS[number % 3], label=topic)
    show_dates(axes)
    axes.set_ylim(bottom=0)
    if 1 < len(by_topic) <= TOPICS_NAMED:
        axes.legend(fontsize="small")
    axes.set_title("rate, as timestamps tell")
    axes.set_xlabel("timestamp (UTC)")
    axes.set_ylabel("records/s")
