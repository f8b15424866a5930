"""`quorumlog topic`: create, list, describe, alter and delete topics, by Kafka's protocol.

Options have the names of those of Kafka's own tools; their actions are subcommands here, and names
of topics are arguments.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import (
    TIMEOUT_SECONDS,
    Bootstrap,
    Timeout,
    kafka_admin,
)
from quorumlog.cli.kafka_configs import (
    DeleteConfig,
    alter,
    changes_of,
    config_pairs,
    described,
    near_miss,
    note_no_compaction,
    of_topic,
)
from quorumlog.cli.options import AsJson, ContextName, FromDir
from quorumlog.cli.output import print_json, print_line, print_note, print_table
from quorumlog.cli.unknown_names import TOPIC, none_of, none_of_each
from quorumlog.model.retention_classes import class_text, retention_class
from quorumlog.model.topic_configs import TOPIC_CONFIGS
from quorumlog.model.wording import counted, topic_id_text

SHOWN_BY: Final = "quorumlog topic list"
_SET: Final = "DYNAMIC_TOPIC_CONFIG"
"""The source of a config that was set for its topic."""
_NOT_LED: Final = "done, but not all partitions have a leader yet"
"""How a broker begins to say why it does not wait any longer, with the code below."""
# numbers of `kafka.errors.ErrorCode`, which a command that is to start soon does not import
_NONE: Final = 0
_EXISTS: Final = 36
_UNKNOWN: Final = 3
_TIMED_OUT: Final = 7
_NOT_AUTHORIZED: Final = 29
_INVALID_CONFIG: Final = 40

app = typer.Typer(
    help="Topics of a cluster: create, list, describe, alter and delete them.",
    no_args_is_help=True,
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of the topics.")]
_config = partial(
    typer.Option,
    metavar="KEY=VALUE",
    help="A config of the topic, and its value; repeatable.",
    show_default=False,
)
Config = Annotated[list[str] | None, _config("--config")]
ChangedConfig = Annotated[list[str] | None, _config("--config", "--add-config")]


def _finish(
    outcomes: Sequence[Mapping[str, Any]],
    done: str,
    allowed: int = _NONE,
    fields: Sequence[str] = (),
    hint: str = "",
) -> None:
    """Say what became of topics, which are `done`, such as "created"; `fields`: of JSON objects.

    `hint` is added to why a config was refused. Raises `CommandError` if something was not done.
    """
    failures, without_leader = list[str](), 0
    for one in outcomes:
        name, code, said = one["name"], one["error_code"], one["error_message"]
        if code == _NONE and fields:
            found = {key: one[key] for key in fields}
            print_json(found | {"topic_id": _id_of(one)})
        elif code == _NONE:
            print_line(f"topic {name} is {done}")
        elif code == allowed:
            print_note(f"{said}; nothing is changed")
        else:
            without_leader += _lacks_leaders(code, said)
            text = _failure(name, code, said, f"is {done}")
            failures.append(text + hint * (code == _INVALID_CONFIG))
    if len(outcomes) == 1 and failures:
        raise CommandError(failures[0])
    for text in failures:
        print_note(text)
    total, undone = counted(len(outcomes), "topic"), len(failures) - without_leader
    summary = [f"{undone} of {total} not {done}"] * bool(undone)
    summary += [f"{without_leader} of {total} {done} without all leaders"] * bool(without_leader)
    if summary:
        raise CommandError("; ".join(summary))


def _lacks_leaders(code: int, said: str | None) -> bool:
    """Whether it was done, and only leaders are missing."""
    return code == _TIMED_OUT and said is not None and said.startswith(_NOT_LED)


def _failure(name: str, code: int, said: str | None, done: str) -> str:
    """Return what failed with which topic; `done`: what is so if only leaders are missing."""
    if said is not None and _lacks_leaders(code, said):
        why = said.removeprefix(_NOT_LED)
        return f"topic {name} {done}, but some of its partitions have no leader yet{why}"
    return of_topic(name, said or f"error {code}")


@app.command(name="create")
def create_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    topics: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="NUMBER",
            min=1,
            help="How many. Default: the config num.partitions.",
            show_default=False,
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="NUMBER",
            min=1,
            help="Replicas at least; partitions have those of their partition group. Default: the "
            "config default.replication.factor.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that exists is no failure.")
    ] = False,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Create topics; return once all their partitions have leaders."""
    new: dict[str, Any] = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": config_pairs(config),
    }
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        answer = admin.order(
            lambda client: client.create_topics(
                dict.fromkeys(topics, new), timeout_ms=admin.left_ms, raise_errors=False
            )
        )
    fields = ("name", "num_partitions", "replication_factor") if as_json else ()
    try:
        allowed = _EXISTS if if_not_exists else _NONE
        hint = near_miss(new["configs"], TOPIC_CONFIGS)
        _finish(answer["topics"], "created", allowed, fields, hint)
    finally:
        _note_replicas(answer["topics"], replication_factor)
        if any(one["error_code"] == _NONE for one in answer["topics"]):
            note_no_compaction(new["configs"])


def _note_replicas(topics: Iterable[Mapping[str, Any]], wanted: int | None) -> None:
    """Say which topics have more replicas than was asked for."""
    for one in topics:
        if wanted is not None and one["error_code"] == _NONE:
            found = one["replication_factor"]
            if found != wanted:
                has = f"topic {one['name']} has {counted(found, 'replica')}, not {wanted}"
                print_note(f"{has}: as many as its partition groups have")


