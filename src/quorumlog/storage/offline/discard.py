"""Going on without a journal that is lost: for a group that has no replica but this one.

Elsewhere it would be wrong: a replica that forgets what it acknowledged breaks the promise of a
majority, so it is emptied, and filled again by the others.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from quorumlog.model.block import config_entries_of
from quorumlog.model.errors import StorageError
from quorumlog.model.membership import Membership
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.journal.segments import sync_path
from quorumlog.storage.log.layout import UnsettledIdentity, note_settled, read_identity
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.metadata.config_entries import ConfigEntriesFile
from quorumlog.storage.offline.store_files import StoreFiles, open_unsettled


@dataclass(frozen=True, slots=True)
class Loss:
    """What a group keeps of its log without the journal, and so what it gives up.

    `kept_index`: the last entry that its files hold. `proven_index`: the last one that is known to
    have been durable in them; whatever was acknowledged after it and is not kept is lost.
    `damaged`: first and last of entries up to `kept_index` that cannot be read.
    """

    proven_index: int
    kept_index: int
    damaged: tuple[tuple[int, int], ...] = ()


def find_loss(files: FileSystem, directory: str) -> Loss:
    """Return what discarding the journal would cost a group. Changes nothing.

    Raises `StorageError` if the group has other members, or its files do not say who they are.
    """
    with closing(_open(files, directory)) as store:
        return _find_loss(files, store)


def discard_journal(files: FileSystem, directory: str) -> Loss:
    """Have a group go on with what its files hold; return what it kept.

    No node may use the directory. Raises `StorageError`, and changes nothing, as `find_loss` does.
    """
    with closing(_open(files, directory)) as store:
        loss = _find_loss(files, store)
        for start in store.data.starts:
            sync_path(files, store.data.path_at(start))  # it was left to the journal
        note_settled(files, directory)
        return loss


def _open(files: FileSystem, directory: str) -> StoreFiles:
    identity = read_identity(files, directory)
    if not isinstance(identity, UnsettledIdentity):
        raise StorageError(f"{directory}: its files hold everything, there is nothing to discard")
    return open_unsettled(files, directory, identity.data_directories)


def _find_loss(files: FileSystem, store: StoreFiles) -> Loss:
    metadata = store.metadata
    found = ConfigEntriesFile(files, store.directory).load(read_only=True)
    checkpoint = metadata.checkpoint if found else None  # else they are in the log alone
    scan = store.scan() if checkpoint is None else store.scan_after(checkpoint.point)
    for run in scan:
        found = [*found, *config_entries_of(run.block)]
    _require_alone(store.directory, read_identity(files, store.directory).self_id, found)
    proven = max(
        -1 if metadata.checkpoint is None else metadata.checkpoint.point.index,
        -1 if metadata.durable is None else metadata.durable.index,
    )
    damaged = tuple((damage.first_index, damage.last_index) for damage in scan.damages)
    return Loss(proven, scan.end.index, damaged)


def _require_alone(directory: str, self_id: str, configs: Sequence[tuple[int, bytes]]) -> None:
    """Raise `StorageError` unless the newest membership is that of a group of one."""
    if not configs:
        raise StorageError(f"{directory}: its files do not say who else belongs to the group")
    newest = Membership.decode(max(configs)[1])
    others = sorted({*newest.ids, *newest.outgoing} - {self_id})
    if others:
        raise StorageError(
            f"{directory}: {', '.join(others)} belong to the group, too, and may have what the "
            f"journal had: empty this directory instead. {EMPTYING_IS_SAFE_WHEN}"
        )
