"""Logs and messages for tests of the Raft core, as short to write as they can be."""

from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.model.codes import PushType
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    PushRequest,
    PushResponse,
    VoteRequest,
    VoteResponse,
)


class Entry(NamedTuple):
    """An entry; `chain` covers everything up to and including it."""

    term: int
    payload: int
    chain: int


def chained(before, term, payload):
    return Entry(term, payload, hash((before, term, payload)))


def named(message, entries):
    """The memberships that the entries of a push name."""
    first = getattr(message, "first_index", -1)
    return tuple(
        (index, entry.payload)
        for index, entry in enumerate(entries, first)
        if isinstance(entry.payload, Membership)
    )


@dataclass
class Contents:
    """A log: entries base + 1 … end."""

    base: int = -1
    base_term: int = -1
    entries: list = field(default_factory=list)
    base_chain: int = 0
    config: tuple | None = None

    @property
    def end(self):
        return self.base + len(self.entries)

    def at(self, index):
        return self.entries[index - self.base - 1]

    def chain_at(self, index):
        if index > self.base:
            return self.at(index).chain
        return self.base_chain if index == self.base else 0

    def put(self, first, entries):
        assert first == self.end + 1, "a log has no gaps"
        self.entries.extend(entries)

    def cut(self, from_index):
        assert self.base < from_index <= self.end
        del self.entries[from_index - self.base - 1 :]

    def reset(self, base, base_term, base_chain, config=None):
        """Start the log after `base`; later entries stay. `config`: (index, membership), if any."""
        before = [pair for pair in self.memberships() if pair[0] <= base]
        self.config = max(
            [*before, *([config] if config else [])], default=None, key=lambda pair: pair[0]
        )
        self.entries = self.entries[max(0, base - self.base) :]
        self.base, self.base_term, self.base_chain = base, base_term, base_chain

    def memberships(self, founders=None):
        """What the log names; `founders` founded the group before the log's first entry."""
        named_here = [
            (index, entry.payload)
            for index, entry in enumerate(self.entries, self.base + 1)
            if isinstance(entry.payload, Membership)
        ]
        before = [] if self.config is None else [self.config]
        return [*([(-1, founders)] if founders is not None else []), *before, *named_here]

    def runs(self):
        runs = []
        for index, entry in enumerate(self.entries, self.base + 1):
            if not runs or runs[-1][0] != entry.term:
                runs.append((entry.term, index))
        return runs

    def copy(self):
        return Contents(self.base, self.base_term, list(self.entries), self.base_chain, self.config)


def log_of(*runs, base=-1, base_term=-1):
    """Contents from (term, count) pairs; equal pairs give equal entries, as from one leader."""
    contents = Contents(base, base_term)
    for term, count in runs:
        for _ in range(count):
            index = contents.end + 1
            before = contents.chain_at(contents.end)
            contents.put(index, [chained(before, term, -(term * 1_000_000 + index))])
    return contents


def vote_request(source, target, term, end=(-1, -1), *, pre_vote=False):
    """`end` is (ledger end index, ledger end term)."""
    return VoteRequest(
        group="g",
        local_id=source,
        remote_id=target,
        term=term,
        ledger_end_index=end[0],
        ledger_end_term=end[1],
        pre_vote=pre_vote,
    )


def vote_response(source, target, term, result, request_term, *, pre_vote=False):
    return VoteResponse(
        group="g",
        local_id=source,
        remote_id=target,
        term=term,
        vote_result=result,
        request_term=request_term,
        pre_vote=pre_vote,
    )


def heartbeat(source, target, term, number=1):
    return HeartBeatRequest(group="g", local_id=source, remote_id=target, term=term, round=number)


def push(kind, source, target, term, prev, **fields):
    """`prev` is (index, term)."""
    fields.setdefault("request_id", 77)
    fields.setdefault("commit_index", -1)
    return PushRequest(
        group="g",
        local_id=source,
        remote_id=target,
        term=term,
        type=kind,
        prev_index=prev[0],
        prev_term=prev[1],
        **fields,
    )


def append_of(contents, source, target, term, first, last, **fields):
    """An APPEND of entries first … last of `contents`, and those entries."""
    prev = (-1, -1) if first == 0 else (first - 1, contents.at(first - 1).term)
    part = Contents(first - 1, 0, [contents.at(index) for index in range(first, last + 1)])
    message = push(
        PushType.APPEND,
        source,
        target,
        term,
        prev,
        first_index=first,
        last_index=last,
        term_runs=part.runs(),
        **fields,
    )
    return message, part.entries


def push_response(kind, source, target, term, request_id, code, **fields):
    return PushResponse(
        group="g",
        local_id=source,
        remote_id=target,
        term=term,
        type=kind,
        request_id=request_id,
        code=code,
        **fields,
    )


def long_push():
    """A list that takes some thirty times its bytes once it is decoded."""
    return PushRequest(
        group="g",
        local_id="n1",
        remote_id="n0",
        term=1,
        type=PushType.APPEND,
        request_id=1,
        prev_index=0,
        prev_term=0,
        commit_index=0,
        term_runs=[(1, 1)] * 60_000,
    )
