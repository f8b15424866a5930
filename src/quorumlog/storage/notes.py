"""The small files beside a log: its checkpoint, its durable hint, and what of it is damaged."""

from quorumlog.storage.checkpoint import Boundary, Checkpoint, CheckpointFile, DurableHint, Mark
from quorumlog.storage.config_entries import ConfigEntriesFile
from quorumlog.storage.damage import DamagedRanges, DamageFile
from quorumlog.storage.files import FileSystem
from quorumlog.storage.recovery import Known
from quorumlog.storage.session_file import SessionFile


class Notes:
    """Of one group. Written on the disk thread (or while the group is opened)."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._checkpoints = CheckpointFile(files, directory)
        self._hint = DurableHint(files, directory)
        self._damage = DamageFile(files, directory)
        self._configs = ConfigEntriesFile(files, directory)
        self.checkpoint: Checkpoint | None = None
        self.sessions = SessionFile(files, directory)

    def load(self, *, read_only: bool = False) -> tuple[Known, DamagedRanges]:
        """Return what was noted before. Raises `CorruptionError` when it cannot be read."""
        self.checkpoint = self._checkpoints.load(read_only=read_only)
        known = Known.of(self.checkpoint, self._hint.load())
        return known, self._damage.load(read_only=read_only)

    def load_config_entries(self) -> list[tuple[int, bytes]]:
        """Return (index, body) of noted CONFIG_CHANGE entries that the last checkpoint covers."""
        noted = self._configs.load()
        until = self.checkpoint.mark.index if self.checkpoint is not None else -1
        return [(index, body) for index, body in noted if index <= until]

    def save_config_entries(self, pairs: list[tuple[int, bytes]]) -> None:
        """Replace what is known of CONFIG_CHANGE entries, durably."""
        self._configs.save(pairs)

    def begin_removal(
        self, ended: Checkpoint, boundary: Boundary, configs: list[tuple[int, bytes]]
    ) -> None:
        """Make the ends that a log is to have durable, before anything is removed.

        CONFIG_CHANGE entries of before and after are kept until that is done: which of them count
        is up to the checkpoint.
        """
        self._configs.save(sorted(dict([*self._configs.saved, *configs]).items()))
        self.write_checkpoint(ended)
        self.write_hint(ended.mark, boundary, durable=True)

    def save_sessions(self, sessions: bytes | None) -> None:
        """Replace the producer sessions, durably; None: what was saved last will do."""
        if sessions is not None:
            self.sessions.save(sessions)

    def save_checkpoint(self, checkpoint: Checkpoint, configs: list[tuple[int, bytes]]) -> None:
        """Replace the checkpoint and the CONFIG_CHANGE entries that go with it, durably."""
        self.save_config_entries(configs)
        self.write_checkpoint(checkpoint)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, durably. What it names must be durable."""
        self._checkpoints.write(checkpoint)
        self.checkpoint = checkpoint

    def write_hint(self, mark: Mark, boundary: Boundary, *, durable: bool = False) -> None:
        """Replace the hint, durably if asked to."""
        self._hint.write(mark, boundary, durable=durable)

    def save_damage(self, damaged: DamagedRanges) -> None:
        """Replace what is known to be damaged, durably."""
        self._damage.save(damaged)

    def close(self) -> None:
        """Give the files back."""
        self._checkpoints.close()
        self._hint.close()
        self._damage.close()
        self._configs.close()
