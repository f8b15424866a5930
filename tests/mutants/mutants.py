"""Known bugs of replicated logs, put back one at a time: RELIABILITY section 3, R1 to R39,
two about timers (t01, t02; decision 0032), those of turns of the loop (t03 …; decision 0035),
those of a journal (j01 …; decision 0039), of groups that come and go (g01 …; decision 0040) and of
partitions of topics (p01 …; decisions 0044, of retention 0048, of transactions 0051).

Each is a function that patches the product through `put` (an object, a name, the bug), which the
test takes back. R24 and R25 are about time, and have none.
"""

from itertools import islice
from zlib import crc32

import msgspec

from quorumlog.machine.kv_database import HASH_BYTES
from quorumlog.model.block import parse_block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import PushType, ResponseCode, VoteResult
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.membership import Membership
from quorumlog.node import bootstrap as boot
from quorumlog.node.group_sync import GroupSync
from quorumlog.node.peer_turns import PeerTurns
from quorumlog.node.replica import log_writer, pushes, replica, retention
from quorumlog.node.replica import snapshotter as saves
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.node.replica.hooked_proposals import HookedProposals
from quorumlog.node.replica.machine_recovery import MachineRecovery
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.node.replica.partition_reads import PartitionReads, ReadBatches
from quorumlog.node.replica.proposals import ProposalQueue
from quorumlog.node.replica.repeated_blocks import RepeatedBlocks, _Repeated
from quorumlog.node.replica.snapshotter import Snapshotter
from quorumlog.node.replica.stamped_proposals import StampedProposals
from quorumlog.node.replica.tables import EVERYTHING, Tables
from quorumlog.node.turn import Turn
from quorumlog.raft import campaign, core, voter
from quorumlog.raft.dispatcher import CommitNotices, Dispatcher
from quorumlog.raft.follower import Follower
from quorumlog.raft.leadership import Leadership
from quorumlog.raft.membership_change import MembershipChange
from quorumlog.raft.quorum import quorum_index
from quorumlog.raft.state import RaftState
from quorumlog.raft.transfer import Transfer
from quorumlog.raft.write_tracker import WriteTracker
from quorumlog.sessions.producer_table import SessionCheck
from quorumlog.sessions.table_set import TableSet
from quorumlog.sessions.transaction_table import TransactionTable
from quorumlog.sim.links import SimulatedLinks
from quorumlog.storage.files.write_plans import Plan
from quorumlog.storage.journal import reader
from quorumlog.storage.journal.records import Record
from quorumlog.storage.journal.writer import NodeJournal
from quorumlog.storage.log import settle, store
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME
from quorumlog.storage.log.hard_state import HardStateStore
from quorumlog.storage.log.snapshots import SnapshotMeta
from quorumlog.storage.log.unsettled import GroupInJournal
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile
from quorumlog.storage.metadata.group_files import GroupFiles
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.topics.batch_index import BatchIndex
from quorumlog.topics.partition_table import PartitionTable
from quorumlog.topics.partition_transactions import AbortedTransaction, PartitionTransactions
from quorumlog.topics.produced_batch import ProducedBatch


def r01_term_and_vote_are_not_written(put):
    put(HardStateStore, "plan_save", lambda self, state, **_: Plan(self, []))


def r02_a_term_and_vote_that_cannot_be_written_are_only_logged(put):
    write = DualSlotFile.write

    def careless(self, value):
        try:
            write(self, value)
        except StorageError:
            if not self.path.endswith(STATE_NAME):
                raise

    put(DualSlotFile, "write", careless)


def r03_acknowledged_from_memory(put):
    send = RaftState.send
    put(RaftState, "send", lambda self, message, after=0: send(self, message))
    put(
        WriteTracker,
        "issue",
        lambda self, end_index, now_ms, issue=WriteTracker.issue: _durable_at_once(
            self, issue(self, end_index, now_ms), end_index
        ),
    )


