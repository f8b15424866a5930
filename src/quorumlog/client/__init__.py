"""Clients: asynchronous and synchronous ones, producers, transactions, keys and values.

Users import from `quorumlog` and `quorumlog.client`; the modules in here may change. Nothing here
knows a replica, the Raft core or the storage of a node: a client sees frames and messages only.
"""

from quorumlog.auth.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
)
from quorumlog.client.admin import GroupAdmin, ReplicaHistory
from quorumlog.client.client import Client
from quorumlog.client.consumer import Consumer
from quorumlog.client.contexts import Context, find_context
from quorumlog.client.delivery import Delivery, ProducerStats
from quorumlog.client.group_answers import GroupChange, GroupSummary
from quorumlog.client.groups import Groups
from quorumlog.client.kv import (
    KV,
    Compare,
    Delete,
    KeyEvent,
    KeyItem,
    Put,
    TransactionOutcome,
)
from quorumlog.client.machine_calls import MachineCalls
from quorumlog.client.producer import Producer
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    LeaderChange,
    Level,
    Queried,
)
from quorumlog.client.security import Security
from quorumlog.client.security_admin import (
    Access,
    NodeSecurity,
    Quotas,
    SecurityAdmin,
    UnsecuredClient,
    User,
)
from quorumlog.client.sync import SyncClient
from quorumlog.client.sync_admin import SyncGroupAdmin
from quorumlog.client.sync_consumer import SyncConsumer
from quorumlog.client.sync_groups import SyncGroups
from quorumlog.client.sync_kv import SyncKV
from quorumlog.client.sync_machine import SyncMachineCalls
from quorumlog.client.sync_producer import SyncProducer
from quorumlog.client.sync_security import SyncSecurityAdmin
from quorumlog.client.sync_transactions import SyncTransactions
from quorumlog.client.transactions import ProducerEpoch, Transactions
from quorumlog.model.errors import EventsForgottenError
from quorumlog.model.secrets import Secret
from quorumlog.sessions.entries import AcceptedAttempt, TransactionPart

__all__ = [
    "KV",
    "AcceptedAttempt",
    "Access",
    "Acl",
    "AclFilter",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Consumer",
    "Context",
    "Delete",
    "Delivery",
    "EventsForgottenError",
    "Executed",
    "FetchedBlock",
    "GroupAdmin",
    "GroupChange",
    "GroupSummary",
    "Groups",
    "Isolation",
    "KeyEvent",
    "KeyItem",
    "LeaderChange",
    "Level",
    "MachineCalls",
    "NodeSecurity",
    "Operation",
    "PatternType",
    "Permission",
    "Producer",
    "ProducerEpoch",
    "ProducerStats",
    "Put",
    "Queried",
    "Quotas",
    "ReplicaHistory",
    "Resource",
    "ResourceType",
    "Secret",
    "Security",
    "SecurityAdmin",
    "SyncClient",
    "SyncConsumer",
    "SyncGroupAdmin",
    "SyncGroups",
    "SyncKV",
    "SyncMachineCalls",
    "SyncProducer",
    "SyncSecurityAdmin",
    "SyncTransactions",
    "TransactionOutcome",
    "TransactionPart",
    "Transactions",
    "UnsecuredClient",
    "User",
    "find_context",
]
