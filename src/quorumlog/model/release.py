"""Which release this is."""

from typing import Final

RELEASE: Final = "0.1.0"
"""As in pyproject.toml. Nodes and clients tell it each other in their Hellos."""
