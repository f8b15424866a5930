"""How the command line reaches brokers by Kafka's protocol: options, client, errors in words."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.target import running_cluster
from quorumlog.log_events import reason_of
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError

TIMEOUT_SECONDS: Final = 30.0

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


@contextmanager
def kafka_admin(
    directory: Path | None, servers: str | None, timeout_s: float, shown_by: str
) -> Iterator[Any]:
    """Yield kafka-python's admin client. Raises `CommandError` for whatever it raises.

    `shown_by`: the command that shows what became of something that was not answered in time.
    """
    # here, since no other command needs it and it takes 0.1 s
    from kafka import KafkaAdminClient  # noqa: PLC0415
    from kafka.errors import KafkaError, KafkaTimeoutError, RequestTimedOutError  # noqa: PLC0415

    found = _servers(directory, servers)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    timeout_ms = round(timeout_s * 1_000)
    try:
        client = KafkaAdminClient(
            bootstrap_servers=found.split(","),
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
        )
    except KafkaError:
        text = f"no broker answers at {found} within {timeout_s:g} s: is it kafkaListen of a node?"
        raise CommandError(_unknown_hosts(found) or text) from None
    try:
        yield client
    except (KafkaTimeoutError, RequestTimedOutError):
        raise CommandError(
            f"{found} did not answer within {timeout_s:g} s; what was asked for may have been "
            f"done, or be done later: '{shown_by}' shows it"
        ) from None
    except KafkaError as error:
        raise CommandError(f"{type(error).__name__}: {error}") from None
    finally:
        client.close()


def _servers(directory: Path | None, servers: str | None) -> str:
    if (directory is None) == (servers is None):
        raise typer.BadParameter("give either --dir DIR or --bootstrap-server HOST:PORT,...")
    if directory is None:
        for address in str(servers).split(","):
            try:
                parse_address(address.strip())
            except ConfigError:
                text = f"{address!r} is not HOST:PORT, such as 127.0.0.1:9092"
                raise typer.BadParameter(text, param_hint="--bootstrap-server") from None
        return str(servers)
    cluster = running_cluster(directory)
    if not cluster.bootstrap_servers:
        raise CommandError(f"the cluster in {directory} has no topics: its nodes are no brokers")
    return cluster.bootstrap_servers


def _unknown_hosts(servers: str) -> str:
    """Return which hosts have no address, as far as can be found out; empty: all have one."""
    problems = []
    for address in servers.split(","):
        host, port = parse_address(address.strip())
        try:
            socket.getaddrinfo(host, port)
        except OSError as error:
            problems.append(f"host {host!r} cannot be found: {reason_of(error)}")
    return "; ".join(problems)
