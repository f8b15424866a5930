"""Which groups a node has: those of its configuration file, those made while nodes run, and those
that were deleted. What was done while nodes run wins over the file (decision 0040).
"""

import logging
from collections.abc import Iterator

from msgspec import structs

from quorumlog.log_events import log_event
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError
from quorumlog.model.group_records import GroupRecord, config_of
from quorumlog.model.membership import peers_text
from quorumlog.node.places import is_of_one_host
from quorumlog.storage.metadata.group_files import LoadedGroups

logger = logging.getLogger(__name__)


class GroupCatalog:
    """The groups of one node, in memory; its methods run on the event loop's thread.

    `configs` has the effective configuration of each group that is hosted, `unusable` the records
    that cannot be hosted, with the reason; `outdated` groups whose settings other members have
    changed, with the reason why that could not be taken over here.
    """

    def __init__(self, node: NodeConfig) -> None:
        self.node = node
        self.records: dict[str, GroupRecord] = {}
        self.configs: dict[str, GroupConfig] = {group.group: group for group in node.groups}
        self.unusable: dict[str, str] = {}
        self.outdated: dict[str, str] = {}
        self._from_file = {group.group: group for group in node.groups}
        self._tombstones: dict[tuple[str, bytes], GroupRecord] = {}
        self._addresses: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the node has no group, not even one that cannot be hosted."""
        return not (self.configs or self.unusable)

    def loaded(self, found: LoadedGroups) -> None:
        """Take over what is on disk."""
        for record in found.tombstones:
            self._tombstones[record.key] = record
        for name in self._from_file:
            if self.deleted_of_file(name) is not None:
                self.configs.pop(name, None)
        self._set_aside(found)
        for record in found.hosted:
            if not record.peers and record.group not in self._from_file:
                text = "its configuration was changed here, and the file does not name it any more"
                log_event(logger, logging.WARNING, "group ignored", group=record.group, text=text)
                continue
            self._say_what_wins(record)
            self.records[record.group] = record
            try:
                self.configs[record.group] = self.config_of(record)
            except ConfigError as error:
                self.configs.pop(record.group, None)
                self.unusable[record.group] = str(error)
        for name in self._from_file.keys() - self.configs.keys() - self.unusable.keys():
            text = "it was deleted; its table in the configuration file is ignored: remove it"
            log_event(logger, logging.WARNING, "group ignored", group=name, text=text)

    def _set_aside(self, found: LoadedGroups) -> None:
        """Groups of which it is not known whether they were deleted, or for which there is no room
        yet, are not opened.
        """
        self.unusable |= found.unreadable
        for name in self.configs.keys() & found.doubtful.keys():
            self.unusable[name] = found.doubtful[name]
        for name in self.configs.keys() & {record.group for record in found.unmoved}:
            self.unusable[name] = (
                "the files of a deleted group of this name cannot be moved away (see the log); "
                "restart the node once they can"
            )
        for name, reason in self.unusable.items():
            self.configs.pop(name, None)
            log_event(logger, logging.ERROR, "group cannot be opened", group=name, text=reason)

    def _say_what_wins(self, record: GroupRecord) -> None:
        if record.group in self._from_file and (record.peers or record.settings):
            text = "what was set while nodes ran counts, not the configuration file"
            log_event(
                logger,
                logging.INFO,
                "group configured in two places",
                group=record.group,
                keys=sorted(record.settings),
                text=text,
            )

    def deleted_of_file(self, name: str) -> GroupRecord | None:
        """Return the tombstone of a group of the file; it is kept while that has the group."""
        return next(
            (
                record
                for record in self._tombstones.values()
                if record.group == name and not record.peers and not record.was_refused
            ),
            None,
        )

    # -- what is known ------------------------------------------------------------------------

    def config_of(self, record: GroupRecord) -> GroupConfig:
        """Return the effective configuration of a record. Raises `ConfigError`."""
        if not record.peers:
            return config_of(record, self._from_file.get(record.group))
        config = config_of(record)
        own, stated = self._own_address(), config.members.get(self.node.self_id)
        if not own or stated in (None, own):
            return config
        # a copied or moved directory has the record of where it comes from: as with the file's
        # groups, the replica compares where it is with what its log says
        return structs.replace(config, peers=peers_text({**config.members, self.node.self_id: own}))

    def _own_address(self) -> str:
        """Return where this node is according to its configuration file; "": it does not say."""
        for group in self._from_file.values():
            if self.node.self_id in group.members:
                return group.members[self.node.self_id]
        return self.node.listen if is_of_one_host(self.node.listen) else ""

    def file_config(self, name: str) -> GroupConfig | None:
        """Return what the configuration file says of a hosted group; None if it is not from it."""
        record = self.records.get(name)
        return None if record is not None and record.peers else self._from_file.get(name)

    def record_of(self, name: str) -> GroupRecord | None:
        """Return the record of a group that is here; of one of the file it may be empty."""
        record = self.records.get(name)
        if record is None and name in self._from_file and name in self.configs:
            record = GroupRecord(group=name)
        return record

    def tombstone(self, name: str, identity: bytes) -> GroupRecord | None:
        """Return what is remembered of a deleted group, or None."""
        return self._tombstones.get((name, identity))

    def tombstones(self) -> Iterator[GroupRecord]:
        """Return all deleted groups, the oldest first."""
        return iter(list(self._tombstones.values()))

    def known_addresses(self) -> dict[str, str]:
        """Return node id → address over all groups that are hosted."""
        if not self._addresses:
            for config in self.configs.values():
                self._addresses.update(config.members)
        return self._addresses

    def has_in_file(self, name: str) -> bool:
        """Whether the configuration file names a group, hosted or not."""
        return name in self._from_file

    # -- what changes -------------------------------------------------------------------------

    def hosts(self, record: GroupRecord, config: GroupConfig) -> None:
        """A group is hosted, or its settings have changed."""
        self.records[record.group] = record
        self.configs[record.group] = config
        self.unusable.pop(record.group, None)
        self.outdated.pop(record.group, None)
        self.known_addresses().update(config.members)

    def unmade(self, record: GroupRecord) -> None:
        """A group that was just made could not be opened, and nothing is left of it."""
        self._gone(record.group)

    def _gone(self, name: str) -> None:
        self.records.pop(name, None)
        self.configs.pop(name, None)
        self.unusable.pop(name, None)
        self.outdated.pop(name, None)
        self._addresses = {}  # found again when it is needed

    def promised(self, record: GroupRecord) -> None:
        """A record of a group that is here has a new promise; nothing else has changed."""
        self.records[record.group] = record

    def deleted(self, record: GroupRecord) -> None:
        """A group is hosted no more, or a tombstone of it changed."""
        if not record.was_refused:
            present = self.record_of(record.group)
            if present is not None and (present.identity == record.identity or not present.peers):
                self._gone(record.group)
        self._tombstones[record.key] = record

    def forgotten(self, record: GroupRecord) -> None:
        """A tombstone was removed."""
        self._tombstones.pop(record.key, None)
