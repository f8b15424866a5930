"""`quorumlog broker-config`: the configs that all brokers of a cluster share, by Kafka's protocol.

Options have the names of those of Kafka's own `kafka-configs`; its actions are subcommands here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.kafka_admin import (
    TIMEOUT_SECONDS,
    Bootstrap,
    Timeout,
    kafka_admin,
)
from quorumlog.cli.kafka_configs import DeleteConfig, alter, changes_of, described
from quorumlog.cli.options import AsJson, ContextName, FromDir
from quorumlog.cli.output import print_json, print_line, print_table
from quorumlog.model.topic_configs import CLUSTER_CONFIGS

SHOWN_BY: Final = "quorumlog broker-config describe"
_OWN: Final = "STATIC_BROKER_CONFIG"
"""The source of what the configuration file of one node says."""
_SET: Final = "DYNAMIC_DEFAULT_BROKER_CONFIG"
"""The source of what was set for all brokers."""

app = typer.Typer(
    help="Configs that all brokers of a cluster share: describe and alter them.",
    no_args_is_help=True,
)


@app.command(name="describe")
def describe_command(
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the configs of the cluster: defaults of topics, and what consumer groups may do."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        found = admin.ask(_described)
    if as_json:
        for name, one in found.items():
            print_json({"name": name, "value": one["value"], "is_set": _is_set(one)})
        return
    rows = [[name, one["value"], "set" if _is_set(one) else ""] for name, one in found.items()]
    print_table(["CONFIG", "VALUE", ""], rows)


def _described(client: Any) -> dict[str, Any]:
    broker_id = _any_broker(client)
    found = described(client, "BROKER", [broker_id], int(broker_id))[broker_id]
    return {name: one for name, one in sorted(found.items()) if one["config_source"] != _OWN}


def _any_broker(client: Any) -> str:
    """Return the number of a broker: kafka-python can only name one."""
    return str(client.describe_cluster()["brokers"][0]["broker_id"])


def _is_set(entry: Mapping[str, Any]) -> bool:
    return bool(entry["config_source"] == _SET)


@app.command(name="alter")
def alter_command(
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            "--add-config",
            "--config",
            metavar="KEY=VALUE",
            help="A config, and the value that it shall have; repeatable.",
            show_default=False,
        ),
    ] = None,
    delete_config: DeleteConfig = None,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change configs of the cluster: all that are named, or none."""
    changes = changes_of(add_config, delete_config)
    if not changes:
        raise typer.BadParameter("give --add-config KEY=VALUE or --delete-config KEY")
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        alter(admin, "BROKER", admin.ask(_any_broker), changes, CLUSTER_CONFIGS)
    if as_json:
        print_json({"configs": {key: value for key, (_, value) in changes.items()}})
    else:
        print_line(f"altered: {', '.join(changes)}")
