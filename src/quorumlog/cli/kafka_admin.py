"""How the command line reaches brokers by Kafka's protocol: options, client, errors in words."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_reach import is_hopeless, reach_of, words_of
from quorumlog.cli.target import find_access, opened
from quorumlog.client import Security
from quorumlog.client.contexts import BROKERS_VARIABLE, SERVERS_VARIABLE, Access
from quorumlog.client.kafka_security import CHECK_S, check_cluster, kafka_python_settings
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError, NetworkError

TIMEOUT_SECONDS: Final = 30.0
FIRST_S: Final = 3.0
"""If no broker has answered by then, it is found out whether one may."""
RETRY_S: Final = 0.2
"""Pause before a question is put again that no broker could answer."""
BACKOFF_MS: Final = 200
"""kafka-python picks a server by chance, and waits for one that refused a connection, although
others run: each time twice as long, up to this."""
LATER_MS: Final = 1_000
"""So much longer than the brokers have is their answer waited for: it says why they could not."""
_REFUSED: Final = "ECONNREFUSED"
"""In the text of an error: there was no connection on which anything could have been sent."""
_UNSENT: Final = {"NodeNotReadyError", "NoBrokersAvailable"}
"""Errors that say the same."""
NO_COORDINATOR: Final = (
    "consumer groups cannot be changed now: __cluster has no leader, which takes a majority of its "
    "nodes, or the disks of a majority are full ('quorumlog status' shows both)"
)
NO_LEADER: Final = "a partition that was asked for has no leader: a majority of its nodes is down"
_ONE_UNREACHED: Final = "a broker of the cluster cannot be reached from here"
_ALL_UNREACHED: Final = "no broker of the cluster can be reached from here"
_UNREACHED: Final = {_ONE_UNREACHED, _ALL_UNREACHED}
"""These say less than what a broker has answered before."""
PASSING: Final = {
    "NotCoordinatorError": NO_COORDINATOR,
    "CoordinatorNotAvailableError": NO_COORDINATOR,
    "CoordinatorLoadInProgressError": NO_COORDINATOR,
    "LeaderNotAvailableError": NO_LEADER,
    "NotLeaderForPartitionError": NO_LEADER,
    "NotLeaderOrFollowerError": NO_LEADER,
    "UnknownBrokerIdError": NO_LEADER,
    "KafkaConnectionError": _ONE_UNREACHED,
    "NodeNotReadyError": _ONE_UNREACHED,
    "NoBrokersAvailable": _ALL_UNREACHED,
}
"""Errors of kafka-python that may pass, and what they mean."""

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="Find the cluster at these addresses (kafkaListen of any of its nodes).",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Give up after this time.")
]


class KafkaAdmin:
    """kafka-python's admin client; what fails because brokers change is asked again.

    `make(connect_s, request_s)` connects within `connect_s`; each request then has `request_s`.
    `security`: what it connects by. Raises `CommandError` if no broker of `servers` answers.
    """

    def __init__(
        self,
        make: Callable[[float, float], Any],
        servers: str,
        timeout_s: float,
        security: Security | None = None,
    ) -> None:
        self._make = make
        self._ends_at = time.monotonic() + timeout_s
        self.client = self._first(servers, timeout_s, security)

    def _first(self, servers: str, timeout_s: float, security: Security | None) -> Any:
        """Return a client. Whoever cannot answer is not waited for."""
        made = self._made(min(FIRST_S, timeout_s))
        if made is not None:
            return made
        found, within = reach_of(servers, security), ""
        if not is_hopeless(found):
            within = f" within {timeout_s:g} s"
            if (made := None if self.is_over else self._made(self._left_s)) is not None:
                return made
        raise CommandError(words_of(found, within))

    def _made(self, connect_s: float) -> Any:
        """Return a new client; None: no broker answers. Raises `CommandError` if none ever will."""
        from kafka.errors import KafkaError  # noqa: PLC0415  (see kafka_admin)

        try:
            return self._make(connect_s, self._left_s)
        except KafkaError as error:
            if error.retriable or type(error).__name__ in PASSING:
                return None
            raise CommandError(in_words(type(error).__name__, str(error))) from None

    def __getattr__(self, name: str) -> Any:
        """Return a method of the client."""
        return getattr(self.client, name)

    def ask(self, act: Callable[[Any], Any]) -> Any:
        """Return what `act` returns of the client, which changes nothing, or may do so twice.

        A broker that died is still named for some seconds, and for a moment nobody coordinates.
        """
        return self._repeated(act, lambda error: type(error).__name__ in PASSING)

    def ask_once(self, act: Callable[[Any], Any]) -> Any:
        """Return what `act` returns of the client; None: no broker answered, or with an error."""
        from kafka.errors import KafkaError  # noqa: PLC0415  (see kafka_admin)

        try:
            return act(self.client)
        except KafkaError:
            return None

    def order(self, act: Callable[[Any], Any]) -> Any:
        """Return what `act` returns, which shall be done once: it is repeated if not sent."""

        def was_not_sent(error: Exception) -> bool:
            return type(error).__name__ in _UNSENT or _REFUSED in str(error)

        return self._repeated(act, was_not_sent)

    def _repeated(self, act: Callable[[Any], Any], passes: Callable[[Exception], bool]) -> Any:
        from kafka.errors import KafkaError  # noqa: PLC0415  (see kafka_admin)

        told: KafkaError | None = None
        while True:
            try:
                return act(self.client)
            except KafkaError as error:
                if not passes(error):
                    raise
                if told is None or PASSING.get(type(error).__name__) not in _UNREACHED:
                    told = error
            if self.is_over or not self._retry():
                raise told

    @property
    def is_over(self) -> bool:
        """Whether there is no time left to ask again."""
        return time.monotonic() >= self._ends_at

    @property
    def left_ms(self) -> int:
        """What brokers may be given to do what is asked: no more than they are waited for."""
        return round(self._left_s * 1_000)

    @property
    def _left_s(self) -> float:
        return max(RETRY_S, self._ends_at - time.monotonic())

    def _retry(self) -> bool:
        """Wait a little, and connect anew, to those brokers that there are now; False: to none."""
        time.sleep(RETRY_S)
        made = self._made(self._left_s)
        if made is None:
            return False
        self.client.close()
        self.client = made
        return True


@contextmanager
def kafka_admin(
    directory: Path | None,
    servers: str | None,
    context: str | None,
    timeout_s: float,
    shown_by: str,
) -> Iterator[KafkaAdmin]:
    """Yield an admin client. Raises `CommandError` for whatever it raises.

    `shown_by`: the command that shows what became of something that was not answered in time.
    """
    # here, since no other command needs it and it takes 0.1 s
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.errors import KafkaError, KafkaTimeoutError, RequestTimedOutError  # noqa: PLC0415

    cluster = opened(find_brokers(directory, servers, context))
    found = cluster.kafka
    logging.getLogger("kafka").setLevel(logging.CRITICAL)

    def make(connect_s: float, request_s: float) -> Any:
        return KafkaAdminClient(
            bootstrap_servers=found.split(","),
            bootstrap_timeout_ms=round(connect_s * 1_000),
            request_timeout_ms=round(request_s * 1_000) + LATER_MS,
            reconnect_backoff_max_ms=BACKOFF_MS,
            **kafka_python_settings(cluster.security),
        )

    try:
        check_cluster(found, cluster.security, min(CHECK_S, timeout_s))
    except NetworkError as error:
        raise CommandError(str(error)) from None
    admin = KafkaAdmin(make, found, timeout_s, cluster.security)
    try:
        yield admin
    except (KafkaTimeoutError, RequestTimedOutError):
        raise CommandError(
            f"{found} did not answer within {timeout_s:g} s; what was asked for may have been "
            f"done, or be done later: '{shown_by}' shows it"
        ) from None
    except KafkaError as error:
        raise CommandError(in_words(type(error).__name__, str(error))) from None
    finally:
        admin.client.close()


def resource_of(kind: str, name: str, changes: Mapping[str, Any] | None = None) -> Any:
    """Return what has configs, as kafka-python's client wants it; `kind`: TOPIC or BROKER."""
    from kafka.admin import ConfigResource  # noqa: PLC0415  (see kafka_admin)

    return ConfigResource(kind, name, changes)


