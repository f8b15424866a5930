"""Data files spread over several directories (spec 20 section 14)."""

import pytest

from quorumlog.model.errors import ConfigError, CorruptionError, StoreLockedError
from quorumlog.storage.files.os_files import OsFileSystem, Space
from store_access import Opened, config


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / name for name in ("a", "b", "c")]


def settings(paths, **more):
    return {"data_file": 2_000, "data_store_path": ",".join(map(str, paths)), "cache": 1, **more}


def fill(opened, count):
    start = opened.log.end_index + 1
    for number in range(start, start + count):
        opened.append([body(number)])


def body(number):
    return str(number).encode() * 200


def held(paths):
    return {path.name: {int(file.name) for file in path.iterdir()} for path in paths}


def test_70_new_files_go_round_the_paths(tmp_path, paths):
    opened = Opened(tmp_path / "g", **settings(paths))
    fill(opened, 40)
    opened.close()
    for offset, (_, starts) in enumerate(sorted(held(paths).items())):
        assert starts
        assert {start // 2_000 % 3 for start in starts} == {offset}
    again = Opened(tmp_path / "g", **settings(paths))
    assert [entry.body for entry in again.entries()] == [body(number) for number in range(40)]
    again.close()


def test_70_read_only_paths_are_read_and_get_no_new_file(tmp_path, paths):
    opened = Opened(tmp_path / "g", **settings(paths))
    fill(opened, 40)
    opened.close()
    before = held(paths)
    options = settings(paths[1:], read_only_data_store_dirs=str(paths[0]))
    again = Opened(tmp_path / "g", **options)
    fill(again, 40)
    assert [entry.body for entry in again.entries()] == [body(number) for number in range(80)]
    again.close()
    after = held(paths)
    assert after["a"] == before["a"]
    assert after["b"] > before["b"]


def test_70_fuller_paths_are_passed_over_while_there_are_others(tmp_path, paths, monkeypatch):
    used = {"a": 90, "b": 10, "c": 86}
    monkeypatch.setattr(
        OsFileSystem,
        "space",
        lambda files, path: Space(100, 100 - used.get(path.rsplit("/", 1)[-1], 0)),
    )
    opened = Opened(tmp_path / "g", **settings(paths))
    fill(opened, 20)
    assert {name for name, starts in held(paths).items() if starts} == {"b"}
    used["b"] = 99  # no better one is left
    fill(opened, 20)
    assert all(held(paths).values())
    opened.close()


def test_old_files_are_removed_wherever_they_lie(tmp_path, paths):
    opened = Opened(tmp_path / "g", **settings(paths))
    fill(opened, 40)
    opened.log.note_committed(39)
    opened.submit(opened.log.reset(opened.log.segments()[-1].last_index))
    first = opened.log.before_begin_index + 1
    assert [entry.index for entry in opened.entries()] == list(range(first, 40))
    assert min(min(starts) for starts in held(paths).values() if starts) > 0
    opened.close()


def test_a_data_path_is_used_by_one_node_only(tmp_path, paths):
    opened = Opened(tmp_path / "g", **settings(paths))
    with pytest.raises(StoreLockedError, match="in use by another process"):
        Opened(tmp_path / "other", **settings(paths[2:]))
    opened.close()


def test_one_name_in_two_paths_is_refused(tmp_path, paths):
    opened = Opened(tmp_path / "g", **settings(paths))
    fill(opened, 10)
    opened.close()
    first = next(paths[0].iterdir())
    (paths[1] / first.name).write_bytes(first.read_bytes())
    with pytest.raises(CorruptionError, match="have one name"):
        Opened(tmp_path / "g", **settings(paths))


def test_at_least_one_path_must_be_writable():
    with pytest.raises(ConfigError, match="all of dataStorePath is in readOnlyDataStoreDirs"):
        config(data_store_path="/x,/y", read_only_data_store_dirs="/y,/x")


def test_an_altered_ratio_counts_for_new_files_once_the_disks_were_looked_at(
    tmp_path, paths, monkeypatch
):
    used = {"a": 60, "b": 10, "c": 70}
    monkeypatch.setattr(
        OsFileSystem,
        "space",
        lambda files, path: Space(100, 100 - used.get(path.rsplit("/", 1)[-1], 0)),
    )
    opened = Opened(tmp_path / "g", **settings(paths))
    opened.group.disk_state(config(disk_space_ratio_to_force_clean=0.5, data_file=2_000))
    fill(opened, 20)
    assert {name for name, starts in held(paths).items() if starts} == {"b"}
    opened.close()
