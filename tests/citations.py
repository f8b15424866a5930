"""Finds citations of docs/spec and of decisions in a text, and what they can be resolved to.

A citation is a kind and a name: ("spec 20", "3.1") is section 3.1 of spec 20, ("scenario", "102")
one of spec 90, ("rule", "R14") one of the reliability rules. docs/spec/README.md says how to cite.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "docs" / "spec"
SCENARIOS = "90"
DEFECTS = "95"

NUMBER = r"\d+(?:\.\d+)*"
AND = r"(?:,\s*(?:and\s+)?|\s+and\s+)"
TO = r"(?:\s*[-–]\s*|\s+to\s+)"  # noqa: RUF001  (a dash between numbers)
SECTIONS = rf"{NUMBER}(?:{AND}{NUMBER})*"
NUMBERS = rf"\d+(?:{TO}\d+)?(?:{AND}\d+(?:{TO}\d+)?)*"
LETTERS = rf"[A-I](?:{AND}[A-I])*"
FORMS = {
    "spec section": rf"\b[Ss]pec\s+(?P<book>\d\d),?\s+(?:sections?\s+|§\s*)(?P<names>{SECTIONS})",
    "spec row": r"\b[Ss]pec\s+(?P<book>\d\d)(?:\.|\s+(?=W))(?P<names>W?\d+)\b",
    "spec group": rf"\b[Ss]pec\s+(?P<book>\d\d),?\s+groups?\s+(?P<names>{LETTERS})\b",
    "spec scenario": rf"\b[Ss]pec\s+{SCENARIOS},?\s+(?:scenarios?\s+)?(?P<names>{NUMBERS})\b",
    "scenario": rf"\b[Ss]cenarios?\s+(?P<names>{NUMBERS})\b",
    "spec": r"\b[Ss]pec\s+(?P<names>\d\d)\b",
    "reliability rule": r"\bRELIABILITY\s+(?P<book>\d+\.\d+),?\s+rule\s+(?P<names>\d+)\b",
    "reliability": rf"\bRELIABILITY\s+(?:sections?\s+)?(?P<names>{SECTIONS})",
    "rule": r"(?<![\w.])(?P<names>R\d{1,2}(?:\s+to\s+R\d{1,2})?)\b",
    "design": rf"\bDESIGN\s+(?:sections?\s+)?(?P<names>{SECTIONS})",
    "thesis": rf"\b[Tt]hesis\s+(?:sections?\s+)?(?P<names>{SECTIONS})",
    "paper": rf"\b(?:[Pp]aper|Raft)\s+(?:sections?\s+)?(?P<names>{SECTIONS})",
    "figure": r"\b[Ff]igures?\s+(?P<names>\d+)\b",
    "decision": rf"\b[Dd]ecisions?\s+(?P<names>\d{{4}}(?:{AND}\d{{4}})*)\b",
}
"""In the order in which they are looked for: what one has found, the next do not see."""
OWN_SECTION = rf"\b[Ss]ections?\s+(?P<names>{SECTIONS})"
"""Within docs/spec, a section without a book is one of the same file."""

TEST_NAME = re.compile(r"\bdef (?P<name>test_\w+)\(")
IN_NAMES = {
    "scenario": r"test_(?P<names>(?:\d+_)+)",
    "spec section": r"test_spec_(?P<book>\d\d)_(?P<names>(?:\d+_)+)",
    "paper": r"test_paper_(?P<names>(?:\d+_)+)",
    "thesis": r"test_thesis_(?P<names>(?:\d+_)+)",
    "rule": r"test_(?P<names>(?:r\d+_)+)",
}
MUTANT_NAME = re.compile(r"\bdef r(\d\d)_\w+\(put\)")


class Citation(NamedTuple):
    """What is cited, and in which line of the text."""

    kind: str
    name: str
    line: int = 0


def citations(text, own_book=None):
    """Return the citations of a text. `own_book` is the file of the spec that it is, if any."""
    # A wrapped line goes on behind its indentation, its comment or quotation mark.
    seen = re.sub(r"\n[ \t]*(?:[#>][ \t])?", lambda match: " " * len(match[0]), text)
    found = []
    forms = {**FORMS, "own section": OWN_SECTION} if own_book else FORMS
    for form, pattern in forms.items():
        for match in re.finditer(pattern, seen):
            line = text.count("\n", 0, match.start()) + 1
            book = match.groupdict().get("book") or own_book
            found += [Citation(*cited, line) for cited in _of(form, book, match["names"])]
        seen = re.sub(pattern, lambda match: "_" * len(match[0]), seen)
    return sorted(found, key=lambda citation: citation.line)


def citations_of_names(text):
    """Return what the names of tests and mutants in a Python source cite."""
    found = []
    for match in TEST_NAME.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found += [Citation(*cited, line) for cited in of_test(match["name"])]
    for match in MUTANT_NAME.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append(Citation("rule", f"R{int(match[1])}", line))
    return found


def of_test(name):
    """Return what the name of a test cites."""
    for form, pattern in IN_NAMES.items():
        match = re.match(pattern, name)
        if match is None:
            continue
        parts = match["names"].strip("_").split("_")
        if form == "scenario":
            return [("scenario", str(int(part))) for part in parts]
        if form == "rule":
            return [("rule", part.upper()) for part in parts]
        book = match.groupdict().get("book")
        return [(f"spec {book}" if book else form, ".".join(parts))]
    return []


def _of(form, book, names):
    if form in {"spec section", "spec row", "spec group", "own section"}:
        kind = f"spec {book}" if str(book).isdigit() else book
        prefix = {"spec row": "row ", "spec group": "group "}.get(form, "")
        return [(kind, prefix + name) for name in re.findall(rf"{NUMBER}|W\d+|[A-I]", names)]
    if form in {"scenario", "spec scenario"}:
        return [("scenario", name) for name in _numbers(names)]
    if form == "rule":
        first, *last = [int(number) for number in re.findall(r"\d+", names)]
        return [("rule", f"R{number}") for number in range(first, (last or [first])[0] + 1)]
    if form == "reliability rule":
        return [("reliability", f"{book} rule {names}")]
    return [(form, name) for name in re.findall(NUMBER, names)]


def _numbers(names):
    for part in re.findall(rf"\d+(?:{TO}\d+)?", names):
        first, *last = [int(number) for number in re.findall(r"\d+", part)]
        yield from (str(number) for number in range(first, (last or [first])[0] + 1))


def _headings(text):
    return set(re.findall(rf"^#+ ({NUMBER})\.? ", text, re.MULTILINE))


def anchors():
    """Return all that can be cited, as kind and name."""
    found = set()
    for path in SPEC.glob("[0-9][0-9]-*.md"):
        text, book = path.read_text(), path.name[:2]
        found.add(("spec", book))
        kind = f"spec {book}"
        found |= {(kind, name) for name in _headings(text)}
        found |= {(kind, f"group {name}") for name in re.findall(r"^## ([A-I])\. ", text, re.M)}
        rows = r"^\| (W\d+) \|"
        if book == DEFECTS:
            text, rows = text.partition("\n## 5.")[0], r"^\| (\d+) \|"
        found |= {(kind, f"row {name}") for name in re.findall(rows, text, re.M)}
    found |= {("scenario", str(number)) for number in scenarios()}
    text = (SPEC / "reliability.md").read_text()
    found |= {("reliability", name) for name in _headings(text)}
    found |= {("rule", name) for name in re.findall(r"^\| (R\d+) \|", text, re.M)}
    for section in re.split(r"^### ", text, flags=re.M)[1:]:
        name = section.split()[0]
        rules = re.findall(r"^(\d+)\. ", section, re.M)
        found |= {("reliability", f"{name} rule {rule}") for rule in rules}
    found |= {("design", name) for name in _headings((SPEC / "design.md").read_text())}
    for section in re.split(r"^## ", (SPEC / "raft.md").read_text(), flags=re.M)[1:]:
        kind = section.split()[0].lower().rstrip("s")
        kind = {"thesi": "thesis"}.get(kind, kind)
        found |= {(kind, name) for name in re.findall(rf"^\| ({NUMBER}) \|", section, re.M)}
    decisions = (ROOT / "docs" / "decisions").glob("[0-9]*.md")
    return found | {("decision", path.name[:4]) for path in decisions}


def scenarios():
    """Return number → text of the scenarios of spec 90."""
    (path,) = SPEC.glob(f"{SCENARIOS}-*.md")
    found = re.findall(r"^(\d+)\. (.*(?:\n +\S.*)*)", path.read_text(), re.M)
    return {int(number): re.sub(r"\s+", " ", text) for number, text in found}
