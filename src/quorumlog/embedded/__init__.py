"""A node inside a user's program: the same node as `quorumlog serve` runs, without a process of its
own.

Users import from `quorumlog`; the modules in here may change. They touch nothing that belongs to
the process: no signal handler, standard stream, log handler, or setting of the interpreter.
"""

from quorumlog.embedded.group import EmbeddedGroup
from quorumlog.embedded.node import Node

__all__ = ["EmbeddedGroup", "Node"]
