"""Which commands wait until all members of `__cluster` run a release that knows them.

A member that does not know a command refuses what others apply, so their states would differ from
then on. It would also ignore rights that were taken away.
"""

from collections.abc import Callable, Iterable

from quorumlog.machine.cluster.commands import AnyCommand, SecurityCommand
from quorumlog.model.features import SECURITY


def refusal_of(
    command: AnyCommand, members: Iterable[str], features_of: Callable[[str], int | None]
) -> str:
    """Return why a command cannot be given now; empty: all members know it, or may.

    `features_of` returns what a member took when it was connected last (`model.features`); None: it
    was not connected yet, and holds nobody up.
    """
    if not isinstance(command, SecurityCommand):
        return ""
    known = {member: features_of(member) for member in members}
    lacking = [
        member for member, taken in known.items() if taken is not None and not taken & SECURITY
    ]
    if not lacking:
        return ""
    return (
        "users, ACLs and quotas cannot be changed while members of __cluster run an earlier "
        f"release, which does not know them: upgrade {', '.join(sorted(lacking))} first"
    )
