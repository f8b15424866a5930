"""A cluster of brokers over the network, and the connections that a process keeps to it."""

import logging
import random
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

from quorumlog.client.contexts import OpenContext
from quorumlog.client.security import Security
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import host_port
from quorumlog.model.errors import (
    NetworkError,
    QuorumlogError,
    RemoteProtocolError,
    error_for,
)
from quorumlog.model.messages.client import StoreLocation
from quorumlog.model.wording import topic_id_text
from quorumlog.records.batch import BatchHeader
from quorumlog.records.columns import whole_batches
from quorumlog.spark.access import AnyAccess, open_brokers, said_where
from quorumlog.spark.topics.brokers import FetchedBatches
from quorumlog.spark.topics.census import Census, NamedLeader
from quorumlog.spark.topics.connection import BrokerConnection, FetchAnswer
from quorumlog.spark.topics.errors import OffsetOutOfRangeError, PassingError, UnknownTopicError
from quorumlog.spark.topics.local_reads import AbortedRange, LocatedBatches, local_batches
from quorumlog.spark.topics.messages import Message
from quorumlog.spark.topics.part import Part

logger = logging.getLogger(__name__)

FETCH_WAIT_MS: Final = 500
"""How long a broker waits for records that are to come: it answers at once if it has any."""
CONNECTION_TIMEOUT_S: Final = 10.0
"""A broker that does not answer for so long is given up, and the leader looked up again."""
RETRY_S: Final = 0.1
UNKNOWN_S: Final = 2.0
"""How long a topic may be unknown: brokers learn of a new one a moment after it was made."""
ASKED_MAX: Final = 10_000
"""Partitions whose offsets are asked for in one request: brokers take 50,000 elements in all."""
BROKERS_MAX: Final = 64
"""Clusters to which a process keeps connections."""
_ANY_EPOCH: Final = -1
"""In the place of a leader's epoch: whichever it leads in."""
DIRECTORIES_MIN: Final = 3
"""Directories of a log: its own, that of index files, and one or more of data files."""
_UNKNOWN: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
}
_FORBIDDEN: Final = (
    "topic {!r} cannot be read: it does not exist, or the user may not describe and read it "
    "(whoever administers the cluster gives the rights by 'quorumlog acl add')"
)

Value = TypeVar("Value")


_known: OrderedDict[tuple[OpenContext, int, str, int], "RemoteBrokers"] = OrderedDict()
_lock = threading.Lock()  # guards the table


def brokers_for(servers: AnyAccess, timeout_ms: int, client_id: str) -> "RemoteBrokers":
    """Return this thread's connections to a cluster: kept between tasks and plans."""
    cluster = open_brokers(servers)
    key = (cluster, timeout_ms, client_id, threading.get_ident())
    with _lock:
        found = _known.pop(key, None) or RemoteBrokers(cluster, timeout_ms, client_id)
        _known[key] = found
        while len(_known) > BROKERS_MAX:
            _known.popitem(last=False)[1].close()
    return found


