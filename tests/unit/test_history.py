"""The checker of histories sees every anomaly that it is there for, and no other."""

import pytest

from integration.history import Append, Bound, Fate, History, Read, Recorder, Seen, check
from quorumlog.client.results import Appended
from quorumlog.model.entry import Entry
from quorumlog.model.errors import DeadlineExceededError, NoLeaderError

LATE = 1_000_000_000


def acknowledged(value, index, invoked, completed):
    return Append(value, invoked, completed, Fate.ACKNOWLEDGED, index)


def failed(value, invoked, completed):
    return Append(value, invoked, completed, Fate.FAILED, error="NoLeaderError")


def unknown(value, invoked, completed=None):
    return Append(value, invoked, completed)


def log_of(*values, reader="final", start=0, at=LATE):
    """A read of a log that holds these values; None is a bookkeeping entry."""
    entries = [Seen(start + i, 1, value, at) for i, value in enumerate(values)]
    return Read(reader, start, entries)


def good():
    """Three appends in a row beside a fourth, of which the third failed."""
    return History(
        appends=[
            acknowledged(b"a", 1, invoked=10, completed=20),
            acknowledged(b"b", 3, invoked=30, completed=60),
            failed(b"c", invoked=70, completed=80),
            acknowledged(b"d", 2, invoked=15, completed=50),
            unknown(b"e", invoked=90),
            unknown(b"f", invoked=90, completed=95),
        ],
        reads=[
            log_of(None, b"a", b"d", b"b", reader="r0", at=65),
            log_of(b"d", b"b", reader="r1", start=2, at=65),
        ],
        bounds=[Bound("l0", invoked=21, completed=25, index=1), Bound("l1", 61, 62, 3)],
    )


def good_log():
    return log_of(None, b"a", b"d", b"b", b"f", None)


def test_a_log_that_explains_everything_passes():
    check(good(), good_log())


def test_an_append_of_unknown_outcome_may_be_there_or_not():
    check(good(), log_of(None, b"a", b"d", b"b"))
    check(good(), log_of(None, b"a", b"d", b"b", b"e", b"f"))
    check(good(), log_of(None, b"a", b"d", b"b", b"f", b"e"))


def test_appends_at_the_same_time_may_stand_in_any_order():
    first = acknowledged(b"a", 1, invoked=10, completed=30)
    second = acknowledged(b"b", 0, invoked=20, completed=40)
    check(History([first, second]), log_of(b"b", b"a"))


def rejected(history, final, said):
    with pytest.raises(AssertionError, match=said) as caught:
        check(history, final)
    return str(caught.value)


def test_an_acknowledged_append_that_is_nowhere_is_a_lost_write():
    message = rejected(good(), log_of(None, b"a", b"d"), "lost write: b'b'.*nowhere")
    assert "lost write: r0 saw b'b' at index 3" in message


def test_a_lost_write_that_nobody_had_read_is_seen_too():
    history = History([acknowledged(b"a", 0, 1, 2), acknowledged(b"b", 1, 3, 4)])
    rejected(history, log_of(b"a"), "lost write: b'b', acknowledged at 1, is nowhere")
    rejected(history, log_of(b"a", None), "lost write: b'b'")


def test_a_committed_index_beyond_the_end_is_a_lost_write():
    history = History(bounds=[Bound("l0", 1, 2, index=5)])
    rejected(history, log_of(None), "lost write: l0 was told that index 5 is committed")


@pytest.mark.parametrize("twice", [b"a", b"f"])
def test_a_value_at_two_indexes_is_a_duplicate(twice):
    final = log_of(None, b"a", b"d", b"b", b"f", twice)
    rejected(good(), final, f"duplicate: {twice} is at index . and at 5")


def test_a_value_that_nobody_appended_is_a_phantom():
    rejected(good(), log_of(None, b"a", b"d", b"b", b"zz"), "phantom: .*b'zz' at index 4")


def test_a_phantom_that_only_a_reader_saw_is_one():
    history = good()
    history.reads.append(log_of(b"zz", reader="r2", start=4, at=70))
    rejected(history, good_log(), "phantom: r2 saw b'zz'.*nobody appended")


def test_a_value_seen_before_it_was_appended_is_a_phantom():
    history = good()
    history.reads.append(log_of(None, b"a", b"d", b"b", b"f", reader="r2", at=89))
    rejected(history, good_log(), "phantom: r2 saw b'f' at index 4 before")


def test_a_failed_append_in_the_log_is_an_aborted_read():
    final = log_of(None, b"a", b"d", b"b", b"c")
    rejected(good(), final, "aborted read: .*b'c'.*failed with NoLeaderError")


def test_an_append_before_one_acknowledged_earlier_is_reordered():
    history = History([acknowledged(b"a", 1, 10, 20), acknowledged(b"b", 0, 30, 40)])
    rejected(history, log_of(b"b", b"a"), "reordered: b'b' is at index 0, though b'a'")


