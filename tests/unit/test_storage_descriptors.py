"""No file descriptor is free: storage uses spare ones, waits, and never calls it a failed disk."""

import os
import resource
import threading
from contextlib import contextmanager

import pytest

from quorumlog.machine.kv_database import named, open_environment
from quorumlog.model.errors import OutOfDescriptorsError
from quorumlog.node.disk import DiskWorker
from quorumlog.storage.files import os_files as files_module
from quorumlog.storage.files.os_files import SPARES, OsFileSystem
from store_access import Opened, open_below


@contextmanager
def no_descriptor_left():
    """Nothing more can be opened: the limit is where the next descriptor would be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        while True:  # the gaps below
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.fixture
def spares():
    SPARES.hold(2)
    yield SPARES
    SPARES.hold(0)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(b"here")
    return str(tmp_path / "file")


def test_storage_opens_files_with_the_spare_descriptors(spares, path):
    with no_descriptor_left():
        opened = OsFileSystem().open(path)
        assert bytes(opened.map()) == b"here"  # a map takes one, too
        opened.close()
    OsFileSystem().open(path).close()
    assert len(spares._held) == 2


def test_without_one_it_says_so_after_a_while_and_not_that_the_disk_failed(monkeypatch, path):
    monkeypatch.setattr(files_module, "DESCRIPTOR_WAIT_S", 0.02)
    with no_descriptor_left(), pytest.raises(OutOfDescriptorsError, match="Too many open files"):
        OsFileSystem().open(path)


async def test_the_loop_never_waits(path):
    with no_descriptor_left():
        before = SPARES.waits
        with pytest.raises(OutOfDescriptorsError):
            OsFileSystem().open(path)
        assert SPARES.waits == before + 1


def test_a_thread_that_may_wait_goes_on_when_one_is_free(path):
    opened, waiting = [], SPARES.waits

    def work():
        SPARES.wait_on_this_thread()
        opened.append(OsFileSystem().open(path))

    with no_descriptor_left() as taken:
        thread = threading.Thread(target=work)
        thread.start()
        while SPARES.waits == waiting:  # until it found none
            thread.join(0.01)
        os.close(taken.pop())
        thread.join(30)
    assert bytes(opened[0].read_at(9, 0)) == b"here"
    opened[0].close()


def test_the_disk_thread_waits_for_a_descriptor_and_does_not_fail(path):
    reports, files = [], OsFileSystem()

    class Opens:
        def execute(self, plans, *, sync):
            for _ in plans:
                files.open(path).close()

        def idle(self):
            return False

        def close(self):
            pass

        abandon = close

    class Plan:
        size_bytes = 1

        def completed(self):
            reports.append("written")

    class Owner:
        def written(self, token, plan):
            pass

        def writes_completed(self):
            pass

        def write_failed(self, error):
            reports.append(error)

    done = threading.Event()

    def bring_back(call, *arguments):
        call(*arguments)
        done.set()

    worker = DiskWorker(Opens(), bring_back, lambda *_: None, reports.append)
    worker.start()
    waiting = SPARES.waits
    with no_descriptor_left() as taken:
        worker.submit(Owner(), 1, Plan())
        while SPARES.waits == waiting:
            done.wait(0.01)
        assert reports == []
        os.close(taken.pop())
        assert done.wait(30)
    worker.stop()
    worker.join()
    assert reports == ["written"]


def test_full_files_are_closed_however_many_there_are(tmp_path):
    log = Opened(tmp_path / "g", data_file=512, index_file=32 * 4)
    for _ in range(30):
        log.append([b"x" * 400])
        log.checkpoint()
    made = len(list((tmp_path / "g" / "data").iterdir()))
    assert made >= 30
    assert len(open_below(tmp_path / "g")) < 12
    log.close()


def test_a_key_value_file_is_opened_with_the_spare_descriptors(spares, tmp_path):
    path = str(tmp_path / "state.mdb")
    spares.hold(6)
    with no_descriptor_left():
        open_environment(path).close()


def test_lmdb_without_descriptors_is_no_damage(monkeypatch, tmp_path):
    monkeypatch.setattr(files_module, "DESCRIPTOR_WAIT_S", 0.02)
    path = str(tmp_path / "state.mdb")
    with (
        no_descriptor_left(),
        pytest.raises(OutOfDescriptorsError, match="Too many open files"),
        named(path),
    ):
        open_environment(path)
