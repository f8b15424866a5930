"""Every citation of a rule resolves: what sources, tests and documents cite exists."""

import pytest

import spec_coverage
from citations import ROOT, SPEC, anchors, citations, citations_of_names, scenarios

ANCHORS = anchors()
PATHS = [
    path
    for pattern in ("src/**/*.py", "tests/**/*.py", "tests/**/*.txt", "docs/**/*.md", "*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "test_citations.py"
]


def own_book(path):
    """What a section without a book belongs to in this file."""
    if path.parent != SPEC:
        return None
    return path.name[:2] if path.name[0].isdigit() else path.stem


def unresolved(text, own=None):
    found = [*citations(text, own), *citations_of_names(text)]
    return [(line, kind, name) for kind, name, line in found if (kind, name) not in ANCHORS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_cited_exists(path):
    assert unresolved(path.read_text(), own_book(path)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(spec 20 section 3.1)", [("spec 20", "3.1")]),
        ("spec 20 sections 3 and 9.", [("spec 20", "3"), ("spec 20", "9")]),
        ("spec 20 §3", [("spec 20", "3")]),
        ("Spec 10 section 5, check 10; REQ", [("spec 10", "5")]),
        ("wrapped: spec 30\n    # section 7)", [("spec 30", "7")]),
        ("> see spec 30\n> section 7", [("spec 30", "7")]),
        ("spec 70", [("spec", "70")]),
        ("spec 95.61, Spec 10 W7", [("spec 95", "row 61"), ("spec 10", "row W7")]),
        ("spec 90 102, 103)", [("scenario", "102"), ("scenario", "103")]),
        ("spec 90, 167", [("scenario", "167")]),
        ("spec 90 9, 37-39", [("scenario", n) for n in ("9", "37", "38", "39")]),
        ("Scenarios 76 to 78 at once", [("scenario", n) for n in ("76", "77", "78")]),
        ("spec 90 groups D, F", [("spec 90", "group D"), ("spec 90", "group F")]),
        ("RELIABILITY 2.2 and R3", [("reliability", "2.2"), ("rule", "R3")]),
        ("RELIABILITY R7", [("rule", "R7")]),
        ("RELIABILITY 8.2 rule 3", [("reliability", "8.2 rule 3")]),
        ("R14 to R16; PLR0913, CR2, x.R2", [("rule", n) for n in ("R14", "R15", "R16")]),
        ("DESIGN section 2.4", [("design", "2.4")]),
        ("Raft 5.4.2; Raft paper section 6", [("paper", "5.4.2"), ("paper", "6")]),
        ("thesis sections 4.2.3 and 9.6", [("thesis", "4.2.3"), ("thesis", "9.6")]),
        ("Raft paper figure 2", [("figure", "2")]),
        ("decision 0011", [("decision", "0011")]),
        ("specification 20, respect 30 sections, 90 tests, hypothesis 6.1", []),
    ],
)
def test_what_a_citation_is(text, expected):
    assert sorted((kind, name) for kind, name, _ in citations(text)) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_102_a_peer", [("scenario", "102")]),
        ("test_01_one", [("scenario", "1")]),
        ("test_58_59_two", [("scenario", "58"), ("scenario", "59")]),
        ("test_spec_20_12_a_blank", [("spec 20", "12")]),
        ("test_paper_5_4_1_a_voter", [("paper", "5.4.1")]),
        ("test_thesis_9_6_asking", [("thesis", "9.6")]),
        ("test_r9_r14_removed", [("rule", "R9"), ("rule", "R14")]),
        ("test_after_kill_9_it", []),
        ("test_the_version_0_2_7", []),
    ],
)
def test_what_a_name_cites(name, expected):
    found = citations_of_names(f"async def {name}(x):\n")
    assert [(kind, cited) for kind, cited, _ in found] == expected


def test_a_mutant_cites_its_rule():
    assert citations_of_names("def r07_late(put):\n") == [("rule", "R7", 1)]


@pytest.mark.parametrize(
    "text",
    [
        "spec 20 section 99",
        "spec 20 sections 3 and 99",
        "spec 25",
        "spec 95.62",
        "spec 10 W99",
        "spec 10.5",
        "spec 90 300",
        "spec 90, 205-208",
        "scenario 0",
        "spec 90 group Z, spec 20 group A",
        "R99",
        "R36 to R99",
        "RELIABILITY 2.9",
        "RELIABILITY 8.2 rule 99",
        "DESIGN section 6",
        "Raft 5.9",
        "thesis section 11.1",
        "figure 99",
        "decision 9999",
        "def test_208_nothing():",
        "def test_20_999_nothing():",
        "def test_spec_20_99_nothing():",
        "def test_paper_5_9_nothing():",
        "def test_thesis_99_nothing():",
        "def test_r99_nothing():",
        "def r99_nothing(put):",
    ],
)
def test_a_bogus_citation_is_found_out(text):
    assert unresolved(f"first line\n{text}\n")[0][0] == 2


def test_a_section_without_a_book_is_one_of_the_same_file():
    assert unresolved("section 3.1", "20") == []
    assert unresolved("section 99", "20") == [(1, "spec 20", "99")]
    assert unresolved("section 99") == []


def test_scenarios_are_numbered_without_a_gap():
    assert list(scenarios()) == list(range(1, 208))


def test_coverage_is_current():
    assert spec_coverage.PAGE.read_text() == spec_coverage.page(), "python tests/spec_coverage.py"


def test_each_scenario_has_tests_or_a_reason_but_not_both():
    numbered, reasons = spec_coverage.numbered(), spec_coverage.reasons()
    assert set(numbered) | set(reasons) == set(scenarios())
    assert set(numbered) & set(reasons) == set()


def test_what_covers_a_scenario_without_its_number_exists():
    names = {f"{file}::{name}" for file, name, _ in spec_coverage.all_tests()}
    for reason in spec_coverage.reasons().values():
        assert set(reason.tests) <= names
