"""The user's door: asynchronous and synchronous clients, and the producer."""

from quorumlog.client.admin import GroupAdmin, ReplicaStory
from quorumlog.client.client import Client
from quorumlog.client.delivery import Delivery, ProducerStats
from quorumlog.client.producer import Producer
from quorumlog.client.sync import SyncClient, SyncProducer
from quorumlog.client.values import Appended, AppendedBatch, FetchedBlock

__all__ = [
    "Appended",
    "AppendedBatch",
    "Client",
    "Delivery",
    "FetchedBlock",
    "GroupAdmin",
    "Producer",
    "ProducerStats",
    "ReplicaStory",
    "SyncClient",
    "SyncProducer",
]
