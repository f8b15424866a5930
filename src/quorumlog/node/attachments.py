"""What a program that runs a node within itself gives to one of the node's groups."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from quorumlog.machine.base import StateMachine
from quorumlog.model.config import GroupConfig
from quorumlog.model.hooks import AppendHook, RoleListener


def _ignore(_: object) -> None:
    """Hear of something, and do nothing."""


@dataclass(frozen=True, slots=True)
class Attachments:
    """A state machine, an append hook, a listener to role changes, and one to what is applied.

    `machine` is a class, of which replicas open instances as if the configuration named it, or an
    instance, which cannot be put in its own place once its state is damaged; None: what the
    configuration names. `applied` is called, on the event loop, with the machine that has applied
    entries or loaded a snapshot.
    """

    machine: StateMachine | type[StateMachine] | None = None
    append_hook: AppendHook | None = None
    role_changed: RoleListener = _ignore
    applied: Callable[[StateMachine], None] = _ignore

    def applied_to(self, config: GroupConfig) -> GroupConfig:
        """Return a group's configuration, with the machine that the program has for it.

        Raises `ConfigError` if such a group cannot have one.
        """
        if self.machine is None:
            return config
        kind = self.machine if isinstance(self.machine, type) else type(self.machine)
        return replace(config, state_machine=f"{kind.__module__}:{kind.__qualname__}")


NO_ATTACHMENTS = Attachments()
