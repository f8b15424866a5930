"""The key-value machine, as those see it who send it commands and ask it."""

import msgspec
import pytest

from kv_access import ask, compare_and_set, delete, entry, everything, keys, put, run, scan
from quorumlog.machine import kv
from quorumlog.machine.kv import KeyValueMachine
from quorumlog.machine.kv_commands import (
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    Compare,
    Delete,
    Events,
    Get,
    Happened,
    Page,
    Put,
    Scan,
    Transaction,
    Value,
    decode_command,
    decode_query,
    encode_command,
    encode_query,
    end_of_prefix,
)
from quorumlog.model.errors import InvariantViolation, UnexpectedArgumentError


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "machine")


@pytest.fixture
def machine(directory):
    made = KeyValueMachine.open(directory)
    yield made
    made.close()


# -- commands ---------------------------------------------------------------------------------


def test_put_and_delete_tell_what_was_there(machine):
    first, second, third, fourth = run(
        machine, put(b"a", b"1"), put(b"a", b"2"), delete(b"a"), delete(b"a")
    )
    assert [first.previous, second.previous] == [[None], [b"1"]]
    assert [third.previous, fourth.previous] == [[b"2"], [None]]
    assert [first.index, fourth.index] == [0, 3]
    assert ask(machine, Get(b"a")) == Value(None, -1)
    run(machine, put(b"a", b""))
    assert ask(machine, Get(b"a")) == Value(b"", 4)


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", value=b"1"), True),
        (Compare(b"a", value=b"2"), False),
        (Compare(b"a", value=None), False),
        (Compare(b"a", index=0), True),
        (Compare(b"a", index=1), False),
        (Compare(b"a", index=-1), False),
        (Compare(b"a", value=b"1", index=0), True),
        (Compare(b"a", value=b"1", index=7), False),
        (Compare(b"none", value=None), True),
        (Compare(b"none", value=b""), False),
        (Compare(b"none", index=-1), True),
        (Compare(b"none", index=0), False),
    ],
)
def test_a_transaction_takes_the_branch_its_compares_say(machine, compare, holds):
    run(machine, put(b"a", b"1"))
    command = Transaction((compare,), (Put(b"x", b"then"),), (Put(b"y", b"otherwise"),))
    (outcome,) = run(machine, command)
    assert outcome.succeeded is holds
    assert keys(scan(machine, b"b")) == [b"x" if holds else b"y"]


def test_all_compares_must_hold_and_operations_see_those_before_them(machine):
    (outcome,) = run(
        machine, Transaction((), (Put(b"a", b"1"), Put(b"a", b"2"), Delete(b"a"), Put(b"b", b"3")))
    )
    assert outcome.previous == [None, b"1", b"2", None]
    compares = (Compare(b"b", value=b"3"), Compare(b"a", value=b"2"))
    (outcome,) = run(machine, Transaction(compares, (Delete(b"b"),)))
    assert not outcome.succeeded
    assert outcome.previous == []
    assert outcome.error == ""
    assert keys(scan(machine)) == [b"b"]


def test_of_two_who_compare_and_set_one_wins(machine):
    outcomes = run(
        machine, compare_and_set(b"lock", None, b"me"), compare_and_set(b"lock", None, b"you")
    )
    assert [outcome.succeeded for outcome in outcomes] == [True, False]
    assert ask(machine, Get(b"lock")).value == b"me"


TOO_LARGE = [
    put(b"", b"1"),
    put(b"k" * (KEY_BYTES_MAX + 1), b"1"),
    put(b"k", bytes(VALUE_BYTES_MAX + 1)),
    delete(b""),
    Transaction((Compare(b"", value=None),)),
    Transaction((Compare(b"a"),)),
    Transaction((), (), (Delete(b"a"),) * (OPERATIONS_MAX + 1)),
]


