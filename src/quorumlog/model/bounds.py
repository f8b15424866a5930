"""Ranges of the values in messages: a frame with one outside of them is refused as malformed.

They are checked while a message is decoded, so that code that reads a field need not check it. The
bounds are far above anything that a log reaches and far below overflow. A value that is possible in
itself, but not here and now (a term that jumps, say), is refused by the core.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

NAME_LENGTH_MAX: Final = 128
LABEL_LENGTH_MAX: Final = 1_024
TEXT_LENGTH_MAX: Final = 16 * 1024
RUNS_MAX: Final = 65_536
INDEX_MAX: Final = (1 << 62) - 1
TERM_MAX: Final = (1 << 62) - 1
COUNT_MAX: Final = (1 << 32) - 1
NUMBER_MAX: Final = (1 << 63) - 2
MS_MAX: Final = 1 << 50
SIZE_MAX: Final = 1 << 60
TERM_JUMP_MAX: Final = 1_000_000
"""How far a term may be above the newest that a replica knows. A replica that was away has missed
the elections held meanwhile, of which pre-vote allows few; a term above is not of this group."""
FIRST_TERM_MAX: Final = 1 << 40
"""The newest term that a replica takes over while it knows none: no group holds this many
elections, and this many more can follow."""
INDEX_JUMP_MAX: Final = 1 << 48
"""How far an index may be beyond the end of a log: what no group writes in decades."""
NEVER_MS: Final = 1 << 62
"""A deadline that is never reached: no clock reaches it, and no message carries it."""

Index: TypeAlias = Annotated[int, Meta(ge=-1, le=INDEX_MAX)]
"""Of an entry; -1: none."""
AskedIndex: TypeAlias = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
"""Where a client wants to read: also far beyond any end."""
Term: TypeAlias = Annotated[int, Meta(ge=-1, le=TERM_MAX)]
"""-1: none, or not known."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Size: TypeAlias = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
"""Bytes, or an offset in them."""
Position: TypeAlias = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
"""Of a byte in the data files; -1: not known."""
Number: TypeAlias = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
"""Of a request, a round, a process, a data directory."""
Kind: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
"""Of a message in a frame."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=MS_MAX)]
Crc: TypeAlias = Annotated[int, Meta(ge=-1, le=(1 << 32) - 1)]
"""-1: not known."""
Code: TypeAlias = Annotated[int, Meta(ge=-1, le=65_535)]
"""Of a response: a `ResponseCode`, or one that a later version knows."""
IdentityBytes: TypeAlias = Annotated[bytes, Meta(max_length=16)]
"""Identity of a group, made when it was founded; empty: not known, or none."""
Name: TypeAlias = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
"""Of a group, a node, a cluster."""
AddressText: TypeAlias = Annotated[str, Meta(max_length=300)]
"""`host:port`; empty: not said."""
WireVersion: TypeAlias = Annotated[int, Meta(ge=1, le=255)]
"""Of the protocol between nodes, and between clients and nodes."""
FeatureBits: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 62) - 1)]
"""Features of the wire (`quorumlog.model.features`); a later release may state more of them."""
ReleaseText: TypeAlias = Annotated[str, Meta(max_length=64)]
"""A version of quorumlog, such as 0.1.0; empty: not said."""
ClientText: TypeAlias = Annotated[str, Meta(max_length=200)]
"""What a client calls itself; empty: not said."""
FileNumber: TypeAlias = Annotated[int, Meta(ge=0)]
"""Device or inode, all 64 bits of them."""
Batch: TypeAlias = Annotated[int, Meta(ge=-1)]
"""Number of a batch, 64 bits of the writer's choice; -1: none."""

ChannelOrAll: TypeAlias = Annotated[int, Meta(ge=-1, le=(1 << 32) - 2)]
"""Of users' entries; -1: all of them."""

Label: TypeAlias = Annotated[str, Meta(max_length=LABEL_LENGTH_MAX)]
"""What a client calls something: itself, its machine."""
LabelBytes: TypeAlias = Annotated[bytes, Meta(max_length=LABEL_LENGTH_MAX)]
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
"""For people."""