def _durable_at_once(writes, token, end_index):
    writes.durable_index = end_index
    return token


def r04_entries_of_older_terms_are_committed_by_counting_copies(put):
    def advance_commit(self):
        state = self._state
        matches = {peer: self.dispatchers[peer].match_index for peer in self._counted_peers()}
        matches[state.config.self_id] = state.writes.durable_index
        state.commit_to(quorum_index(state.memberships.current, matches))
        self._change.committed()
        for dispatcher in self.dispatchers.values():
            dispatcher.push_entries()

    put(Leadership, "advance_commit", advance_commit)


def r05_the_candidates_term_stands_for_its_last_entrys(put):
    send = RaftState.send

    def with_own_term(self, message, after=0):
        if hasattr(message, "ledger_end_term"):
            message = msgspec.structs.replace(message, ledger_end_term=message.term)
        send(self, message, after)

    put(RaftState, "send", with_own_term)


def r06_all_that_is_on_disk_is_taken_as_committed(put):
    boot_state = boot.boot_state

    def trusting(opened):
        found = boot_state(opened)
        return type(found)(
            **{
                **{name: getattr(found, name) for name in found.__slots__},
                "committed_index": found.end_index,
            }
        )

    put("quorumlog.sim.node", "boot_state", trusting)


def r07_a_late_append_removes_all_behind_it(put):
    def append(self, request):
        state, last = self._state, request.last_index
        first = max(request.first_index, state.committed_index + 1)
        if first <= state.log.end_index and first <= last:
            self.verified_index = min(self.verified_index, first - 1)
            if not self._remove(request, first):
                return
        if first <= last:
            self._store(request, max(first, request.first_index))
        self._succeed(request, last)

    put(Follower, "_append", append)


def r08_answers_are_believed_whatever_they_answer(put):
    def answered(self, response):
        if response.code is ResponseCode.SUCCESS:
            self.match_index = min(
                max(self.match_index, response.match_index), self._state.log.end_index
            )
            self._in_flight.acknowledge(self.match_index)
            self.write_index = max(self.write_index, self.match_index + 1)

    def contact(self, response):
        return self.dispatchers.get(response.local_id)

    put(Dispatcher, "_append_answered", answered)
    put(Leadership, "_responding_peer", contact)


def r09_no_pre_vote_and_no_stickiness(put):
    put(campaign, "start_campaign", _campaign_at_once)
    put(core, "start_campaign", _campaign_at_once)
    put(voter, "_refuse_outright", lambda state, request: None)
    put(RaftState, "may_campaign", property(lambda state: True))


def _campaign_at_once(state):
    state.election_timer.restart(state.now_ms)
    campaign._start_vote_round(state)


def r10_a_hand_over_has_no_end(put):
    put(Transfer, "deadline_ms", lambda self: NEVER_MS)
    original = Transfer.check_end

    def endless(self):
        running = self._running
        if running is not None and self._state.role.value == "LEADER":
            return
        original(self)

    put(Transfer, "check_end", endless)


def r11_a_leader_whose_disk_stalls_goes_on(put):
    put(RaftState, "stall_deadline_ms", lambda self: NEVER_MS)


def r13_a_follower_that_lost_everything_is_not_looked_at_again(put):
    put(Dispatcher, "peer_seen", lambda self, incarnation: self.contact.seen(0))
    put(Dispatcher, "match_regressed", lambda self, end_index: None)
    put(CommitNotices, "reported", lambda self, committed_index: None)


def r14_an_emptied_disk_comes_back_as_the_same_member(put):
    put(store, "incarnation_number", lambda text: 1)


def r15_voters_change_without_a_joint_membership(put):
    put(
        Membership,
        "with_voters",
        lambda self, voters: msgspec.structs.replace(self, voters=tuple(voters)),
    )
    put(MembershipChange, "is_running", property(lambda self: False))
    put(Leadership, "is_ready", property(lambda self: True))


