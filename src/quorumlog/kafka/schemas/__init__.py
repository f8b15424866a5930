"""Requests that kafka-python does not know, in the form of its schemas: fields and versions.

The files are named like the messages, as kafka-python looks for them.

Three requests are not Kafka's. Two are about sinks (`machine.cluster.sinks`): with JoinSink a task
asks whether its batch is still to be written, and who its producer is; EndSinkBatch commits or
aborts a batch, with all that its attempts have written. The coordinator of transactions answers
them. With LocateBatches a reader asks the leader of a partition where batches are in files of its
machine.
"""

from typing import Any

from kafka.protocol.api_message import ApiMessage


def _message(name: str) -> Any:
    """Return a class of messages as kafka-python makes its own."""
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=__name__)


ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")
JoinSinkRequest = _message("JoinSinkRequest")
JoinSinkResponse = _message("JoinSinkResponse")
EndSinkBatchRequest = _message("EndSinkBatchRequest")
EndSinkBatchResponse = _message("EndSinkBatchResponse")
LocateBatchesRequest = _message("LocateBatchesRequest")
LocateBatchesResponse = _message("LocateBatchesResponse")

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "EndSinkBatchRequest",
    "EndSinkBatchResponse",
    "JoinSinkRequest",
    "JoinSinkResponse",
    "LocateBatchesRequest",
    "LocateBatchesResponse",
]
