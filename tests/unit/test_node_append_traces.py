"""Which appends are traced, and what their spans say."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.instruments import Tracer
from quorumlog.node.replica.append_traces import LINGER_MS, MOMENTS_MAX, OPEN_MAX, AppendTraces
from replica_context import Surroundings


class World:
    def __init__(self, every=1):
        config, core = SimpleNamespace(group="g"), SimpleNamespace(self_id="n0")
        self.around = Surroundings(config, core=core)
        self.tracer = Tracer(every)
        self.traces = AppendTraces(self.around.context, self.tracer)
        self.answers = []

    def begins(self):
        block = SimpleNamespace(count=2, data=b"x" * 10)
        own = lambda response, results: self.answers.append(response)  # noqa: E731
        answer = self.traces.begin(block, own)
        return answer, answer is not own

    def at(self, now_ms):
        self.around.now_ms = now_ms
        return self

    def notes(self, name, index, peer_id=""):
        self.traces.note(name, index, peer_id)


def answered(first, last, code=ResponseCode.SUCCESS):
    return AppendResponse(code=code, first_index=first, last_index=last, term=4)


def test_one_append_of_so_many_is_traced():
    world = World(every=3)
    assert [world.begins()[1] for _ in range(7)] == [False, False, True, False, False, True, False]


def test_the_steps_of_an_append_are_when_its_last_entry_passed_them():
    world = World().at(100)
    world.tracer.arrived_us = 99_000
    answer, _ = world.begins()
    world.at(101).notes("staged", 11)
    world.at(102).notes("pushed", 11, "n1")
    world.notes("pushed", 11, "n2")
    world.at(104).notes("durable", 9)  # not yet this one
    world.at(105).notes("acknowledged", 11, "n1")
    world.at(106).notes("committed", 12)
    world.at(107)
    answer(answered(10, 11), ())
    world.at(108).notes("durable", 12)
    world.at(107 + LINGER_MS).around.tick()
    (trace,) = world.tracer.take()

    def ms(span):
        return span.start_ns // 1_000_000, span.end_ns // 1_000_000

    assert (trace.whole.name, ms(trace.whole)) == ("append", (99, 107))
    assert trace.whole.attributes == {
        "group": "g",
        "self_id": "n0",
        "entries": 2,
        "bytes": 10,
        "first_index": 10,
        "last_index": 11,
        "term": 4,
    }
    assert [(one.name, *ms(one)) for one in trace.steps] == [
        ("service", 99, 100),
        ("replica", 100, 101),
        ("disk", 101, 108),
        ("peer_link", 102, 105),  # n2 has not acknowledged it
        ("core", 101, 106),
        ("answer", 106, 107),
    ]
    assert len(world.answers) == 1


def test_a_refused_append_is_a_span_with_its_code():
    world = World().at(5)
    answer, _ = world.begins()
    answer(answered(-1, -1, ResponseCode.NOT_LEADER), ())
    world.at(5 + LINGER_MS).around.tick()
    (trace,) = world.tracer.take()
    assert trace.refused_code == "NOT_LEADER"
    assert [one.name for one in trace.steps] == ["service"]


def test_what_is_remembered_is_bounded_and_forgotten_when_nothing_is_traced():
    world = World().at(5)
    begun = [world.begins() for _ in range(OPEN_MAX + 3)]
    assert [is_traced for _, is_traced in begun[-4:]] == [True, False, False, False]
    for index in range(2 * MOMENTS_MAX):
        world.notes("staged", index)
    assert len(world.traces._moments["staged"]) == MOMENTS_MAX
    for answer, _ in begun:
        answer(answered(1, 2), ())
    world.at(5 + LINGER_MS).around.tick()
    assert len(world.tracer.take()) == OPEN_MAX
    world.notes("staged", 1)
    assert not any(world.traces._moments.values())


@pytest.mark.parametrize("wait_ms", [0, LINGER_MS - 1])
def test_an_answer_is_given_at_once_and_its_trace_later(wait_ms):
    world = World().at(5)
    answer, _ = world.begins()
    answer(answered(1, 2), ())
    assert len(world.answers) == 1
    world.at(5 + wait_ms).around.tick()
    assert world.tracer.take() == []