@pytest.mark.parametrize("command", TOO_LARGE, ids=range(len(TOO_LARGE)))
def test_bounds_are_told_to_whoever_sends_and_change_nothing_when_applied(machine, command):
    with pytest.raises(UnexpectedArgumentError):
        encode_command(command)
    run(machine, put(b"a", b"1"))
    before = everything(machine)
    (outcome,) = run(machine, msgspec.msgpack.encode(command))
    assert (outcome.succeeded, outcome.previous, outcome.index) == (False, [], 1)
    assert outcome.error
    assert everything(machine)[1:3] == before[1:3]
    assert machine.applied_index == 1


@pytest.mark.parametrize("body", [b"", b"\xc1", b"garbage", b"\x94\x00\x90\x90", b"\x90", b"\xc0"])
def test_a_malformed_command_is_an_outcome_with_an_error(machine, body):
    outcomes = run(machine, put(b"a", b"1"), body, put(b"b", b"2"))
    assert [outcome.succeeded for outcome in outcomes] == [True, False, True]
    assert "not a key-value command" in outcomes[1].error
    assert keys(scan(machine)) == [b"a", b"b"]
    with pytest.raises(UnexpectedArgumentError, match="not a key-value command"):
        decode_command(body)


def test_the_largest_that_is_allowed(machine):
    key, value = b"k" * KEY_BYTES_MAX, bytes(VALUE_BYTES_MAX)
    many = tuple(Put(b"%d" % number, b"") for number in range(OPERATIONS_MAX))
    outcomes = run(machine, put(key, value), Transaction((), many), delete(key))
    assert all(outcome.succeeded for outcome in outcomes)
    assert outcomes[2].previous == [value]
    assert len(scan(machine).items) == OPERATIONS_MAX


def test_an_entry_is_never_taken_twice_and_a_batch_is_all_or_nothing(machine):
    run(machine, put(b"a", b"1"), put(b"a", b"2"))
    with pytest.raises(InvariantViolation):
        machine.apply([entry(2, put(b"b", b"1")), entry(2, put(b"b", b"2"))])
    with pytest.raises(InvariantViolation):
        machine.apply([entry(1, put(b"b", b"1"))])
    assert machine.applied_index == 1
    assert machine.apply([]) == []
    assert keys(scan(machine)) == [b"a"]


# -- queries ----------------------------------------------------------------------------------


def test_scans_of_ranges_in_both_directions(machine):
    names = [b"a", b"b", b"b\0", b"ba", b"c", b"\xff\xff"]
    run(machine, *(put(name, name.upper()) for name in names))
    assert keys(scan(machine)) == names
    assert scan(machine, b"b", b"b\0").items == [(b"b", b"B", 1)]
    assert keys(scan(machine, b"b", b"c")) == [b"b", b"b\0", b"ba"]
    assert keys(scan(machine, b"b", b"c", reverse=True)) == [b"ba", b"b\0", b"b"]
    assert keys(scan(machine, reverse=True)) == names[::-1]
    assert keys(scan(machine, b"c", b"\xff\xff\xff", reverse=True)) == [b"\xff\xff", b"c"]
    for reverse in (False, True):
        assert scan(machine, b"c", b"b", reverse=reverse) == Page([], more=False)
        assert scan(machine, b"", b"", reverse=reverse) == Page([], more=False)
        assert scan(machine, b"\xff\xff\0", None, reverse=reverse) == Page([], more=False)


def test_a_scan_of_nothing(machine):
    assert scan(machine) == scan(machine, reverse=True) == Page([], more=False)
    assert scan(machine, b"a", b"b", reverse=True) == Page([], more=False)


def test_a_scan_goes_on_behind_its_last_key(machine):
    names = [b"%03d" % number for number in range(10)] + [b"k" * KEY_BYTES_MAX, b"l"]
    run(machine, *(put(name, b"") for name in names))
    found, begin, more = [], b"", True
    while more:
        page = scan(machine, begin, limit=1)
        found, more, begin = found + keys(page), page.more, page.items[-1][0] + b"\0"
    assert found == names
    longest = b"k" * KEY_BYTES_MAX
    assert keys(scan(machine, longest + b"\0")) == [b"l"]
    assert keys(scan(machine, b"1", longest + b"\0", reverse=True)) == [longest]
    first = scan(machine, limit=2, reverse=True)
    assert first.more
    assert keys(scan(machine, b"", first.items[-1][0], reverse=True)) == names[-3::-1]


