"""Each file of a stopped replica damaged in each way: it is made good, or refused with advice.

Whatever happens, everything that was acknowledged is there afterwards, and so is what producers
stored: nothing is stored twice, nothing is forgotten.
"""

import pytest
from isal.isal_zlib import crc32

from damage_matrix import (
    DAMAGES,
    LIMIT_MS,
    OBSTACLES,
    VICTIM,
    one_member,
    put_directory,
    put_file,
    sessions_of,
    three_members,
)
from quorumlog.model.codes import Role
from quorumlog.sim.disk import SimulatedFileSystem
from store_access import entries_of


def check_all_is_well(stopped, cluster):
    cluster.run_until(cluster.clock.now_ms + 300)
    cluster.read_everything()
    cluster.run_until_equal(LIMIT_MS)
    for node in cluster.nodes.values():
        log = node.log
        assert not log.damaged
        found = {entry.index: content(entry) for entry in entries_of(log)}
        kept = {i: content(e) for i, e in stopped.entries.items() if i > log.before_begin_index}
        assert {index: found.get(index) for index in kept} == kept, node.node_id
        assert node.core.term >= stopped.term
        assert sessions_of(node) == stopped.sessions, node.node_id
        assert not node.running.tables.is_incomplete
        assert set(node.core.membership.voters) == set(stopped.membership.voters)


def content(entry):
    """`pos` in a header is the appending leader's, is covered by no CRC and used for nothing."""
    return entry.index, entry.term, entry.magic, entry.channel, entry.body, entry.chain_crc


def names():
    return [path.removeprefix("/node/") for path in three_members().paths()]


def test_the_group_has_a_history():
    stopped = three_members()
    found = names()
    assert stopped.begin > 0
    sessions, producers = stopped.sessions
    assert sessions
    assert producers
    assert len([name for name in found if name.startswith("g/data/")]) >= 3
    small = {name.removeprefix("g/quorumlog.") for name in found if "quorumlog." in name}
    twice = {"state", "sessions", "membership", "damaged", "identity"}
    assert small >= twice | {f"{name}.copy" for name in twice} | {"checkpoint", "durable"}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_to_any_one_file_is_repaired(kind):
    stopped = three_members()
    for path in stopped.paths():
        cluster = stopped.started_after((VICTIM, path, kind))
        victim = cluster.nodes[VICTIM]
        assert victim.is_up, (path, kind, victim.why_stopped)
        try:
            check_all_is_well(stopped, cluster)
            assert not any(node.alarms for node in cluster.nodes.values())
        except Exception as error:
            raise AssertionError(f"{path}, {kind}: {error}") from error


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_to_any_one_file_of_the_journal_is_repaired_or_refused_with_advice(kind):
    stopped = three_members()
    assert len(stopped.journal_paths()) >= 4
    refused = []
    for path in stopped.journal_paths():
        cluster = stopped.started_after((VICTIM, path, kind))
        victim = cluster.nodes[VICTIM]
        if not victim.is_up:
            refused.append(path)
            assert path in victim.why_stopped
            assert "Removing this replica's directory, to have it filled" in victim.why_stopped
            cluster.run_until_served(LIMIT_MS)
            random, clock = cluster.clock.random, cluster.clock
            victim.files = SimulatedFileSystem(random, now_ms=lambda clock=clock: clock.now_ms)
            victim.files.make_directory("/node")
            victim.start()
        check_all_is_well(stopped, cluster)
    whole = kind in ("cut in half", "emptied", "deleted")
    assert all("segment." in path for path in refused)
    assert bool(refused) == whole


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_lies_in_the_place_of_a_file_is_moved_away_or_refused_with_advice(kind, caplog):
    stopped = three_members()
    for path in stopped.paths():
        caplog.clear()
        cluster = stopped.started_after((VICTIM, path, kind))
        victim = cluster.nodes[VICTIM]
        moved = "/moved.".join(path.rsplit("/", 1))
        try:
            if victim.is_up:
                if f"{path} is no file of this log; it is ignored, and renamed" in caplog.text:
                    moved = path  # it is where a file was made ahead
                else:
                    assert f"its name is {moved} now" in caplog.text
                assert type(victim.files._names.now[moved]) is type(OBSTACLES[kind]())
            else:
                assert "/data/" in path
                assert "where a file must be; move it away" in victim.why_stopped
                assert "is ignored" not in caplog.text
                victim.files.replace(path, moved)
                victim.start()
            check_all_is_well(stopped, cluster)
        except Exception as error:
            raise AssertionError(f"{path}, {kind}: {error}") from error


@pytest.mark.parametrize("kind", OBSTACLES)
@pytest.mark.parametrize("name", ["quorumlog.state", "quorumlog.identity"])
def test_what_lies_in_the_place_of_both_copies_is_refused_and_stays(name, kind):
    stopped = three_members()
    cluster = stopped.started_after(*both(name, kind))
    victim = cluster.nodes[VICTIM]
    assert f"/node/g/{name} is " in victim.why_stopped
    assert "where a file must be; move it away" in victim.why_stopped
    assert all(victim.files.obstacle(path) for _, path, _ in both(name))


def both(name, kind="emptied", node_id=VICTIM):
    return [(node_id, f"/node/g/{name}{copy}", kind) for copy in ("", ".copy")]