def r16_a_learner_is_promoted_at_once(put):
    put(MembershipChange, "_not_ready", lambda self, member, dispatcher: None)


def r17_a_removed_leader_goes_on(put):
    put(Leadership, "_step_down_if_removed", lambda self: None)


def r18_a_replica_that_thinks_itself_a_learner_does_not_answer(put):
    refuse = voter._refuse_outright

    def as_learner(state, request):
        if not state.memberships.current.is_voter(state.config.self_id):
            return VoteResult.REJECT_UNKNOWN_LEADER
        return refuse(state, request)

    put(voter, "_refuse_outright", as_learner)


def r20_a_write_that_is_done_vouches_for_those_behind_it(put):
    """The answers of the disk carry no token: whatever was asked for counts as durable."""

    def durable(self, token):
        self.durable_token = token
        while self._pending:
            self.durable_index = self._pending.popleft()[1]

    put(WriteTracker, "durable", durable)


def r21_what_can_be_read_is_pushed_in_place_of_what_cannot(put):
    gather = pushes.gather_whole

    def reading_on(log, first_index, last_index, bytes_max):
        for index in range(first_index, last_index + 1):
            try:
                return gather(log, index, last_index, bytes_max)
            except CorruptionError:
                continue
        return gather(log, first_index, last_index, bytes_max)

    def unchecked(message, attachment, limits):
        count = len(list(_entries_in(attachment)))
        return parse_block(attachment, count=count, entry_bytes_max=limits.entry_bytes_max), ()

    put(pushes, "gather_whole", reading_on)
    put(pushes, "read_push_block", unchecked)
    put(pushes, "check", lambda *_: None)
    put(log_writer, "check", lambda *_: None)


def _entries_in(data):
    offset = 0
    while offset < len(data):
        offset += int.from_bytes(data[offset + 4 : offset + 8], "big")
        yield offset


def r22_what_was_lost_is_not_sent_again(put):
    put(Dispatcher, "tick", lambda self: None)
    put(Dispatcher, "deadline_ms", lambda self: NEVER_MS)


def r22_a_repeated_append_is_not_answered(put):
    append = Follower._append

    def once(self, request):
        if request.type is PushType.APPEND and request.last_index <= self._state.log.end_index:
            return
        append(self, request)

    put(Follower, "_append", once)
    put(Dispatcher, "restart", lambda self: None)


def r12_the_log_is_purged_and_the_snapshot_is_not_there(put):
    tidy = Snapshotter._tidy

    def tidy_everything(self, snapshots, fetched, before_begin_index):
        oldest = tidy(self, snapshots, fetched, before_begin_index)
        for index in snapshots.indexes():
            snapshots._files.remove(snapshots.path_of(index))
        return oldest

    put(Snapshotter, "_tidy", tidy_everything)


def r19_a_snapshot_is_named_by_an_index_that_is_not_its_own(put):
    def one_off(**fields):
        index = fields["last_included_index"] - 1
        return SnapshotMeta(**{**fields, "last_included_index": index})

    put(saves, "SnapshotMeta", one_off)


def r23_state_and_applied_index_are_not_saved_together(put):
    loaded = MachineRecovery._loaded

    def behind(self, meta, kept, results):
        loaded(self, meta, kept, results)
        self._machine.applied = max(-1, meta.last_included_index - 2)

    put(MachineRecovery, "_loaded", behind)


def r26_a_repeated_command_is_executed_again(put):
    check = Tables.check

    def forgetful(self, entry):
        result = check(self, entry)
        keeps_results = getattr(entry, "keeps_results", False)
        return SessionCheck() if keeps_results and result.appended else result

    put(Tables, "check", forgetful)


def r27_entries_are_removed_with_sessions_that_were_not_read(put):
    put(Tables, "known_until", EVERYTHING)
    put(Tables, "learned", lambda self, raw: None)


def r28_readers_do_not_wait_for_the_end_of_a_transaction(put):
    put(TransactionTable, "stable_index", lambda self, committed_index: committed_index)


