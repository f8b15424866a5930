"""The user's door: asynchronous and synchronous clients, the producer, keys and values."""

from quorumlog.client.admin import GroupAdmin, ReplicaHistory
from quorumlog.client.client import Client
from quorumlog.client.delivery import Delivery, ProducerStats
from quorumlog.client.kv import (
    KV,
    Compare,
    Delete,
    KeyEvent,
    KeyItem,
    Put,
    TransactionOutcome,
)
from quorumlog.client.producer import Producer
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Queried,
)
from quorumlog.client.sync import SyncClient
from quorumlog.client.sync_kv import SyncKV
from quorumlog.client.sync_producer import SyncProducer
from quorumlog.client.transactions import Run, Transactions
from quorumlog.model.errors import EventsForgottenError

__all__ = [
    "KV",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Delete",
    "Delivery",
    "EventsForgottenError",
    "Executed",
    "FetchedBlock",
    "GroupAdmin",
    "Isolation",
    "KeyEvent",
    "KeyItem",
    "Producer",
    "ProducerStats",
    "Put",
    "Queried",
    "ReplicaHistory",
    "Run",
    "SyncClient",
    "SyncKV",
    "SyncProducer",
    "TransactionOutcome",
    "Transactions",
]
