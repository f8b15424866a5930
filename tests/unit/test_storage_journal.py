"""One journal for all groups of a node: what goes through it, and what a crash leaves of it."""

import gc
import json
import logging
from contextlib import suppress

import msgspec
import pytest

from journal_access import JOURNAL, NODE, SMALL, JournaledNode, after_power_loss, new_disk
from quorumlog.model.errors import CorruptionError, NoSpaceError, StorageError, UnsettledError
from quorumlog.sim.disk import SimulatedCrash
from quorumlog.storage.journal.reader import read_journal
from quorumlog.storage.journal.writer import JournalLimits, NodeJournal
from quorumlog.storage.log.group_store import GroupStore
from quorumlog.storage.log.layout import Identity
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.log.unsettled import GroupInJournal
from quorumlog.storage.offline.original_export import export_original
from quorumlog.storage.offline.repair import repair_store, truncate_store
from quorumlog.storage.offline.store_files import scan_store
from quorumlog.storage.offline.verify import verify_store

ROOMY = msgspec.structs.replace(SMALL, segment_bytes=65_536)


@pytest.fixture
def node():
    made = JournaledNode(new_disk(), limits=ROOMY)
    made.begin_journal()
    return made


def syncs_of(node, work):
    """Paths of the files that `work` makes durable."""
    seen, perform = [], node.files.perform

    def watched(path, operation, *arguments, **named):
        if operation == "fdatasync":
            seen.append(path)
        perform(path, operation, *arguments, **named)

    node.files.perform = watched
    try:
        work()
    finally:
        node.files.perform = perform
    return seen


def segments_of(node):
    return [name for name in node.files.names(JOURNAL) if name.startswith("segment")]


# -- which way --------------------------------------------------------------------------------


def test_what_several_groups_append_at_a_time_takes_one_fsync(node):
    seen = syncs_of(node, lambda: node.append(a=b"1", b=b"2", c=b"3"))
    assert seen == [f"{JOURNAL}/segment.0"]


def test_no_segment_takes_what_is_to_stay_free_now():
    """The bound is asked for each time: what groups reserve may be altered while nodes run."""
    node, free_bytes_min = JournaledNode(new_disk(), limits=ROOMY), 1 << 60
    node.journal = NodeJournal(
        node.files, JOURNAL, node.steps, limits=ROOMY, free_bytes_min=lambda: free_bytes_min
    )
    node.store = GroupStore(node.journal, None)

    def append_often():
        for _ in range(2 * ROOMY.wanted_again):
            node.append(a=b"1", b=b"2", c=b"3")
            node.steps.take()

    append_often()
    assert not segments_of(node)
    free_bytes_min = 0
    append_often()
    assert segments_of(node)


def test_one_group_alone_writes_to_its_own_file(node):
    seen = syncs_of(node, lambda: node.append(a=b"1"))
    assert [path.split("/")[2] for path in seen] == ["a"]


def test_large_blocks_are_written_once_to_the_groups_own_files(node):
    seen = syncs_of(node, lambda: node.append(a=b"x" * 2_000, b=b"y" * 2_000))
    assert [path.split("/")[2] for path in seen] == ["a", "b"]


def test_a_group_with_another_write_in_the_commit_does_not_take_the_journal_from_the_others(node):
    node.append(c=b"0")

    def work():
        node.checkpoint("c")
        node.append(a=b"1", b=b"2", c=b"3")

    seen = syncs_of(node, work)
    assert f"{JOURNAL}/segment.0" in seen
    assert {path.split("/")[2] for path in seen} == {"quorumlog.journal", "c"}


def test_groups_that_rarely_write_together_need_no_journal():
    node = JournaledNode(new_disk(), limits=msgspec.structs.replace(ROOMY, wanted_min=64))
    for _ in range(63):
        node.append(a=b"1", b=b"2")
    assert not node.files.is_directory(JOURNAL)
    node.append(a=b"1", b=b"2")
    assert node.files.is_directory(JOURNAL)


