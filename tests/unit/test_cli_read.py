"""Where `tail` starts."""

import pytest

from quorumlog.cli import read
from quorumlog.cli.read import index_of_last
from quorumlog.model.codes import Magic
from quorumlog.model.entry import Entry


class LogOf:
    """A client of a log whose entries are written as letters: d(ata), c(hannel 7), n(oop)."""

    def __init__(self, kinds, first=0):
        self.first = first
        self.kinds = kinds

    def bounds(self, *, leader_only, isolation):
        assert leader_only
        assert isolation in ("read_committed", "read_uncommitted")
        return self.first, self.first + len(self.kinds) - 1

    def read(self, begin, *, end, follow, include_all, leader_only, isolation, channel):
        assert leader_only
        assert not follow
        for index in range(begin, end + 1):
            kind = self.kinds[index - self.first]
            magic = Magic.NOOP if kind == "n" else Magic.NORMAL
            entry = Entry(index, 1, 0, b"", magic=magic, channel=7 if kind == "c" else 0)
            if channel is not None and channel != entry.channel:
                continue
            if entry.is_data or include_all:
                yield entry


@pytest.mark.parametrize(
    ("kinds", "first", "count", "begin"),
    [
        ("dddddd", 0, 2, 4),
        ("dddddd", 0, 6, 0),
        ("ddd", 0, 10, 0),
        ("ndnnnd", 0, 2, 1),
        ("nnnnnn", 0, 2, 0),
        ("dddd", 100, 3, 101),
        ("dddd", 0, 0, 4),
        ("", 0, 5, 0),
    ],
)
def test_tail_begins_so_many_readable_entries_before_the_end(kinds, first, count, begin):
    assert index_of_last(LogOf(kinds, first), count, everything=False) == begin


@pytest.mark.parametrize(
    ("kinds", "count", "begin"), [("cddcdd", 1, 3), ("cddcdd", 2, 0), ("dddddd", 2, 0)]
)
def test_f93_with_a_channel_its_entries_are_counted(kinds, count, begin):
    assert index_of_last(LogOf(kinds), count, everything=False, channel=7) == begin


def test_with_all_entries_counted_noops_count_too():
    assert index_of_last(LogOf("ndnnnd"), 2, everything=True) == 4


def test_no_entry_is_looked_at_twice_and_those_far_from_the_end_not_at_all(monkeypatch, capsys):
    monkeypatch.setattr(read, "SEARCHED_MAX", 40)
    looked = []

    class Counted(LogOf):
        def read(self, begin, *, end, **options):
            looked.extend(range(begin, end + 1))
            return super().read(begin, end=end, **options)

    kinds = "c" * 50 + "d" * 40 + "c" + "d" * 9
    assert index_of_last(Counted(kinds), 3, everything=False, channel=7) == 90
    assert sorted(looked) == list(range(60, 100))
    assert capsys.readouterr().err == (
        "quorumlog: 1 of 3 entries are among the last 40; --from INDEX shows earlier ones\n"
    )
    assert index_of_last(LogOf("d" * 50), 1, everything=False, channel=7) == 50
