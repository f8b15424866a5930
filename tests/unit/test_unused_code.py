"""Nothing in src is unused: vulture names what neither product, tests nor examples mention."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
REASONS = tomllib.loads((ROOT / "tests" / "tidy.toml").read_text())["unused"]
CALLED_BY_TYPER = ["@app.command", "@app.callback"]
CALLED_BY_PYTHON = ["__getattr__", "__dir__"]
CONFIDENCE_MIN, CONFIDENCE_OF_ARGUMENTS = 60, 100
"""Percent: how sure vulture is of a function that nobody mentions, and of an argument."""


def test_nothing_is_unused_or_it_has_a_reason():
    vulture = Vulture(ignore_names=CALLED_BY_PYTHON, ignore_decorators=CALLED_BY_TYPER)
    vulture.scavenge([ROOT / name for name in ("src", "tests", "examples", "benchmarks")])
    unused = {
        ".".join(Path(item.filename).relative_to(SRC).with_suffix("").parts) + f":{item.name}"
        for item in vulture.get_unused_code(min_confidence=CONFIDENCE_MIN)
        if Path(item.filename).is_relative_to(SRC)
        and item.typ != "import"  # ruff finds those
        and (item.typ != "variable" or item.confidence < CONFIDENCE_OF_ARGUMENTS)
    }
    matched = {name: [one for one in REASONS if fnmatchcase(name, one)] for name in unused}
    assert sorted(name for name in unused if not matched[name]) == []
    unneeded = set(REASONS) - {one for found in matched.values() for one in found}
    assert sorted(unneeded) == [], "no longer needed: remove from tests/tidy.toml"
