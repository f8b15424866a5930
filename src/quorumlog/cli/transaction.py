"""`quorumlog transaction`: list and describe transactions of producers, by Kafka's protocol."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import TIMEOUT_SECONDS, Bootstrap, Timeout, kafka_admin
from quorumlog.cli.options import AsJson, ContextName, FromDir
from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.cli.unknown_names import TRANSACTIONAL_ID, none_of

SHOWN_BY: Final = "quorumlog transaction list"

app = typer.Typer(
    help="Transactions of producers with a transactional id: list and describe them.",
    no_args_is_help=True,
)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.")]
Running = Annotated[
    float | None,
    typer.Option(
        "--running-longer-than",
        metavar="SECONDS",
        min=0,
        help="Only those that began so long ago, and have not ended.",
        show_default=False,
    ),
]


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    running_longer_than: Running = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all transactional ids, and the states of their transactions."""
    filters = {}
    if running_longer_than is not None:
        filters["duration_filter_ms"] = int(running_longer_than * 1_000)
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        by_broker = admin.ask(lambda client: client.list_transactions(**filters))
    found = sorted(one for listed in by_broker.values() for one in listed)
    if as_json:
        for one in found:
            print_json(
                {
                    "transactional_id": one.transactional_id,
                    "state": one.state.value,
                    "producer_id": one.producer_id,
                }
            )
        return
    rows = [[one.transactional_id, one.state.value, str(one.producer_id)] for one in found]
    print_table(["TRANSACTIONAL ID", "STATE", "PRODUCER ID"], rows)


@app.command(name="describe")
def describe_command(
    transactional_ids: Ids,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the producers of transactional ids, and in which partitions their transactions are.

    Of one that is decided (PrepareCommit, PrepareAbort) these are the partitions without a marker.
    """
    names = list(dict.fromkeys(transactional_ids))
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        described = {name: admin.ask(partial(_described, name=name)) for name in names}
        unknown = [name for name, found in described.items() if found is None]
        failure = none_of(admin, TRANSACTIONAL_ID, unknown) if unknown else ""
    for name, found in described.items():
        if found is not None:
            (_print_json if as_json else _print)(name, found)
    if failure:
        raise CommandError(failure)


def _described(client: Any, *, name: str) -> Any:
    """Return what is known of an id; None: there is none."""
    from kafka.errors import TransactionalIdNotFoundError  # noqa: PLC0415  (see kafka_admin)

    try:
        return client.describe_transactions([name])[name]
    except TransactionalIdNotFoundError:
        return None


def _fields(name: str, found: Any) -> dict[str, Any]:
    has_begun = found.transaction_start_time_ms >= 0
    return {
        "transactional_id": name,
        "state": found.state.value,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator_id,
        "timeout_ms": found.transaction_timeout_ms,
        "started_ms": found.transaction_start_time_ms if has_begun else None,
        "partitions": [
            {"topic": topic, "partition": number}
            for topic, number in sorted(found.topic_partitions)
        ],
    }


def _print_json(name: str, found: Any) -> None:
    print_json(_fields(name, found))


def _print(name: str, found: Any) -> None:
    fields = _fields(name, found)
    print_line(f"transactional id {name}: {fields['state']}")
    producer = f"producer {found.producer_id}, epoch {found.producer_epoch}"
    print_line(f"  {producer}, coordinator {found.coordinator_id}")
    print_line(f"  transaction.timeout.ms {found.transaction_timeout_ms}")
    if fields["started_ms"] is not None:
        began = datetime.fromtimestamp(fields["started_ms"] / 1_000, UTC)
        print_line(f"  began {began.isoformat(sep=' ', timespec='seconds')}")
    for one in fields["partitions"]:
        print_line(f"  {one['topic']} {one['partition']}")
