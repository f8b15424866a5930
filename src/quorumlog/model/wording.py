"""Numbers in sentences for people: with what they count, in the singular where it is one."""


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: `1 file`, `2 files`; `many` if it is not `one` + s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def entries_text(count: int) -> str:
    """Return `1 entry`, `2 entries` …"""
    return counted(count, "entry", "entries")
