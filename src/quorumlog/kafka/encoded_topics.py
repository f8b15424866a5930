"""What answers to Metadata say of topics, kept encoded until something of it changes."""

from typing import Final

from quorumlog.kafka.broker_view import BrokerView, TopicView
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.metadata import Place, place_bytes, topic_bytes

ENCODED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of encoded topics that are kept, over all versions of the protocol; above, none of them."""
_NO_GROUP: Final = ""
_NOWHERE: Final = Place(-1, -1, (), ())


class EncodedTopics:
    """Topics as bytes, for each version of the protocol in which somebody asked."""

    def __init__(self, broker: BrokerView) -> None:
        self._broker = broker
        self._version = -1
        self._places: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._topics: dict[tuple[str, int, int], bytes] = {}
        self._size_bytes = 0

    def of(self, topic: TopicView, version: int, operations: int) -> bytes:
        """Return what an answer of this version says of a topic, see `metadata.topic_bytes`."""
        if self._version != self._broker.version or self._size_bytes > ENCODED_BYTES_MAX:
            self._version, self._size_bytes = self._broker.version, 0
            self._places.clear()
            self._topics.clear()
        key = topic.name, version, operations
        found = self._topics.get(key)
        if found is None:
            places = [
                (one.number, self._place(one.group if one.is_open else _NO_GROUP, version))
                for one in topic.partitions
            ]
            found = self._topics[key] = topic_bytes(
                version,
                topic.name,
                topic.topic_id,
                partitions=[(code, number, place) for number, (code, place) in places],
                operations=operations,
            )
            self._size_bytes += len(found)
        return found

    def _place(self, group: str, version: int) -> tuple[int, bytes]:
        """Return the error code of a group's partitions, and where they are."""
        found = self._places.get((group, version))
        if found is None:
            place = self._place_of(group)
            code = ErrorCode.LEADER_NOT_AVAILABLE if place.leader_id < 0 else ErrorCode.NONE
            found = self._places[group, version] = int(code), place_bytes(version, place)
        return found

    def _place_of(self, group: str) -> Place:
        if group == _NO_GROUP:
            return _NOWHERE
        broker = self._broker
        leader, replicas = broker.leader_of(group), broker.replicas_of(group)
        if leader.broker_id not in broker.brokers:  # nobody can connect to it
            leader = leader._replace(broker_id=-1)
        in_sync = broker.in_sync_of(group)
        if leader.broker_id >= 0 and leader.broker_id not in in_sync:
            in_sync = (leader.broker_id, *in_sync)
        offline = [one for one in replicas if one not in broker.brokers]
        return Place(leader.broker_id, leader.epoch, replicas, in_sync, offline)
