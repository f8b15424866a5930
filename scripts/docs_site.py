"""What the documentation site has besides the files in docs/: a hook of mkdocs (`make docs`).

It writes the commands of the command line into `reference/cli.md`, publishes the pages of the
repository's root, of examples/ and of benchmarks/ so that links to them work, and lists decisions
and specification in the navigation.
"""

import html
import importlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from quorumlog.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security_policy.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "examples/README.md": "examples/index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/peers/README.md": "benchmarks/peers.md",
}
"""Pages outside docs/, and where the site has them."""
UNDESCRIBED = {"__version__", "errors"}
"""Public names that have no docstring, or a page of their own."""
PROGRAMS = ("examples/*.py", "examples/declarative_pipeline/*.py")
"""Each of these becomes a page with its text."""
MERMAID = ROOT / "build" / "mermaid" / "mermaid.tiny.js"
"""What draws diagrams, if `scripts/mermaid.sh` could fetch it; else pages show their text."""
COMMANDS = "<!-- commands -->"
"""Stands in a page for all commands and their options."""
OTHER_NAMES = re.compile(r"<!-- other names of (?P<module>[\w.]+) -->")
"""Stands in a page for the public names of a module that the page has not named before."""
REMOTE = re.compile(
    r"<(?:script|img|iframe|source|video|link(?! rel=\"canonical\"))\b[^>]*"
    r"\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
"""A part of a page that a browser would fetch from another host."""
LINK = re.compile(r"(!?\[(?P<text>[^\]]*)\])\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def _page_of(path: str) -> str:
    """Return where the site has a file of the repository; empty: nowhere."""
    if path in PUBLISHED:
        return PUBLISHED[path]
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/")
    if any(PurePosixPath(path).match(pattern) for pattern in PROGRAMS):
        return f"{path.removesuffix('.py')}.md"
    for index in ("README.md", "index.md"):
        if (ROOT / path / index).is_file():
            return _page_of(f"{path}/{index}")
    return ""


def _source_of(page: str) -> str:
    """Return the file of the repository that a page is made of."""
    published = {place: source for source, place in PUBLISHED.items()}
    return published.get(page, f"docs/{page}")


def _linked(text: str, source: str, page: str) -> str:
    """Return Markdown of a file of the repository as a page: links lead to pages of the site.

    What a link names must exist. One to a file that is no page becomes plain text.
    """

    def replaced(link: re.Match[str]) -> str:
        target = link["target"]
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        path = normpath(f"{PurePosixPath(source).parent}/{target}")
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {target}, which does not exist")
        place = _page_of(path)
        if not place:
            return link["text"]
        there = relpath(place, str(PurePosixPath(page).parent))
        return f"{link[1]}({there}{link['anchor'] or ''})"

    return LINK.sub(replaced, text)


def _commands(command: Any, context: Any, name: str, depth: int) -> Iterator[str]:
    """Yield what `--help` prints, as Markdown, for a command and those below it."""
    yield f"{'#' * depth} `{name}`\n\n{command.help or ''}\n"
    yield f"```console\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    rows = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [(head, text) for head, text in filter(None, rows) if "--help" not in head]
    if rows:
        yield "| | |\n| --- | --- |"
        for head, text in rows:
            option, said = (html.escape(cell).replace("|", "&#124;") for cell in (head, text))
            yield f"| <code>{option}</code> | {' '.join(said.split())} |"
        yield ""
    for child in getattr(command, "commands", {}).values():
        below = typer.Context(child, info_name=child.name, parent=context)
        yield from _commands(child, below, f"{name} {child.name}", min(depth + 1, 4))


def command_reference() -> str:
    """Return the page of all commands and options, made from the program itself."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="quorumlog")
    children = []
    for child in command.commands.values():  # type: ignore[attr-defined]
        below = typer.Context(child, info_name=child.name, parent=context)
        children += _commands(child, below, f"quorumlog {child.name}", 2)
    return "\n".join(children)


def _other_names(markdown: str) -> str:
    """Fill in what a module exports and a page does not name, so that nothing is left out."""

    def filled(mark: re.Match[str]) -> str:
        module = mark["module"]
        names = importlib.import_module(module).__all__
        places = [f"::: {module}.{name}" for name in names if name not in UNDESCRIBED]
        named = set(markdown.splitlines())
        return "\n\n".join(place for place in places if place not in named)

    return OTHER_NAMES.sub(filled, markdown)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the files of a folder where the navigation names only the folder; see to diagrams."""
    config.extra["has_mermaid"] = MERMAID.is_file()
    for section in config.nav or []:
        for name, pages in section.items():
            if isinstance(pages, str) and pages.endswith("/"):
                files = sorted((ROOT / "docs" / pages).glob("*.md"))
                files.sort(key=lambda path: path.name != "README.md")
                section[name] = [f"{pages}{path.name}" for path in files]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose sources are not in docs/, and what draws diagrams."""
    if MERMAID.is_file():
        place = f"assets/{MERMAID.name}"
        files.append(File.generated(config, place, abs_src_path=str(MERMAID)))
    for source, page in PUBLISHED.items():
        text = _linked((ROOT / source).read_text(), source, page)
        files.append(File.generated(config, page, content=text))
    for pattern in PROGRAMS:
        for path in sorted(ROOT.glob(pattern)):
            source = str(path.relative_to(ROOT))
            text = f"# {source}\n\n```python\n{path.read_text()}```\n"
            files.append(File.generated(config, _page_of(source), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the commands, and turn links that leave docs/ into links to pages."""
    source = page.file.src_uri
    if page.file.generated_by is None:
        markdown = _linked(markdown, _source_of(source), source)
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_reference())
    return _other_names(markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that has a browser ask another host for anything."""
    if remote := REMOTE.search(output):
        raise PluginError(f"{page.file.src_uri} fetches from another host: {remote[0]}")
    return output
