"""The audit log: what its lines hold, what it does when disks fail, and what many events cost."""

import json
import logging
import os
import stat
import threading

import pytest

from quorumlog.model.audit_events import (
    NO_AUDIT,
    AuditedEvent,
    AuditEvent,
    DataPatterns,
)
from quorumlog.model.config import AUDIT_LOG_NAME, NodeConfig
from quorumlog.model.errors import ConfigError, NoSpaceError
from quorumlog.service import audit as audit_module
from quorumlog.service.audit import CLOSE_S, LINES_MAX, OWN_SUMS_MAX, SUMS_MAX, AuditLog, audit_of
from quorumlog.service.audit_files import AuditFiles
from quorumlog.storage.files.os_files import OsFileSystem

WALL_MS = 1_764_417_845_123


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(tmp_path, clock):
    made = []

    def open_log(files=None, *, is_open=True, **keys):
        config = NodeConfig(
            self_id="n0", store_base_dir=str(tmp_path), listen="127.0.0.1:0", cluster="c", **keys
        )
        log = AuditLog(config, files or OsFileSystem(), now=clock, wall_ms=lambda: WALL_MS)
        if is_open:
            log.open()
        made.append(log)
        return log

    yield open_log
    for log in made:
        log.close()


def lines_of(tmp_path, name=AUDIT_LOG_NAME):
    return [json.loads(line) for line in (tmp_path / name).read_bytes().splitlines()]


def created(name="flights", **values):
    given = {"operation": "Create", "resource": f"group:{name}", "request": "CreateGroup", **values}
    return AuditEvent(event=AuditedEvent.ADMINISTRATION, **given)


def refused(address="10.0.0.1:5000", **values):
    event = AuditedEvent.CONNECTION_REFUSED
    return AuditEvent(event=event, address=address, allowed=False, **values)


def test_a_line_says_who_did_what_from_where(opened, tmp_path):
    log = opened()
    log.record(created(principal="User:alice", mechanism="certificate", address="10.0.0.1:5000"))
    log.close()
    assert lines_of(tmp_path) == [
        {
            "at": "2025-11-29T12:04:05.123Z",
            "node": "n0",
            "cluster": "c",
            "event": "administration",
            "principal": "User:alice",
            "mechanism": "certificate",
            "address": "10.0.0.1:5000",
            "client": "",
            "resource": "group:flights",
            "operation": "Create",
            "allowed": True,
            "reason": "",
            "request": "CreateGroup",
            "n": 1,
        }
    ]


def test_what_a_stranger_writes_can_neither_end_a_line_nor_fill_the_disk(opened, tmp_path):
    log = opened()
    log.record(created(client='x\n{"event": "forged"}\r\u2028\u202e\x1b[2J' + "y" * 100_000))
    log.close()
    raw = (tmp_path / AUDIT_LOG_NAME).read_bytes()
    assert raw.count(b"\n") == 1
    assert raw[:-1].decode().isprintable()
    assert len(raw) < 4_096


def test_no_letter_of_a_stranger_takes_more_than_its_own_bytes(opened, tmp_path):
    log = opened()
    for letter in ("\U0001f600", "\x00", "\U000f0000"):
        log.record(created(client=letter * 100_000))
    log.close()
    raw = (tmp_path / AUDIT_LOG_NAME).read_bytes()
    assert max(map(len, raw.splitlines())) < 256 * 4 + 400


def test_only_the_owner_may_read_it_whatever_the_umask_says(opened, tmp_path):
    before = os.umask(0)
    try:
        log = opened()
        log.record(created())
        log.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / AUDIT_LOG_NAME).stat().st_mode) == 0o600


def test_files_are_rotated_and_the_oldest_are_removed(opened, tmp_path):
    for number in range(9):
        log = opened(audit_file_bytes=1_000, audit_files=3)  # a file has three lines
        log.record(created(f"g{number}"))
        log.close()
    names = sorted(os.listdir(tmp_path))
    assert names == [AUDIT_LOG_NAME, f"{AUDIT_LOG_NAME}.1", f"{AUDIT_LOG_NAME}.2"]
    kept = [line["resource"] for name in reversed(names) for line in lines_of(tmp_path, name)]
    assert kept == [f"group:g{number}" for number in range(9 - len(kept), 9)]
    assert len(kept) > 4


