"""quorumlog: a Raft-replicated commit log for Python and Spark."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.client import (
        KV,
        Appended,
        AppendedBatch,
        Client,
        Compare,
        Delete,
        EventsForgottenError,
        KeyEvent,
        KeyItem,
        Producer,
        Put,
        SyncClient,
        SyncKV,
        SyncProducer,
        TransactionOutcome,
    )
    from quorumlog.model.entry import Entry
    from quorumlog.model.errors import Outcome, QuorumlogError, RequestError

__version__ = "0.1.0"

__all__ = [
    "KV",
    "Appended",
    "AppendedBatch",
    "Client",
    "Compare",
    "Delete",
    "Entry",
    "EventsForgottenError",
    "KeyEvent",
    "KeyItem",
    "Outcome",
    "Producer",
    "Put",
    "QuorumlogError",
    "RequestError",
    "SyncClient",
    "SyncKV",
    "SyncProducer",
    "TransactionOutcome",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load a name when it is asked for: nodes need none, and commands can be interrupted sooner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Entry":
        from quorumlog.model import entry  # noqa: PLC0415

        return entry.Entry
    if name in ("Outcome", "QuorumlogError", "RequestError"):
        from quorumlog.model import errors  # noqa: PLC0415

        return getattr(errors, name)
    from quorumlog import client  # noqa: PLC0415

    return getattr(client, name)
