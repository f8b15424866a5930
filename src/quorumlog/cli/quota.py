"""`quorumlog quota`: how much clients may use."""

from collections.abc import Sequence
from typing import Annotated

import typer

from quorumlog.auth.quotas import (
    CLIENT_ID,
    IP,
    KEYS,
    NOT_ENFORCED,
    USER,
    QuotaEntity,
    checked_entity,
)
from quorumlog.cli.options import (
    TIMEOUT_SECONDS,
    AsJson,
    ContextName,
    FromDir,
    Servers,
    Timeout,
    pairs_of,
)
from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.cli.security_target import cluster_client, without_prefix

app = typer.Typer(
    help="Quotas of users, client ids and addresses: set, list, remove.", no_args_is_help=True
)

EVERY = "*"
"""Instead of a name: all that have no quota of their own."""

User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="USER",
        help="Name of the user; '*': each that has no quota of its own.",
        show_default=False,
        callback=without_prefix,
    ),
]
ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="NAME",
        help="What a client calls itself, alone or with --user; '*' as above.",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--ip", metavar="ADDRESS", help="An address; '*' as above.", show_default=False),
]


def _entity(user: str | None, client_id: str | None, address: str | None) -> QuotaEntity:
    given = {USER: user, CLIENT_ID: client_id, IP: address}
    parts = [
        (kind, None if name == EVERY else name) for kind, name in given.items() if name is not None
    ]
    if not parts:
        raise typer.BadParameter("say for whom: --user, --client-id, both, or --ip")
    return checked_entity(parts)


def _text(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {EVERY if name is None else name}" for kind, name in entity[::-1])


@app.command(name="set")
def set_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help=f"Quotas: {', '.join(KEYS)}. Rates are for each second and node: byte rates in "
            "bytes, request_rate in requests, connection_creation_rate in connections.",
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    address: Address = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Set quotas; others of the same user, client id or address stay.

    Each node counts by itself. Requests above a rate are delayed, and nothing is lost;
    connections above connections or connection_creation_rate are closed. Kafka's
    request_percentage and controller_mutation_rate are kept and shown only.
    """
    entity = _entity(user, client_id, address)
    given: dict[str, float | None] = {}
    for key, value in pairs_of(values, "producer_byte_rate=1048576").items():
        try:
            given[key] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{key} is a number, not {value!r}") from None
    with cluster_client(directory, servers, context, timeout) as client:
        client.security.alter_quotas(entity, given)
    print_line(f"set for {_text(entity)}: {', '.join(given)}")
    if ignored := [key for key in given if key in NOT_ENFORCED]:
        print_line(f"kept and shown, but not enforced: {', '.join(ignored)}")


@app.command(name="remove")
def remove_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Quotas to remove.", show_default="all"),
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    address: Address = None,
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Remove quotas of a user, client id or address."""
    entity = _entity(user, client_id, address)
    with cluster_client(directory, servers, context, timeout) as client:
        named: Sequence[str] = keys or next(
            (list(one.values) for one in client.security.quotas() if one.entity == entity), []
        )
        client.security.alter_quotas(entity, dict.fromkeys(named))
    print_line(f"removed for {_text(entity)}: {', '.join(named) or 'nothing, as there was none'}")


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    servers: Servers = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all quotas."""
    with cluster_client(directory, servers, context, timeout) as client:
        found = client.security.quotas()
    if as_json:
        for one in found:
            print_json({"entity": dict(one.entity), "quotas": dict(one.values)})
        return
    print_table(
        ["FOR", "QUOTA", ">VALUE"],
        [
            [_text(one.entity), key, f"{value:g}" if value < 1e6 else f"{value:.0f}"]
            for one in found
            for key, value in one.values.items()
        ],
    )