class RemoteBrokers:
    """A cluster by the addresses of some of its brokers; see `Brokers`. For one thread at a time.

    `timeout_ms` is how long an outage is ridden out.
    """

    def __init__(self, cluster: OpenContext, timeout_ms: int, client_id: str) -> None:
        self._servers = cluster.kafka
        self._bootstrap = self._servers.split(",")
        self._timeout_s = timeout_ms / 1_000
        self._advice = "" if cluster.security else "; if they speak TLS, name a context, or give ca"
        self._opened = partial(_opened, client_id=client_id, security=cluster.security)
        self._connections: dict[str, BrokerConnection] = {}
        self._addresses: dict[int, str] = {}
        self._leaders: dict[Part, NamedLeader] = {}
        self._topic_ids: dict[str, str] = {}
        """By which a majority knew topics when it was asked last."""
        self._silent: set[str] = set()
        """Brokers that did not answer when they were asked last, by address."""
        self._other_names: set[str] = set()
        """Addresses at which brokers answer that name themselves otherwise."""
        self._elsewhere: set[str] = set()
        """Brokers whose files are on other machines, by address."""
        self._cluster_id = ""

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- what there is -----------------------------------------------------------------------

    def cluster_id(self) -> str:
        """See `Brokers`."""
        if not self._cluster_id:
            self._riding_out(lambda: self._metadata(()))
        return self._cluster_id

    def topics(self, *, unconfirmed: bool = False) -> dict[str, list[int]]:
        """See `Brokers`."""
        return self._riding_out(lambda: self._discovered(None, unconfirmed))

    def partitions(
        self, topics: Sequence[str], *, unconfirmed: bool = False
    ) -> dict[str, list[int]]:
        """See `Brokers`."""
        ends_at = time.monotonic() + min(UNKNOWN_S, self._timeout_s)
        while True:
            found = self._riding_out(lambda: self._discovered(topics, unconfirmed))
            if len(found) == len(set(topics)) or time.monotonic() >= ends_at:
                return found
            time.sleep(RETRY_S)

    def _discovered(self, topics: Sequence[str] | None, unconfirmed: bool) -> dict[str, list[int]]:
        """Return topics with their partitions; None: all but those of Kafka's own."""
        parts = self._metadata(topics) if unconfirmed else self._census(topics)
        found: dict[str, list[int]] = defaultdict(list)
        for part in sorted(parts):
            found[part.topic].append(part.partition)
        return dict(found)

    def _metadata(self, topics: Sequence[str] | None) -> set[Part]:
        """Learn from one broker what there is, and who leads it; return the partitions."""
        answer = self._ask_any(ApiKey.METADATA, _named(topics))
        self._addresses = _addresses_in(answer)
        self._cluster_id = answer.cluster_id or ""
        leaders = _leaders_in(answer, of_all=topics is None)
        for part, leader in leaders.items():  # one broker may name a former leader, or topic
            if leader.topic_id == self._topic_ids.get(part.topic, leader.topic_id):
                self._leaders[part] = max(leader, self._leaders.get(part, leader))
        return set(leaders)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """See `Brokers`."""
        return self._riding_out(lambda: self._agreed_ids(topics)) if topics else {}

    def _agreed_ids(self, topics: Sequence[str]) -> dict[str, str]:
        found = {}
        for topic in sorted({part.topic for part in self._census(topics)}):
            if topic not in self._topic_ids:
                raise PassingError(f"no majority of the brokers agree which topic {topic!r} is")
            found[topic] = self._topic_ids[topic]
        return found

    def existing(self, parts: Iterable[Part]) -> set[Part]:
        """See `Brokers`."""
        wanted = set(parts)
        return self._riding_out(lambda: self._existing(wanted)) if wanted else set()

    def _existing(self, parts: Iterable[Part], *, of_leaders: bool = False) -> set[Part]:
        """Return those of some partitions that are there, as enough brokers agree."""
        wanted = frozenset(parts)
        topics = sorted({part.topic for part in wanted})
        there = self._census(topics, wanted, of_leaders=of_leaders)
        for part in wanted - there:
            self._leaders.pop(part, None)
        return there

    def _census(
        self,
        topics: Sequence[str] | None,
        wanted: frozenset[Part] | None = None,
        *,
        of_leaders: bool = False,
    ) -> set[Part]:
        """Ask one broker after the other until enough agree on each partition; see `Census`.

        `topics`: of which all `wanted` are, or all partitions are wanted. Returns those that are
        there; who leads them is remembered. Raises `PassingError` if too few brokers answer.
        """
        census = Census(wanted)
        former = {*self._addresses.values()}
        failed: PassingError | RemoteProtocolError | None = None
        asked: set[str] = set()
        while True:
            known = {*census.addresses.values()} or former
            left = {*known, *former, *self._bootstrap} - asked
            unnamed = left - known - self._silent - self._other_names  # they may be brokers
            if not left or (asked and census.is_enough(len(unnamed), of_leaders=of_leaders)):
                break
            address = self._next_of(left, known)
            asked.add(address)
            try:
                answer = self._ask(address, ApiKey.METADATA, _named(topics))
                brokers = _addresses_in(answer)
                census.take(address, brokers, _leaders_in(answer, of_all=topics is None))
            except (PassingError, RemoteProtocolError) as error:
                failed = _worth_more(failed, error)
                continue
            if address not in brokers.values():
                self._other_names.add(address)
        if not census.has_majority:
            raise failed or PassingError("the brokers name no broker")
        if of_leaders and (unsure := census.unsure()):
            reason = f": {failed}" if failed else ""
            raise PassingError(
                f"too few replicas of partition {min(unsure)} say who leads it{reason}"
            )
        self._addresses = census.addresses
        self._leaders |= census.leaders()
        for part in census.parts:
            self._topic_ids.pop(part.topic, None)
        self._topic_ids |= census.topic_ids()
        return census.there()

    def _next_of(self, left: set[str], known: set[str]) -> str:
        """Return one of some addresses: at last those that did not answer when asked last.

        Before these come those that may be other names of known ones.
        """
        addresses = sorted(left)
        random.shuffle(addresses)
        return min(addresses, key=lambda one: (one in self._silent, one not in known))

    def offsets(
        self, times: Mapping[Part, int], *, reads_committed: bool, unconfirmed: bool = False
    ) -> dict[Part, int | None]:
        """See `Brokers`."""
        found: dict[Part, int | None] = {}
        if not times:
            return found

        def ask() -> None:
            by_leader: dict[str, dict[Part, int]] = defaultdict(dict)
            left = {part: at for part, at in times.items() if part not in found}
            if not unconfirmed:
                self._confirm_leaders(left)
            for part, at in left.items():
                by_leader[self._leader(part, left)][part] = at
            for address, asked in by_leader.items():
                rows = list(asked.items())
                for start in range(0, len(rows), ASKED_MAX):
                    some = dict(rows[start : start + ASKED_MAX])
                    self._list_offsets(address, some, found, reads_committed, unconfirmed)

        self._riding_out(ask)
        return found

    def _confirm_leaders(self, parts: Iterable[Part]) -> None:
        """Learn who leads partitions from enough brokers. Raises `UnknownTopicError`."""
        wanted = set(parts)
        for part in sorted(wanted - self._existing(wanted, of_leaders=True)):
            raise UnknownTopicError(f"there is no partition {part}", part.topic)

    def _list_offsets(
        self,
        address: str,
        times: Mapping[Part, int],
        found: dict[Part, int | None],
        reads_committed: bool,
        unconfirmed: bool,
    ) -> None:
        """Ask a leader for offsets; one that leads in another epoch than it should refuses that."""
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for part, at in times.items():
            topics[part.topic].append(
                {
                    "partition_index": part.partition,
                    "current_leader_epoch": _ANY_EPOCH
                    if unconfirmed
                    else self._leaders[part].epoch,
                    "timestamp": at,
                }
            )
        values = {
            "replica_id": -1,
            "isolation_level": int(reads_committed),
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        answer = self._ask(address, ApiKey.LIST_OFFSETS, values)
        failed: QuorumlogError | None = None
        for topic in answer.topics:
            for one in topic.partitions:
                part = Part(topic.name, one.partition_index)
                if one.error_code:
                    failed = _failed(part, one.error_code)
                else:
                    found[part] = one.offset if one.offset >= 0 else None
        if failed is not None:
            raise failed

    # -- records -----------------------------------------------------------------------------

    def batches(
        self,
        part: Part,
        first: int,
        beyond: int,
        *,
        reads_committed: bool,
        bytes_max: int,
        local_reads: bool,
    ) -> Iterator[FetchedBatches]:
        """See `Brokers`."""
        if local_reads:
            locate = partial(self._locate, part, reads_committed)
            for found in local_batches(locate, part, first, beyond):
                yield found
                first = found.next_offset
        yield from self._sent(part, first, beyond, reads_committed, bytes_max)

    def _locate(
        self, part: Part, reads_committed: bool, machine: str, first: int, beyond: int
    ) -> LocatedBatches | None:
        """Return where the leader has batches in files; None if it does not say.

        A fetch then says what is wrong, if something is. Brokers that do not know the request, as
        they are of an older version, close the connection.
        """
        values = {
            "machine": machine,
            "topic": part.topic,
            "partition": part.partition,
            "isolation_level": int(reads_committed),
            "first_offset": first,
            "end_offset": beyond,
        }
        try:
            address = self._leader(part, {part: None})
            if address in self._elsewhere:
                return None
            answer = self._ask(address, ApiKey.LOCATE_BATCHES, values)
            if answer.error_code:
                return None
            if not answer.is_same_machine:
                self._elsewhere.add(address)
            return located_of(answer, machine, first) if answer.directories else None
        except PassingError:
            return None
        except RemoteProtocolError as error:
            logger.warning("batches of %s from offset %d on are fetched: %s", part, first, error)
            return None

    def _sent(
        self, part: Part, first: int, beyond: int, reads_committed: bool, bytes_max: int
    ) -> Iterator[FetchedBatches]:
        """Yield batches as they are fetched. The next answer is on its way while one is used."""
        fetching = _Fetching(self, part, first, reads_committed, bytes_max)
        offset, ends_at = first, time.monotonic() + self._timeout_s
        try:
            while offset < beyond:
                try:
                    answer = fetching.answer()
                    batches = self._batches_of(part, answer, offset)
                except PassingError as error:
                    fetching.end()
                    self._pause(error, ends_at)
                    continue
                if not batches:  # a new leader may not know yet how far records are committed
                    self._pause(_LackingError(part, offset, beyond), ends_at)
                    fetching.ask(offset)
                    continue
                offset = batches[-1][1].last_offset + 1
                if offset < beyond:
                    fetching.ask(offset)
                ends_at = time.monotonic() + self._timeout_s
                yield FetchedBatches(answer.records, batches, answer.aborted, offset)
                ends_at = time.monotonic() + self._timeout_s  # what was done with it takes time
        finally:
            fetching.end()

    def _batches_of(
        self, part: Part, answer: FetchAnswer, offset: int
    ) -> list[tuple[int, BatchHeader]]:
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"partition {part} has no offset {offset}")
        if answer.error_code:
            raise _failed(part, answer.error_code)
        found = list(whole_batches(answer.records))
        following = [one for one in found if one[1].last_offset >= offset]
        if found and not following:
            raise RemoteProtocolError(f"asked for {part} from {offset} on, got what is before")
        return following

    # -- connections -------------------------------------------------------------------------

    def _riding_out(self, act: Callable[[], Value]) -> Value:
        """Return what `act` returns, asked again while a broker cannot answer."""
        ends_at = time.monotonic() + self._timeout_s
        while True:
            try:
                return act()
            except PassingError as error:
                self._pause(error, ends_at)

    def _pause(self, error: PassingError, ends_at: float) -> None:
        """Wait a little, and forget leaders. Raises `NetworkError` if the time is over."""
        if time.monotonic() >= ends_at:
            raise NetworkError(
                f"the brokers at {self._servers} could not answer for {self._timeout_s:g} s: "
                f"{error}{self._advice}"
            ) from None
        self._leaders.clear()
        time.sleep(RETRY_S)

    def _leader(self, part: Part, asked: Mapping[Part, Any]) -> str:
        """Return the address of a leader; `asked` are the partitions that are of interest.

        Raises `PassingError`, and `UnknownTopicError` only if a majority of the brokers agree.
        """
        if part not in self._leaders:
            self._metadata(sorted({one.topic for one in asked}))
        if self._address_of_leader(part) is None:  # one that is cut off knows less than the others
            self._confirm_leaders({one for one in asked if self._address_of_leader(one) is None})
        address = self._address_of_leader(part)
        if address is None:
            raise PassingError(f"partition {part} has no leader")
        return address

    def _address_of_leader(self, part: Part) -> str | None:
        leader = self._leaders.get(part)
        return None if leader is None else self._addresses.get(leader.broker_id)

    def lend(self, part: Part) -> BrokerConnection:
        """Return a connection to the leader of a partition, for one use only until it is returned.

        Raises `PassingError`, `UnknownTopicError`.
        """
        address = self._leader(part, {part: None})
        connection = self._connection(address)
        del self._connections[address]
        return connection

    def take_back(self, connection: BrokerConnection) -> None:
        """Keep a lent connection that has no answer under way."""
        former = self._connections.pop(connection.address, None)
        if former is not None:
            former.close()
        self._connections[connection.address] = connection

    def _connection(self, address: str) -> BrokerConnection:
        if address not in self._connections:
            timeout_s = min(CONNECTION_TIMEOUT_S, self._timeout_s)
            self._connections[address] = self._opened(address, timeout_s)
        return self._connections[address]

    def _ask(self, address: str, key: ApiKey, values: dict[str, Any]) -> Message:
        try:
            answer = self._connection(address).ask(key, values)
        except (PassingError, RemoteProtocolError):
            self._silent.add(address)
            if (failed := self._connections.pop(address, None)) is not None:
                failed.close()
            raise
        self._silent.discard(address)
        return answer

    def _ask_any(self, key: ApiKey, values: dict[str, Any]) -> Message:
        """Ask whichever broker answers, those with a connection first."""
        addresses = list(dict.fromkeys([*self._addresses.values(), *self._bootstrap]))
        random.shuffle(addresses)
        addresses.sort(key=lambda address: address not in self._connections)
        failed: PassingError | RemoteProtocolError | None = None
        for address in addresses:
            try:
                return self._ask(address, key, values)
            except (PassingError, RemoteProtocolError) as error:
                failed = _worth_more(failed, error)
        raise failed or PassingError("there is no address of a broker")