def test_an_unanswered_append_before_one_acknowledged_earlier_is_reordered():
    history = History([acknowledged(b"a", 1, 10, 20), unknown(b"b", 30)])
    rejected(history, log_of(b"b", b"a"), "reordered: b'b' is at index 0")


def test_reordering_is_seen_across_many_appends_between():
    appends = [acknowledged(b"%d" % n, n + (n >= 3), 10 * n, 10 * n + 5) for n in range(100)]
    appends[99].index = 3
    values = [append.value for append in sorted(appends, key=lambda append: append.index)]
    message = rejected(History(appends), log_of(*values), "reordered: b'99' is at index 3")
    assert "(reordered: 1)" in message


def test_another_index_than_acknowledged_is_inconsistent():
    history = History([acknowledged(b"a", 1, 10, 20)])
    rejected(history, log_of(b"a", None), "inconsistent index: b'a' was acknowledged at 1")


def test_readers_that_see_different_values_at_an_index_are_inconsistent():
    history = good()
    history.reads.append(log_of(None, b"a", b"f", reader="r2", at=96))
    message = rejected(history, good_log(), "inconsistent index: at 2 r2 saw b'f'")
    assert "but final b'd'" in message


def test_the_same_value_of_another_term_is_inconsistent():
    history = good()
    history.reads.append(Read("r2", 1, [Seen(1, 2, b"a", 50)]))
    rejected(history, good_log(), "inconsistent index: at 1 r2 saw b'a' of term 2")


@pytest.mark.parametrize("indexes", [[0, 2], [0, 1, 1], [0, 1, 0], [1, 2]])
def test_a_reader_that_skips_or_goes_back_has_a_gap(indexes):
    final = good_log()
    history = good()
    history.reads.append(Read("r2", 0, [final.entries[index] for index in indexes]))
    rejected(history, final, "gap: r2 saw index")


def test_a_gap_in_the_log_itself_is_seen():
    final = good_log()
    del final.entries[0]
    rejected(good(), final, "gap: final saw index 1 where 0 comes next")


def test_a_read_that_misses_an_earlier_acknowledgement_is_stale():
    history = good()
    history.bounds.append(Bound("l2", invoked=61, completed=70, index=2))
    message = rejected(history, good_log(), "stale linearizable read: l2 was told index 2")
    assert "b'b' had been acknowledged index 3" in message


def test_a_read_that_goes_back_behind_an_earlier_one_is_stale():
    history = good()
    history.bounds += [Bound("l2", 100, 110, index=5), Bound("l3", 111, 120, index=4)]
    rejected(history, good_log(), "stale linearizable read: l3 .*l2 had read index 5")


def test_a_read_at_the_same_time_as_an_append_may_miss_it():
    history = good()
    history.bounds.append(Bound("l2", invoked=55, completed=70, index=2))
    check(history, good_log())


@pytest.mark.timeout(60)
def test_a_hundred_thousand_appends_are_checked_in_linear_time():
    appends = [acknowledged(b"%d" % n, n, 10 * n, 10 * n + 15) for n in range(100_000)]
    final = log_of(*(append.value for append in appends))
    bounds = [Bound("l", 10 * n, 10 * n + 1, n) for n in range(0, 100_000, 10)]
    check(History(appends, [final], bounds), final)


# -- the recorder ---------------------------------------------------------------------------------


class Answers:
    """Stands in for a client: appends are answered as they are told, the log holds one entry."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def append(self, value):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Appended(answer, 1, 0)

    async def bounds(self, *, leader_only, linearizable):
        assert linearizable
        return 0, 7

    async def read(self, start, **options):
        assert options == {"follow": False, "include_all": True, "leader_only": False}
        yield Entry(start, 1, 0, b"v")
        yield Entry(start + 1, 1, 0, b"", channel=0xFFFF_FFFF)


async def test_the_recorder_records_outcomes_times_and_what_was_read():
    ticks = iter(range(100))
    recorder = Recorder(clock=lambda: next(ticks))
    client = Answers(5, NoLeaderError("none"), DeadlineExceededError("late"))
    for value in (b"a", b"b", b"c"):
        await recorder.append(client, value)
    history = recorder.history
    assert [(a.fate, a.index, a.invoked, a.completed) for a in history.appends] == [
        (Fate.ACKNOWLEDGED, 5, 0, 1),
        (Fate.FAILED, None, 2, 3),
        (Fate.UNKNOWN, None, 4, 5),
    ]
    assert await recorder.bound(client, "l") == Bound("l", 6, 7, 7)
    read = await recorder.read(client, "r", 3, leader_only=False)
    again = await recorder.read(client, "r", into=read, leader_only=False)
    assert again is read
    assert [(seen.index, seen.value) for seen in read.entries] == [
        *((3, b"v"), (4, None), (5, b"v"), (6, None))
    ]
    assert history.reads == [read]
