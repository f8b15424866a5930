"""What to type here in place of words of Kafka's own tools: one table for all commands.

The words are those of `kafka-topics`, `kafka-consumer-groups`, `kafka-configs`,
`kafka-transactions` and the console clients of Kafka 4.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple


class Hint(NamedTuple):
    """What to type in place of options that a command does not have.

    `command` in braces stands for the command that was typed. `needs`: it holds only for commands
    with this option; empty: for all.
    """

    options: tuple[str, ...]
    text: str
    needs: str = ""


FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    "topic": {},
    "consumer-group": {"reset-offsets": "reset"},
    "transaction": {},
    "broker-config": {},
}
"""Families that do what tools of Kafka do, with their commands that Kafka names otherwise.

What Kafka's tools are told by an option, such as `--describe`, is a command here.
"""

TOOLS: Final[Mapping[str, str]] = {
    "kafka-topics": "quorumlog topic",
    "kafka-consumer-groups": "quorumlog consumer-group",
    "kafka-transactions": "quorumlog transaction",
    "kafka-configs": "quorumlog broker-config, or quorumlog topic alter for those of a topic",
    "kafka-console-consumer": "quorumlog tail for the log of a group; the records of topics are "
    "read with Kafka's clients, such as kcat -C -b HOST:PORT -t TOPIC",
    "kafka-console-producer": "quorumlog append for the log of a group; records of topics are "
    "produced with Kafka's clients, such as kcat -P -b HOST:PORT -t TOPIC",
}
"""Kafka's tools by their names without `.sh`, and the commands that do here what they do."""

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "consumer-group": {
        "delete-offsets": "to delete all that groups have committed, type quorumlog consumer-group "
        "delete GROUP...; offsets of single topics are deleted by Kafka's admin clients",
    },
    "transaction": dict.fromkeys(
        ("abort", "find-hanging"),
        "brokers find hanging transactions, and abort them; to see those that go on for long, type "
        "quorumlog transaction list --running-longer-than SECONDS",
    ),
}
"""Words of Kafka's tools for what no command does here, by families, and what to do instead."""

_LEFT_OUT: Final = "leave it out"
_TOPICS: Final = "names of topics are arguments: {command} TOPIC..."
_GROUPS: Final = "names of groups are arguments: {command} GROUP..."
_FILE: Final = "configs are named one by one: {command} --%s KEY=VALUE, repeatable"

