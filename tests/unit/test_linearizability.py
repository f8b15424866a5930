"""The checker of linearizability: what it accepts, what it rejects, and that it is right."""

import random
from dataclasses import replace

import pytest

from quorumlog.sim.linearizability import (
    CounterModel,
    Kind,
    Operation,
    RegisterModel,
    UndecidedError,
    check,
)

KEY = b"k"
LATER = 1_000
REGISTER, COUNTER = RegisterModel(), CounterModel()
REGISTER_KINDS = [Kind.PUT, Kind.GET, Kind.GET, Kind.DELETE, Kind.COMPARE_AND_SET]
COUNTER_KINDS = [Kind.ADD, Kind.GET]


def operation(kind, invoked, returned, key=KEY, client=0, **fields):
    return Operation(client, key, kind, invoked, returned, **fields)


def put(value, invoked, returned, **fields):
    return operation(Kind.PUT, invoked, returned, value=value, **fields)


def get(result, invoked, returned, **fields):
    return operation(Kind.GET, invoked, returned, result=result, **fields)


def delete(result, invoked, returned):
    return operation(Kind.DELETE, invoked, returned, result=result)


def swap(expected, value, result, invoked, returned):
    fields = {"expected": expected, "value": value, "result": result}
    return operation(Kind.COMPARE_AND_SET, invoked, returned, **fields)


def add(value, result, invoked, returned):
    return operation(Kind.ADD, invoked, returned, value=value, result=result)


FINE = {
    "empty": [],
    "nothing there at first": [get(None, 0, 1)],
    "one after the other": [put(b"a", 0, 1), get(b"a", 2, 3), put(b"b", 4, 5), get(b"b", 6, 7)],
    "a read beside a write sees it": [put(b"a", 0, 9), get(b"a", 1, 2)],
    "a read beside a write does not see it": [put(b"a", 0, 9), get(None, 1, 2)],
    "what only touches overlaps": [put(b"a", 0, 5), get(None, 5, 6)],
    "readers during two writes": [
        put(b"a", 0, 20),
        put(b"b", 0, 20),
        get(b"a", 1, 4),
        get(b"b", 5, 8),
        get(b"b", 2, 9),
    ],
    "the same value again, beside others": [
        put(b"a", 0, 1),
        put(b"b", 2, 20),
        put(b"a", 2, 20),
        get(b"a", 3, 4),
        get(b"b", 5, 6),
        get(b"a", 7, 8),
    ],
    "an unknown write late": [put(b"a", 0, None), get(None, 1, LATER), get(b"a", LATER, LATER + 1)],
    "an unknown write never": [put(b"a", 0, None), get(None, 1, 2), get(None, LATER, LATER + 1)],
    "two unknown writes of the same": [
        put(b"a", 0, None),
        put(b"a", 1, None),
        put(b"b", 2, 3),
        get(b"a", 4, 5),
        put(b"b", 6, 7),
        get(b"a", 8, 9),
    ],
    "an unknown read": [put(b"a", 0, 1), get(None, 2, None), get(b"a", 3, 4)],
    "unknown ones that need each other": [
        put(b"a", 0, None),
        swap(b"a", b"b", None, 0, None),
        swap(b"b", b"c", None, 0, None),
        get(b"c", 1, 2),
    ],
    "deletes": [put(b"a", 0, 1), delete(True, 2, 3), get(None, 4, 5), delete(False, 6, 7)],
    "a delete that does not tell": [delete(None, 0, 1), put(b"a", 2, 3), delete(None, 4, 5)],
    "a swap that took place and one that did not": [
        swap(None, b"a", True, 0, 5),
        swap(None, b"b", False, 0, 5),
        get(b"a", 6, 7),
    ],
    "a swap with itself": [put(b"a", 0, 1), swap(b"a", b"a", True, 2, 3), get(b"a", 4, 5)],
}
WRONG = {
    "stale read": [put(b"a", 0, 1), put(b"b", 2, 3), get(b"a", 4, 5)],
    "lost update": [put(b"a", 0, 1), get(None, 2, 3)],
    "read of a value never written": [put(b"a", 0, 1), get(b"x", 2, 3)],
    "read of the future": [get(b"a", 0, 1), put(b"a", 2, 3)],
    "flickering back": [
        put(b"a", 0, 1),
        put(b"b", 2, 30),
        get(b"b", 3, 4),
        get(b"a", 5, 6),
    ],
    "two swaps that both won": [swap(None, b"a", True, 0, 5), swap(None, b"b", True, 0, 5)],
    "a swap that must have won": [put(b"a", 0, 1), swap(b"a", b"b", False, 2, 3)],
    "writes seen in both orders": [
        put(b"a", 0, 3),
        put(b"b", 0, 3),
        get(b"a", 4, 20, client=1),
        get(b"b", 4, 9, client=2),
        get(b"a", 10, 20, client=2),
        get(b"b", 21, 22, client=1),
    ],
    "an unknown write read and then unread": [
        put(b"a", 0, 1),
        put(b"b", 2, None),
        get(b"b", 3, 4),
        get(b"a", 5, 6),
    ],
    "an unknown write twice": [
        put(b"a", 0, None),
        get(b"a", 1, 2),
        put(b"b", 3, 4),
        get(b"b", 5, 6),
        get(b"a", 7, 8),
        put(b"b", 9, 10),
        get(b"a", 11, 12),
    ],
    "an unknown write before its invocation": [get(b"a", 0, 1), put(b"a", 2, None)],
    "deleted and still there": [put(b"a", 0, 1), delete(True, 2, 3), get(b"a", 4, 5)],
    "deleted twice": [put(b"a", 0, 1), delete(True, 2, 9), delete(True, 2, 9)],
    "put again beside the same value": [
        put(b"a", 0, 1),
        put(b"a", 2, 20),
        put(b"b", 3, 4),
        get(b"b", 21, 22),
        get(b"a", 23, 24),
    ],
}


