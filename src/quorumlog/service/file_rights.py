"""A look at a node's files when it starts: whether others than its own user may use them.

The node itself makes directories with the mode 0700 and files with 0600, whatever the umask is. A
copy that was restored may have other modes, or somebody may have given rights on purpose, such as
to a program that backs files up: so the node warns, and changes nothing.
"""

import logging
from itertools import islice
from typing import Final

from quorumlog.log_events import log_event
from quorumlog.model.config import NodeConfig
from quorumlog.storage.files.os_files import open_to_others

logger = logging.getLogger(__name__)

LOOKS_MAX: Final = 20_000
"""Files and directories that are looked at; it takes some 10 µs for each."""
SHOWN_MAX: Final = 3
"""Paths that a warning names."""


def warn_of_open_files(config: NodeConfig) -> None:
    """Write a line for each of a node's directories in which others may use something."""
    directories = [config.store_base_dir, config.journal_path]
    for group in config.groups:
        directories += (*group.data_directories, *group.read_only_directories)
    seen: set[str] = set()
    for directory in dict.fromkeys(directories):
        found = open_to_others(directory, LOOKS_MAX)
        shown = [one for one in islice(found, SHOWN_MAX) if one[0] not in seen]
        seen.update(path for path, _ in shown)
        if shown:
            more = sum(1 for _ in found)
            log_event(
                logger,
                logging.WARNING,
                "files are open to others",
                node=config.self_id,
                paths=[f"{path} ({mode:04o})" for path, mode in shown],
                more=more,
                text=f"unless they are meant to be, run: chmod -R go= {directory}",
            )
