"""Damage in a running replica: what the core learns, which peers are asked, what is accepted."""

from types import SimpleNamespace

import pytest

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import CorruptionError
from quorumlog.model.messages.peer import RepairRequest, RepairResponse
from quorumlog.node.replica.repair import Repairer
from quorumlog.node.replica.tables import Tables
from replica_context import Surroundings
from store_access import Opened, config, stored_block


class Replica(Surroundings):
    """A replica with one open group, which carries out writes at once.

    `skipped` are the damaged entries after which it is to go on, as others have removed them.
    """

    def __init__(self, directory):
        self.opened = Opened(directory, cache=1, data_file=1_000, index_file=32 * 6)
        self.log = self.opened.log
        self.core = SimpleNamespace(
            self_id="n0",
            term=1,
            committed_index=29,
            membership=SimpleNamespace(ids=("n0", "n7", "n8")),
            leader_id=None,
        )
        super().__init__(config(scrub_bytes_per_second=0), core=self.core, log=self.log)
        self.told, self.skipped = [], []
        self.repairer = Repairer(
            self.context,
            Tables(self.log, 29, None),
            lambda index, peer, begin_index, table: self.skipped.append((peer, begin_index)),
            list,
        )

    def submit(self, owner, token, plan):
        self.opened.submit(plan)
        owner.written(token, plan)

    def update_eligibility(self):
        if bool(self.log.damaged) != (bool(self.told) and self.told[-1]):
            self.told.append(bool(self.log.damaged))

    def overwrite(self, index, offset):
        """Flip a bit of a byte of an entry on disk."""
        position = self.log._place_of(index)[0]
        path = self.log._data.path_at(position)
        with open(path, "r+b") as file:
            file.seek(position % 1_000 + offset)
            was = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([was[0] ^ 1]))

    def damage(self, index, offset=60):
        self.overwrite(index, offset)
        with pytest.raises(CorruptionError) as caught:
            self.log.read(index, index, 1_000)
        self.repairer.found(caught.value)

    def tick(self):
        self.now_ms += 2_000
        self.context.timers.tick()

    def answer(self, *bodies):
        """Answer what was asked last with these entries, as stored."""
        self._answer(ResponseCode.SUCCESS, bodies)

    def ask(self, *, begins_at):
        """Ask the next peer, which has removed what comes before; return which one."""
        self.tick()
        return self._answer(ResponseCode.INDEX_OUT_OF_RANGE, begins_at=begins_at)

    def _answer(self, code, bodies=(), *, begins_at=0):
        asked = self.sent[-1][0]
        answer = self.answer_to(
            RepairResponse,
            code=code,
            first_index=asked.first_index,
            count=len(bodies),
            begin_index=begins_at,
        )
        parts = bodies if begins_at <= asked.first_index else [b"producer sessions"]
        self.repairer.answered(answer, memoryview(b"".join(parts)))
        return asked.remote_id


@pytest.fixture
def replica(tmp_path):
    made = Replica(tmp_path / "g")
    made.opened.append([b"x" * 40] * 30)
    yield made
    made.opened.close()


def test_damage_keeps_from_leading_and_is_asked_for(replica):
    replica.damage(12)
    assert replica.told == [True]
    replica.tick()
    ((asked, _),) = replica.sent
    assert isinstance(asked, RepairRequest)
    assert (asked.remote_id, asked.first_index, asked.last_index) == ("n8", 12, 12)


def test_whoever_has_what_is_damaged_is_asked_for_all_of_it_without_a_pause(replica):
    """Ten damaged places took ten seconds where another peer had removed them."""
    good = {at: bytes(stored_block(replica.log, at, at).data) for at in (5, 12, 20)}
    for index in good:
        replica.damage(index)
    replica.core.leader_id = "n7"
    without = replica.ask(begins_at=25)
    while replica.log.damaged:
        replica.context.timers.tick()  # no time passes
        assert replica.sent[-1][0].remote_id != without
        replica.answer(good[replica.sent[-1][0].first_index])
    assert len(replica.sent) == 4


