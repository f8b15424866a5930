"""Requests that kafka-python does not know, in the form of its schemas: fields and versions.

The files are named like the messages, as kafka-python looks for them.
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

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
]
