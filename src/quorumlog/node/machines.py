"""Which state machine a group has: one that comes with quorumlog, or a class of the user's."""

import importlib
import logging
from types import ModuleType

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.config import CLUSTER_MACHINE, GroupConfig
from quorumlog.model.errors import TRANSIENT_ERRORS, ConfigError, StorageError
from quorumlog.storage.files.os_files import remove_tree

logger = logging.getLogger(__name__)

BUILT_IN = {
    "kv": "quorumlog.machine.kv:KeyValueMachine",
    CLUSTER_MACHINE: "quorumlog.machine.cluster.machine:ClusterMachine",
}
"""Machines that the configuration names without a module."""
DIRECTORY = "machine"
"""Directory of a replica's machine within the group's directory."""


def machine_class(name: str) -> type[StateMachine]:
    """Return the class of a `stateMachine` setting. Raises `ConfigError` if there is none."""
    module_name, separator, class_name = BUILT_IN.get(name, name).partition(":")
    if not separator or not module_name or module_name.startswith("."):
        known = ", ".join(name for name in BUILT_IN if name != CLUSTER_MACHINE)
        raise ConfigError(f"stateMachine {name!r} is neither one of {known} nor module:Class")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the module does
        raise ConfigError(
            f"stateMachine {name!r} cannot be imported: {_said(error)}; its module is looked for "
            "where quorumlog is installed and in PYTHONPATH"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        there = ", ".join(sorted(_machines_in(module))) or "none"
        raise ConfigError(
            f"stateMachine {name!r} cannot be imported: module {module_name!r} has no attribute "
            f"{class_name!r}; state machines in {getattr(module, '__file__', module_name)}: {there}"
        )
    if not isinstance(found, type) or not issubclass(found, StateMachine):
        raise ConfigError(f"stateMachine {name!r} is no subclass of quorumlog.machine.StateMachine")
    return found


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else describe_error(error)


def _machines_in(module: ModuleType) -> list[str]:
    """Return the names of the state machines that a module defines."""
    return [
        name
        for name, one in vars(module).items()
        if isinstance(one, type) and issubclass(one, StateMachine) and one is not StateMachine
    ]


def open_machine(
    config: GroupConfig,
    group_directory: str,
    given: StateMachine | type[StateMachine] | None = None,
) -> StateMachine | None:
    """Return a replica's machine; None for a plain log. `given`: see `Attachments`.

    Everything in its directory can be rebuilt from snapshot and log, so a directory that is
    damaged is removed. Raises `StorageError` if there is no such machine, or none can be opened.
    """
    if isinstance(given, StateMachine):
        return given
    if given is None and not config.state_machine:
        return None
    directory = f"{group_directory}/{DIRECTORY}"
    try:
        return _open(config, directory, given or machine_class(config.state_machine))
    except StorageError:
        raise
    except BaseException as error:  # a program's: it is one group's failure, whatever it is
        raise StorageError(
            f"the state machine of group {config.group} cannot be opened: {describe_error(error)}"
        ) from error


def _open(config: GroupConfig, directory: str, made: type[StateMachine]) -> StateMachine:
    try:
        return _opened(made, directory)
    except TRANSIENT_ERRORS:
        raise
    except StorageError as error:
        log_event(
            logger,
            logging.WARNING,
            "state machine is rebuilt from snapshot and log",
            group=config.group,
            directory=directory,
            reason=str(error),
        )
        remove_tree(directory)
        return _opened(made, directory)


def _opened(made: type[StateMachine], directory: str) -> StateMachine:
    machine: object = made.open(directory)
    if not isinstance(machine, StateMachine):
        raise TypeError(f"{made.__qualname__}.open gave {machine!r}; it must give a StateMachine")
    return machine


def rebuild_machine(
    machine: StateMachine,
    config: GroupConfig,
    group_directory: str,
    given: type[StateMachine] | None = None,
) -> StateMachine:
    """Return an empty machine in the place of a damaged one; on the machine's thread."""
    try:
        machine.close()
    except Exception as error:  # whatever it still holds is discarded
        text = "a damaged state machine cannot be closed"
        log_event(logger, logging.WARNING, text, group=config.group, reason=describe_error(error))
    directory = f"{group_directory}/{DIRECTORY}"
    remove_tree(directory)
    made = _opened(given or machine_class(config.state_machine), directory)
    made.recover()
    return made
