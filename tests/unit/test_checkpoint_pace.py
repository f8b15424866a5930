"""When the groups of a node write checkpoints."""

from quorumlog.node.checkpoint_pace import PAUSE_MAX_MS, CheckpointPace
from store_access import Opened


def test_a_group_alone_keeps_to_its_interval():
    pace = CheckpointPace()
    assert [pace.pause_ms("g", now_ms, 1_000) for now_ms in (0, 1_000, 2_000)] == [1_000] * 3


def test_many_groups_that_begin_at_once_do_not_write_theirs_at_once():
    pace = CheckpointPace()
    pauses = [pace.pause_ms(f"g{number}", 0, 1_000) for number in range(1_000)]
    assert min(pauses) >= 1_000
    assert max(pauses) <= PAUSE_MAX_MS
    in_each_second = [pause // 1_000 for pause in pauses]
    assert max(map(in_each_second.count, set(in_each_second))) < 100
    assert sum(pauses) / len(pauses) > PAUSE_MAX_MS / 2


def test_a_group_to_which_nothing_was_written_since_it_was_opened_writes_none(tmp_path):
    for bodies in ([], [b"one"]):
        opened = Opened(tmp_path / "g")
        assert opened.log.checkpoint() is None
        if bodies:
            opened.append(bodies)
            assert opened.log.checkpoint() is not None
        opened.close()
    again = Opened(tmp_path / "g")
    assert again.log.checkpoint() is None
    assert [entry.body for entry in again.entries()] == [b"one"]
    again.close()
