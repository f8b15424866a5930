"""Whether topics are still those that an archive knows: Kafka gives each topic an id (KIP-516).

One that is deleted and made again has the same name, and another id. An id never comes back: a
topic that has it before and after a read had it all the time.
"""

from collections.abc import Iterable, Mapping

from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.topics.errors import UnknownTopicError


def made_again(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the topics that have another id than is known; one without an id may be any."""
    both = known.keys() & found.keys()
    return sorted(one for one in both if "" != known[one] != found[one] != "")


def check_archived(where: str, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise `PipelineError` unless topics are those of an archive, named by `where`."""
    for topic in made_again(known, found):
        raise PipelineError(
            f"{where} and topic {topic!r} have different histories: the archive holds the one of "
            f"id {known[topic]}, and the cluster has one of id {found[topic]}. The topic was "
            "deleted and made again; archive it into a new directory"
        )


def check_there(topics: Iterable[str], found: Mapping[str, str]) -> None:
    """Raise `UnknownTopicError` if one of some topics has gone since it was named.

    It might be made again before anything else is asked of it, and would pass for the one before.
    """
    for topic in sorted(set(topics) - found.keys()):
        raise UnknownTopicError(f"there is no topic {topic!r} any more; run again", topic)


def check_same(source: TopicSource, known: Mapping[str, str], topics: Iterable[str]) -> None:
    """Raise unless some topics are those whose ids were looked up before.

    `PipelineError`: one was made again since; `UnknownTopicError`: one is gone, and might be made
    again, and deleted, unseen. From then on this process reads of no broker that only knows the
    former topic.
    """
    asked = known.keys() & set(topics)
    found = source.topic_ids(asked)
    for topic in made_again(known, found):
        raise PipelineError(
            f"topic {topic!r} was deleted and made again while it was archived, and what was read "
            "last was left out. Run again; if the archive has records of it, archive it into a new "
            "directory"
        )
    check_there(asked, found)
