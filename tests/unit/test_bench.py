"""What `quorumlog bench` makes of what it measured, and what it tells whoever asks wrongly."""

import pytest

from quorumlog.bench.figures import Sample, pause_figure, rate_figure
from quorumlog.bench.report import COLUMNS, draw, row
from quorumlog.cli.main import main
from quorumlog.model.errors import UnexpectedArgumentError

SAMPLES = [
    Sample(100, 2.0, [0.001] * 99 + [0.5], {"n0": 1.0, "n1": 0.5}, 0.25, 80_000_000),
    Sample(300, 2.0, [0.003] * 100, {"n0": 1.5, "n1": 1.0}, 0.50, 90_000_000),
    Sample(200, 2.0, [0.002] * 100, {"n0": 1.2, "n1": 0.6}, 0.40, 70_000_000),
]


def test_a_rate_is_the_median_of_the_rounds_and_latencies_are_of_all_of_them():
    figure = rate_figure("append", SAMPLES, 1_000)
    assert (figure.least, figure.value, figure.most, figure.runs) == (50, 100, 150, 3)
    assert figure.megabytes_per_second == pytest.approx(0.1)
    assert figure.p50_ms == pytest.approx(2.0)
    assert figure.p999_ms > 100
    assert figure.node_cpu_seconds == {"n0": 1.2, "n1": 0.6}
    assert figure.memory_mb == 90


def test_pauses_are_in_milliseconds():
    figure = pause_figure("killed", [0.1, 0.3, 0.2])
    assert (figure.value, figure.least, figure.most) == pytest.approx((200, 100, 300))
    assert figure.p50_ms == pytest.approx(200)


def test_a_line_has_a_cell_for_each_column_and_says_cpu_as_seconds_a_second():
    cells = dict(zip(COLUMNS, row(rate_figure("append", SAMPLES, 1_024)), strict=True))
    assert cells["case"] == "append"
    assert cells[">body"] == "1 KiB"
    assert cells[">value"] == "100"
    assert cells[">CPU nodes"] == "0.60 0.30"
    assert cells[">client"] == "0.20"


def test_rates_and_pauses_are_drawn(tmp_path):
    path = tmp_path / "bench.png"
    draw([rate_figure("append", SAMPLES, 256), pause_figure("killed", [0.1, 0.2])], path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/directory/bench.png", "there is no directory /no/such/directory"),
        ("bench.xls", "give a name in .png, .svg, .pdf"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(path, message, capsys):
    assert main(["bench", "append", "--servers", "127.0.0.1:9", "--plot", path]) == 1
    assert message in capsys.readouterr().err


def test_nothing_to_draw_is_said():
    with pytest.raises(UnexpectedArgumentError, match="neither rates nor times"):
        draw([], "nowhere.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-case",), "there is no case 'no-such-case', only append, batch, producer"),
        (("--sizes", "1,x"), "give numbers of bytes"),
        (("--sizes", "0"), "give numbers of bytes"),
        (("--gib", "0"), "give lengths in GiB"),
        (("--gib", "long"), "give lengths in GiB"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_started(arguments, message, capsys):
    assert main(["bench", *arguments]) == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in shown
