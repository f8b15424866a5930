"""Commands, questions and what may happen to the files of the key-value machine, for its tests."""

import io
import shutil

from quorumlog.machine.kv_commands import (
    SCAN_ITEMS_MAX,
    Compare,
    Delete,
    Events,
    Put,
    Scan,
    Transaction,
    decode_answer,
    decode_outcome,
    encode_command,
    encode_query,
)
from quorumlog.model.entry import Entry


def put(key, value):
    return Transaction(then=(Put(key, value),))


def delete(key):
    return Transaction(then=(Delete(key),))


def compare_and_set(key, expected, value):
    return Transaction((Compare(key, value=expected),), (Put(key, value),))


def entry(index, command):
    body = command if isinstance(command, bytes) else encode_command(command)
    return Entry(index=index, term=1, pos=0, body=body)


def run(machine, *commands):
    """Apply commands as the next entries; return their outcomes."""
    first = machine.applied_index + 1
    entries = [entry(first + number, command) for number, command in enumerate(commands)]
    return [decode_outcome(result) for result in machine.apply(entries)]


def ask(machine, query):
    return decode_answer(machine.query(encode_query(query)))


def scan(machine, begin=b"", end=None, limit=SCAN_ITEMS_MAX, reverse=False):
    return ask(machine, Scan(begin, end, limit, reverse))


def keys(page):
    return [key for key, _, _ in page.items]


def everything(machine):
    return (
        machine.applied_index,
        machine.digest(),
        scan(machine),
        ask(machine, Events(b"", 0, SCAN_ITEMS_MAX)),
    )


def copy_of(machine_directory, target):
    """Return what a process that was killed would leave behind."""
    shutil.copytree(machine_directory, target)
    return str(target)


def saved(state):
    writer = io.BytesIO()
    state.save_snapshot(writer)
    return writer.getvalue()