def test_fewer_files_than_before_are_kept_from_the_next_rotation_on(opened, tmp_path):
    for files_max in (5, 5, 5, 5, 2):
        log = opened(audit_file_bytes=10, audit_files=files_max)
        log.record(created())
        log.close()
    assert sorted(os.listdir(tmp_path)) == [AUDIT_LOG_NAME, f"{AUDIT_LOG_NAME}.1"]


def test_one_file_alone_is_begun_again(opened, tmp_path):
    for number in range(3):
        log = opened(audit_file_bytes=10, audit_files=1)
        log.record(created(f"g{number}"))
        log.close()
    assert os.listdir(tmp_path) == [AUDIT_LOG_NAME]
    assert [line["resource"] for line in lines_of(tmp_path)] == ["group:g2"]


def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(opened, tmp_path):
    (tmp_path / AUDIT_LOG_NAME).write_bytes(b'{"event": "adm')
    log = opened()
    log.record(created())
    log.close()
    first, second = (tmp_path / AUDIT_LOG_NAME).read_bytes().splitlines()
    assert first == b'{"event": "adm'
    assert json.loads(second)["resource"] == "group:flights"


def test_a_node_that_goes_on_adds_to_the_file(opened, tmp_path):
    for name in ("one", "two"):
        log = opened()
        log.record(created(name))
        log.close()
    assert [line["resource"] for line in lines_of(tmp_path)] == ["group:one", "group:two"]


def test_without_files_there_is_no_audit_log(tmp_path):
    config = NodeConfig(
        self_id="n0", store_base_dir=str(tmp_path), listen="127.0.0.1:0", audit_files=0
    )
    assert audit_of(config, now=Clock(), wall_ms=lambda: 0) is NO_AUDIT
    NO_AUDIT.record(created())
    assert NO_AUDIT.has_room
    assert not NO_AUDIT.is_accessed("group", "g")


def test_a_log_that_was_never_opened_writes_nothing(opened, tmp_path):
    log = opened(is_open=False)
    log.record(created())
    log.close()
    assert os.listdir(tmp_path) == []


# -- many events ----------------------------------------------------------------------------------


def test_refusals_of_an_address_have_one_line_at_once_and_one_a_minute(opened, tmp_path, clock):
    log = opened()
    for port in range(500):
        log.record(refused(f"10.0.0.1:{port}", reason="no frame"))
    log.record(refused("10.0.0.2:1", reason="no frame"))
    log.close()
    found = [(line["address"], line["n"]) for line in lines_of(tmp_path)]
    assert found == [("10.0.0.1:0", 1), ("10.0.0.2:1", 1), ("10.0.0.1:0", 499)]


def test_the_next_minute_has_lines_of_its_own(opened, tmp_path, clock):
    log = opened()
    for minute in range(3):
        log.record(refused())
        log.record(refused())
        while log.counters.lines < 2 * (minute + 1):
            clock.now += 61
    log.close()
    assert [line["n"] for line in lines_of(tmp_path)] == [1] * 6


def test_what_is_refused_is_told_apart_by_who_asked_for_what(opened, tmp_path):
    log = opened()
    for name in ("a", "b"):
        for _ in range(3):
            log.record(created(name, allowed=False, address="10.0.0.1:1"))
    log.close()
    found = [(line["resource"], line["n"]) for line in lines_of(tmp_path)]
    assert sorted(found) == [("group:a", 1), ("group:a", 2), ("group:b", 1), ("group:b", 2)]


def test_what_fails_is_counted_and_what_is_done_has_a_line_each(opened, tmp_path):
    log = opened()
    for _ in range(100):
        log.record(created(failed=True, reason="UNKNOWN_GROUP", address="10.0.0.1:1"))
    for _ in range(3):
        log.record(created(reason="a part failed", address="10.0.0.1:1"))
    log.close()
    found = [(line["reason"], line["n"]) for line in lines_of(tmp_path)]
    done = [("a part failed", 1)] * 3
    assert found == [("UNKNOWN_GROUP", 1), *done, ("UNKNOWN_GROUP", 99)]


