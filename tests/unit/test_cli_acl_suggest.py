"""`quorumlog acl suggest`: what audit logs say is missing becomes commands that allow just that."""

import json
import shlex

import pytest

from quorumlog.auth.acls import OPERATIONS, Operation, ResourceType
from quorumlog.auth.permits import Refused, Right
from quorumlog.cli.main import main
from quorumlog.service.authorization import RefusalLines


class File:
    """An audit log: a file with the lines that `RefusalLines` has recorded."""

    has_room = True

    def __init__(self, path):
        self._path = path
        self._lines = RefusalLines(lambda: 0.0, self)
        self._path.write_text("")

    def record(self, event, **others):
        at = "2026-11-29T12:00:01.000Z"
        values = {name: getattr(event, name) for name in event.__struct_fields__}
        line = {"at": at, **values, "n": 1, **others}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def ask(self, user, operation, kind, name, *, enforced=False):
        principal = user if ":" in user else f"User:{user}"
        right = Right(operation, kind, name)
        self._lines(Refused(principal, "10.0.0.1:5000", right, enforced))

    def write(self, **line):
        with self._path.open("a") as file:
            file.write(json.dumps({"event": "request-refused", "allowed": False, **line}) + "\n")

    def suggested(self, capsys, *options):
        assert main(["acl", "suggest", "--file", str(self._path), *options]) == 0
        said = capsys.readouterr()
        return said.out.splitlines(), said.err


@pytest.fixture
def log(tmp_path):
    return File(tmp_path / "quorumlog.audit.log")


def test_rights_are_grouped_by_principal_and_by_what_is_missing(log, capsys):
    for topic in ("flights", "a b"):
        log.ask("alice", Operation.WRITE, ResourceType.TOPIC, topic)
    log.ask("alice", Operation.READ, ResourceType.CONSUMER_GROUP, "etl")
    log.ask("alice", Operation.READ, ResourceType.CONSUMER_GROUP, "etl")
    log.ask("bob", Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "kafka-cluster")
    log.ask("bob", Operation.READ, ResourceType.GROUP, "g")
    assert log.suggested(capsys) == (
        [
            "quorumlog acl add --user alice --operation write --topic 'a b' --topic flights",
            "quorumlog acl add --user alice --operation read --consumer-group etl",
            "quorumlog acl add --user bob --operation describe-configs --cluster",
            "quorumlog acl add --user bob --operation read --group g",
        ],
        "",
    )


def test_what_another_right_implies_is_not_suggested(log, capsys):
    for operation in (Operation.DESCRIBE, Operation.WRITE, Operation.CREATE):
        log.ask("alice", operation, ResourceType.TOPIC, "t")
    log.ask("alice", Operation.DESCRIBE, ResourceType.TOPIC, "other")
    assert log.suggested(capsys)[0] == [
        "quorumlog acl add --user alice --operation describe --topic other",
        "quorumlog acl add --user alice --operation write --operation create --topic t",
    ]


def test_objects_are_acls_and_say_how_often_each_was_wanted(log, capsys):
    for _ in range(2):
        log.ask("alice", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx")
    (line,), _ = log.suggested(capsys, "--json")
    assert json.loads(line) == {
        "principal": "User:alice",
        "permission": "allow",
        "operation": "write",
        "resource_type": "transactional-id",
        "name": "tx",
        "pattern": "literal",
        "host": "*",
        "n": 2,
    }


def test_every_right_that_there_is_can_be_suggested_and_added(log, capsys):
    wanted = {
        (kind, operation)
        for kind, operations in OPERATIONS.items()
        for operation in operations
        if operation is not Operation.ALL
    }
    for number, (kind, operation) in enumerate(wanted):  # each by another: none implies another
        name = "kafka-cluster" if kind is ResourceType.CLUSTER else "x"
        log.ask(f"user-{number}", operation, kind, name)
    lines, said = log.suggested(capsys)
    assert said == ""
    assert sum(line.count("--operation") for line in lines) == len(wanted)
    for line in lines:
        _, *words = shlex.split(line)
        # 2 is for what is not understood; here nobody answers
        assert main([*words, "--servers", "127.0.0.1:1", "--timeout", "0.001"]) == 1


def test_only_what_was_reported_is_suggested(log, capsys):
    log.ask("alice", Operation.READ, ResourceType.TOPIC, "refused", enforced=True)
    log.write(event="login-refused", principal="User:eve", resource="user:eve")
    log.write(event="administration", allowed=True, principal="User:admin", resource="topic:t")
    lines, said = log.suggested(capsys)
    assert lines == []
    assert "nothing would be refused" in said


def test_who_has_not_logged_in_gets_no_command_that_can_be_pasted(log, capsys):
    log.ask("ANONYMOUS", Operation.READ, ResourceType.TOPIC, "t")
    assert log.suggested(capsys)[0] == [
        "# not logged in: quorumlog acl add --user ANONYMOUS --operation read --topic t"
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"resource": "group:pg-7"}, "no ACL gives it"),
        ({"resource": "group:__cluster"}, "no ACL gives it"),
        ({"resource": "consumer-group:etl*"}, "the command line has no word for"),
        ({"resource": "consumer-group:" + "x" * 200 + "…"}, "the command line has no word for"),
        ({"resource": "consumer-group:a\\nb"}, "the command line has no word for"),
        ({"resource": "topic:t", "principal": "Node:n1"}, "Node:n1 is no user"),
        (
            {"resource": "topic:t", "principal": "User:al\\u200bice"},
            "user al\\u200bice",
        ),
        ({"resource": "topic:t", "principal": "User:al\u200bice"}, "user al\\u200bice"),
        ({"resource": "topic:t", "principal": "User:" + "x" * 99 + "…"}, "no word for user x"),
        ({"resource": "topic:t", "principal": "User:User:a"}, "no word for user User:a"),
        ({"resource": "moon:t"}, "cannot be told"),
        ({"resource": "", "reason": "more than 64 kinds", "n": 9}, "cannot be told"),
    ],
)
def test_what_has_no_command_is_said(log, capsys, line, reason):
    common = {"principal": "User:alice", "operation": "Read"}
    log.write(**(common | {"reason": "served nevertheless: authorization is log"} | line))
    lines, said = log.suggested(capsys)
    assert lines == []
    assert reason in said
    assert f"{line.get('n', 1)} request" in said


def test_older_lines_can_be_left_out(log, capsys):
    log.ask("alice", Operation.READ, ResourceType.TOPIC, "t")
    assert len(log.suggested(capsys, "--since", "2026-11-29T12:00")[0]) == 1
    assert log.suggested(capsys, "--since", "2026-11-29T12:00:02")[0] == []
