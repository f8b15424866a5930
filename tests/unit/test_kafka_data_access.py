"""The audit log has the reads and writes of Kafka clients that were allowed, and no others."""

from types import SimpleNamespace as Is

import pytest

from quorumlog.kafka.context import RequestContext
from quorumlog.kafka.fetch import FetchTopic
from quorumlog.kafka.handlers.fetch import _Fetching
from quorumlog.kafka.handlers.produce import ACKS_NONE, _start
from quorumlog.kafka.produce import ProduceRequest
from quorumlog.kafka.requests import ApiKey
from quorumlog.kafka.rights import Rights

NAMES = ("mine", "hidden")


class Audited:
    def __init__(self):
        self.told = []

    def is_accessed(self, kind, name):
        return True

    def record(self, event):
        self.told.append((event.operation, event.resource))


class Permit:
    principal = "User:alice"
    only_reports = False

    def may(self, operation, kind, name):
        return name == "mine"


@pytest.fixture
def asking():
    topics = {name: Is(name=name) for name in NAMES}
    ids = {name.encode(): topic for name, topic in topics.items()}
    services = Is(audit=Audited(), broker=Is(topics=topics, topics_by_id=ids))
    header = Is(api_key=ApiKey.PRODUCE, client_id="")
    context = RequestContext(services, header, "192.0.2.1:5", None, rights=Rights(Permit()))
    return Is(context=context, header=header, answered=lambda answer: None)


def test_writes_that_are_refused_are_none(asking):
    _start(asking, ProduceRequest(None, ACKS_NONE, 1_000, [(name, []) for name in NAMES]))
    assert asking.context.services.audit.told == [("Write", "topic:mine")]


def test_reads_that_are_refused_are_none(asking):
    fetching = _Fetching(asking, None)
    for name in NAMES:
        fetching._resolve(FetchTopic(name, None, []), [], [])
    assert asking.context.services.audit.told == [("Read", "topic:mine")]
