"""The configs of topics and of the cluster as Kafka describes them: value, source, synonyms."""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from quorumlog.model.topic_configs import (
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
    VALUE_LENGTH_MAX,
    ConfigDefinition,
)


class ConfigSource(IntEnum):
    """Where the value of a config is from, with Kafka's numbers."""

    TOPIC = 1
    CLUSTER = 3
    NODE = 4
    DEFAULT = 5


NAME_SHOWN: Final = 100
"""Characters of a name in an answer that refuses it."""
_TYPES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "long": 5,
    "double": 6,
    "list": 7,
}


class _Synonym(NamedTuple):
    """A value that counts unless there is one of a closer source."""

    name: str
    value: str
    source: ConfigSource


def problem_of_lengths(configs: Iterable[Any]) -> str:
    """Return which config of a request is too long for a command to the cluster; empty: none."""
    for config in configs:
        if len(config.name) > VALUE_LENGTH_MAX or len(config.value or "") > VALUE_LENGTH_MAX:
            name = config.name[:NAME_SHOWN]
            return f"config {name!r}: names and values have at most {VALUE_LENGTH_MAX} characters"
    return ""


class ConfigEntry(NamedTuple):
    """A config: the first of `synonyms` is what counts."""

    name: str
    type: str
    documentation: str
    synonyms: tuple[_Synonym, ...]
    is_read_only: bool = False

    def created(self) -> dict[str, Any]:
        """Return what an answer to CreateTopics says of it."""
        value = self.synonyms[0]
        return {
            "name": self.name,
            "value": value.value,
            "read_only": self.is_read_only,
            "config_source": value.source,
            "is_sensitive": False,
        }

    def described(self, *, with_synonyms: bool, with_documentation: bool) -> dict[str, Any]:
        """Return what an answer to DescribeConfigs says of it."""
        answer = self.created()
        if with_synonyms:
            answer["synonyms"] = [
                {"name": one.name, "value": one.value, "source": one.source}
                for one in self.synonyms
            ]
        if with_documentation:
            answer["documentation"] = self.documentation
        return {**answer, "config_type": _TYPES[self.type]}


def topic_entries(configs: Mapping[str, str], defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """Return all configs of a topic: its own, and the defaults that count for it."""
    entries = []
    for name, definition in TOPIC_CONFIGS.items():
        synonyms = []
        if name in configs:
            synonyms.append(_Synonym(name, configs[name], ConfigSource.TOPIC))
        synonyms += _defaults(definition, definition.broker_name or name, defaults)
        entries.append(
            ConfigEntry(name, definition.type, definition.documentation, tuple(synonyms))
        )
    return entries


def cluster_entries(defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """Return the configs of the whole cluster."""
    return [
        ConfigEntry(
            name,
            definition.type,
            definition.documentation,
            tuple(_defaults(definition, name, defaults)),
        )
        for name, definition in CLUSTER_CONFIGS.items()
    ]


def node_entry(name: str, value: str, documentation: str) -> ConfigEntry:
    """Return what the configuration of a node says, which clients cannot change."""
    synonym = _Synonym(name, value, ConfigSource.NODE)
    return ConfigEntry(name, "string", documentation, (synonym,), is_read_only=True)


def _defaults(
    definition: ConfigDefinition, name: str, defaults: Mapping[str, str]
) -> Iterator[_Synonym]:
    if name in defaults:
        yield _Synonym(name, defaults[name], ConfigSource.CLUSTER)
    yield _Synonym(name, definition.default, ConfigSource.DEFAULT)