HINTS: Final[Mapping[str, tuple[Hint, ...]]] = {
    "": (
        Hint(
            ("--servers", "-s"),
            "{command} asks brokers by Kafka's protocol: give --bootstrap-server HOST:PORT, "
            "kafkaListen of any node",
            needs="--bootstrap-server",
        ),
        Hint(
            ("--broker-list", "--bootstrap-servers", "--zookeeper"),
            "give --bootstrap-server HOST:PORT, kafkaListen of any node",
            needs="--bootstrap-server",
        ),
        Hint(
            ("--bootstrap-server", "--bootstrap-servers", "-b", "--broker-list"),
            "{command} asks nodes by quorumlog's own protocol: give --servers HOST:PORT, the "
            "address of any node in peers",
            needs="--servers",
        ),
        Hint(
            ("--command-config",),
            f"brokers take neither TLS nor passwords, so clients need no file: {_LEFT_OUT}",
            needs="--bootstrap-server",
        ),
    ),
    "topic": (
        Hint(
            ("--topic-id",),
            "topics are found by their names: quorumlog topic describe TOPIC shows the id",
        ),
        Hint(("--add-config-file",), _FILE % "config"),
    ),
    "topic create": (
        Hint(("--topic",), _TOPICS),
        Hint(("--add-config",), "give --config KEY=VALUE"),
        Hint(
            ("--replica-assignment",),
            f"a partition has the replicas of its partition group: {_LEFT_OUT}",
        ),
        Hint(("--if-exists",), "give --if-not-exists"),
    ),
    "topic list": (
        Hint(("--topic",), "it shows all topics; for one, type quorumlog topic describe TOPIC"),
        Hint(("--exclude-internal",), f"there are no internal topics: {_LEFT_OUT}"),
    ),
    "topic describe": (
        Hint(("--topic",), _TOPICS),
        Hint(
            ("--under-replicated-partitions", "--under-min-isr-partitions"),
            f"compare the columns REPLICAS and IN SYNC, and {_LEFT_OUT}",
        ),
        Hint(("--at-min-isr-partitions",), f"count those in the column IN SYNC, and {_LEFT_OUT}"),
        Hint(
            ("--unavailable-partitions",),
            "quorumlog topic list counts the partitions without a leader, of each topic",
        ),
        Hint(("--topics-with-overrides",), f"it shows the configs that were set: {_LEFT_OUT}"),
        Hint(("--exclude-internal",), f"there are no internal topics: {_LEFT_OUT}"),
    ),
    "topic alter": (
        Hint(("--topic",), "the name of the topic is an argument: {command} TOPIC"),
        Hint(
            ("--replica-assignment", "--replication-factor"),
            f"a partition has the replicas of its partition group: {_LEFT_OUT}",
        ),
    ),
    "topic delete": (Hint(("--topic",), _TOPICS),),
    "consumer-group": (
        Hint(("--group",), _GROUPS),
        Hint(
            ("--all-groups",),
            "name them, as quorumlog consumer-group list does: {command} GROUP...",
        ),
        Hint(
            (
                "--to-earliest",
                "--to-latest",
                "--to-offset",
                "--to-datetime",
                "--to-current",
                "--by-duration",
                "--shift-by",
                "--dry-run",
                "--from-file",
            ),
            "this belongs to quorumlog consumer-group reset GROUP",
        ),
    ),
    "consumer-group list": (
        Hint(
            ("--group",),
            "it shows all groups; for one, type quorumlog consumer-group describe GROUP",
        ),
        Hint(
            ("--state", "--type", "--all-groups"),
            f"it shows the types and states of all groups: {_LEFT_OUT}",
        ),
    ),
    "consumer-group describe": (
        Hint(
            ("--members", "--offsets", "--state", "--verbose"),
            f"it shows the state, the offsets and the members: {_LEFT_OUT}",
        ),
    ),
    "consumer-group reset": (
        Hint(("--group",), "the name of the group is an argument: {command} GROUP"),
        Hint(("--all-groups",), "it resets one group at a time: {command} GROUP"),
        Hint(("--execute",), f"it acts at once, unless --dry-run is given: {_LEFT_OUT}"),
        Hint(
            ("--all-topics",),
            "without --topic it resets all that the group has committed: " + _LEFT_OUT,
        ),
        Hint(("--to-current",), "give --shift-by 0"),
        Hint(("--by-duration",), "give the time itself, with --to-datetime"),
        Hint(
            ("--from-file",),
            "reset one offset after the other, with --topic TOPIC:PARTITION --to-offset OFFSET",
        ),
        Hint(("--export",), "give --dry-run --json"),
    ),
    "consumer-group delete": (
        Hint(("--execute",), f"it acts at once: {_LEFT_OUT}"),
        Hint(
            ("--topic",),
            "it deletes all that the groups have committed; offsets of single topics are deleted "
            "by Kafka's admin clients",
        ),
    ),
    "transaction list": (
        Hint(("--duration-filter",), "give --running-longer-than SECONDS"),
        Hint(
            ("--transactional-id", "--transactional-id-pattern"),
            "it shows all ids; for one, type quorumlog transaction describe ID",
        ),
    ),
    "transaction describe": (
        Hint(("--transactional-id",), "transactional ids are arguments: {command} ID..."),
    ),
    "broker-config": (
        Hint(
            ("--entity-type", "--entity-name", "--entity-default", "--broker", "--broker-defaults"),
            "its configs are those of all brokers: leave it out; for those of a topic, type "
            "quorumlog topic describe TOPIC or quorumlog topic alter TOPIC",
        ),
        Hint(
            ("--topic",),
            "for the configs of a topic, type quorumlog topic describe TOPIC or quorumlog topic "
            "alter TOPIC",
        ),
        Hint(("--add-config-file",), _FILE % "add-config"),
        Hint(("--all",), f"it shows all: {_LEFT_OUT}"),
    ),
    "tail": (
        Hint(
            ("--topic", "--partition", "--include", "--whitelist"), TOOLS["kafka-console-consumer"]
        ),
        Hint(("--from-beginning",), "give --from earliest"),
        Hint(("--offset",), "give --from INDEX"),
        Hint(("--max-messages",), "give --count NUMBER"),
        Hint(("--timeout-ms",), "give --timeout SECONDS"),
        Hint(
            ("--property", "--formatter", "--formatter-property", "--formatter-config"),
            "for all that there is of each entry, give --json",
        ),
        Hint(
            ("--consumer-property", "--consumer-config", "--command-property", "--isolation-level"),
            f"it reads what is committed, and no consumer of Kafka takes part: {_LEFT_OUT}",
        ),
    ),
    "append": (
        Hint(("--topic",), TOOLS["kafka-console-producer"]),
        Hint(("--request-required-acks", "--acks"), "give --level"),
        Hint(("--request-timeout-ms",), "give --timeout SECONDS"),
        Hint(
            ("--property", "--reader-property", "--producer-property", "--command-property"),
            f"an entry has a body only, and no producer of Kafka takes part: {_LEFT_OUT}",
        ),
    ),
}
"""Options of Kafka's tools that are not ours, by commands, families, and for all commands."""


def hints_for(path: str) -> Iterator[Hint]:
    """Yield what there is for a command, such as `topic create`: first what is for it alone."""
    while path:
        yield from HINTS.get(path, ())
        path = path.rpartition(" ")[0]
    yield from HINTS[""]