@pytest.mark.parametrize("kind", ["bit at the head", "emptied", "deleted"])
@pytest.mark.parametrize("name", ["quorumlog.damaged", "quorumlog.checkpoint"])
def test_what_can_be_derived_is_rebuilt_without_any_copy_and_said(name, kind, caplog):
    stopped = three_members()
    damages = both(name, kind)
    if kind == "bit at the head":  # of both slots
        damages += [(VICTIM, f"/node/g/{name}", "bit in the middle")]
    check_all_is_well(stopped, stopped.started_after(*damages))
    assert f"{name} is lost" in caplog.text or (name, kind) == (
        "quorumlog.checkpoint",
        "bit at the head",
    )


def test_without_checkpoint_and_hint_a_log_starts_with_its_first_file(caplog):
    stopped = three_members()
    damages = [*both("quorumlog.checkpoint"), (VICTIM, "/node/g/quorumlog.durable", "emptied")]
    check_all_is_well(stopped, stopped.started_after(*damages))
    assert "taken from its first data file" in caplog.text


@pytest.mark.parametrize("kind", ["bit in the middle", "emptied", "deleted"])
def test_a_replica_that_lost_the_sessions_asks_a_peer_and_does_not_lead_before(kind, caplog):
    stopped = three_members()
    cluster = stopped.started_after(*both("quorumlog.sessions", kind), down=("n0", "n2", "n3"))
    victim = cluster.nodes[VICTIM]
    assert "quorumlog.sessions is lost" in caplog.text
    cluster.run_until(cluster.clock.now_ms + 3_000)
    assert victim.running.tables.is_lost
    assert victim.core.role is not Role.LEADER
    assert victim.running.tables.stable_index < stopped.begin  # no reader is told what is unknown
    victim.stop(power=False)  # and it is not forgotten that it was lost
    victim.start()
    assert victim.running.tables.is_lost
    for node_id in ("n0", "n2", "n3"):
        cluster.nodes[node_id].start()
    check_all_is_well(stopped, cluster)
    assert not victim.running.tables.is_lost


def test_a_group_in_which_no_replica_has_the_sessions_says_so_and_continues(caplog):
    stopped = three_members()
    lost = [
        part for n in ("n0", "n1", "n2", "n3") for part in both("quorumlog.sessions", node_id=n)
    ]
    cluster = stopped.started_after(*lost)
    cluster.run_until_equal(LIMIT_MS)
    assert any("no replica knows what producers" in str(vars(one)) for one in caplog.records)
    assert all(not node.running.tables.is_incomplete for node in cluster.nodes.values())


def test_a_group_of_one_that_lost_the_sessions_says_so_and_continues(caplog):
    stopped = one_member()
    assert stopped.begin > 0
    cluster = stopped.started_after(*both("quorumlog.sessions", node_id="n0"), down=("n1",))
    cluster.run_until_served(LIMIT_MS)
    assert any("no replica knows what producers" in str(vars(one)) for one in caplog.records)


@pytest.mark.parametrize("kind", ["emptied", "deleted"])
@pytest.mark.parametrize("name", ["quorumlog.state", "quorumlog.identity", "quorumlog.membership"])
def test_what_cannot_be_derived_is_refused_with_advice_that_helps(name, kind):
    stopped = three_members()
    cluster = stopped.started_after(*both(name, kind))
    victim = cluster.nodes[VICTIM]
    assert not victim.is_up
    assert f"/node/g/{name}" in victim.why_stopped
    assert "Removing this replica's directory, to have it filled again" in victim.why_stopped
    cluster.run_until_served(LIMIT_MS)
    victim.files = SimulatedFileSystem(cluster.clock.random, now_ms=lambda: cluster.clock.now_ms)
    victim.files.make_directory("/node")
    victim.start()
    check_all_is_well(stopped, cluster)


def test_a_directory_of_an_earlier_version_gets_its_copies():
    stopped = three_members()
    copies = [path for path in stopped.paths() if path.endswith(".copy")]
    cluster = stopped.started_after(*((VICTIM, path, "deleted") for path in copies))
    check_all_is_well(stopped, cluster)
    found = cluster.nodes[VICTIM].files.names("/node/g")
    assert {path.rsplit("/")[-1] for path in copies} <= set(found)


def test_the_hint_of_an_earlier_version_says_where_a_log_starts(caplog):
    """It lacked term and chain CRC of the entry before the first."""
    stopped = three_members()
    cluster = stopped.started_after(*both("quorumlog.checkpoint"), down=(VICTIM,))
    victim = cluster.nodes[VICTIM]
    content = victim.files._content("/node/g/quorumlog.durable", "open")
    body = b"QDU2" + bytes(content.cached[4 : 4 + 6 * 8])
    put_file(victim.files, "/node/g/quorumlog.durable", body + crc32(body).to_bytes(4, "big"))
    victim.start()
    assert "taken from quorumlog.durable" in caplog.text
    assert victim.log.before_begin_index + 1 >= stopped.begin - 300
    assert victim.log.before_begin_index >= 0
    check_all_is_well(stopped, cluster)


def test_unknown_files_in_a_directory_are_named_and_ignored(caplog):
    stopped = three_members()
    for directory in ("/node/g", "/node/g/data", "/node/g/index"):
        for put, name in ((put_file, "notes.txt"), (put_directory, "old")):
            cluster = stopped.started_after(down=(VICTIM,))
            victim = cluster.nodes[VICTIM]
            put(victim.files, f"{directory}/{name}")
            victim.start()
            assert f"{directory}/{name} is no" in caplog.text
            check_all_is_well(stopped, cluster)
            assert victim.files.exists(f"{directory}/{name}")