@pytest.mark.parametrize(
    ("values", "site"),
    [
        ({"allowed": False, "event": AuditedEvent.LOGIN_REFUSED}, "10.0.0.1"),
        ({"allowed": False, "event": AuditedEvent.REQUEST_REFUSED}, "2001:db8::/64"),
        ({"allowed": False, "event": AuditedEvent.CONNECTION_REFUSED}, "2001:db8::/64"),
        ({"failed": True, "event": AuditedEvent.ADMINISTRATION}, "10.0.0.1"),
    ],
)
def test_one_client_cannot_push_the_lines_of_others_out_of_the_files(
    opened, tmp_path, values, site
):
    log = opened()
    for number in range(5_000):
        host = site if "." in site else f"[2001:db8::{number:x}]"
        address = f"{host}:{number}"
        log.record(AuditEvent(resource=f"user:u{number}", address=address, **values))
    log.record(AuditEvent(resource="user:other", address="10.0.0.2:1", **values))
    log.close()
    lines = lines_of(tmp_path)
    assert len(lines) == OWN_SUMS_MAX + 2
    assert lines[OWN_SUMS_MAX]["resource"] == "user:other", "it has a line at once"
    assert lines[-1]["n"] == 5_000 - OWN_SUMS_MAX
    assert lines[-1]["address"] == f"{site}:*"
    assert lines[-1]["reason"].startswith("more than 64 kinds of events within 60 s from there")


def test_each_client_may_have_its_kinds_again_in_the_next_minute(opened, tmp_path, clock):
    log = opened()
    for minute in (1, 2):
        for number in range(OWN_SUMS_MAX):
            log.record(created(f"g{minute}-{number}", allowed=False, address="10.0.0.1:1"))
        while log.counters.lines < minute * OWN_SUMS_MAX:
            clock.now += 1
        while log._sums:
            clock.now += 61
    log.close()
    assert [line["n"] for line in lines_of(tmp_path)] == [1] * (2 * OWN_SUMS_MAX)


def test_names_of_any_length_take_bounded_memory(opened, tmp_path):
    log = opened(is_open=False, audit_data=["topic:*"])
    for end in ("a", "b"):
        for event in (AuditedEvent.DATA_ACCESS, AuditedEvent.ADMINISTRATION):
            name, client = f"topic:{'n' * 100_000}{end}", "c" * 100_000 + end
            log.record(AuditEvent(event=event, resource=name, client=client, failed=True))
    kept = [len(one.first.resource) + len(one.first.client) for one in log._sums.values()]
    assert kept == [512, 512]
    log.open()
    log.close()
    assert sum(line["n"] for line in lines_of(tmp_path)) == 4


def test_what_waits_is_bounded_and_what_is_lost_is_counted(opened, monkeypatch, caplog):
    monkeypatch.setattr(audit_module, "HELD_LINES_MAX", 20)
    log = opened(is_open=False)
    for number in range(30):
        log.record(created(f"g{number}"))
    assert len(log._lines) == 20
    assert log.counters.lost == 10
    assert [record.message for record in caplog.records] == ["audit log: events are lost"]


