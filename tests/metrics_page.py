"""Writes the table of docs/reference/metrics.md from the families that the code has.

Run as a program it writes the page; test_metrics.py checks that the page is current.
"""

from pathlib import Path

from quorumlog.service.metric_families import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
BEGIN = "<!-- families: written by tests/metrics_page.py -->\n"
END = "<!-- end of families -->\n"
HEAD = "| name | kind | labels | what it is |\n| --- | --- | --- | --- |\n"


def table():
    """Return the table of all families, by name."""
    rows = [
        f"| `{family.shown_name}` | {family.kind} | {', '.join(family.labels)} "
        f"| {family.help_text.removesuffix('.')} |\n"
        for family in sorted(FAMILIES, key=lambda family: family.shown_name)
    ]
    return HEAD + "".join(rows)


def page():
    """Return the page as it should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
