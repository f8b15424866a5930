"""What Kafka's clients may do where the answer depends on when it is judged."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.handlers.produce import _Production
from quorumlog.kafka.handlers.topics import handle_delete_topics
from quorumlog.kafka.rights import Rights
from quorumlog.model.codes import ResponseCode
from rights import RightsOfTest

ALICE = "User:alice"
ID = UUID(int=7)


@pytest.fixture
def rights():
    return RightsOfTest()


class Deleting:
    """A broker that learns of a topic late, and a client that deletes it by its id."""

    def __init__(self, rights, learns="t", *, has_leader=True):
        self.topics, self.topics_by_id = {}, {}
        self.executed, self.errors = [], []
        self._learns, self._has_leader = learns, has_leader
        self.rights = Rights(rights.permit(ALICE))
        self.header = SimpleNamespace(version=6)
        self.services = SimpleNamespace(now=lambda: 0.0)
        self.broker = self

    async def barrier(self, timeout_ms):
        if self._has_leader and self._learns:
            self.topics_by_id[ID.bytes] = SimpleNamespace(name=self._learns, topic_id=ID.bytes)
        return self._has_leader

    async def execute(self, command, timeout_ms):
        self.executed += command.topics
        outcome = SimpleNamespace(code=ResponseCode.SUCCESS, name="t", topic_id=ID.bytes)
        return SimpleNamespace(topics=[outcome] * len(command.topics))

    def within_ms(self, timeout_ms):
        return timeout_ms

    async def in_turns(self, elements):
        for one in elements:
            yield one

    def note_error(self, error, text, **where):
        self.errors.append(error)

    async def delete(self):
        asked = [SimpleNamespace(name=None, topic_id=ID)]
        request = SimpleNamespace(topics=asked, timeout_ms=1_000)
        (found,) = (await handle_delete_topics(self, request))["responses"]
        return found["error_code"]


async def test_a_topic_of_an_id_that_is_learnt_late_is_not_deleted_without_the_right(
    rights,
):
    rights.give(ALICE, "describe topic t", "delete topic other")
    deleting = Deleting(rights)
    assert await deleting.delete() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert deleting.executed == []
    rights.take(ALICE, "describe topic t")
    assert await Deleting(rights).delete() == ErrorCode.UNKNOWN_TOPIC_ID
    rights.give(ALICE, "delete topic t")
    deleting = Deleting(rights)
    assert await deleting.delete() == ErrorCode.NONE
    assert [one.topic_id for one in deleting.executed] == [ID.bytes]


async def test_an_id_that_is_nobodys_is_not_passed_on(rights):
    rights.give(ALICE, "delete topic *")
    deleting = Deleting(rights, learns="")
    assert await deleting.delete() == ErrorCode.UNKNOWN_TOPIC_ID
    assert deleting.executed == []
    deleting = Deleting(rights, has_leader=False)
    assert await deleting.delete() == ErrorCode.REQUEST_TIMED_OUT
    assert deleting.executed == []


def test_a_batch_that_has_waited_is_judged_by_the_rights_of_then(rights):
    rights.give(ALICE, "write topic t")
    context = SimpleNamespace(rights=Rights(rights.permit(ALICE)), services=None)
    parsed = SimpleNamespace(topics=[("t", [(0, 0, 0)])])
    waiting = _Production(SimpleNamespace(context=context), parsed)
    assert not waiting.forbidden
    rights.take(ALICE, "write topic t")
    assert waiting._target("t", 0).error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
