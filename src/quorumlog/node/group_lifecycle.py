"""Making, changing and deleting the groups of one node while it runs (decision 0040).

Everything that must survive a crash is a record on disk (`GroupFiles`) before anything follows from
it: a group exists here once its record says HOSTED, and is gone once that says DELETED. What a
crash interrupts is finished at the next start. Files are handled on a thread, one change of a group
at a time; all methods run on the event loop's thread.
"""

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from quorumlog.log_events import log_event
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import ConfigError, StorageError
from quorumlog.model.group_records import (
    GroupRecord,
    GroupState,
    Settings,
    check_kept,
    config_of,
    typed,
)
from quorumlog.model.messages.groups import AlterGroupRequest
from quorumlog.node.deleted_groups import DeletedGroups, Done, LifecycleEnvironment, code_of
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.storage.metadata.group_files import GroupFiles, LoadedGroups

logger = logging.getLogger(__name__)


class ReplicaHost(Protocol):
    """Opens, changes and closes the replicas of one node."""

    def room_for(self, config: GroupConfig, being_made: int) -> str:
        """Return why one more group cannot be hosted beside those being made; "" if it can."""
        ...

    def open(
        self, config: GroupConfig, identity: bytes, done: Callable[[StorageError | None], None]
    ) -> None:
        """Open the data of a group that is not open, and let its replica take part."""
        ...

    def close(self, name: str, done: Callable[[], None]) -> None:
        """Close a replica, if there is one; what waits for it is answered. `done`: no file is open.

        It takes part in nothing any more when this returns.
        """
        ...

    def change(self, config: GroupConfig) -> None:
        """Use another configuration from now on, as far as that can be changed."""
        ...

    def identity_of(self, name: str) -> bytes:
        """Return the identity of the group as its replica knows it; empty: not known."""
        ...

    def peers_of(self, name: str) -> str:
        """Return the members of a group and their addresses, as `peers` has them; "": not known."""
        ...

    def member_ids(self, name: str) -> Collection[str]:
        """Return the members of a group as its replica knows them; empty: there is no replica."""
        ...

    def why_not_open(self, name: str) -> str:
        """Return why the data of a group could not be opened; "": it could."""
        ...

    def keeps_failed(self, name: str, reason: str) -> None:
        """A group that could not be opened, and was closed, is here all the same."""
        ...