def test_a_page_has_bounds_of_its_own(machine, monkeypatch):
    big = bytes(VALUE_BYTES_MAX)
    run(machine, put(b"a", big), put(b"b", big), put(b"c", b""), put(b"d", b""))
    assert (keys(scan(machine)), scan(machine).more) == ([b"a"], True)
    assert keys(scan(machine, b"c")) == [b"c", b"d"]
    monkeypatch.setattr(kv, "SCAN_ITEMS_MAX", 1)
    assert (keys(scan(machine, b"c")), scan(machine, b"c").more) == ([b"c"], True)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff", None), (b"a\xff\xfe", b"a\xff\xff")],
)
def test_end_of_prefix(prefix, end):
    assert end_of_prefix(prefix) == end


@pytest.mark.parametrize(
    "query", [Get(b""), Get(b"k" * 512), Scan(b"", None, 0), Events(b"", -1, 1), Events(b"", 0, 0)]
)
def test_a_question_without_an_answer(machine, query):
    with pytest.raises(UnexpectedArgumentError):
        encode_query(query)
    with pytest.raises(UnexpectedArgumentError):
        machine.query(msgspec.msgpack.encode(query))
    for garbage in (b"", b"what?", b"\x92\x09\xc4\x01a"):
        with pytest.raises(UnexpectedArgumentError, match="not a key-value query"):
            decode_query(garbage)


# -- events -----------------------------------------------------------------------------------


def test_events_come_in_order_and_by_prefix(machine):
    run(
        machine,
        Transaction((), (Put(b"a/1", b"x"), Put(b"b", b"y"), Delete(b"a/1"))),
        delete(b"none"),
        put(b"a/2", b""),
    )
    assert ask(machine, Events(b"", 0, 10)).events == [
        (0, b"a/1", b"x"),
        (0, b"b", b"y"),
        (0, b"a/1", None),
        (2, b"a/2", b""),
    ]
    found = ask(machine, Events(b"a/", 1, 10))
    assert found == Happened([(2, b"a/2", b"")], next_index=3, first_kept_index=0)
    assert ask(machine, Events(b"", 3, 10)) == Happened([], 3, 0)
    assert ask(machine, Events(b"", 100, 10)) == Happened([], 100, 0)


def test_events_are_resumed_between_entries(machine):
    pair = (Put(b"a", b"1"), Put(b"b", b"2"))
    run(machine, *[Transaction((), pair)] * 3, put(b"c", b"3"))
    found, first = [], 0
    while (answer := ask(machine, Events(b"", first, 3))).events:
        assert {event[0] for event in answer.events}.isdisjoint(event[0] for event in found)
        found, first = found + answer.events, answer.next_index
    assert [event[0] for event in found] == [0, 0, 1, 1, 2, 2, 3]
    assert first == machine.applied_index + 1
    assert len(ask(machine, Events(b"", 0, 1)).events) == 2, "an entry's events stay together"


def test_an_answer_with_events_has_a_bound_of_bytes(machine):
    big = bytes(VALUE_BYTES_MAX)
    run(machine, put(b"a", big), put(b"a", big))
    answer = ask(machine, Events(b"", 0, 10))
    assert (len(answer.events), answer.next_index) == (1, 1)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_old_events_are_forgotten_wherever_batches_end(machine, monkeypatch, size):
    monkeypatch.setattr(kv, "EVENTS_KEPT", 5)
    pair = (Put(b"a", b"1"), Put(b"b", b"2"))
    commands = [Transaction((), pair)] * 10
    for begin in range(0, 10, size):
        run(machine, *commands[begin : begin + size])
    # five changes are kept: two whole entries, and half of one that counts as forgotten
    assert ask(machine, Events(b"", 7, 10)) == Happened([], 7, first_kept_index=8)
    assert [event[0] for event in ask(machine, Events(b"", 8, 10)).events] == [8, 8, 9, 9]
