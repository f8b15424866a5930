"""The site of the documentation: `make docs` builds all of it; here, what it puts into pages.

Only the navigation is tested where the extra `docs` is not installed.
"""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

import quorumlog
import quorumlog.errors
import quorumlog.spark
from quorumlog.cli.app import app

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    nav = CONFIG[CONFIG.index("\nnav:") :]
    named = set(re.findall(r"[\w./-]+\.md", nav))
    whole = tuple(re.findall(r": ([\w-]+/)$", nav, re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    missing = [page for page in pages - named if not page.startswith((*whole, "assets/"))]
    assert missing == []


def test_the_site_asks_no_other_host_for_fonts_or_scripts():
    assert "font: false" in CONFIG
    assert "https://" not in CONFIG


def test_every_command_is_in_the_reference(site):
    page = site.command_reference()

    def names(command, path):
        yield path
        for child in getattr(command, "commands", {}).values():
            yield from names(child, f"{path} {child.name}")

    _, *below = names(typer.main.get_command(app), "quorumlog")
    assert len(below) > 20
    assert [name for name in below if f"# `{name}`\n" not in page] == []


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("python", quorumlog),
        ("errors", quorumlog.errors),
        ("spark", quorumlog.spark),
    ],
)
def test_every_public_name_is_in_the_reference(site, page, module):
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    generated = site._other_names(text)
    names = set(module.__all__) - site.UNDESCRIBED
    assert [
        name for name in names if f"::: {module.__name__}.{name}\n" not in f"{generated}\n"
    ] == []


def test_links_to_files_lead_to_pages_of_the_site(site):
    text = "[a](../examples/consume.py) [b](storage.md#retention) [c](../LICENSE) [d](spec/)"
    assert site._linked(text, "docs/operations.md", "operations.md") == (
        "[a](examples/consume.md) [b](storage.md#retention) c [d](spec/README.md)"
    )


def test_a_page_that_fetches_from_elsewhere_is_refused(site):
    assert site.REMOTE.search('<script src="https://unpkg.com/mermaid"></script>')
    assert site.REMOTE.search("<link rel=stylesheet href=//fonts.example/x.css>")
    assert not site.REMOTE.search('<a href="https://example.org">x</a><script src="../x.js">')
