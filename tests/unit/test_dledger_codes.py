"""Codes of DLedger: each is used, or docs/differences.md says why it is never sent."""

import re
from pathlib import Path

from quorumlog.model.codes import ResponseCode

ROOT = Path(__file__).parents[2]
FIRST_OWN = 600
SECTION = (ROOT / "docs" / "differences.md").read_text().split("## Codes that are never sent")[1]


def test_each_code_of_dledger_is_used_or_said_never_to_be_sent():
    sources = "".join(
        path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "codes.py"
    )
    used = set(re.findall(r"\bResponseCode\.([A-Z_]+)\b", sources))
    of_dledger = {code.name for code in ResponseCode if code < FIRST_OWN}
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", SECTION, re.MULTILINE)) == of_dledger - used