class _LackingError(PassingError):
    """Records that were there when a read was planned are not there."""

    def __init__(self, part: Part, offset: int, beyond: int) -> None:
        super().__init__(
            f"partition {part} had records up to {beyond - 1} when the read was planned, but those "
            f"from {offset} on cannot be had now"
        )


class _Fetching:
    """The one fetch of a partition that is under way."""

    def __init__(
        self,
        brokers: RemoteBrokers,
        part: Part,
        offset: int,
        reads_committed: bool,
        bytes_max: int,
    ) -> None:
        self._brokers = brokers
        self._part = part
        self._offset = offset
        self._reads_committed = reads_committed
        self._bytes_max = bytes_max
        self._asked: tuple[BrokerConnection, int] | None = None
        """Where the answer will come, and its number."""
        self._idle: BrokerConnection | None = None

    def ask(self, offset: int) -> None:
        """Ask for what is from an offset on. An error is raised when the answer is wanted."""
        self._offset = offset
        with suppress(PassingError):
            self._send()

    def _send(self) -> tuple[BrokerConnection, int]:
        connection = self._idle or self._brokers.lend(self._part)
        self._idle = None
        try:
            number = connection.send_fetch(
                *self._part,
                self._offset,
                bytes_max=self._bytes_max,
                wait_ms=FETCH_WAIT_MS,
                reads_committed=self._reads_committed,
            )
        except PassingError:
            connection.close()
            raise
        self._asked = connection, number
        return self._asked

    def answer(self) -> FetchAnswer:
        """Return the answer, asking first if nothing is under way."""
        connection, number = self._asked or self._send()
        answer = connection.receive_fetch(number)
        self._asked, self._idle = None, connection
        return answer

    def end(self) -> None:
        """Give the connection back; one with an answer under way is closed."""
        if self._asked is not None:
            self._asked[0].close()
        elif self._idle is not None:
            self._brokers.take_back(self._idle)
        self._asked = self._idle = None


