"""Log lines of a node: JSON values, and times that mean the same everywhere."""

import ast
import json
import logging
import os
import re
import socket
import time
from pathlib import Path

import pytest

import quorumlog
from quorumlog.log_events import describe_error, log_event, reason_of
from quorumlog.model.codes import Role
from quorumlog.model.errors import InvariantViolation, check
from quorumlog.service.logs import JsonLines, LineHandler

SOURCE = Path(quorumlog.__file__).parent
OF_A_NODE = ("machine", "node", "raft", "service", "transport", "wire")
"""`storage` is read by tools without a node, too, and tells sentences."""
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def logged():
    logger = logging.getLogger("quorumlog.test_log_lines")
    logger.setLevel(logging.DEBUG)
    handler = Lines()
    logger.addHandler(handler)
    yield logger, handler.lines
    logger.removeHandler(handler)


@pytest.fixture
def far_from_greenwich(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_greenwich")
def test_times_are_utc_with_milliseconds():
    record = logging.LogRecord("a", logging.INFO, "", 0, "event", (), None)
    record.created = 1_769_903_999.1234
    assert json.loads(JsonLines().format(record))["time"] == "2026-01-31T23:59:59.123Z"
    record.created = 1_769_904_000.0
    assert json.loads(JsonLines().format(record))["time"] == "2026-02-01T00:00:00.000Z"


def test_values_stay_what_they_are(logged):
    logger, lines = logged
    log_event(
        logger, logging.INFO, "event", index=7, names=("a", "b"), nobody=None, more={"left": 1.5}
    )
    line = json.loads(lines[0])
    assert (line["event"], line["level"]) == ("event", "INFO")
    assert line["index"] == 7
    assert line["names"] == ["a", "b"]
    assert line["nobody"] is None
    assert line["more"] == {"left": 1.5}


@pytest.mark.parametrize(
    "value", [Role.LEADER, b"bytes", {1}, OSError("gone"), object(), float("nan")]
)
def test_what_is_no_json_value_is_not_written_as_python_writes_it(logged, value):
    logger, _ = logged
    with pytest.raises((TypeError, ValueError)):
        log_event(logger, logging.INFO, "event", value=value)


class Taken:
    def __init__(self):
        self.lines = []

    def put(self, text):
        self.lines.append(json.loads(text))


def test_a_line_that_cannot_be_written_is_named_with_its_place():
    """State machines and libraries log as they like."""
    taken = Taken()
    handler = LineHandler(taken)
    handler.setFormatter(JsonLines())
    record = logging.LogRecord("of.a.user", logging.INFO, "/a/machine.py", 7, "%d", ("x",), None)
    handler.emit(record)
    (line,) = taken.lines
    assert line["event"] == "a log line cannot be written as JSON"
    assert (line["logger"], line["where"]) == ("of.a.user", "/a/machine.py:7")
    assert line["reason"].startswith("TypeError: ")


def test_errors_are_told_in_words(logged):
    logger, lines = logged
    error = OSError(5, "Input/output error", "/data/0")
    assert describe_error(error) == "OSError: [Errno 5] Input/output error: '/data/0'"
    assert describe_error(KeyError()) == "KeyError"
    with pytest.raises(InvariantViolation, match=r"^the term never falls: 3, 2$"):
        check(False, "the term never falls", 3, 2)
    log_event(logger, logging.ERROR, "event", exc_info=error)
    assert json.loads(lines[0])["traceback"].endswith(str(error))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 7101)"), "{refused}"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "{refused}",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (FileNotFoundError(2, "No such file or directory", "/a/b"), "/a/b: {missing}"),
        (OSError("a host has no address"), "a host has no address"),
        (TimeoutError(), "no answer in time"),
    ],
)
def test_why_the_system_refused_is_told_in_its_words(error, said):
    words = {"refused": os.strerror(111), "missing": os.strerror(2)}
    assert reason_of(error) == said.format(**words)


def _calls():
    for room in OF_A_NODE:
        for path in sorted((SOURCE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path.name}:{node.lineno}", node


def test_every_line_of_a_node_has_a_constant_event_and_its_values_as_fields():
    found = [
        place
        for place, call in _calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and getattr(call.func.value, "id", "") == "logger"
    ]
    assert not found, "use log_event"
    events = [(place, call.args[2]) for place, call in _calls() if _name(call) == "log_event"]
    assert len(events) > 20
    assert not [place for place, event in events if isinstance(event, ast.JoinedStr | ast.BinOp)]


def _name(call):
    return getattr(call.func, "id", "")


def test_no_error_is_told_as_python_writes_it():
    shown = re.compile(r"\b(error|failed|exc)!r}|repr\((error|failed|exc)\)")
    rooms = (*OF_A_NODE, "client", "model", "storage")
    paths = [path for room in rooms for path in sorted((SOURCE / room).rglob("*.py"))]
    assert not [path.name for path in paths if shown.search(path.read_text())]
