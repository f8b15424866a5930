"""Ranges of a stream's batch that carry credentials: Spark sends a stream's reader only once."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from quorumlog.spark.access import AnyAccess
from quorumlog.spark.carried import Carried


@dataclass(frozen=True)
class CarryingPartition(InputPartition):
    """What a task reads, and the cluster with what the driver has read when the task was sent."""

    partition: InputPartition
    where: Carried


def carrying(partitions: Sequence[InputPartition], where: AnyAccess) -> list[InputPartition]:
    """Return the partitions of a batch, each with the cluster if tasks carry credentials."""
    if isinstance(where, Carried):
        return [CarryingPartition(one, where) for one in partitions]
    return list(partitions)


def carried_by(partition: InputPartition, where: AnyAccess) -> tuple[InputPartition, AnyAccess]:
    """Return what a task reads, and from which cluster: `where`, unless it carries one."""
    if isinstance(partition, CarryingPartition):
        return partition.partition, partition.where
    return partition, where