class GroupLifecycle:
    """Carries out changes of the set of groups on one node."""

    def __init__(
        self,
        catalog: GroupCatalog,
        files: GroupFiles,
        host: ReplicaHost,
        environment: LifecycleEnvironment,
    ) -> None:
        self.catalog = catalog
        self._files = files
        self._host = host
        self._environment = environment
        self._changing: set[str] = set()
        self._making: set[str] = set()
        self._deleted = DeletedGroups(
            catalog, files, environment, self.is_changing, self._changing.discard
        )

    def loaded(self, found: LoadedGroups) -> None:
        """Take over what is on disk, before anything else happens."""
        self.catalog.loaded(found)
        self._changing.update(record.group for record in found.unmoved)
        self._deleted.move_later(found.unmoved)

    def is_changing(self, name: str) -> bool:
        """Whether a group is being made, changed or deleted."""
        return name in self._changing

    def identity_of(self, name: str) -> bytes:
        """Return the identity of a group that is here; empty: it has none yet, or is not here."""
        record = self.catalog.records.get(name)
        return (record.identity if record is not None else b"") or self._host.identity_of(name)

    # -- making -------------------------------------------------------------------------------

    def create(self, record: GroupRecord, done: Done) -> None:
        """Make this node's replica of a group; `done` is called once it takes part.

        Making the very same group again succeeds, so that a request may be repeated.
        """
        known, catalog = self.catalog.record_of(record.group), self.catalog
        if known is not None and known.identity == record.identity and known.peers:
            done(*self._busy(record.group) or self._not_open(record.group))
            return
        refusal = self._refusal(record, known)
        if refusal is not None:
            done(*refusal)
            return
        try:
            config = config_of(record)
            catalog.node.check_group(config, catalog.known_addresses())
            config.check_preferred(config.members)
            record = replace(
                record, settings=typed(config, record.settings), made_ms=self._environment.wall_ms()
            )
            record.encode()
        except ConfigError as error:
            done(ResponseCode.UNEXPECTED_ARGUMENT, str(error))
            return
        why_not = self._host.room_for(config, len(self._making))
        if why_not:
            done(ResponseCode.GROUP_REFUSED, why_not)
            return
        self._changing.add(record.group)
        self._making.add(record.group)
        self._environment.run(
            partial(self._files.create, record),
            lambda: self._recorded(record, config, done),
            lambda error: self._end(record.group, done, code_of(error), str(error)),
        )

    def _busy(self, name: str) -> tuple[ResponseCode, str] | None:
        if name not in self._changing:
            return None
        text = f"group {name!r} is being made, changed or deleted on this node; try again"
        return ResponseCode.CHANGE_IN_PROGRESS, text

    def _not_open(self, name: str) -> tuple[ResponseCode, str]:
        """Return the outcome of making a group that is here: it may have failed to open."""
        reason = self.catalog.unusable.get(name) or self._host.why_not_open(name)
        if reason:
            text = f"group {name!r} is made but cannot be opened: {reason}"
            return ResponseCode.DISK_ERROR, text
        return ResponseCode.SUCCESS, ""

    def _refusal(
        self, record: GroupRecord, known: GroupRecord | None
    ) -> tuple[ResponseCode, str] | None:
        name, node = record.group, self.catalog.node
        if (busy := self._busy(name)) is not None:
            return busy
        if self.catalog.tombstone(*record.key) is not None:
            text = f"this very group {name!r} was deleted; make another one of that name"
            return ResponseCode.GROUP_DELETED, text
        if known is None and name in self.catalog.unusable:
            text = f"there is a group {name!r} that cannot be used: {self.catalog.unusable[name]}"
            return ResponseCode.GROUP_EXISTS, text
        if known is not None:
            identity = self.identity_of(name).hex() or "none yet"
            where = "" if known and known.peers else " in the configuration file"
            text = f"it exists{where} already, with the identity {identity}"
            return ResponseCode.GROUP_EXISTS, text
        most = node.limits.groups_max
        if len(self.catalog.configs.keys() | self._making) >= most:
            text = f"{most} groups are hosted already (limits.groupsMax)"
            return ResponseCode.GROUP_REFUSED, text
        return None

    def _recorded(self, record: GroupRecord, config: GroupConfig, done: Done) -> None:
        self.catalog.hosts(record, config)
        log_event(
            logger,
            logging.INFO,
            "group made",
            group=record.group,
            identity=record.identity.hex(),
            peers=record.peers,
        )
        self._host.open(config, record.identity, lambda error: self._opened(record, error, done))

    def _opened(self, record: GroupRecord, error: StorageError | None, done: Done) -> None:
        if error is None:
            self._end(record.group, done, ResponseCode.SUCCESS, "")
            return
        text = f"group {record.group!r} cannot be opened: {error}"
        code = code_of(error)

        def undone() -> None:
            self.catalog.unmade(record)
            self._end(record.group, done, code, text)

        def not_undone(why: Exception) -> None:
            self._host.keeps_failed(record.group, str(error))
            self._end(record.group, done, code, f"{text}; what was made of it stays: {why}")

        def undo() -> None:
            self._environment.run(partial(self._files.undo, record), undone, not_undone)

        self._host.close(record.group, undo)

    def _end(self, name: str, done: Done, code: ResponseCode, text: str) -> None:
        self._changing.discard(name)
        self._making.discard(name)
        done(code, text)

    # -- changing -----------------------------------------------------------------------------

    def alter(self, request: AlterGroupRequest, done: Done) -> None:
        """Replace the settings of a group as a client asks, or promise to (decision 0040).

        CHANGE_IN_PROGRESS: others change them, too; the client has to start again with theirs.
        """
        name, revision = request.group, request.revision
        found = self._checked(name, request.identity, request.settings, revision, done)
        if found is None:
            return
        record, changed, config = found
        if request.prepares:
            try:
                config.check_preferred(self._host.member_ids(name) or config.members)
            except ConfigError as error:
                done(ResponseCode.UNEXPECTED_ARGUMENT, str(error))
                return
        is_late = revision < max(record.revision, record.promised) or (
            request.prepares and request.replaces < record.revision
        )
        # what was learned from a member does not count if another client was promised more
        is_there = revision == record.revision and revision >= record.promised
        if is_there and not request.prepares:
            done(ResponseCode.SUCCESS, "")  # it is asked for again
        elif is_late:
            text = f"somebody else changes the settings of group {name!r}, too"
            done(ResponseCode.CHANGE_IN_PROGRESS, text)
        elif request.prepares:
            promised = replace(record, promised=revision)
            self._save(promised, lambda: self.catalog.promised(promised), done)
        else:
            self._use(changed, config, done)

    def learn(self, news: GroupRecord, done: Done) -> None:
        """Take over the settings that a member has, if they are newer; a promise hinders nothing.

        A promise says what a client may count as done here. These were set somewhere else.
        """

        def learned(code: ResponseCode, text: str) -> None:
            is_known = news.group in self.catalog.configs
            if is_known and code not in (ResponseCode.SUCCESS, ResponseCode.CHANGE_IN_PROGRESS):
                self.catalog.outdated[news.group] = text
            done(code, text)

        found = self._checked(news.group, news.identity, news.settings, news.revision, learned)
        if found is None:
            return
        record, changed, config = found
        if news.revision <= record.revision:
            done(ResponseCode.SUCCESS, "")
        else:
            self._use(changed, config, learned)

    def _checked(
        self, name: str, identity: bytes, settings: Settings, revision: int, done: Done
    ) -> tuple[GroupRecord, GroupRecord, GroupConfig] | None:
        """Return the record of a group, as it is and with other settings, and what it is then.

        If it cannot have them, say so, and return None.
        """
        record = self.catalog.record_of(name)
        if record is None:
            done(ResponseCode.UNKNOWN_GROUP, f"{self.catalog.node.self_id} has no group {name!r}")
            return None
        if identity != self.identity_of(name):
            done(ResponseCode.WRONG_CLUSTER, f"group {name!r} has another identity here")
            return None
        if (busy := self._busy(name)) is not None:
            done(*busy)
            return None
        try:
            config = self.catalog.config_of(record.changed(settings, revision))
            before = self.catalog.configs.get(name)
            if before is not None:
                check_kept(before, config)
            self.catalog.node.check_group(config, {})
            changed = record.changed(typed(config, settings), revision)
            replace(changed, promised=max(revision, record.promised)).encode()
        except ConfigError as error:
            done(ResponseCode.UNEXPECTED_ARGUMENT, str(error))
            return None
        return record, changed, config

    def _use(self, changed: GroupRecord, config: GroupConfig, done: Done) -> None:
        def saved() -> None:
            self.catalog.hosts(changed, config)
            self._host.change(config)
            log_event(
                logger,
                logging.INFO,
                "group altered",
                group=changed.group,
                settings={key: str(value) for key, value in changed.settings.items()},
            )

        self._save(changed, saved, done)

    def _save(self, record: GroupRecord, saved: Callable[[], None], done: Done) -> None:
        """Make a changed record of a group durable, then call `saved`."""
        name = record.group
        self._changing.add(name)

        def succeeded() -> None:
            saved()
            self._end(name, done, ResponseCode.SUCCESS, "")

        self._environment.run(
            partial(self._files.save, record),
            succeeded,
            lambda error: self._end(name, done, code_of(error), str(error)),
        )

    # -- deleting -----------------------------------------------------------------------------

    def delete(
        self,
        name: str,
        identity: bytes,
        done: Done,
        *,
        purge: bool = False,
        is_unfounded: bool = False,
    ) -> None:
        """Delete this node's replica of a group permanently; `done` is called once it is gone.

        `is_unfounded`: a group of the configuration file is meant, too, that is not founded here.
        With `purge` its files are removed by then. Files outside of the node's directory
        (`dataStorePath`) always stay; SUCCESS says so. A group that is not here is remembered, so
        that it is never made here: a request to make it may still be on its way.
        """
        known = self.catalog.record_of(name)
        own = self.identity_of(name)
        if (busy := self._busy(name)) is not None:
            done(*busy)
            return
        if is_unfounded and known is not None and not known.peers and not own:
            own = identity  # which it had before the disk of this node was emptied
        if known is None or identity not in (b"", own):
            self._delete_absent(name, identity, done, purge=purge)
            return
        record = replace(
            known,
            identity=own,
            state=GroupState.DELETED,
            deleted_ms=self._environment.wall_ms(),
            purge=purge,
        ).with_former(self._host.peers_of(name))
        self._changing.add(name)
        left = self._left_outside(name)

        def ended(code: ResponseCode, text: str) -> None:
            done(code, "; ".join(filter(None, (text, left))))

        def recorded() -> None:
            log_event(
                logger, logging.INFO, "group deleted", group=name, identity=own.hex(), purge=purge
            )
            if left:
                log_event(logger, logging.WARNING, "files left", group=name, text=left)
            self.catalog.deleted(record)
            self._host.close(name, lambda: self._deleted.bury(record, ended))

        self._environment.run(
            partial(self._files.save, record),
            recorded,
            lambda error: self._end(name, done, code_of(error), str(error)),
        )

    def _left_outside(self, name: str) -> str:
        """Return what is to be done about files of a group that are not in its directory; or ""."""
        config = self.catalog.configs.get(name)
        directories = config and [*config.data_directories, *config.read_only_directories]
        if not directories:
            return ""
        return (
            f"its files in {', '.join(directories)} stay there (dataStorePath): remove them, and "
            f"the table of group {name!r} in the configuration file"
        )

    def _delete_absent(self, name: str, identity: bytes, done: Done, *, purge: bool) -> None:
        reason = self.catalog.unusable.get(name)
        if reason and name not in self.catalog.records:
            text = f"group {name!r} may be here, and cannot be deleted: {reason}"
            done(ResponseCode.DISK_ERROR, text)
            return
        found = self.catalog.tombstone(name, identity)
        if found is not None:
            if purge and not found.purged and not found.was_refused:
                self._deleted.purge(found, done)
            else:
                done(ResponseCode.SUCCESS, "")
            return
        if not identity:
            done(ResponseCode.UNKNOWN_GROUP, f"{self.catalog.node.self_id} has no group {name!r}")
            return
        record = GroupRecord(
            group=name,
            identity=identity,
            state=GroupState.DELETED,
            deleted_ms=self._environment.wall_ms(),
            purged=True,
            was_refused=True,
        )
        self._changing.add(name)

        def refused() -> None:
            self.catalog.deleted(record)
            self._end(name, done, ResponseCode.SUCCESS, "")
            self.tick()

        self._environment.run(
            partial(self._files.refuse, record),
            refused,
            lambda error: self._end(name, done, code_of(error), str(error)),
        )

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Remove what is left of deleted groups, as far as its time has come."""
        self._deleted.tick()