def in_words(name: str, text: str = "") -> str:
    """Return what an error of kafka-python means; `text`: what it says of itself.

    An error of the protocol has Kafka's name in capitals, and a description.
    """
    import kafka.errors  # noqa: PLC0415  (see kafka_admin)

    if name in PASSING:
        return PASSING[name]
    error = getattr(kafka.errors, name, None)
    code, meaning = getattr(error, "message", None), getattr(error, "description", None)
    if code is None or meaning is None:
        return f"{name}: {text}".removesuffix(": ")
    said = text.partition(f"{name}: ")[2]
    return f"{code}: {said or meaning}"


def find_brokers(directory: Path | None, servers: str | None, context: str | None) -> Access:
    """Return the cluster that `--context`, `--dir` or `--bootstrap-server` names: it has brokers.

    Raises as `find_access`, `CommandError` if the cluster has no brokers or the context names none.
    """
    for address in (servers or "").split(",") if servers is not None else ():
        try:
            parse_address(address.strip())
        except ConfigError:
            text = f"{address!r} is not HOST:PORT, such as 127.0.0.1:9092"
            raise typer.BadParameter(text, param_hint="--bootstrap-server") from None
    access = find_access(directory, servers, context, "--bootstrap-server")
    if access.found().kafka:
        return access
    if directory is not None:
        raise CommandError(f"the cluster in {directory} has no topics: its nodes are no brokers")
    where = f"{access} names" if access.context else f"{SERVERS_VARIABLE} are"
    raise CommandError(
        f"{where} no brokers: give --bootstrap-server, "
        + ('or the context kafka = "HOST:PORT"' if access.context else f"or {BROKERS_VARIABLE}")
    )
