"""Our own request LocateBatches: where batches are in files, for readers on this machine."""

from typing import Any, Final

from quorumlog.auth.acls import Operation
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import error_of
from quorumlog.kafka.fetch import READS_COMMITTED
from quorumlog.kafka.led_partitions import Refusal, led_partition
from quorumlog.model.bounds import NUMBER_MAX
from quorumlog.node.replica.partition_locations import LocatedBatches
from quorumlog.node.replica.partition_reads import PartitionRead

_NO_BYTES: Final = 0
"""How many bytes are wanted: the answer has none."""


async def handle_locate_batches(context: RequestContext, request: Any) -> Answer:
    """Say where batches from an offset on are in files, if they are on the reader's machine."""
    topic, number = request.topic, request.partition
    if not context.rights.sees_cluster(Operation.DESCRIBE):
        return {"is_same_machine": False}  # it tells paths; records can be fetched all the same
    led = led_partition(context.broker, topic, number)
    if isinstance(led, Refusal):
        return _refused(context, led, topic, number)
    locations = led.replica.partitions.locations
    if not locations.is_on(request.machine):
        return {"is_same_machine": False}
    reads_committed = request.isolation_level == READS_COMMITTED
    read = PartitionRead(led.channel, request.first_offset, _NO_BYTES, reads_committed)
    found = locations.locate(read, request.end_offset)
    if not isinstance(found, LocatedBatches):
        code, text = found
        return _refused(context, Refusal(error_of(code), text), topic, number)
    return {"is_same_machine": True, **_located(found, led.channel)}


def _refused(context: RequestContext, refusal: Refusal, topic: str, partition: int) -> Answer:
    context.note_error(refusal.error, refusal.text, topic=topic, partition=partition)
    return {"error_code": refusal.error, "error_message": refusal.text}


def _located(found: LocatedBatches, channel: int) -> dict[str, Any]:
    """Return the fields that say where batches are; none of them if they are to be fetched."""
    directories = [] if found.location is None else found.location.directories
    if not directories or any(max(numbers) > NUMBER_MAX for _, *numbers in directories):
        return {}  # numbers of files may be larger than the answer has room for, but hardly are
    return {
        "directories": [
            {"path": path, "device": device, "inode": inode} for path, device, inode in directories
        ],
        "channel": channel,
        "base_offsets": [one.base_offset for one in found.batches],
        "indexes": [one.index for one in found.batches],
        "next_offset": found.batches[-1].last_offset + 1,
        "aborted_transactions": [
            {
                "producer_id": one.producer_id,
                "first_offset": one.first_offset,
                "last_offset": one.last_offset,
            }
            for one in found.aborted
        ],
    }