def r29_what_was_rejected_is_not_saved(put):
    encode = TableSet.encode

    def forgetful(self):
        kept = TransactionTable(dict(self.transactions.producers))
        return encode(TableSet(self.as_of, self.sessions, kept))

    put(TableSet, "encode", forgetful)


def r30_a_new_run_leaves_what_the_one_before_wrote(put):
    start_run = TransactionTable._start_run

    def careless(self, entry):
        rejected = list(self.rejected)
        start_run(self, entry)
        self.rejected = rejected

    put(TransactionTable, "_start_run", careless)


def r31_files_are_as_old_as_their_times_and_the_calendar_say(put):
    def age_ms(self, index):
        log = self._context.log
        path = next(segment.path for segment in log.segments() if segment.last_index == index)
        return self._environment.wall_ms() - log._data._files.modified_ms(path)

    put(GroupTime, "age_ms", age_ms)


def r32_leaders_record_what_the_calendar_says(put):
    write = GroupTime._write

    def calendar(self, mark):
        write(self, type(mark)(max(mark.time_ms, self._environment.wall_ms())))

    put(GroupTime, "_write", calendar)


def r33_a_replica_goes_on_counting_from_the_highest_time_it_knew(put):
    now_ms = GroupTime.now_ms

    def highest(self):
        clock_ms, before = self._environment.now_ms(), getattr(self, "highest", None)
        found = now_ms(self)
        if before is not None and found is not None:
            found = max(found, before[0] + clock_ms - before[1])
        self.highest = None if found is None else (found, clock_ms)
        return found

    put(GroupTime, "now_ms", highest)


def r34_records_of_keys_and_values_are_served_unchecked(put):
    put("quorumlog.machine.kv_database", "unsealed", lambda path, key, record: record[HASH_BYTES:])


def r35_who_is_asked_to_stop_does_not_wait_for_what_it_owes(put):
    put(replica.Replica, "may_stop", True)


def r36_who_is_asked_to_stop_acknowledges_what_nobody_else_has(put):
    prepare_stop = replica.Replica.prepare_stop

    def hasty(self):
        self.appends.applied(self.log.end_index, lambda first, last: [b""] * (last - first + 1))
        prepare_stop(self)

    put(replica.Replica, "prepare_stop", hasty)


def r37_offers_to_begin_elsewhere_are_taken_unconfirmed(put):
    install = Follower.install
    put(Follower, "install", lambda self, offer, **_: install(self, offer, is_confirmed=True))


def r38_tables_are_not_cut_when_the_log_is_truncated(put):
    put(Tables, "truncated", lambda self, from_index: None)


def r39_the_append_hook_runs_twice(put):
    prepared = HookedProposals._prepared

    def twice(self, batch):
        left = prepared(self, batch)
        return None if left is None else prepared(self, left)

    put(HookedProposals, "_prepared", twice)


def t01_a_wake_up_is_lost_when_an_earlier_one_fires(put):
    put(PartTimers, "next_due_ms", lambda self: NEVER_MS)


def t02_what_is_due_earlier_is_not_said(put):
    put(RaftState, "due_by", lambda self, due_ms: None)


def t03_what_is_put_off_in_a_turn_is_forgotten(put):
    def run(self, work=None, *arguments):
        if work is not None:
            work(*arguments)
        deferred, at_end = list(self._deferred), list(self._at_end)
        self._is_running = True
        for action in (*deferred, *at_end):
            action()
        self._is_running = False
        self._deferred.clear()
        self._at_end.clear()

    put(Turn, "run", run)


def t04_joined_frames_go_to_whoever_does_not_know_them(put):
    put(SimulatedLinks, "takes_joined", lambda self, peer_id: True)


def t05_what_a_full_link_does_not_take_is_dropped_and_nobody_told(put):
    send = PeerTurns.send

    def silent(self, *message, **link):
        send(self, *message, **link)
        return True

    put(PeerTurns, "send", silent)


