"""Known bugs of coordinators, and of what brokers do for them, put back one at a time (c01 …;
decision 0057). Those of logs, groups and partitions are in `mutants`.

Each is a function that patches the product through `put` (an object, a name, the bug), which the
test takes back.
"""

import asyncio
from dataclasses import replace

import msgspec

from quorumlog.broker.broker import Broker
from quorumlog.broker.marker_writer import MarkerWriter
from quorumlog.broker.running import Running
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.group import ConsumerGroup
from quorumlog.kafka.transactions.gate import TransactionGate
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    DecideTransaction,
    GroupsChanged,
    decode_envelope,
    encode,
)
from quorumlog.machine.cluster.consumer_groups import CommittedOffset, ConsumerGroups
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import ClusterState
from quorumlog.machine.cluster.transactions import Transactions, TransactionView
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.client import AppendResponse


def c01_a_fenced_generation_commits(put):
    put(ConsumerGroups, "is_late", lambda self, command: False)
    put(ConsumerGroup, "may_commit", lambda self, *who: ErrorCode.NONE)


def c02_snapshots_lack_committed_offsets(put):
    restored = ConsumerGroups.restored

    def without(records):
        return restored(msgspec.structs.replace(one, offsets={}) for one in records)

    put(ConsumerGroups, "restored", without)


def c03_commits_are_acknowledged_before_they_are_committed(put):
    _told_early(
        put, CommitOffsets, GroupsChanged(ResponseCode.SUCCESS, codes=[ResponseCode.SUCCESS])
    )


def _told_early(put, kind, result):
    propose = Running._propose

    def hasty(self, data, answer):
        if isinstance(decode_envelope(data).command, kind):
            propose(self, data, lambda *ignored: None)
            answer(ResponseCode.SUCCESS, "", encode(result), -1)
        else:
            propose(self, data, answer)

    put(Running, "_propose", hasty)


def c04_a_coordinator_decides_in_the_term_of_another_one(put):
    def trusting(state, envelope, term=0):
        return execute(state, envelope, getattr(envelope.command, "term", term))

    put("quorumlog.machine.cluster.machine", "execute", trusting)
    put("quorumlog.sim.invariants.coordination", "execute", trusting)


def c05_offsets_of_a_transaction_are_visible_before_it_is_decided(put):
    add_offsets = Transactions.add_offsets

    def at_once(self, command, topics, groups, at_ms):
        found = add_offsets(self, command, topics, groups, at_ms)
        if found.code is ResponseCode.SUCCESS:
            offsets = {
                (one.topic_id, one.partition): CommittedOffset(one.offset, -1, one.metadata, at_ms)
                for one in command.offsets
            }
            groups.put_offsets(command.group, offsets, at_ms)
        return found

    put(Transactions, "add_offsets", at_once)


def c06_markers_are_written_before_their_decision_is_committed(put):
    order = Broker.order

    def hasty(self, command, timeout_ms, done):
        view = self.view.transactions
        if isinstance(command, DecideTransaction) and command.transactional_id in view.records:
            before = view.records[command.transactional_id]
            state = "PrepareCommit" if command.commits else "PrepareAbort"
            after = {
                command.transactional_id: msgspec.structs.replace(
                    before, state=state, epoch=command.epoch
                )
            }
            view = replace(view, records={**view.records, **after}, prepared=after)
            self._view = replace(self._view, transactions=view)
            self._running._write_markers()
            loop = asyncio.get_running_loop()
            loop.call_later(0.05, order, self, command, timeout_ms, done)
        else:
            order(self, command, timeout_ms, done)

    put(Broker, "order", hasty)


def c07_markers_count_as_written_before_they_are_committed(put):
    propose = MarkerWriter._propose

    def hasty(self, replica, producer, term, answer, *, commits):
        propose(self, replica, producer, term, lambda *ignored: None, commits=commits)
        answer(AppendResponse(code=ResponseCode.SUCCESS), [])

    put(MarkerWriter, "_propose", hasty)


def c08_a_channel_of_a_deleted_topic_is_given_out_again(put):
    remove = ClusterState.remove_topic

    def forget(self, topic):
        remove(self, topic)
        for name, group in self.groups.items():
            following = max(self.assignments[name], default=0) + 1
            self.groups[name] = msgspec.structs.replace(group, next_channel=following)

    put(ClusterState, "remove_topic", forget)


def c09_who_takes_a_transactional_id_fences_nobody(put):
    init = Transactions.init

    def same(self, command, at_ms):
        before = self.records.get(command.transactional_id)
        if before is not None:
            command = msgspec.structs.replace(command, epoch=before.epoch)
        return init(self, command, at_ms)

    put(Transactions, "init", same)


def c10_an_assignment_is_told_before_its_generation_is_saved(put):
    save = GroupCoordinator.save

    def hasty(self, group, done):
        save(self, group, lambda error: None)
        done(ErrorCode.NONE)

    put(GroupCoordinator, "save", hasty)


def c11_any_transactional_batch_is_taken(put):
    put(TransactionGate, "refusal", lambda self, *what: None)


def c12_commands_about_an_older_record_of_a_transaction_count(put):
    init, judged = Transactions.init, Transactions._judged

    def as_of_now(self, command):
        found = self.records.get(command.transactional_id)
        version = 0 if found is None else found.version
        return msgspec.structs.replace(command, version=version)

    put(Transactions, "init", lambda self, command, at: init(self, as_of_now(self, command), at))
    put(Transactions, "_judged", lambda self, command: judged(self, as_of_now(self, command)))


def c13_offsets_that_a_transaction_may_commit_are_not_waited_for(put):
    put(TransactionView, "has_pending", lambda self, group, place: False)


def c14_the_end_of_a_transaction_is_told_before_it_is_committed(put):
    _told_early(put, DecideTransaction, GroupsChanged(ResponseCode.SUCCESS))


BROKER_MUTANTS = [
    bug for name, bug in sorted(globals().items()) if name[0] == "c" and name[1:3].isdigit()
]
