"""Scenario 134: a line of watermarks every 3 s, of the groups whose watermarks have moved."""

import logging
from types import SimpleNamespace

import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.codes import Role
from quorumlog.node import watermark_lines
from quorumlog.node.watermark_lines import LINE_INTERVAL_MS, LINES_MAX, WatermarkLines


def replica(group, role=Role.FOLLOWER, end=10):
    peers = (
        SimpleNamespace(peer_id="n1", match_index=8),
        SimpleNamespace(peer_id="n2", match_index=-1),
    )
    return SimpleNamespace(
        config=SimpleNamespace(group=group),
        core=SimpleNamespace(
            role=role,
            term=3,
            leader_id="n0",
            durable_index=end,
            committed_index=end - 1,
            peer_progress=lambda: peers if role is Role.LEADER else (),
        ),
        log=SimpleNamespace(before_begin_index=1, end_index=end),
        applied_index=end - 2,
    )


class World:
    """A clock that ticks the lines when they ask for it."""

    def __init__(self, *replicas):
        self.replicas = {one.config.group: one for one in replicas}
        self.now_ms = 500
        self.due = []
        self.lines = WatermarkLines(self.replicas, lambda: self.now_ms, self.due.append)

    def pass_interval(self):
        (self.now_ms,) = self.due
        self.due.clear()
        self.lines.tick()


@pytest.fixture
def written(caplog):
    caplog.set_level(logging.INFO, watermark_lines.__name__)

    def take():
        lines = [(one.message, getattr(one, EVENT_FIELDS)) for one in caplog.records]
        caplog.clear()
        return lines

    return take


def test_134_every_three_seconds_the_watermarks_are_a_line_if_they_moved(written):
    world = World(replica("led", Role.LEADER), replica("followed"))
    assert world.due == [500 + LINE_INTERVAL_MS]
    world.pass_interval()
    lines = written()
    assert lines == [
        (
            "watermarks",
            {
                "group": "led",
                "role": "LEADER",
                "term": 3,
                "leader": "n0",
                "begin_index": 2,
                "end_index": 10,
                "durable_index": 10,
                "committed_index": 9,
                "applied_index": 8,
                "match_index": {"n1": 8, "n2": -1},
            },
        ),
        (
            "watermarks",
            {
                "group": "followed",
                "role": "FOLLOWER",
                "term": 3,
                "leader": "n0",
                "begin_index": 2,
                "end_index": 10,
                "durable_index": 10,
                "committed_index": 9,
                "applied_index": 8,
                "match_index": {},
            },
        ),
    ]
    world.pass_interval()
    assert written() == [], "nothing has moved"
    world.replicas["followed"] = replica("followed", end=11)
    world.pass_interval()
    assert [fields["end_index"] for _, fields in written()] == [11]
    world.replicas["led"].core.term = 4
    world.pass_interval()
    assert [fields["term"] for _, fields in written()] == [4]


def test_134_groups_that_come_and_go_are_seen(written):
    world = World(replica("one"))
    world.pass_interval()
    written()
    world.replicas["two"] = replica("two")
    del world.replicas["one"]
    world.pass_interval()
    assert [fields["group"] for _, fields in written()] == ["two"]
    world.replicas["one"] = replica("one")
    world.pass_interval()
    assert [fields["group"] for _, fields in written()] == ["one"]


def test_of_many_groups_that_move_at_once_some_have_a_line_and_the_others_are_counted(written):
    world = World(*(replica(f"g{number}") for number in range(LINES_MAX + 7)))
    world.pass_interval()
    lines = written()
    assert len(lines) == LINES_MAX + 1
    assert lines[-1] == ("watermarks of more groups moved", {"groups": 7})


def test_with_a_level_above_info_nothing_is_looked_at(caplog):
    caplog.set_level(logging.WARNING, watermark_lines.__name__)
    world = World(SimpleNamespace(config=SimpleNamespace(group="g")))
    world.pass_interval()
    assert len(world.due) == 1, "it asks again, as levels may change"
