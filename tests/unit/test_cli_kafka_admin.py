"""How commands that speak the Kafka protocol ask again, and what they say in the end."""

import re
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NotCoordinatorError

from quorumlog.cli import consumer_group, kafka_admin
from quorumlog.cli.app import run as main
from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import KafkaAdmin
from quorumlog.cli.kafka_reach import Found, Reach, is_hopeless, words_of
from quorumlog.cli.unknown_names import TOPIC, none_of, none_of_each

NOWHERE = "127.0.0.1:1"
TIMEOUT_S = 0.3


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(kafka_admin, "RETRY_S", 0.01)


def failing(*errors):
    """Raise these one after the other, and the last one from then on."""
    left = list(errors)

    def act(_client):
        raise left.pop(0) if len(left) > 1 else left[0]

    return act


def client(_connect_s, _request_s):
    return SimpleNamespace(close=lambda: None)


def test_what_a_broker_answered_counts_for_more_than_that_none_was_reached_later():
    admin = KafkaAdmin(client, NOWHERE, TIMEOUT_S)
    with pytest.raises(NotCoordinatorError):
        admin.ask(failing(KafkaConnectionError(), NotCoordinatorError(), KafkaConnectionError()))
    admin = KafkaAdmin(client, NOWHERE, TIMEOUT_S)
    with pytest.raises(KafkaConnectionError):
        admin.ask(failing(KafkaConnectionError()))


def test_the_first_answer_counts_if_there_is_no_connection_any_more():
    made = []

    def once(connect_s, request_s):
        made.append(connect_s)
        if len(made) > 1:
            raise KafkaTimeoutError
        return client(connect_s, request_s)

    with pytest.raises(NotCoordinatorError):
        KafkaAdmin(once, NOWHERE, TIMEOUT_S).ask(failing(NotCoordinatorError()))
    assert len(made) == 2


def test_brokers_are_given_no_more_time_than_they_are_waited_for(monkeypatch):
    """Else they say why a topic was not created when nobody listens any more."""
    waited_ms, given_ms = [], []

    class Admin:
        def __init__(self, *, request_timeout_ms, **_settings):
            waited_ms.append(request_timeout_ms - kafka_admin.LATER_MS)

        def create_topics(self, _topics, *, timeout_ms, **_options):
            given_ms.append(timeout_ms)
            time.sleep(0.02)
            if len(given_ms) == 1:
                raise KafkaConnectionError("ECONNREFUSED")
            return {"topics": []}

        def close(self):
            pass

    monkeypatch.setattr("kafka.KafkaAdminClient", Admin)
    monkeypatch.setattr(kafka_admin, "check_cluster", lambda *_: None)
    create = ["topic", "create", "t", "--bootstrap-server", NOWHERE, "--timeout", "60"]
    assert main(create) == 0
    assert len(given_ms) == len(waited_ms) == 2
    assert all(given <= waited for given, waited in zip(given_ms, waited_ms, strict=True))


def test_what_became_of_groups_is_kept_if_others_cannot_be_deleted():
    answers = {"a": "OK", "b": "NotCoordinatorError"}
    asked = []

    def make(_connect_s, _request_s):
        def delete_groups(names):
            asked.append(names)
            return {name: answers[name] for name in names}

        return SimpleNamespace(delete_groups=delete_groups, close=lambda: None)

    admin = KafkaAdmin(make, NOWHERE, TIMEOUT_S)
    assert consumer_group._deleted(admin, ["a", "b"]) == answers
    assert asked[:2] == [["a", "b"], ["b"]]


def test_nobody_is_waited_for_where_nothing_listens():
    made = []

    def never(connect_s, _request_s):
        made.append(connect_s)
        raise KafkaTimeoutError

    with pytest.raises(CommandError, match=rf"no broker answers at {NOWHERE} \(Connection refused"):
        KafkaAdmin(never, NOWHERE, 60)
    assert made == [kafka_admin.FIRST_S]


