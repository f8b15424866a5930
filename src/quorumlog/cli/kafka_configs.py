"""Configs of topics and brokers on the command line: how they are given, altered and refused."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import KafkaAdmin, resource_of
from quorumlog.cli.options import check_once, pairs_of
from quorumlog.cli.output import print_note
from quorumlog.cli.unknown_names import TOPIC, none_of

_KAFKA_CODE: Final = re.compile(r"\[Error ([0-9]+)\] \w+: ")
"""What kafka-python puts before a broker's words."""
_UNKNOWN_TOPIC: Final = "3"

DeleteConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--delete-config",
        metavar="KEY",
        help="Give a config back its default; repeatable.",
        show_default=False,
    ),
]


def config_pairs(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return configs that were given as KEY=VALUE. Raises `typer.BadParameter`."""
    return pairs_of(pairs, "retention.ms=3600000")


def changes_of(pairs: Sequence[str] | None, deleted: Sequence[str] | None) -> dict[str, Any]:
    """Return changes of configs, as kafka-python wants them. Raises `typer.BadParameter`."""
    values = config_pairs(pairs)
    check_once([*values, *(deleted or ())])
    changes: dict[str, Any] = {key: ("SET", value) for key, value in values.items()}
    return changes | dict.fromkeys(deleted or (), ("DELETE", None))


def alter(
    admin: KafkaAdmin, kind: str, name: str, changes: dict[str, Any], known: Iterable[str]
) -> None:
    """Change configs of a resource, all or none; `kind`: TOPIC or BROKER; `known`: their names.

    Raises `CommandError` if they are refused.
    """
    resource = resource_of(kind, name, changes)
    told = admin.order(
        lambda client: client.alter_configs([resource], raise_on_unknown=False, incremental=True)
    )
    outcome = told[kind.lower()][name]
    if outcome != "OK":
        code = _KAFKA_CODE.match(outcome)
        if kind == "TOPIC" and code is not None and code[1] == _UNKNOWN_TOPIC:
            raise CommandError(none_of(admin, TOPIC, [name]))
        text = _KAFKA_CODE.sub("", outcome) + near_miss(changes, known)
        raise CommandError(of_topic(name, text) if kind == "TOPIC" else text)


def described(
    client: Any, kind: str, names: Sequence[str], broker_id: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return all configs of resources, by resource and name; `broker_id`: who is asked.

    kafka-python says nothing of a resource that is refused. Raises `CommandError`, which does, and
    errors of kafka-python.
    """
    request = client._describe_configs_request([resource_of(kind, name) for name in names])

    async def ask() -> Any:
        return await client._manager.send(request, node_id=broker_id)

    answer = client._manager.run(ask)
    for one in answer.results:
        if one.error_code:
            text = one.error_message or f"refused with error {one.error_code}"
            raise CommandError(of_topic(one.resource_name, text) if kind == "TOPIC" else text)
    found = client._describe_configs_process_responses([answer], config_filter="all")
    return dict(found.get(kind.lower(), {}))


def note_no_compaction(configs: Mapping[str, Any]) -> None:
    """Say on standard error that nothing is compacted, if a topic was given that policy.

    `configs`: values that were set, by name.
    """
    policies = {one.strip() for one in str(configs.get("cleanup.policy") or "").split(",")}
    if "compact" in policies:
        removed = "only retention removes records" if "delete" in policies else "nothing is removed"
        print_note(f"cleanup.policy: topics are not compacted here: {removed}")


def of_topic(name: str, text: str) -> str:
    """Return what went wrong with a topic, with its name."""
    return text if repr(name) in text else f"topic {name}: {text}"


def near_miss(given: Iterable[str], known: Iterable[str]) -> str:
    """Return what to add to a refusal of configs of which one may be mistyped."""
    known = list(known)
    for name in given:
        close = [] if name in known else get_close_matches(name, known, n=1)
        if close:
            return f"; did you mean {close[0]}?"
    return ""