def test_any_number_of_addresses_takes_bounded_memory_and_is_counted(opened, tmp_path):
    log = opened(is_open=False)
    count = SUMS_MAX + 5_000
    for number in range(count):
        log.record(refused(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1"))
    assert len(log._sums) <= SUMS_MAX + 1
    log.open()
    log.close()
    lines = lines_of(tmp_path)
    assert len(lines) <= SUMS_MAX + 1
    assert sum(line["n"] for line in lines) == count
    assert lines[-1]["reason"].startswith("more than")


def test_refusals_leave_room_for_administration(opened):
    log = opened(is_open=False)
    for number in range(SUMS_MAX):
        log.record(refused(f"h{number}:1"))
    waiting = len(log._lines)
    while log.has_room:
        log.record(created())
    assert len(log._lines) == LINES_MAX
    log.record(created("another", allowed=False))
    assert len(log._lines) == LINES_MAX, "it is counted, and has its line later"
    assert waiting <= LINES_MAX // 2


def test_accesses_have_one_line_a_minute_for_each_connection_and_resource(opened, tmp_path):
    log = opened(audit_data=["group:f*"])
    for _ in range(1_000):
        for address in ("10.0.0.1:1", "10.0.0.1:2"):
            log.record(
                AuditEvent(
                    event=AuditedEvent.DATA_ACCESS,
                    address=address,
                    resource="group:flights",
                    operation="Write",
                    request="Append",
                )
            )
    log.close()
    found = sorted((line["address"], line["n"]) for line in lines_of(tmp_path))
    assert found == [
        ("10.0.0.1:1", 1),
        ("10.0.0.1:1", 999),
        ("10.0.0.1:2", 1),
        ("10.0.0.1:2", 999),
    ]


def test_patterns_say_whose_data_is_recorded():
    patterns = DataPatterns(["group:flights", "topic:order*"])
    meant = [
        (kind, name)
        for kind in ("group", "topic")
        for name in ("flights", "flights2", "order", "orders")
        if patterns.match(kind, name)
    ]
    assert meant == [("group", "flights"), ("topic", "order"), ("topic", "orders")]
    assert DataPatterns(["topic:*"]).match("topic", "any")
    assert not DataPatterns([]).match("topic", "any")


@pytest.mark.parametrize("pattern", ["flights", "user:x", "group:", "group:a*b", "group:*a"])
def test_a_pattern_that_means_nothing_is_refused(pattern, tmp_path):
    with pytest.raises(ConfigError, match=r"auditData: .* is not group:NAME, group:PREFIX"):
        NodeConfig(
            self_id="n0",
            store_base_dir=str(tmp_path),
            listen="127.0.0.1:0",
            audit_data=[pattern],
        )


# -- disks ----------------------------------------------------------------------------------------


class FailingFiles(OsFileSystem):
    """Disks that fail while `failing` names a call."""

    def __init__(self):
        self.failing = ""
        self.failures = 0
        self.failed = threading.Event()

    def fail(self, call, path):
        if call == self.failing:
            self.failures += 1
            self.failed.set()
            raise NoSpaceError(f"{path}: {call} failed: No space left on device")

    def open(self, path, *, create=False, writable=True):
        self.fail("open", path)
        file = super().open(path, create=create, writable=writable)
        write_at, sync, disk = file.write_at, file.sync, self

        class Failing(type(file)):
            def write_at(self, buffers, offset):
                if disk.failing == "write":
                    write_at([buffers[0][: len(buffers[0]) // 2]], offset)
                disk.fail("write", path)
                write_at(buffers, offset)

            def sync(self):
                disk.fail("sync", path)
                sync()

        file.__class__ = Failing
        return file

    def replace(self, source, target):
        self.fail("rename", target)
        super().replace(source, target)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(audit_module, "SYNC_S", 0.005)


@pytest.mark.parametrize("call", ["open", "write", "sync", "rename"])
def test_what_a_failing_disk_did_not_take_is_there_once_it_works_again(
    opened, tmp_path, clock, call, caplog
):
    files = FailingFiles()
    log = opened(files, audit_file_bytes=800)
    log.record(created("before"))
    log.record(created("before2"))
    while log.counters.lines < 2:
        clock.now += 1
    files.failing = call
    log.record(created("meanwhile"))
    while not log.counters.is_failing:
        clock.now += 1
    assert files.failed.is_set()
    log.record(created("later"))
    assert log.has_room, "the node goes on"
    files.failing = ""
    log.close()
    assert log.counters.lost == 0
    assert not log.counters.is_failing
    names = sorted((name for name in os.listdir(tmp_path)), reverse=True)
    kept = [line["resource"] for name in names for line in lines_of(tmp_path, name)]
    assert kept == [f"group:{name}" for name in ("before", "before2", "meanwhile", "later")]
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["audit log cannot be written", "audit log is written again"]


def test_a_disk_that_stays_full_has_administration_refused_and_what_is_lost_counted(opened, caplog):
    files = FailingFiles()
    files.failing = "write"
    log = opened(files)
    while log.has_room:
        log.record(created())
    log.close()
    assert log.counters.lost == LINES_MAX
    assert log.counters.is_failing
    assert [record.message for record in caplog.records][-1] == "audit log: events are lost"


class StandingFiles(OsFileSystem):
    """A disk that does not answer until `go_on`."""

    def __init__(self):
        self.go_on = threading.Event()

    def open(self, path, *, create=False, writable=True):
        assert self.go_on.wait(60)
        return super().open(path, create=create, writable=writable)


def test_a_disk_that_stands_still_keeps_no_node_from_stopping(opened, monkeypatch):
    monkeypatch.setattr(audit_module, "CLOSE_S", 0.01)
    assert CLOSE_S <= 10
    files = StandingFiles()
    log = opened(files)
    log.record(created())
    thread = log._thread
    log.close()
    assert log.counters.lost == 1
    files.go_on.set()
    thread.join(60)


def test_files_of_others_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / f"{AUDIT_LOG_NAME}.old").write_text("mine")
    made = AuditFiles(OsFileSystem(), str(tmp_path), bytes_max=10, files_max=2)
    for _ in range(4):
        made.add([b"a line\n"])
    made.let_go()
    assert sorted(os.listdir(tmp_path)) == [
        AUDIT_LOG_NAME,
        f"{AUDIT_LOG_NAME}.1",
        f"{AUDIT_LOG_NAME}.old",
    ]
