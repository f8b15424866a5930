"""Regular expressions of topics' names: whole names, whatever a stranger has thought up."""

import time
from types import SimpleNamespace

import pytest

from quorumlog.kafka.groups import topic_patterns
from quorumlog.kafka.groups.topic_patterns import PATTERN_MAX, TopicPatterns


def named(*names):
    return SimpleNamespace(version=1, topics=dict.fromkeys(names))


def test_b4_a_regular_expression_matches_whole_names():
    patterns = TopicPatterns(named("flights", "flights-2", "bills"))
    assert patterns.matched("flights") == {"flights"}
    assert patterns.matched("flights.*") == {"flights", "flights-2"}
    assert patterns.matched("^(bills|none)$") == {"bills"}
    assert patterns.matched("(?i)BILLS") == {"bills"}


def test_b4_topics_that_come_and_go_are_seen_and_no_name_is_tried_twice(monkeypatch):
    topics = named("a1")
    patterns = TopicPatterns(topics)
    assert patterns.matched("a.*") == {"a1"}
    tried = []
    matches = patterns._known["a.*"]
    compiled = matches.compiled
    matches.compiled = SimpleNamespace(
        fullmatch=lambda name: tried.append(name) or compiled.fullmatch(name)
    )
    topics.topics = dict.fromkeys(["a1", "a2", "b"])
    assert patterns.matched("a.*") == {"a1"}, "it looks when the version has risen"
    topics.version = 2
    assert patterns.matched("a.*") == {"a1", "a2"}
    topics.topics, topics.version = {"a2": None}, 3
    assert patterns.matched("a.*") == {"a2"}
    assert sorted(tried) == ["a2", "b"]


@pytest.mark.parametrize("pattern", ["(", "a{1001}", r"(a)\1", "a" * (PATTERN_MAX + 1), "[[:x:]]"])
def test_c4_what_is_no_regular_expression_of_re2_is_refused_with_words(pattern):
    patterns = TopicPatterns(named("a"))
    assert patterns.problem_of(pattern)
    assert patterns.matched(pattern) == frozenset()


def test_c4_a_regular_expression_that_others_take_for_ever_to_match_takes_no_time():
    patterns = TopicPatterns(named("a" * 249))
    started = time.process_time()
    assert patterns.matched("(a|a|aa)+b") == frozenset()
    assert patterns.matched("((a*)*)*b") == frozenset()
    assert time.process_time() - started < 1


def test_c4_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(topic_patterns, "_KEPT_MAX", 2)
    patterns = TopicPatterns(named("a", "b", "c"))
    assert [patterns.matched(one) for one in "abca"] == [{"a"}, {"b"}, {"c"}, {"a"}]
    assert list(patterns._known) == ["c", "a"]
