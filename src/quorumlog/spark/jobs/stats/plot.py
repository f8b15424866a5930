"""A picture of what a log holds: sizes, amount over the index, and rate over time or terms."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorumlog.model.wording import counted, entries_text
from quorumlog.spark.jobs.audit.report import size_text
from quorumlog.spark.jobs.stats.stats import LogStats, TermStats
from quorumlog.spark.jobs.tasks import PipelineError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = (14.0, 4.4)
DOTS_AN_INCH = 120
TITLE_CHARACTERS = 70
BLUE, ORANGE, GREY = "#33658a", "#f26419", "#8d99a6"
BANDS = ("#33658a", "#9dbad5")
TERMS_NAMED = 12
"""Terms that are named in the picture, so that their names do not overlap."""
DAY_MS = 86_400_000
"""Matplotlib's dates are days since 1970."""


def draw(stats: LogStats, path: str | Path) -> None:
    """Draw a PNG (or what the path's ending says).

    Raises `PipelineError` without matplotlib, or when there are no entries to draw.
    """
    if not stats.entries:
        raise PipelineError(f"{stats.source} holds no entries, so there is nothing to draw")
    figure, (sizes, amount, rate) = panels((1.0, 1.25, 1.0))
    _draw_sizes(sizes, stats)
    _draw_amount(amount, stats)
    if stats.periods:
        _draw_rate(rate, stats)
    else:
        _draw_terms(rate, stats)
    held = f"{entries_text(stats.entries)}, {size_text(stats.bytes)}"
    title = f"{shortened(stats.source)}: {held}, indexes {stats.first_index} to {stats.last_index}"
    save(figure, title, path)


def panels(width_ratios: Sequence[float]) -> tuple["Figure", "Sequence[Axes]"]:
    """Return a figure with axes side by side. Raises `PipelineError` without matplotlib."""
    try:
        # an extra, and slow to load
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise PipelineError("the plot needs matplotlib; pip install matplotlib") from error
    figure = Figure(figsize=INCHES)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, len(width_ratios), width_ratios=width_ratios)


def save(figure: "Figure", title: str, path: str | Path) -> None:
    """Finish a figure, and write it as the path's ending says."""
    for axes in figure.axes:
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=DOTS_AN_INCH)


def shortened(name: str) -> str:
    """Return a name as it fits into a title: its end, if it is long."""
    return f"… {name[-TITLE_CHARACTERS:]}" if len(name) > TITLE_CHARACTERS else name


def _draw_sizes(axes: "Axes", stats: LogStats) -> None:
    places = range(len(stats.sizes))
    axes.bar(places, [one.entries for one in stats.sizes], color=BLUE, width=0.85)
    every = max(1, -(-len(stats.sizes) // 9))
    axes.set_xticks(
        list(places)[::every], [_short(one.low) for one in stats.sizes][::every], rotation=45
    )
    thousands(axes.yaxis)
    axes.set_title("sizes of bodies")
    axes.set_xlabel("bytes, at least (and less than twice as many)")
    axes.set_ylabel("entries")


def _draw_amount(axes: "Axes", stats: LogStats) -> None:
    """Draw bytes by index; the colour changes with the term."""
    divisor, unit = unit_of(max(one.bytes for one in stats.buckets))
    widths = [one.last - one.first + 1 for one in stats.buckets]
    term_of = _term_finder(stats.terms)
    numbers = [term_of(one.first) for one in stats.buckets]
    axes.bar(
        [one.first for one in stats.buckets],
        [one.bytes / divisor for one in stats.buckets],
        width=widths,
        align="edge",
        color=[BANDS[number % 2] for number in numbers],
        linewidth=0,
    )
    top = max(one.bytes for one in stats.buckets) / divisor
    axes.set_ylim(0, top * 1.15)
    axes.set_xlim(stats.first_index, stats.last_index + 1)
    if len(stats.terms) <= TERMS_NAMED:
        length = stats.last_index - stats.first_index + 1
        shown = [one for one in stats.terms if one.entries * 3 * TERMS_NAMED >= length]
        for one in shown:
            axes.text(
                one.first_index + one.entries / 2,
                top * 1.08,
                f"term {one.term}" if len(shown) <= 6 else str(one.term),
                ha="center",
                va="center",
                fontsize="small",
            )
    thousands(axes.xaxis)
    axes.tick_params(axis="x", rotation=30)
    size = widths[0]
    axes.set_title(f"amount by index ({counted(len(stats.terms), 'term')} in turn)")
    axes.set_xlabel("index")
    axes.set_ylabel(f"{unit} in {size:,} entries" if size > 1 else f"{unit} an entry")


def _term_finder(terms: Sequence[TermStats]) -> Any:
    firsts = [one.first_index for one in terms]

    def find(index: int) -> int:
        """Return the number of the term that an index is of."""
        return max(0, sum(first <= index for first in firsts) - 1)

    return find


def _draw_rate(axes: "Axes", stats: LogStats) -> None:
    edges = [stats.periods[0].from_ms, *(one.to_ms for one in stats.periods)]
    rates = [one.bytes / one.seconds for one in stats.periods]
    divisor, unit = unit_of(max(rates))
    rates = [rate / divisor for rate in rates]
    axes.stairs(rates, [edge / DAY_MS for edge in edges], fill=True, color=ORANGE)
    show_dates(axes)
    axes.set_ylim(0, max(rates) * 1.15)
    axes.set_title("rate, as the data files' times tell")
    axes.set_xlabel("written (UTC)")
    axes.set_ylabel(f"{unit}/s")


def show_dates(axes: "Axes") -> None:
    """Label the horizontal axis, which has days since 1970, with dates and times."""
    dates: Any = import_module("matplotlib.dates")  # it has no types
    axes.xaxis_date()
    locator = dates.AutoDateLocator(maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _draw_terms(axes: "Axes", stats: LogStats) -> None:
    """Draw entries by term where no times are known."""
    shown = stats.terms[-2 * TERMS_NAMED :]
    colors = [ORANGE if one.leader else GREY for one in shown]
    axes.bar(range(len(shown)), [one.entries for one in shown], color=colors)
    every = max(1, -(-len(shown) // TERMS_NAMED))
    names = [f"{one.term}\n{one.leader}" if one.leader else str(one.term) for one in shown]
    axes.set_xticks(range(0, len(shown), every), names[::every])
    thousands(axes.yaxis)
    axes.set_title("entries by term" if len(shown) == len(stats.terms) else "newest terms")
    axes.set_xlabel("term, and its leader where that is known")
    axes.set_ylabel("entries")


def thousands(axis: Any) -> None:
    """Label an axis with whole numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def unit_of(largest: float) -> tuple[int, str]:
    """Return the divisor and name of the unit that suits a number of bytes."""
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 1024**power:
            return 1024**power, name
    return 1, "bytes"


def _short(size: int) -> str:
    """Return a power of two in few characters."""
    for unit, text in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if size >= unit:
            return f"{size // unit} {text}"
    return str(size)
