"""The form of figures: lines of a table, and a picture."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorumlog.bench.figures import Figure
from quorumlog.model.errors import UnexpectedArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    *("case", ">body", ">value", "unit", ">least", ">most", ">MB/s", ">p50 ms", ">p99 ms"),
    *(">p99.9 ms", ">CPU nodes", ">client", ">memory MB", "beside the machine"),
)
INCHES = (13.0, 8.0)
DOTS_AN_INCH = 120
PLOT_ENDINGS = (".png", ".svg", ".pdf")
SHORT = {256: "256 B", 1_024: "1 KiB", 16_384: "16 KiB"}


def size_text(size: int | None) -> str:
    """Return bytes of a body as people write them."""
    if size is None:
        return ""
    return SHORT.get(size, f"{size:,} B")


def number_text(value: float | None) -> str:
    """Return a number with three or four digits that count."""
    if value is None or math.isnan(value):
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def row(figure: Figure) -> list[str]:
    """Return the cells of a figure, see `COLUMNS`; CPU in seconds a second."""
    seconds = figure.seconds or 0.0
    nodes = client = ""
    if seconds and figure.node_cpu_seconds:
        nodes = " ".join(f"{used / seconds:.2f}" for used in figure.node_cpu_seconds.values())
    if seconds and figure.client_cpu_seconds is not None:
        client = f"{figure.client_cpu_seconds / seconds:.2f}"
    beside = figure.note
    if figure.of_limit is not None:
        beside = f"{number_text(figure.of_limit)} {figure.limit}"
    return [
        figure.case,
        size_text(figure.body_bytes),
        number_text(figure.value),
        figure.unit,
        number_text(figure.least if figure.runs > 1 else None),
        number_text(figure.most if figure.runs > 1 else None),
        number_text(figure.megabytes_per_second),
        number_text(figure.p50_ms),
        number_text(figure.p99_ms),
        number_text(figure.p999_ms),
        nodes,
        client,
        number_text(figure.memory_mb),
        beside,
    ]


def check_plot(path: str | Path) -> None:
    """Raise `UnexpectedArgumentError` if a plot could not be drawn into a path.

    To be asked before anything is measured: that takes minutes.
    """
    path = Path(path)
    if path.suffix not in PLOT_ENDINGS:
        raise UnexpectedArgumentError(f"--plot {path}: give a name in {', '.join(PLOT_ENDINGS)}")
    if not path.parent.is_dir():
        raise UnexpectedArgumentError(f"--plot {path}: there is no directory {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnexpectedArgumentError("the plot needs matplotlib; pip install matplotlib")


def draw(figures: Sequence[Figure], path: str | Path) -> None:
    """Draw rates and times as bars into a PNG (or what the path's ending says).

    Raises `UnexpectedArgumentError` when there is nothing to draw; see `check_plot`.
    """
    check_plot(path)
    rates = [figure for figure in figures if figure.unit == "entries/s"]
    times = [figure for figure in figures if figure.unit == "ms" and figure.p50_ms]
    if not rates and not times:
        raise UnexpectedArgumentError("these cases have neither rates nor times to draw")
    # an extra, and slow to load
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure as Picture  # noqa: PLC0415

    picture = Picture(figsize=INCHES)
    FigureCanvasAgg(picture)
    parts = [part for part in ((rates, _draw_rates), (times, _draw_times)) if part[0]]
    heights = [len(chosen) + 2 for chosen, _ in parts]
    places = picture.subplots(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (chosen, draw_part) in zip(places, parts, strict=True):
        draw_part(axes, chosen)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    picture.tight_layout()
    picture.savefig(path, dpi=DOTS_AN_INCH)


def _named(figure: Figure) -> str:
    return ", ".join(part for part in (figure.case, size_text(figure.body_bytes)) if part)


def _draw_rates(axes: "Axes", figures: Sequence[Figure]) -> None:
    names = [_named(figure) for figure in figures]
    bars = axes.barh(names, [figure.value for figure in figures], color="#33658a")
    axes.bar_label(bars, [f" {number_text(figure.value)}" for figure in figures], fontsize=8)
    axes.set_xlabel("entries a second")
    axes.tick_params(axis="y", labelsize=8)


def _draw_times(axes: "Axes", figures: Sequence[Figure]) -> None:
    """Bars reach p50, lines p99."""
    names = [_named(figure) for figure in figures]
    middles = [figure.p50_ms or 0.0 for figure in figures]
    beyond = [(figure.p99_ms or 0.0) - (figure.p50_ms or 0.0) for figure in figures]
    bars = axes.barh(
        names, middles, xerr=[[0.0] * len(figures), beyond], color="#f26419", ecolor="#8d99a6"
    )
    labels = [
        f" {number_text(figure.p50_ms)} (p99 {number_text(figure.p99_ms)})" for figure in figures
    ]
    axes.bar_label(bars, labels, fontsize=8, padding=4)
    axes.set_xlabel("milliseconds: p50, and p99 at the end of the line")
    axes.tick_params(axis="y", labelsize=8)