@app.command(name="list")
def list_command(
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show all topics: their partitions, and how many of these have no leader."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        topics = admin.ask(lambda client: client.describe_topics())
        found = sorted(topics, key=lambda one: str(one["name"]))
    rows = [
        (
            str(one["name"]),
            len(one["partitions"]),
            len(one["partitions"][0]["replica_nodes"]) if one["partitions"] else 0,
            sum(each["leader_id"] < 0 for each in one["partitions"]),
        )
        for one in found
    ]
    if as_json:
        for row in rows:
            names = ("name", "partitions", "replicas", "without_leader")
            print_json(dict(zip(names, row, strict=True)))
        return
    columns = ["TOPIC", ">PARTITIONS", ">REPLICAS", ">WITHOUT LEADER"]
    print_table(columns, [[str(cell) for cell in row] for row in rows])


@app.command(name="describe")
def describe_command(
    topics: Names,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show where the partitions of topics are, and the configs that were set."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        asked = list(dict.fromkeys(topics))
        found = admin.ask(lambda client: client.describe_topics(asked))
        unknown = [one["name"] for one in found if one["error_code"] != _NONE]
        refused = [one["name"] for one in found if one["error_code"] == _NOT_AUTHORIZED]
        if refused:
            raise CommandError(_refusal(refused[0]))
        found = [one for one in found if one["name"] not in unknown]
        names = [one["name"] for one in found]
        configs = admin.ask(partial(described, kind="TOPIC", names=names)) if names else {}
        failure = none_of(admin, TOPIC, unknown) if unknown else ""
    for one in found:
        entries = configs[one["name"]].items()
        values = {key: str(entry["value"]) for key, entry in entries}
        set_ones = {key: values[key] for key, entry in entries if entry["config_source"] == _SET}
        shared = class_text(retention_class(values, {}))
        if as_json:
            print_json(
                {
                    "name": one["name"],
                    "topic_id": _id_of(one),
                    "configs": set_ones,
                    "retention_class": shared,
                    "partitions": [
                        {
                            "partition": each["partition_index"],
                            "leader": each["leader_id"],
                            "leader_epoch": each["leader_epoch"],
                            "replicas": each["replica_nodes"],
                            "in_sync": each["isr_nodes"],
                        }
                        for each in one["partitions"]
                    ],
                }
            )
            continue
        print_line(f"topic {one['name']}, id {_id_of(one)}")
        for key, value in set_ones.items():
            print_line(f"  {key}={value}")
        print_line(f"  retention class of new partitions: {shared}")
        print_table([">PARTITION", ">LEADER", ">EPOCH", "REPLICAS", "IN SYNC"], _places(one))
    if failure:
        raise CommandError(failure)


def _refusal(topic: str) -> str:
    """Return that a topic may not be described; brokers do not say whether it exists."""
    return (
        f"you may not describe topic {topic!r}, if there is one: no ACL allows it, or one denies "
        f"it (quorumlog acl add --user USER --operation describe --topic {quote(topic)})"
    )


def _id_of(topic: Mapping[str, Any]) -> str:
    return topic_id_text(UUID(str(topic["topic_id"])).bytes)


def _places(topic: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            str(one["partition_index"]),
            "none" if one["leader_id"] < 0 else str(one["leader_id"]),
            str(one["leader_epoch"]),
            ",".join(map(str, one["replica_nodes"])),
            ",".join(map(str, one["isr_nodes"])),
        ]
        for one in topic["partitions"]
    ]


@app.command(name="alter")
def alter_command(  # noqa: PLR0913, PLR0917  (options of a command line)
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, help="How many it shall have; more than now.", show_default=False
        ),
    ] = None,
    config: ChangedConfig = None,
    delete_config: DeleteConfig = None,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Change configs of a topic, or give it more partitions."""
    changes = changes_of(config, delete_config)
    if not changes and partitions is None:
        raise typer.BadParameter("give --partitions, --config KEY=VALUE or --delete-config KEY")
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        if changes:
            alter(admin, "TOPIC", topic, changes, TOPIC_CONFIGS)
            if as_json:
                altered = {key: value for key, (_, value) in changes.items()}
                print_json({"name": topic, "configs": altered})
            else:
                print_line(f"topic {topic} is altered")
            note_no_compaction(config_pairs(config))
        if partitions is not None:
            wanted = {topic: partitions}
            answer = admin.order(
                lambda client: client.create_partitions(
                    wanted, timeout_ms=admin.left_ms, raise_errors=False
                )
            )
            outcome = answer.results[0]
            if outcome.error_code != _NONE:
                said = outcome.error_message
                if outcome.error_code == _UNKNOWN:
                    said = none_of(admin, TOPIC, [topic])
                done = f"has {counted(partitions, 'partition')} now"
                raise CommandError(_failure(topic, outcome.error_code, said, done))
            if as_json:
                print_json({"name": topic, "partitions": partitions})
            else:
                print_line(f"topic {topic} has {counted(partitions, 'partition')} now")


@app.command(name="delete")
def delete_command(
    topics: Names,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="A topic that does not exist is no failure.")
    ] = False,
    directory: FromDir = None,
    bootstrap_server: Bootstrap = None,
    context: ContextName = None,
    timeout: Timeout = TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Delete topics permanently, with everything in them."""
    with kafka_admin(directory, bootstrap_server, context, timeout, SHOWN_BY) as admin:
        answer = admin.order(
            lambda client: client.delete_topics(
                list(dict.fromkeys(topics)), timeout_ms=admin.left_ms, raise_errors=False
            )
        )
        unknown = [one["name"] for one in answer["topics"] if one["error_code"] == _UNKNOWN]
        absent = {} if if_exists else none_of_each(admin, TOPIC, unknown)
    fields = ("name",) if as_json else ()
    outcomes = [
        one | {"error_message": absent.get(one["name"], one["error_message"])}
        for one in answer["topics"]
    ]
    _finish(outcomes, "deleted", _UNKNOWN if if_exists else _NONE, fields)