def test_groups_that_append_once_or_twice_beside_others_do_not_begin_to_use_it():
    """As leaders do, by the thousand: to note it takes more fsyncs than it saves."""
    files, limits = new_disk(), msgspec.structs.replace(ROOMY, group_wanted_min=3)
    node = JournaledNode(files, limits=limits)
    for _ in range(2):
        node.append(a=b"1", b=b"2")
    assert not files.is_directory(JOURNAL)
    node.append(a=b"1", b=b"2", c=b"3")
    assert files.is_directory(JOURNAL)
    node.steps.take()
    node.append(a=b"1", b=b"2", c=b"3")  # a and b begin
    seen = syncs_of(node, lambda: node.append(a=b"1", b=b"2"))
    assert seen == [f"{JOURNAL}/segment.0"]
    assert [node.groups[name].log._journaled.is_in for name in "abc"] == [True, True, False]
    seen = syncs_of(node, lambda: node.append(a=b"1", b=b"2", c=b"3"))
    assert f"{JOURNAL}/segment.0" in seen
    assert node.groups["c"].log._journaled.is_in


def test_without_room_for_it_groups_write_to_their_own_files_and_it_is_said_once(caplog):
    node = JournaledNode(new_disk(), limits=ROOMY)
    node.files.total_bytes = 40_000 + sum(c.allocated for c in node.files._names.contents())
    for _ in range(5):
        node.append(a=b"1", b=b"2")
        node.steps.take()
    assert sum("gets no segment" in line for line in caplog.messages) == 1
    again = after_power_loss(node)
    assert again.bodies("a") == [b"1"] * 5


def test_a_group_that_found_no_room_for_its_note_uses_the_journal_later(node, monkeypatch):
    files = node.files
    node.open("late")

    def full(*arguments):
        raise NoSpaceError("/node/late", "write", OSError("full"))

    with monkeypatch.context() as patched:
        patched.setattr("quorumlog.storage.log.unsettled.note_unsettled", full)
        node.append(a=b"1", late=b"2")
    assert not node.groups["late"].log._journaled.is_in
    for _ in range(ROOMY.wanted_again + ROOMY.group_wanted_min):
        node.append(a=b"1", late=b"2")
        node.steps.take()
    assert node.groups["late"].log._journaled.is_in
    assert syncs_of(node, lambda: node.append(a=b"1", late=b"2")) == [f"{JOURNAL}/segment.0"]
    assert files.is_directory(JOURNAL)


# -- after a crash ------------------------------------------------------------------------------


def test_a_loss_of_power_loses_nothing_that_was_in_the_journal_alone(node):
    for number in range(20):
        node.append(a=b"a%d" % number, b=b"b%d" % number, c=b"c%d" % number)
    again = after_power_loss(node)
    for name in ("a", "b", "c"):
        assert again.bodies(name)[-20:] == [b"%s%d" % (name.encode(), n) for n in range(20)]
        assert not again.log(name).damaged
    assert again.settled.groups.keys() == {f"{NODE}/{name}" for name in "abc"}


def test_entries_that_the_files_show_are_written_again_since_the_disk_may_lack_them(node):
    """After a failed fsync the page cache shows what the disk does not hold."""
    node.append(a=b"only in the cache", b=b"2")
    node.files.fail_next("a/data/" + "0" * 20, "EIO")
    with pytest.raises(StorageError):
        node.append(a=b"direct")
    node.files.kill()
    JournaledNode(node.files)  # settles, then the machine loses power before anything is appended
    again = after_power_loss(node)
    assert b"only in the cache" in again.bodies("a")


def test_truncated_entries_do_not_come_back_from_the_journal(node):
    node.append(a=b"old 1", b=b"x")
    node.append(a=b"old 2", b=b"x")
    end = node.log("a").end_index
    node.plans.append(node.log("a").truncate(end - 1))
    node.append(a=b"new", b=b"y")
    again = after_power_loss(node)
    assert again.bodies("a")[-2:] == [b"begin", b"new"]
    assert not again.log("a").damaged


def test_entries_truncated_in_the_commit_that_appends_them_do_not_come_back(node):
    node.stage("a", [b"old 1"])
    node.stage("b", [b"x"])
    node.plans.append(node.log("a").truncate(node.log("a").end_index))
    node.stage("a", [b"new"])
    node.commit()
    again = after_power_loss(node)
    assert again.bodies("a")[-2:] == [b"begin", b"new"]
    assert again.bodies("b")[-1] == b"x"


def test_an_emptied_group_is_not_given_the_entries_of_its_predecessor(node):
    node.append(a=b"old", b=b"x")
    node.files.kill()
    for path in list(node.files._names.now):
        if path.startswith(f"{NODE}/a/") and not node.files.is_directory(path):
            node.files.remove(path)
            node.files.sync_directory(path.rpartition("/")[0])
    again = after_power_loss(node)
    assert again.bodies("a") == []
    assert again.bodies("b")[-1] == b"x"