@pytest.mark.parametrize(
    ("reaches", "hopeless", "said"),
    [
        ([Reach.REFUSED, Reach.TAKEN], False, "b:1 takes connections and names no broker in 9 s"),
        ([Reach.OF_NODES, Reach.REFUSED], True, "a:1 is a node's port for quorumlog's own"),
        ([Reach.REFUSED, Reach.UNKNOWN], True, "why b"),
        ([Reach.SILENT, Reach.REFUSED], False, r"at a:1, b:1 in 9 s \(why a; why b\): is it"),
    ],
)
def test_of_several_addresses_the_one_that_says_most_is_named(reaches, hopeless, said):
    found = [
        Found(f"{one}:1", reach, f"why {one}") for one, reach in zip("ab", reaches, strict=True)
    ]
    assert is_hopeless(found) == hopeless
    assert re.search(said, words_of(found, " in 9 s"))


def test_groups_are_listed_with_the_words_of_kafkas_own_tool(monkeypatch, capsys):
    groups = [
        {"group_id": "a", "group_type": "consumer", "group_state": "Empty", "protocol_type": ""},
        {
            "group_id": "bcd",
            "group_type": "classic",
            "group_state": "Stable",
            "protocol_type": "consumer",
        },
        {"group_id": "e", "group_state": "Stable", "protocol_type": "consumer"},
    ]
    admin = nullcontext(SimpleNamespace(ask=lambda act: groups))
    monkeypatch.setattr(consumer_group, "kafka_admin", lambda *_: admin)
    assert main(["consumer-group", "list", "--bootstrap-server", NOWHERE]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["GROUP", "TYPE", "STATE"],
        ["a", "Consumer", "Empty"],
        ["bcd", "Classic", "Stable"],
        ["e", "-", "Stable"],
    ]


STRANGE = "x\x1b[2J\x07\nforged"


def member_of(name):
    return {
        "member_id": name,
        "group_instance_id": name,
        "client_id": name,
        "client_host": "/192.0.2.1",
        "member_assignment": b"",
    }


def test_what_members_call_themselves_steers_no_terminal(monkeypatch, capsys):
    described = {
        "group_type": "classic",
        "group_state": "Stable",
        "protocol_data": STRANGE,
        "members": [member_of(STRANGE)],
    }

    @contextmanager
    def admin(*_):
        yield SimpleNamespace(ask=lambda act: act(None))

    monkeypatch.setattr(consumer_group, "kafka_admin", admin)
    monkeypatch.setattr(consumer_group, "_described", lambda _, names: {names[0]: described})
    monkeypatch.setattr(consumer_group, "_shares", lambda _, group, described: [])
    where = ["--bootstrap-server", NOWHERE]
    assert main(["consumer-group", "describe", STRANGE, *where]) == 0
    assert main(["consumer-group", "reset", STRANGE, "--to-latest", *where]) == 1
    said = capsys.readouterr()
    for line in (said.out + said.err).splitlines():
        assert line.isprintable()
        assert not line.startswith("forged")
    assert "assignor x\\x1b[2J\\x07\\nforged" in said.out
    assert "x\\x1b[2J\\x07\\nforged at /192.0.2.1" in said.err


def test_an_error_keeps_its_lines_and_steers_no_terminal(monkeypatch, capsys):
    def broken(*_):
        raise CommandError("one\ntwo \x1b[2J")

    monkeypatch.setattr(consumer_group, "kafka_admin", broken)
    assert main(["consumer-group", "list"]) == 1
    assert capsys.readouterr().err == "quorumlog: one\ntwo \\x1b[2J\n"


def test_an_unknown_name_is_said_also_if_brokers_do_not_say_which_there_are():
    admin = KafkaAdmin(client, NOWHERE, TIMEOUT_S)
    admin.client.list_topics = lambda: failing(KafkaConnectionError())(None)
    assert none_of(admin, TOPIC, ["a", "b"]) == (
        "there is no topic 'a', 'b' ('quorumlog topic list' shows those there are)"
    )
    admin.client.list_topics = lambda: ["flights", "orders"]
    said = none_of_each(admin, TOPIC, ["flight", "x"])
    assert said["flight"].startswith("there is no topic 'flight'; did you mean 'flights'? (")
    assert "mean" not in said["x"]