@pytest.mark.parametrize("history", FINE.values(), ids=FINE)
def test_linearizable_histories_are_accepted(history):
    assert check(history, REGISTER) is None
    assert is_linearizable(history, REGISTER)


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_other_histories_are_rejected(history):
    assert check(history, REGISTER).key == KEY
    assert not is_linearizable(history, REGISTER)


def test_counter():
    fine = [add(2, 5, 0, 9), add(3, 3, 0, 9), get(3, 0, 9), add(1, None, 10, None), get(6, 11, 12)]
    assert check(fine, COUNTER) is None
    assert check([*fine, get(5, 13, 14)], COUNTER) is not None
    assert check([add(2, 2, 0, 1), add(2, 2, 2, 3)], COUNTER) is not None
    assert check([get(7, 0, 1)], CounterModel(initial=7)) is None


def test_one_bad_key_among_many():
    history = [
        each
        for number in range(50)
        for each in (put(b"a", 0, 1, key=b"%d" % number), get(b"a", 2, 3, key=b"%d" % number))
    ]
    assert check(history, REGISTER) is None
    history[63] = replace(history[63], result=b"b")
    assert check(history, REGISTER).key == b"31"


def test_violation_names_the_first_return_that_nothing_explains():
    stale = get(b"a", 40, 50, client=7)
    history = [
        put(b"a", 0, 10),
        put(b"b", 20, 30),
        put(b"c", 35, 60, client=3),
        stale,
        get(b"c", 70, 80),
        get(b"a", 90, 95),
    ]
    violation = check(history, REGISTER)
    assert violation.operations == (history[0], history[1], stale)
    assert str(violation).splitlines() == [
        "key b'k' is not linearizable: no order explains what had returned at 50",
        "all that had returned before can be ordered (2 operations), one order ends:",
        "  [0, 10] client 0: put b'a'",
        "  [20, 30] client 0: put b'b'",
        "state then: b'b'",
        "what no order explains together with these:",
        "  [40, 50] client 7: get -> b'a'",
        "not returned by then, 1 (may have happened or not), the last of them:",
        "  [35, ?] client 3: put b'c'",
    ]


def test_search_that_takes_too_long_claims_nothing():
    history = [put(b"%d" % n, 0, 100) for n in range(12)]
    with pytest.raises(UndecidedError, match="no verdict on 12 completed and 0 unknown"):
        check(history, REGISTER, steps_max=50)
    bad = get(b"x", 0, 1, key=b"other")
    assert check([*history, bad], REGISTER, steps_max=50).key == b"other"


