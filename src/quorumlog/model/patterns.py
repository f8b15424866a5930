"""Regular expressions of RE2, for whatever strangers have a part in.

They are matched in time that grows with the length of the text alone, whatever the text is, and
take a bounded memory.
"""

from typing import Any, Final, TypeAlias

PATTERN_BYTES: Final = 1 << 20
"""What a compiled one takes in memory at most; what needs more is refused."""
Pattern: TypeAlias = Any
"""A compiled one, which is like `re.Pattern`: RE2's library has no types."""


class PatternError(ValueError):
    """A text is no regular expression of RE2; the text of the error says why."""


def compile_pattern(text: str) -> Pattern:
    """Return a regular expression, compiled. Raises `PatternError`."""
    import re2  # noqa: PLC0415  (it takes time, and few programs have any)

    options = re2.Options()
    options.max_mem = PATTERN_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        (reason, *_) = error.args or (b"",)
        words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise PatternError(words) from error