def located_of(answer: Message, machine: str, first: int) -> LocatedBatches:
    """Return what an answer to LocateBatches says. Raises `RemoteProtocolError` if it cannot be."""
    offsets, indexes = answer.base_offsets, answer.indexes
    rising = all(one < two for rows in (offsets, indexes) for one, two in pairwise(rows))
    if not (rising and 0 < len(offsets) == len(indexes) and offsets[0] <= first):
        raise RemoteProtocolError(f"asked where offset {first} is, a broker named other batches")
    if len(answer.directories) < DIRECTORIES_MIN:
        raise RemoteProtocolError("a broker did not name the directories of a log")
    if answer.next_offset <= max(first, offsets[-1]):
        raise RemoteProtocolError(f"batches from {first} on cannot end at {answer.next_offset}")
    return LocatedBatches(
        StoreLocation(machine, [(one.path, one.device, one.inode) for one in answer.directories]),
        answer.channel,
        offsets,
        indexes,
        answer.next_offset,
        [
            AbortedRange(one.producer_id, one.first_offset, one.last_offset)
            for one in answer.aborted_transactions
        ],
    )


def _worth_more(
    former: PassingError | RemoteProtocolError | None, error: PassingError | RemoteProtocolError
) -> PassingError | RemoteProtocolError:
    """Return which of two errors to report: one that may pass, as all is asked again then."""
    return former if isinstance(former, PassingError) else error