def t06_what_was_accepted_in_a_turn_does_not_count_against_the_link(put):
    send = PeerTurns.send

    def uncounted(self, peer_id, message, attachments=(), *, bulk=False):
        is_accepted = send(self, peer_id, message, attachments, bulk=bulk)
        gathered = self._gathered.get((peer_id, bulk))
        if gathered is not None:
            gathered.room = self._links.joined_room(peer_id, bulk=bulk)
        return is_accepted

    put(PeerTurns, "send", uncounted)


def j01_a_segment_is_used_again_before_the_groups_files_are_durable(put):
    def settle(self, segment):
        self._settling.append(segment)
        self._ready.append(segment)

    put(NodeJournal, "_settle", settle)


def j02_replay_does_not_know_what_was_removed(put):
    class Forgetful(StoreMetadata):
        journal = (0, 0)

    put(settle, "StoreMetadata", Forgetful)


def j03_groups_are_opened_without_what_the_journal_holds(put):
    put(settle._Replay, "run", lambda self, parts: 0)


def j04_a_record_is_not_durable_when_it_is_reported(put):
    append = NodeJournal.append

    def careless(self, items):
        file = self._current.file
        self._current.file = _Unsynced(file)
        append(self, items)
        self._current.file = file

    put(NodeJournal, "append", careless)


class _Unsynced:
    def __init__(self, file):
        self.write_at = file.write_at

    def sync(self):
        pass


def j05_a_group_uses_the_journal_without_a_note(put):
    def enter(self, path, journal):
        self.is_in = bool(self.incarnation) and self._metadata.checkpoint is not None

    put(GroupInJournal, "enter", enter)


def g01_a_deleted_group_leaves_its_files_to_its_successor(put):
    def bury(self, record):
        self._make_deleted()
        self._write(self._grave(record), record)

    put(GroupFiles, "bury", bury)
    put(
        GroupFiles,
        "create",
        lambda self, record: self._write(f"{self._base}/{record.group}", record),
    )


def g02_who_was_away_is_not_told_of_a_deletion(put):
    put(GroupSync, "_learn_deletion", lambda self, peer, record: None)


def g03_what_an_interrupted_creation_left_is_not_given_up(put):
    put("quorumlog.node.group_sync", "FOUNDING_MS", NEVER_MS)


def g04_of_a_record_of_several_groups_one_is_replayed(put):
    records = reader.records_in

    def first_only(header, view):
        for offset, record in records(header, view):
            yield offset, Record(record.sequence, record.parts[:1], record.size)

    put(reader, "records_in", first_only)


def g05_records_name_a_group_by_its_name(put):
    """What a journal holds of a deleted group goes to its successor of the same name."""
    names = {}
    made = GroupInJournal.__init__

    def named(self, files, directory, data_directories, identity, metadata):
        made(self, files, directory, data_directories, identity, metadata)
        self.incarnation = names[identity.incarnation] = crc32(directory.encode())

    put(GroupInJournal, "__init__", named)
    put(settle, "incarnation_number", names.get)


def p01_a_batch_gets_its_offset_when_it_arrives(put):
    add, stamp = ProposalQueue.add, StampedProposals._stamp

    def early(self, proposal):
        produced = proposal.entry
        if isinstance(produced, ProducedBatch):
            found = self._propose.__self__._tables.partitions_at_end.partitions
            if produced.channel in found:
                produced.base_offset = found[produced.channel].next_offset
        add(self, proposal)

    def as_told(self, data, produced, partition, following):
        stamp(self, data, produced, partition, {produced.channel: (produced.base_offset, 0)})

    put(ProposalQueue, "add", early)
    put(StampedProposals, "_stamp", as_told)


def p02_tables_are_not_derived_again_when_the_log_is_truncated(put):
    put(Tables, "_derive", lambda self: None)


def p03_the_index_of_batches_is_not_cut(put):
    put(BatchIndex, "truncate", lambda self, from_index: None)


