"""What is said if there is nothing of a name: which one may be meant, and what shows all."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from quorumlog.cli.kafka_admin import KafkaAdmin
from quorumlog.model.wording import there_is_no


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
    return there_is_no(kind.noun, names, _known(admin, kind), kind.shown_by)


def none_of_each(admin: KafkaAdmin, kind: Kind, names: Sequence[str]) -> dict[str, str]:
    """Return what `none_of` says, of each name for itself."""
    known = _known(admin, kind) if names else []
    return {name: there_is_no(kind.noun, [name], known, kind.shown_by) for name in names}


def _known(admin: KafkaAdmin, kind: Kind) -> Sequence[str]:
    """Return all names, or none if brokers do not say them: what failed is said all the same."""
    names: list[str] | None = admin.ask_once(lambda client: list(kind.names(client)))
    return names or []