def _named(topics: Sequence[str] | None) -> dict[str, Any]:
    """Return a request for Metadata; None: of all topics."""
    return {
        "topics": None if topics is None else [{"name": name} for name in topics],
        "allow_auto_topic_creation": False,
    }


def _addresses_in(answer: Message) -> dict[int, str]:
    """Return the brokers that an answer to Metadata names, by broker id."""
    return {one.node_id: host_port(one.host, one.port) for one in answer.brokers}


def _leaders_in(answer: Message, *, of_all: bool) -> dict[Part, NamedLeader]:
    """Return the partitions that an answer to Metadata has, with who leads them.

    `of_all`: all topics were asked for; those of Kafka's own are left out then. Raises
    `PassingError` if it does not say everything.
    """
    found: dict[Part, NamedLeader] = {}
    for topic in answer.topics:
        if topic.error_code in _UNKNOWN or (of_all and topic.is_internal):
            continue
        if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            if of_all:
                continue
            raise error_for(ResponseCode.NOT_AUTHORIZED, _FORBIDDEN.format(topic.name))
        if topic.error_code:
            raise PassingError(f"topic {topic.name}: {_words(topic.error_code)}")
        raw_id = topic.topic_id.bytes
        topic_id = topic_id_text(raw_id) if any(raw_id) else ""
        for one in topic.partitions:
            found[Part(topic.name, one.partition_index)] = NamedLeader(
                one.leader_epoch, one.leader_id, tuple(one.replica_nodes), topic_id
            )
    return found


def _failed(part: Part, code: int) -> QuorumlogError:
    """Return what a broker has refused; it passes, unless the user lacks a right."""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return error_for(ResponseCode.NOT_AUTHORIZED, _FORBIDDEN.format(part.topic))
    return PassingError(f"partition {part}: {_words(code)}")


def _words(code: int) -> str:
    """Return an error code of Kafka by its name."""
    names = {int(one): one.name for one in ErrorCode}
    return names.get(code, f"error {code}")


def _opened(
    address: str, timeout_s: float, *, client_id: str, security: Security | None
) -> BrokerConnection:
    """Return a new connection; a file that is of no use is named with this machine."""
    with said_where():
        return BrokerConnection(address, timeout_s, client_id, security)
