"""Features of the wire: what one side may use if the other side says that it takes it.

Each is a bit of `Hello.features`; two sides use those that both state. A bit keeps its number and
its meaning for ever, also when no release knows it any more.
"""

from typing import Final

SECURITY: Final = 1 << 0
"""Logins of clients, and requests about users, ACLs and quotas."""
THROTTLING: Final = 1 << 1
"""Clients can be told to wait, as they have used up a quota."""
FEATURES: Final[dict[int, str]] = {SECURITY: "security", THROTTLING: "throttling"}
"""The name of each bit that this release takes; the next one is 1 << 2."""
OWN_FEATURES: Final = sum(FEATURES)
"""What this release states."""


def names_of(features: int) -> list[str]:
    """Return the names of the bits that are set; one that has no name here as `bit N`."""
    bits = (1 << number for number in range(features.bit_length()))
    return [FEATURES.get(bit, f"bit {bit.bit_length() - 1}") for bit in bits if features & bit]