def test_impossible_operations_are_refused():
    with pytest.raises(ValueError, match="unknown outcome has no result"):
        get(b"a", 0, None)
    with pytest.raises(ValueError, match="returned before it was invoked"):
        put(b"a", 1, 0)
    with pytest.raises(ValueError, match="no operation of a register"):
        check([add(1, 1, 0, 1)], REGISTER)
    with pytest.raises(ValueError, match="no operation of a counter"):
        check([put(b"a", 0, 1)], COUNTER)


# -- against an atomic object, and against trying everything ----------------------------------


def is_linearizable(history, model):
    """Try every order of every choice of the unknown operations."""

    def goes_on(left, state):
        if all(each.returned is None for each in left):
            return True
        for each in left:
            if any(o.returned is not None and o.returned < each.invoked for o in left):
                continue
            fits, after = model.step(state, each)
            if fits and goes_on([other for other in left if other is not each], after):
                return True
        return False

    known = [each for each in history if each.returned is not None or each.kind is not Kind.GET]
    return goes_on(known, model.initial)


def atomic_history(chance, model, kinds, count, clients, unknown=0, values=3):
    """Operations on an object that does one at a time, each between its invocation and return."""
    free, plans = [0] * clients, []
    lost = set(chance.sample(range(count), unknown))
    for number in range(count):
        client = free.index(min(free))
        invoked = free[client] + chance.randint(0, 10)
        effect = invoked + chance.randint(0, 50)
        free[client] = effect + chance.randint(1, 50)
        if number in lost:
            effect += chance.choice([0, 0, 500, 1 << 40])
        plans.append((effect, number, client, invoked, None if number in lost else free[client]))
    state, history = model.initial, []
    for effect, _, client, invoked, returned in sorted(plans, key=lambda plan: plan[0]):
        kind = chance.choice(kinds)
        writes = kind in (Kind.PUT, Kind.COMPARE_AND_SET, Kind.ADD)
        value, expected = chance.randint(1, values) if writes else None, None
        if kind is Kind.COMPARE_AND_SET:
            expected = chance.choice([state, None, 1])
        done = Operation(client, KEY, kind, invoked, None, value, expected)
        before, (_, after) = state, model.step(state, done)
        result = {
            Kind.GET: before,
            Kind.DELETE: before is not None,
            Kind.COMPARE_AND_SET: before == expected,
            Kind.ADD: after,
        }.get(kind)
        if returned is not None:
            done = replace(done, returned=returned, result=result)
        if effect < 1 << 40:
            state = after
        history.append(done)
    chance.shuffle(history)
    return history


def with_another_read(chance, history, results):
    """Return the history with one result changed, or None when it has no read."""
    reads = [each for each in history if each.kind is Kind.GET and each.returned is not None]
    if not reads:
        return None
    read = chance.choice(reads)
    other = chance.choice([result for result in results if result != read.result])
    return [replace(each, result=other) if each is read else each for each in history]


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize("kind", ["register", "counter"])
def test_small_histories_of_an_atomic_object(kind, seed):
    chance = random.Random(seed)
    model, kinds = (REGISTER, REGISTER_KINDS) if kind == "register" else (COUNTER, COUNTER_KINDS)
    unknown = chance.randint(0, 2)
    history = atomic_history(chance, model, kinds, 7, chance.randint(1, 4), unknown)
    assert check(history, model) is None
    changed = with_another_read(chance, history, range(10) if kind == "counter" else (None, 1, 2))
    if changed is not None:
        assert (check(changed, model) is None) == is_linearizable(changed, model)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("values", [3, 1_000_000])
def test_histories_of_an_atomic_register_are_accepted(values, seed):
    chance = random.Random(seed)
    history = atomic_history(chance, REGISTER, REGISTER_KINDS, 200, 6, 10, values)
    assert check(history, REGISTER) is None


def test_long_history():
    chance = random.Random(1)
    kinds = [Kind.PUT, Kind.GET]
    history = atomic_history(chance, REGISTER, kinds, 1_000, 8, 20, 1_000_000)
    assert check(history, REGISTER) is None
    reads = [each for each in history if each.kind is Kind.GET and each.returned is not None]
    reads.sort(key=lambda each: each.invoked)
    stale = replace(reads[-20], result=reads[-80].result)
    violation = check([stale if each is reads[-20] else each for each in history], REGISTER)
    assert stale in violation.operations