def test_damage_that_is_truncated_away_keeps_from_leading_no_more(replica):
    replica.damage(25)
    replica.opened.truncate(20)
    replica.tick()
    assert replica.told == [True, False]
    assert not replica.sent


def test_damage_that_is_removed_with_old_entries_keeps_from_leading_no_more(replica):
    replica.damage(2)
    replica.log.note_committed(29)
    replica.opened.submit(replica.log.reset(10))
    replica.tick()
    assert replica.told == [True, False]


def test_damage_that_hides_behind_damage_is_asked_for_at_once_and_repaired(replica):
    """Whether a header's chain CRC is wrong nobody knows while the entry before it is damaged."""
    good = [bytes(stored_block(replica.log, index, index).data) for index in (12, 13)]
    replica.overwrite(13, 38)
    replica.damage(12, 23)
    assert replica.log.damaged.ranges == ((12, 13),)
    replica.tick()
    assert (replica.sent[-1][0].first_index, replica.sent[-1][0].last_index) == (12, 13)
    replica.answer(*good)
    assert not replica.log.damaged
    assert replica.told == [True, False]
    assert [bytes(stored_block(replica.log, index, index).data) for index in (12, 13)] == good


def test_damage_that_hides_on_both_sides_of_damage_is_repaired(replica):
    good = {index: bytes(stored_block(replica.log, index, index).data) for index in range(11, 14)}
    replica.overwrite(11, 38)
    replica.overwrite(13, 38)
    replica.damage(12, 23)
    for _ in range(4):
        replica.tick()
        if replica.log.damaged:
            asked = replica.sent[-1][0]
            replica.answer(*(good[at] for at in range(asked.first_index, asked.last_index + 1)))
    assert not replica.log.damaged
    assert [bytes(stored_block(replica.log, at, at).data) for at in good] == list(good.values())


def test_what_damage_hid_further_on_is_found_once_that_is_repaired(replica):
    """Entry 14 cannot be checked against 13, which does not follow from the damaged 12."""
    good = {index: bytes(stored_block(replica.log, index, index).data) for index in (12, 14)}
    replica.overwrite(14, 35)
    replica.damage(12, 23)
    assert replica.log.damaged.ranges == ((12, 12),)
    replica.tick()
    replica.answer(good[12])
    assert replica.log.damaged.ranges == ((14, 14),)
    replica.context.timers.tick()
    replica.answer(good[14])
    assert not replica.log.damaged
    assert bytes(stored_block(replica.log, 14, 14).data) == good[14]


def test_the_same_damage_is_reported_once(replica):
    replica.damage(12)
    replica.damage(13)
    assert replica.told == [True]
    assert replica.log.damaged.ranges == ((12, 13),)
    assert replica.context.counters.entries_damaged == 2


def test_what_the_leader_has_removed_is_given_up_and_what_others_have_is_not(replica):
    replica.damage(12)
    replica.core.leader_id = "n7"
    removed_after = []
    for _ in range(6):
        peer = replica.ask(begins_at=20)
        removed_after.append((peer, list(replica.skipped)))
        replica.skipped.clear()
    assert removed_after == [("n8", []), ("n7", [("n7", 20)])] * 3


def test_without_a_leader_what_a_peer_has_removed_is_given_up_once_all_were_asked(replica):
    """The longest log may be this one: nobody else is elected, and it does not lead damaged."""
    replica.damage(12)
    asked = [replica.ask(begins_at=20), replica.ask(begins_at=20)]
    assert sorted(asked) == ["n7", "n8"]
    assert replica.skipped == []
    last = replica.ask(begins_at=20)
    assert replica.skipped == [(last, 20)]


def test_a_leader_that_comes_meanwhile_is_the_one_that_counts(replica):
    replica.damage(12)
    replica.ask(begins_at=20)
    replica.core.leader_id = "n9"
    replica.ask(begins_at=20)
    replica.core.leader_id = None
    replica.ask(begins_at=20)
    replica.ask(begins_at=20)
    assert replica.skipped == []
