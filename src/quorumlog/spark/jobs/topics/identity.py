"""Whether topics are still those that an archive knows: Kafka gives each topic an id (KIP-516).

One that is deleted and made again has the same name, and another id. An id never comes back: a
topic that has it before and after a read had it all the time.
"""

from collections.abc import Iterable, Mapping

from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.source import TopicSource


def made_again(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the topics that have another id than is known; one without an id may be any."""
    return sorted(topic for topic in known.keys() & found.keys() if known[topic] != found[topic])


def check_archived(where: str, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise `PipelineError` unless topics are those of an archive, named by `where`."""
    for topic in made_again(known, found):
        raise PipelineError(
            f"{where} and topic {topic!r} have different histories: the archive holds the one of "
            f"id {known[topic]}, and the cluster has one of id {found[topic]}. The topic was "
            "deleted and made again; archive it into a new directory"
        )


def check_same(source: TopicSource, known: Mapping[str, str], topics: Iterable[str]) -> None:
    """Raise `PipelineError` if one of some topics was made again since its id was looked up.

    From then on this process reads of no broker that only knows the former topic.
    """
    for topic in made_again(known, source.topic_ids(topics)):
        raise PipelineError(
            f"topic {topic!r} was deleted and made again while it was archived, and what was read "
            "last was left out; run again"
        )
