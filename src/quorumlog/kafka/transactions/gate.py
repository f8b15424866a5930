"""Which transactional batches a partition takes: those of ongoing transactions that it is in.

The first batch of a transaction in a partition is taken only if the transaction is ongoing and has
that partition, as this node's view of `__cluster` says (KIP-890): else nobody would ever end it
there. What a new leader takes must not depend on an old view, in which an earlier transaction of
the producer is still ongoing; so its view must be as new as its leadership at least.
"""

from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.led_partitions import Refusal
from quorumlog.machine.cluster.consumer_groups import Partition
from quorumlog.machine.cluster.transactions import TransactionRecord
from quorumlog.node.replica.replica import Replica
from quorumlog.records.batch import BatchHeader


class TransactionGate:
    """Decides for all partitions that this node leads."""

    def __init__(self, broker: BrokerView) -> None:
        self._broker = broker
        self._terms: dict[str, int] = {}
        """By group: the term of whose beginning this node's view has everything."""
        self._places: dict[str, tuple[tuple[Partition, ...], frozenset[Partition]]] = {}
        """By transactional id: the partitions of its record, and as a set."""

    def needs_barrier(self, replica: Replica, group: str) -> bool:
        """Whether the view may be older than the leadership of a group."""
        return self._terms.get(group) != replica.core.term

    def barrier_passed(self, group: str, term: int) -> None:
        """The view has all that was committed at a moment when the term had begun."""
        self._terms[group] = term

    def refusal(
        self,
        replica: Replica,
        channel: int,
        place: Partition,
        header: BatchHeader,
        transactional_id: str | None = None,
    ) -> Refusal | None:
        """Return why a transactional batch is not taken, as far as is known here; None: it is.

        `transactional_id`: the one that the request names; None: it names none.
        """
        replica.appends.settle(channel, header.producer_id)  # a marker may end it
        if replica.tables.partitions_at_end.is_ongoing(channel, header):
            return None
        transactions = self._broker.transactions
        record = transactions.of_producer(header.producer_id)
        who = f"producer {header.producer_id}"
        if record is None or transactional_id not in (None, record.transactional_id):
            # one text: whose it is instead, and whether it is anybody's, is not the client's affair
            named = "any transactional id" if transactional_id is None else repr(transactional_id)
            text = f"{who} does not belong to {named}"
            return Refusal(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
        if transactional_id is not None:
            who = f"{who} of {transactional_id!r}"
        if header.producer_epoch != record.epoch:
            text = f"{who} has the epoch {record.epoch}, not {header.producer_epoch}"
            return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        if record.state != "Ongoing" or place not in self._partitions_of(record):
            text = f"{who} has no ongoing transaction with this partition"
            return Refusal(ErrorCode.INVALID_TXN_STATE, text)
        return None

    def _partitions_of(self, record: TransactionRecord) -> frozenset[Partition]:
        name = record.transactional_id
        known = self._places.get(name)
        if known is not None and known[0] is record.partitions:
            return known[1]
        found = frozenset(record.partitions)
        self._places[name] = record.partitions, found
        if len(self._places) > len(self._broker.transactions.records):
            there = self._broker.transactions.records
            self._places = {key: one for key, one in self._places.items() if key in there}
        return found