def p04_a_repeated_batch_is_answered_before_it_is_committed(put):
    def hasty(self, entry, appended, answer, deadline_ms):
        self._answer(_Repeated(entry, appended, answer, deadline_ms), [])

    put(RepeatedBlocks, "wait", hasty)


def p05_a_channel_is_used_again(put):
    opened = PartitionTable._opened

    def again(self, what):
        if what.channel not in self.partitions:
            self.highest_channel = min(self.highest_channel, what.channel - 1)
        opened(self, what)

    put(PartitionTable, "_opened", again)


def p06_consumers_see_what_is_not_committed(put):
    at_end = property(lambda self: self._tables.partitions_at_end.partitions)
    put(PartitionReads, "_readable", at_end)


def p07_producers_are_forgotten_when_a_node_starts(put):
    fields = PartitionTable.fields

    def forgetful(self):
        partitions, _, *more = fields(self)
        return partitions, [], *more

    put(PartitionTable, "fields", forgetful)


def p08_what_is_below_the_log_start_is_served(put):
    def checked(read, partition):
        if partition is None or read.offset > partition.next_offset:
            return ReadBatches(ResponseCode.UNKNOWN_PARTITION)
        return ReadBatches(high_watermark=partition.next_offset, log_start=partition.log_start)

    put("quorumlog.node.replica.partition_reads", "_checked", checked)


def p09_log_starts_are_forgotten_when_a_node_starts(put):
    fields = PartitionTable.fields

    def forgetful(self):
        partitions, producers, *more = fields(self)
        reset = [
            (channel, msgspec.structs.replace(partition, log_start=0))
            for channel, partition in partitions
        ]
        return reset, producers, *more

    put(PartitionTable, "fields", forgetful)


def p10_a_batch_more_than_is_due_is_given_up(put):
    given_up = BatchIndex.offset_at_bytes

    def one_more(self, channel, begin, size_bytes):
        found = given_up(self, channel, begin, size_bytes)
        _, *others = islice(self.batches_from(channel, found), 2)
        return others[0].base_offset if others else None

    put(BatchIndex, "offset_at_bytes", one_more)


def p11_files_go_that_another_partition_still_needs(put):
    needed = BatchIndex.first_needed

    def of_one(self, starts, begin_index):
        return needed(self, dict(sorted(starts.items())[-1:]), begin_index)

    put(BatchIndex, "first_needed", of_one)


def p12_the_age_of_records_is_not_looked_at(put):
    put(GroupTime, "old_until", lambda self, age_ms: EVERYTHING)


def p13_space_does_not_come_back(put):
    put(retention, "last_unneeded", lambda segments, size_bytes, config, inputs: None)


def p14_a_marker_that_comes_twice_has_effect_twice(put):
    ended = PartitionTransactions.ended

    def again(self, channel, producer_id, offset, *, commits):
        if self.first_offset(channel, producer_id) < 0 and not commits:
            marker = AbortedTransaction(offset, producer_id, offset, offset + 1)
            self._add_aborted(channel, marker)
        ended(self, channel, producer_id, offset, commits=commits)

    put(PartitionTransactions, "ended", again)


def p15_readers_of_committed_transactions_see_ongoing_ones(put):
    put(PartitionTransactions, "stable_offset", lambda self, channel, end: end)


def p16_transactions_are_forgotten_when_a_node_starts(put):
    fields = PartitionTable.fields

    def forgetful(self):
        *kept, _, _ = fields(self)
        return *kept, [], []

    put(PartitionTable, "fields", forgetful)


def p17_aborted_transactions_that_end_later_are_not_told(put):
    def first_only(self, channel, start, end):
        return aborted(self, channel, start, end)[:1]

    aborted = PartitionTransactions.aborted_within
    put(PartitionTransactions, "aborted_within", first_only)


MUTANTS = [
    bug for name, bug in sorted(globals().items()) if name[0] in "grtjp" and name[1:3].isdigit()
]
