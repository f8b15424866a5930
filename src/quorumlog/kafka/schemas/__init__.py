"""Requests that kafka-python does not know, in the form of its schemas: fields and versions.

The files are named like the messages, as kafka-python looks for them.

Two requests are not Kafka's, but about sinks (`machine.cluster.sinks`): with JoinSink a task asks
whether its batch is still to be written, and who its producer is; EndSinkBatch commits or aborts a
batch, with all that its attempts have written. The coordinator of transactions answers them.
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

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "EndSinkBatchRequest",
    "EndSinkBatchResponse",
    "JoinSinkRequest",
    "JoinSinkResponse",
]
