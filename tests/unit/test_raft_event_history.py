"""What a replica remembers of what happened to it."""

from quorumlog.raft.event_history import HISTORY_LINES_MAX, EventHistory

ASKS = "asks whether it would win term 3"


def test_an_event_that_repeats_takes_one_line_and_drives_out_nothing():
    history = EventHistory()
    history.record(1_000, "lost n1, which led")
    for number in range(HISTORY_LINES_MAX * 2):
        history.record(2_000 + 500 * number, ASKS)
    assert history.lines() == [
        (1_000, "lost n1, which led"),
        (2_000 + 500 * 511, f"{ASKS} (512 times in 255.5 s)"),
    ]


def test_after_a_repeated_event_the_next_one_has_a_line_of_its_own():
    history = EventHistory()
    for at_ms, text in ((1, "a"), (3, "a"), (4, "b"), (5, "a")):
        history.record(at_ms, text)
    assert history.lines() == [(3, "a (2 times in 0.0 s)"), (4, "b"), (5, "a")]


def test_only_the_newest_lines_are_kept():
    history = EventHistory()
    for number in range(HISTORY_LINES_MAX + 2):
        history.record(number, str(number))
    assert history.lines()[0] == (2, "2")
    assert len(history.lines()) == HISTORY_LINES_MAX
