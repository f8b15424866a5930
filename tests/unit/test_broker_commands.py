"""Commands on their way to whoever leads `__cluster`, with scripted neighbours."""

import pytest

from quorumlog.broker.commands import (
    ANSWER_MS,
    CALL_BYTES_MAX,
    CALLS_MAX,
    REPLY_MS,
    RETRY_MS,
    SERVED_MAX,
    Commands,
    CommandSessions,
)
from quorumlog.machine.cluster.commands import (
    AllocateProducerIds,
    Changed,
    CreateTopics,
    DeleteTopics,
    Forgotten,
    Refused,
    TopicToDelete,
    decode_envelope,
    encode,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.cluster import ClusterAnswer, ClusterCommand

OK = ResponseCode.SUCCESS
RESULT = encode(Changed(3))
COMMAND = AllocateProducerIds(3)


class Network:
    """A clock, a leader, and what was sent to whom."""

    def __init__(self):
        self.time_ms, self.leads, self.is_up, self.applied = 0, "n1", True, 100
        self.sent, self.served = [], []

    def now_ms(self):
        return self.time_ms

    def wall_ms(self):
        return 1_000 + self.time_ms

    def leader(self):
        return self.leads

    def applied_index(self):
        return self.applied

    def send(self, peer_id, message, attachments=()):
        if self.is_up:
            self.sent.append((peer_id, message, b"".join(attachments)))
        return self.is_up

    def serve(self, data, timeout_ms, answer):
        self.served.append((data, timeout_ms, answer))


class Case:
    def __init__(self):
        self.network = Network()
        self.commands = Commands("n0", b"session.", self.network)
        self.results = []

    def execute(self, command=COMMAND, timeout_ms=10_000):
        self.commands.execute(command, timeout_ms, lambda *found: self.results.append(found))

    def pass_time(self, by_ms):
        self.network.time_ms += by_ms
        self.commands.tick()

    def answer(self, code=OK, number=1, sender="n1", index=5, data=RESULT):
        answer = ClusterAnswer(
            local_id=sender, remote_id="n0", number=number, code=code, index=index, text="why"
        )
        self.commands.received(answer, data)


@pytest.fixture
def case():
    return Case()


def test_commands_wait_up_to_a_bound_of_bytes():
    case = Case()
    large = DeleteTopics([TopicToDelete("x" * 200, bytes(16)) for _ in range(4_000)])
    while not case.results:
        case.execute(large)
    assert case.results[0][0] is ResponseCode.LEADER_PENDING_FULL
    assert "bytes wait already" in case.results[0][1]
    waiting = len(case.commands)
    assert CALL_BYTES_MAX // 1_000_000 <= waiting <= CALL_BYTES_MAX // 800_000
    case.pass_time(10_000)
    assert len(case.results) == 1 + waiting
    case.execute(large)
    assert len(case.commands) == 1


def test_a_command_goes_to_the_leader_and_its_result_comes_back(case):
    case.execute()
    ((peer, message, data),) = case.network.sent
    assert (peer, decode_envelope(data).command, message.timeout_ms) == (
        "n1",
        COMMAND,
        10_000 - REPLY_MS,
    )
    case.answer()
    assert case.results == [(OK, "", Changed(3))]
    case.answer()
    assert len(case.results) == 1, "an answer that comes twice counts once"
    assert len(case.commands) == 0


def test_the_result_waits_until_it_shows_here(case):
    case.execute()
    case.answer(index=101)
    assert not case.results
    case.network.applied = 101
    case.commands.applied()
    assert case.results == [(OK, "", Changed(3))]


def test_a_command_whose_result_was_not_kept_is_answered_as_carried_out(case):
    case.execute()
    case.answer(ResponseCode.NOT_LEADER)
    case.pass_time(RETRY_MS)
    case.answer(data=encode(Forgotten()))
    ((code, text, result),) = case.results
    assert (code, result) == (ResponseCode.RESULTS_FORGOTTEN, None)
    assert "applied" in text
    case.pass_time(ANSWER_MS)
    assert len(case.network.sent) == 2, "it is not sent again"


def test_a_result_that_does_not_show_here_in_time_is_given_all_the_same(case):
    case.execute(timeout_ms=500)
    case.answer(index=101)
    case.pass_time(501)
    assert case.results == [(OK, "", Changed(3))]


def test_a_refused_command_is_sent_again_to_whoever_leads_then(case):
    case.execute()
    case.answer(ResponseCode.NOT_LEADER)
    assert not case.results
    case.network.leads = "n2"
    case.pass_time(RETRY_MS)
    assert [peer for peer, _, _ in case.network.sent] == ["n1", "n2"]
    case.answer(sender="n1")
    assert not case.results, "n1 is not asked any more"
    case.answer(sender="n2")
    assert case.results[0][0] is OK


def test_a_command_without_an_answer_is_sent_again(case):
    case.execute()
    case.pass_time(ANSWER_MS - 1)
    assert len(case.network.sent) == 1
    case.pass_time(1)
    assert len(case.network.sent) == 2


def test_a_new_leader_is_asked_at_once(case):
    case.execute()
    case.network.leads = "n2"
    case.pass_time(1)
    assert case.network.sent[-1][0] == "n2"


def test_a_command_that_has_no_time_left_says_why(case):
    case.network.leads = None
    case.execute(timeout_ms=1_000)
    case.pass_time(1_000)
    code, text, result = case.results[0]
    assert (code, result) == (ResponseCode.TIMEOUT, None)
    assert "no leader of __cluster is known" in text
    case.network.leads, case.network.is_up = "n1", False
    case.execute(timeout_ms=1_000)
    case.pass_time(RETRY_MS)
    case.pass_time(1_000)
    assert "n1, which leads __cluster, cannot be reached" in case.results[1][1]


def test_an_error_that_another_attempt_does_not_mend_is_the_answer(case):
    case.execute()
    case.answer(ResponseCode.DISK_ERROR)
    assert case.results == [(ResponseCode.DISK_ERROR, "why", None)]
    case.execute()
    case.answer(number=2, data=b"\xff")
    assert case.results[1][0] is ResponseCode.UNSUPPORTED


def test_the_leader_serves_its_own_commands_without_a_message(case):
    case.network.leads = "n0"
    case.execute()
    ((data, timeout_ms, answer),) = case.network.served
    assert (decode_envelope(data).command, timeout_ms) == (COMMAND, 10_000 - REPLY_MS)
    assert case.network.sent == []
    answer(ResponseCode.TERM_CHANGED, "", b"", -1)
    case.pass_time(RETRY_MS)
    case.network.served[1][2](OK, "", RESULT, 7)
    assert case.results == [(OK, "", Changed(3))]


def test_a_command_of_another_node_is_served_and_answered(case):
    asked = ClusterCommand(local_id="n2", remote_id="n0", number=9, timeout_ms=500)
    case.commands.received(asked, memoryview(b"theirs"))
    data, timeout_ms, answer = case.network.served[0]
    assert (data, timeout_ms) == (b"theirs", 500)
    answer(OK, "", RESULT, 12)
    peer, message, attached = case.network.sent[0]
    assert (peer, message.number, message.code, message.index) == ("n2", 9, OK, 12)
    assert attached == RESULT


def test_what_is_under_way_is_bounded(case):
    case.execute(DeleteTopics([TopicToDelete("x" * 1_000)] * 2_000))
    assert case.results.pop()[0] is ResponseCode.UNEXPECTED_ARGUMENT
    for _ in range(CALLS_MAX + 1):
        case.execute()
    assert case.results.pop()[0] is ResponseCode.LEADER_PENDING_FULL
    case.network.sent.clear()
    for number in range(SERVED_MAX + 1):
        asked = ClusterCommand(local_id="n2", remote_id="n0", number=number, timeout_ms=500)
        case.commands.received(asked, b"")
    assert len(case.network.served) == SERVED_MAX
    assert case.network.sent[0][1].code is ResponseCode.LEADER_PENDING_FULL


def test_a_command_that_comes_again_is_the_same_and_says_which_ones_have_no_answer(case):
    for _ in range(3):
        case.execute()
    case.answer(number=2)
    case.pass_time(ANSWER_MS)
    case.execute()
    found = [decode_envelope(data) for _, _, data in case.network.sent]
    numbers = [int.from_bytes(one.command_id[8:]) for one in found]
    assert numbers == [1, 2, 3, 1, 3, 4]
    assert found[0] == found[3]
    assert [one.lowest for one in found] == [1, 1, 1, 1, 1, 1]
    for number in (1, 3, 4):
        case.answer(number=number)
    case.execute()
    assert decode_envelope(case.network.sent[-1][2]).lowest == 5
    assert {one.command_id[:8] for one in found} == {b"session."}


def test_a_command_without_an_answer_bounds_those_that_come_after_it(case):
    case.execute()
    for number in range(2, CALLS_MAX + 1):
        case.execute()
        case.answer(number=number)
    assert len(case.commands) == 1
    case.execute()
    assert case.results[-1][0] is ResponseCode.LEADER_PENDING_FULL
    case.answer(number=1)
    case.execute()
    assert len(case.commands) == 1


def test_everything_is_answered_when_the_node_stops(case):
    case.execute()
    case.execute()
    case.answer(number=2, index=101)
    case.commands.end("the node stops")
    assert sorted(code for code, _, _ in case.results) == [OK, ResponseCode.NODE_STOPPING]


def test_a_command_that_is_sent_again_while_it_waits_here_is_carried_out_once(case):
    command = ClusterCommand(local_id="n2", remote_id="n0", number=7, timeout_ms=60_000)
    for _ in range(3):
        case.commands.received(command, b"data")
    assert len(case.network.served) == 1
    (_, _, answer) = case.network.served[0]
    answer(OK, "", RESULT, 5)
    assert [peer_id for peer_id, _, _ in case.network.sent] == ["n2"]
    case.commands.received(command, b"data")
    assert len(case.network.served) == 2, "its answer may have been lost"


def test_what_an_earlier_run_was_answered_is_not_taken_for_an_answer_of_this_one():
    case = Case()
    case.commands = Commands("n0", b"session.", case.network, last_number=1_000)
    case.execute()
    case.answer(number=1)
    assert case.results == []
    case.answer(number=1_001)
    assert case.results == [(OK, "", Changed(3))]


def test_a_command_that_no_version_here_knows_is_refused_in_words(case):
    case.execute()
    case.answer(data=encode(Refused("not known")))
    assert case.results == [(ResponseCode.UNSUPPORTED, "not known", None)]


def test_commands_that_wait_for_partition_groups_do_not_hold_up_the_others():
    network, results = Network(), []
    commands = CommandSessions("n0", network, 4_096)
    commands.execute(CreateTopics([]), 60_000, lambda *found: results.append("held"))
    for _ in range(2 * CALLS_MAX):
        commands.execute(COMMAND, 10_000, lambda *found: results.append(found))
        _, message, _ = network.sent.pop()
        answer = ClusterAnswer(
            local_id="n1", remote_id="n0", number=message.number, code=OK, index=5
        )
        commands.received(answer, RESULT)
    assert results == [(OK, "", Changed(3))] * (2 * CALLS_MAX)
    assert len(commands) == 1
    commands.execute(DeleteTopics([TopicToDelete("x" * 100)] * 50), 10_000, lambda *_: None)
    assert len(commands) == 1, "a command is no larger than an entry"
    commands.end("over")
    assert results[-1] == "held"