def test_entries_removed_from_the_front_do_not_come_back(node):
    for number in range(30):
        node.append(a=b"%d" % number + b"." * 300, b=b"x")
    log = node.log("a")
    log.note_committed(log.end_index)
    node.plans.append(log.reset(log.segments()[0].last_index))
    node.commit()
    first = log.before_begin_index + 1
    again = after_power_loss(node)
    assert again.log("a").before_begin_index + 1 == first
    assert again.bodies("a")[-1].startswith(b"29")


def last_record(node):
    """Path of the segment with the newest record, where it starts, and its size."""
    files, offset = node.files, node.journal._current.offset
    path = node.journal._current.file.path
    number, _ = node.journal.place
    content = read_journal(files, JOURNAL, number)
    newest = max(sequence for parts in content.parts.values() for sequence, _, _ in parts)
    size = sum(
        len(data) + 52 for parts in content.parts.values() for s, _, data in parts if s == newest
    )
    size = -(-(20 + 4 + size) // 512) * 512
    return path, offset - size, size


def test_each_flipped_byte_of_the_last_record_costs_no_more_than_that_record():
    """It would have been reported, so this is damage; but nobody can tell it from a torn one."""
    for byte in range(0, 300, 7):
        node = JournaledNode(new_disk(), limits=ROOMY)
        node.begin_journal()
        node.append(a=b"kept", b=b"kept")
        node.append(a=b"last", b=b"last")
        path, begin, _ = last_record(node)
        node.files.survival = "none"
        node.files.power_loss()
        node.files.flip(path, begin + byte, 0x40)
        again = JournaledNode(node.files)
        assert again.bodies("a")[-1] in (b"kept", b"last"), byte
        assert b"kept" in again.bodies("a")
        assert again.bodies("a")[-1] == again.bodies("b")[-1]


def test_a_damaged_record_is_damage_of_groups_whose_files_lack_it_and_of_no_others(caplog):
    node = JournaledNode(new_disk(), limits=ROOMY)
    node.begin_journal()
    node.append(a=b"kept", b=b"kept")
    node.append(a=b"damaged", b=b"damaged")
    path, begin, _ = last_record(node)
    node.append(a=b"after", b=b"after")
    node.checkpoint("b")  # its files are durable
    node.commit()
    node.files.survival = "none"
    node.files.power_loss()
    node.files.flip(path, begin + 150, 0x01)
    again = JournaledNode(node.files, names=("b", "c"))
    assert again.bodies("b")[-2:] == [b"damaged", b"after"]
    assert "records 7 to 7 before byte" in caplog.text
    with pytest.raises(CorruptionError, match="entries are missing"):
        again.open("a")


def test_what_the_journal_proves_to_be_durable_is_damage_and_no_torn_tail(node):
    """No hint was written for it: the journal's own mark counts."""
    node.append(a=b"newest", b=b"x")
    node.files.kill()
    settle_node(node.files, NODE)
    log = node.log("a")
    position = log.end_point.position - 3
    node.files.flip(f"{NODE}/a/data/{0:020d}", position, 0x10)
    again = JournaledNode(node.files)
    assert list(again.log("a").damaged.ranges) == [(log.end_index, log.end_index)]


# -- its room -----------------------------------------------------------------------------------


def full_up(node, take_steps):
    for number in range(60):
        node.append(a=b"a%03d" % number + b"." * 100, b=b"b%03d" % number, c=b"c")
        if take_steps:
            node.steps.take()


@pytest.mark.parametrize("take_steps", [True, False])
def test_room_is_used_again_only_after_the_groups_files_are_durable(take_steps):
    node = JournaledNode(new_disk())
    node.begin_journal()
    full_up(node, take_steps)
    for survival in ("none", "random"):
        files = node.files.copy(node.files.random)
        files.survival = survival
        files.power_loss()
        again = JournaledNode(files)
        expected = [b"a%03d" % number + b"." * 100 for number in range(60)]
        assert again.bodies("a")[-60:] == expected
        assert not again.log("a").damaged


def test_while_no_segment_is_settled_groups_write_to_their_own_files_and_nobody_waits():
    node = JournaledNode(new_disk())
    node.begin_journal()
    full_up(node, take_steps=False)
    seen = syncs_of(node, lambda: node.append(a=b"1" * 900, b=b"2" * 900))
    assert {path.split("/")[2] for path in seen} == {"a", "b"}
    node.steps.take()
    seen = syncs_of(node, lambda: node.append(a=b"1", b=b"2"))
    assert {path.split("/")[2] for path in seen} == {"quorumlog.journal"}


def test_a_single_segment_is_used_again_too():
    """There may be no room for a second one."""
    limits = msgspec.structs.replace(SMALL, segments_first=1, segments_max=1)
    node = JournaledNode(new_disk(), limits=limits)
    node.begin_journal()
    full_up(node, take_steps=True)
    records = node.journal.place[1]
    full_up(node, take_steps=True)
    assert node.journal.place[1] > records + 30
    again = after_power_loss(node)
    assert again.bodies("a")[-60:] == [b"a%03d" % number + b"." * 100 for number in range(60)]
    assert not again.log("a").damaged


@pytest.mark.parametrize("survival", ["none", "random"])
def test_a_crash_between_two_uses_of_a_segment_is_not_taken_for_damage(survival, caplog):
    for call in range(1, 400, 3):
        node = JournaledNode(new_disk(seed=call, survival=survival))
        node.begin_journal()
        node.files.crash_at = node.files.calls + call
        with suppress(SimulatedCrash):
            full_up(node, take_steps=True)
        node.files.crash_at = None
        node.files.restart()
        settle_node(node.files, NODE)
        assert "damaged" not in caplog.text, call


def test_a_failed_fsync_of_a_settled_file_ends_the_node_and_loses_nothing():
    node = JournaledNode(new_disk())
    node.begin_journal()
    full_up(node, take_steps=False)
    node.files.fail_next("b/data/" + "0" * 20, "EIO")
    with pytest.raises(StorageError):
        node.steps.take()
    with pytest.raises(StorageError):
        node.append(a=b"never", b=b"never")
    with pytest.raises(StorageError):
        node.store.close()
    node.files.lock(f"{JOURNAL}/lock").release()  # the same process may start a node again
    node.files.kill()
    JournaledNode(node.files)
    again = after_power_loss(node)
    assert again.bodies("b")[-60:] == [b"b%03d" % number for number in range(60)]


# -- stopping, other programs, other versions ---------------------------------------------------


def identity_of(node, name):
    file = node.files.open(f"{NODE}/{name}/quorumlog.identity")
    return json.loads(file.read_at(4_096, 0))


def test_after_an_orderly_stop_there_is_no_journal_and_older_versions_open_the_files(node):
    node.append(a=b"last", b=b"last")
    assert "journal" in identity_of(node, "a")
    node.close()
    assert node.files.names(JOURNAL) == ["lock"]
    assert "journal" not in identity_of(node, "a")
    again = after_power_loss(node)
    assert again.bodies("a")[-1] == b"last"


@pytest.mark.parametrize("failing", ["quorumlog.durable", "data/" + "0" * 20])
def test_a_stop_that_fails_keeps_the_journal_and_lets_the_node_start_again(failing):
    node = JournaledNode(new_disk(), limits=ROOMY, now_ms=lambda: 0)
    node.begin_journal()
    node.append(a=b"last", b=b"last")
    node.files.fail_next(f"{NODE}/a/{failing}", "EIO")
    with pytest.raises(StorageError):
        node.close()
    assert "segment.0" in node.files.names(JOURNAL)
    for group in node.groups.values():
        group.close()
    again = JournaledNode(node.files)  # in the same process
    assert again.bodies("a")[-1] == again.bodies("b")[-1] == b"last"


def test_after_a_failure_a_segment_that_is_half_made_is_removed():
    node = JournaledNode(new_disk())
    node.append(a=b"1", b=b"2")
    node.steps.take(1)
    assert "segment.0.new" in node.files.names(JOURNAL)
    node.store.abandon()
    assert node.files.names(JOURNAL) == ["lock"]


def test_a_group_that_is_closed_while_the_node_runs_needs_the_journal_no_more(node):
    node.append(a=b"last", b=b"last")
    node.plans.append(node.log("a").settle())
    node.commit()
    node.groups["a"].close()
    assert "journal" not in identity_of(node, "a")
    node.names = ("b", "c")
    node.append(b=b"more", c=b"more")
    again = after_power_loss(node)
    again.open("a")
    assert again.bodies("a")[-1] == b"last"
    assert again.bodies("b")[-1] == b"more"


@pytest.mark.parametrize("is_in", [True, False])
def test_the_files_of_a_group_that_is_closed_while_the_node_runs_stay_whole(node, is_in):
    for number in range(20):
        node.append(**{"a": b"%d" % number} | ({"b": b"more"} if is_in else {}))
    node.plans.append(node.log("a").settle())
    node.commit()
    node.groups["a"].close()
    node.names = ("b", "c")
    again = after_power_loss(node)
    report = verify_store(again.files, f"{NODE}/a")
    assert report.findings == []
    assert report.end_index >= 19


def test_the_journal_forgets_groups_that_are_gone(node):
    def known():
        gc.collect()
        return sum(isinstance(one, GroupInJournal) for one in gc.get_objects())

    before = known()
    for _ in range(5):
        node.open("d")
        for _ in range(3):
            node.append(b=b"1", d=b"2")
        node.plans.append(node.log("d").settle())
        node.commit()
        node.groups.pop("d").close()
        node.files.remove_tree(f"{NODE}/d")
    assert known() == before
    node.append(b=b"more", c=b"more")
    node.close()
    assert node.files.names(JOURNAL) == ["lock"]


def test_versions_without_a_journal_refuse_the_files_until_they_are_settled(node):
    node.append(a=b"last", b=b"last")
    node.files.kill()
    raw = node.files.open(f"{NODE}/a/quorumlog.identity").read_at(4_096, 0)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(raw, type=Identity)
    settle_node(node.files, NODE)
    raw = node.files.open(f"{NODE}/a/quorumlog.identity").read_at(4_096, 0)
    assert msgspec.json.decode(raw, type=Identity).group == "g"


@pytest.mark.parametrize(
    "use",
    [
        lambda files, path: list(scan_store(files, path)),
        verify_store,
        lambda files, path: truncate_store(files, path, 3),
        lambda files, path: repair_store(files, path, f"{NODE}/b"),
        lambda files, path: export_original(files, path, f"{NODE}/exported"),
    ],
)
def test_tools_refuse_files_that_may_lack_entries_and_say_what_to_do(node, use):
    node.append(a=b"last", b=b"last")
    node.files.kill()
    with pytest.raises(UnsettledError, match="quorumlog store settle /node"):
        use(node.files, f"{NODE}/a")


def test_while_the_node_runs_its_files_show_everything(node):
    node.append(a=b"last", b=b"last")
    assert [entry.body for entry, _, _ in scan_store(node.files, f"{NODE}/a")][-1] == b"last"


def test_a_journal_that_is_gone_is_missed(node):
    node.append(a=b"last", b=b"last")
    node.files.kill()
    for name in node.files.names(JOURNAL):
        node.files.remove(f"{JOURNAL}/{name}")
    failed = settle_node(node.files, NODE).failed
    assert "the journal that this group used is gone" in str(failed[f"{NODE}/a"])
    with pytest.raises(UnsettledError):
        node.open("a")


def test_a_group_that_cannot_be_settled_keeps_the_journal_and_the_others_go_on(node, caplog):
    node.append(a=b"last", b=b"last")
    node.files.survival = "none"
    node.files.power_loss()
    node.files.fail_next("a/data/" + "0" * 20, "EIO")
    first = settle_node(node.files, NODE)
    assert list(first.failed) == [f"{NODE}/a"]
    others = JournaledNode(node.files, names=("b", "c"), limits=ROOMY, settles=False)
    for _ in range(8):  # what is in the journal must stay there
        others.append(b=b"more", c=b"more")
        others.steps.take()
    assert "cannot be opened" in caplog.text
    again = after_power_loss(others)
    again.open("a")
    assert again.bodies("a")[-1] == b"last"
    assert again.bodies("b")[-8:] == [b"more"] * 8


def lose(node, *names):
    node.files.survival = "none"
    node.files.power_loss()
    for name in names:
        node.files.remove(f"{NODE}/a/{name}")
    return settle_node(node.files, NODE).failed


@pytest.mark.parametrize("lost", ["quorumlog.checkpoint", "quorumlog.durable"])
def test_one_file_that_is_lost_does_not_bring_removed_entries_back(node, lost):
    node.append(a=b"old", b=b"x")
    node.plans.append(node.log("a").truncate(node.log("a").end_index))
    node.append(a=b"new")
    node.append(a=b"newest", b=b"x")
    assert not lose(node, lost)
    node.open("a")
    assert node.bodies("a")[-3:] == [b"begin", b"new", b"newest"]


def test_without_checkpoint_and_hint_entries_of_the_journal_that_are_in_doubt_are_refused(node):
    node.append(a=b"old", b=b"x")
    node.plans.append(node.log("a").truncate(node.log("a").end_index))
    node.append(a=b"new")
    failed = lose(node, "quorumlog.checkpoint", "quorumlog.durable")
    assert "nobody knows whether" in str(failed[f"{NODE}/a"])


def test_without_checkpoint_and_hint_entries_that_nothing_contradicts_are_written(node):
    node.append(a=b"last", b=b"x")
    assert not lose(node, "quorumlog.checkpoint", "quorumlog.durable")
    node.open("a")
    assert node.bodies("a")[-1] == b"last"


@pytest.mark.parametrize("damage", ["deleted", "cut short", "header"])
def test_a_segment_that_is_lost_is_missed(node, damage):
    node.append(a=b"last", b=b"x")
    node.files.kill()
    path = f"{JOURNAL}/segment.1"
    if damage == "deleted":
        node.files.remove(path)
    elif damage == "cut short":
        node.files.open(path).resize(5_000)
    else:
        node.files.open(path).write_at([bytes(4_096)], 0)
    failed = settle_node(node.files, NODE).failed
    assert set(failed) == {f"{NODE}/{name}" for name in "abc"}
    assert "segment.1 is lost" in str(failed[f"{NODE}/a"])


def test_a_bit_in_a_segments_header_is_no_loss(node):
    node.append(a=b"last", b=b"x")
    node.files.power_loss()
    node.files.flip(f"{JOURNAL}/segment.0", 10, 1)
    assert JournaledNode(node.files).bodies("a")[-1] == b"last"


def test_a_crash_right_after_a_group_began_to_use_the_journal_is_no_loss():
    for call in range(1, 120):
        node = JournaledNode(new_disk(seed=call, survival="random"), limits=ROOMY)
        before = node.files.calls
        node.files.crash_at = before + call
        done = 0
        try:
            for _ in range(6):
                node.append(a=b"1", b=b"2")
                done += 1
                node.steps.take()
        except BaseException as error:
            assert type(error).__name__ == "SimulatedCrash"  # noqa: PT017
        node.files.crash_at = None
        node.files.restart()
        again = JournaledNode(node.files)
        assert len(again.bodies("a")) >= done
        again.append(a=b"next", b=b"next")


def test_settling_can_be_interrupted_at_any_call():
    node = JournaledNode(new_disk(), limits=ROOMY)
    node.begin_journal()
    for number in range(5):
        node.append(a=b"a%d" % number, b=b"b%d" % number)
    node.files.power_loss()
    call = 0
    while True:
        call += 1
        files = node.files.copy(node.files.random)
        files.survival = "random"
        files.crash_at = call
        try:
            settle_node(files, NODE)
        except BaseException as error:
            assert type(error).__name__ == "SimulatedCrash"  # noqa: PT017
            files.crash_at = None
            files.restart()
            again = JournaledNode(files)
            assert again.bodies("a")[-5:] == [b"a%d" % number for number in range(5)], call
            continue
        break
    assert call > 10


# -- hints --------------------------------------------------------------------------------------


def test_a_hint_is_written_within_50_ms_and_not_for_each_commit():
    now = [1_000]
    node = JournaledNode(new_disk(), now_ms=lambda: now[0])

    def hint():
        path = f"{NODE}/a/quorumlog.durable"
        return node.files.open(path).read_at(100, 0)

    node.append(a=b"1")
    first = hint()
    node.append(a=b"2")
    assert hint() == first
    assert node.store.idle()
    now[0] += 50
    assert not node.store.idle()
    assert hint() != first


def test_a_hint_put_off_does_not_outlive_a_truncation_or_a_reset(caplog):
    caplog.set_level(logging.CRITICAL)
    now = [1_000]
    for removal in ("truncate", "reset"):
        node = JournaledNode(new_disk(), now_ms=lambda: now[0])
        node.append(a=b"1")
        for _ in range(5):
            node.append(a=b"x" * 50)
        if removal == "truncate":
            node.plans.append(node.log("a").truncate(1))
        else:
            node.plans.append(node.log("a").reset(100, 1, 7))
        now[0] += 100
        node.store.idle()  # between deciding and removing
        node.commit()
        now[0] += 100
        node.store.idle()
        again = after_power_loss(node)
        assert not again.log("a").damaged
        assert again.bodies("a") == ([b"1"] if removal == "truncate" else [])


def test_default_limits_fit_each_other():
    limits = JournalLimits()
    assert limits.commit_bytes_max * 8 <= limits.segment_bytes
    assert limits.segments_first <= limits.segments_max
