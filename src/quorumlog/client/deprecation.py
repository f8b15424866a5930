"""Names that still work and warn."""

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a deprecated method, called from that method itself."""
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
