"""What is said if there is nothing of a name: which one may be meant, and what shows all."""

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from quorumlog.cli.kafka_admin import KafkaAdmin
from quorumlog.model.config_keys import ALIKE


class Kind(NamedTuple):
    """What has names: its noun, the command that shows all, and how a client learns the names."""

    noun: str
    shown_by: str
    names: Callable[[Any], Iterable[str]]


TOPIC: Final = Kind("topic", "quorumlog topic list", lambda client: client.list_topics())
CONSUMER_GROUP: Final = Kind(
    "consumer group",
    "quorumlog consumer-group list",
    lambda client: (one["group_id"] for one in client.list_groups()),
)
TRANSACTIONAL_ID: Final = Kind(
    "transactional id",
    "quorumlog transaction list",
    lambda client: (
        one.transactional_id for some in client.list_transactions().values() for one in some
    ),
)


def none_of(admin: KafkaAdmin, kind: Kind, names: Sequence[str]) -> str:
    """Return that there is nothing of these names, which others may be meant, what shows all."""
    return _none_of(kind, names, _known(admin, kind))


def none_of_each(admin: KafkaAdmin, kind: Kind, names: Sequence[str]) -> dict[str, str]:
    """Return what `none_of` says, of each name for itself."""
    known = _known(admin, kind) if names else []
    return {name: _none_of(kind, [name], known) for name in names}


def _none_of(kind: Kind, names: Sequence[str], known: Sequence[str]) -> str:
    given = ", ".join(map(repr, names))
    near = [match for name in names for match in get_close_matches(name, known, 1, ALIKE)]
    meant = f"; did you mean {', '.join(map(repr, dict.fromkeys(near)))}?" if near else ""
    return f"there is no {kind.noun} {given}{meant} ('{kind.shown_by}' shows those there are)"


def _known(admin: KafkaAdmin, kind: Kind) -> Sequence[str]:
    """Return all names, or none if brokers do not say them: what failed is said all the same."""
    names: list[str] | None = admin.ask_once(lambda client: list(kind.names(client)))
    return names or []
