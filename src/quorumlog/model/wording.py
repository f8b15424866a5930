"""Sentences for people: numbers with what they count, and texts of a bounded length."""

import base64
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Final

from quorumlog.model.config_keys import ALIKE

TEXT_LENGTH_MAX: Final = 1_000
"""Characters of a text that may have in it what somebody else has sent, such as a name."""
FOREIGN_LENGTH_MAX: Final = 200
"""Characters of a text that a stranger may have written, in a line of a log."""
TEXT_MAX: Final = 8_000
"""Characters of a text that another program wrote, such as an error's."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: `1 file`, `2 files`; `many` if it is not `one` + s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def entries_text(count: int) -> str:
    """Return `1 entry`, `2 entries` …"""
    return counted(count, "entry", "entries")


def topic_id_text(topic_id: bytes) -> str:
    """Return the id of a topic as Kafka's tools spell it: base64 for URLs, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def there_is_no(noun: str, names: Sequence[str], known: Collection[str], shown_by: str) -> str:
    """Return that there is nothing of these names, which of the `known` ones may be meant instead,
    and the command that shows all.
    """
    given = ", ".join(map(repr, names))
    others = sorted(set(known) - set(names))  # one broker may still name what has gone
    near = [match for name in names for match in get_close_matches(name, others, 1, ALIKE)]
    meant = f"; did you mean {', '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
    return f"there is no {noun} {given}{meant} ('{shown_by}' shows those there are)"


def shortened(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return a text, or its first characters and `…` if it is longer than `length_max`."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def sendable(text: str) -> str:
    """Return a text of any program as it can be sent: valid UTF-8, and not too long.

    Half of a surrogate pair becomes `?`; of more than `TEXT_MAX` characters the first are kept.
    """
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text):,} characters in all)"
    return text.encode("utf-8", "replace").decode("utf-8")


def printable_text(text: str) -> str:
    """Return a text in which everything not printable is written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def foreign(text: str, length_max: int = FOREIGN_LENGTH_MAX) -> str:
    """Return what a stranger may have written as it may stand in a log: printable, and bounded.

    No line ends in it, nor anything that steers a terminal or turns the order of letters around.
    """
    return shortened(printable_text(text[: length_max + 1]), length_max)
