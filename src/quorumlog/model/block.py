"""Blocks: many entries back to back in the layout they have on disk.

An entry is a 48-byte big-endian header followed by its body (spec 20 section 1):

    offset  0 i32 magic        8 i64 index      24 i64 pos         36 u32 chain CRC
            4 i32 size        16 i64 term       32 u32 channel     40 u32 body CRC
                                                                   44 i32 body size

The producer makes a block with index, term, pos and chain CRC zero; the leader stamps those four
once, and from then on the bytes are final: written, pushed and read as they are.

The chain CRC of an entry is the CRC-32 of (magic, index, term, channel, body size, body CRC),
continued from the chain CRC of the entry before (DESIGN section 5), so two logs whose chain CRCs
agree at an index are equal up to there.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL, Entry
from quorumlog.model.errors import InvariantViolation, UnexpectedArgumentError
from quorumlog.model.wording import entries_text

Buffer: TypeAlias = bytes | bytearray | memoryview
Int64s: TypeAlias = npt.NDArray[np.int64]
VoidRows: TypeAlias = npt.NDArray[Any]
"""Rows that numpy copies whole: items of a void type."""

HEADER: Final = struct.Struct(">iiqqqIIIi")
"""A header; `EntryHeader` names its fields. Where speed counts, the plain tuples are used."""
HEADER_SIZE: Final = HEADER.size
MAGIC_AND_SIZE: Final = struct.Struct(">ii")
"""What headers and blank records start with."""
ENTRY_MAGICS: Final = frozenset((int(Magic.NORMAL), int(Magic.NOOP), int(Magic.CONFIG_CHANGE)))
"""What an entry starts with; they are consecutive numbers."""
COMPATIBLE_NOOP: Final = b"NOP1"
"""Body of a NOOP that is NORMAL and on the system channel, so that DLedger 0.2.7 reads it."""
COMPATIBLE_CONFIG: Final = b"CFG1"
"""What the body of such a CONFIG_CHANGE entry starts with (decision 0034)."""
HEADER_DTYPE = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">u4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_size", ">i4"),
    ]
)
INDEX_RECORD_SIZE = 32
INDEX_RECORD_DTYPE = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
_CHAIN_DTYPE = np.dtype(
    [
        ("magic", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("channel", ">u4"),
        ("body_size", ">i4"),
        ("body_crc", ">u4"),
    ]
)
HEADER_VOID = np.dtype(f"V{HEADER_SIZE}")
_CHAIN_FIELDS = ("magic", "index", "term", "channel", "body_size", "body_crc")
_CHAIN_VOID = np.dtype(f"V{_CHAIN_DTYPE.itemsize}")
_CHAIN = struct.Struct(">iqqIiI")
_INDEX_TERM_POS = struct.Struct(">qqq")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_INDEX_RECORD = struct.Struct(">iqiqq")
_FEW = 12
"""For up to 12 entries plain struct calls beat numpy's fixed cost (measured: 10 to 15)."""
_RUN = 16
"""After 16 entries of one size the next ones are compared with it many at a time …"""
_WINDOW = 64
"""… 64 at first, then twice as many each time, so that short runs cost little."""


class EntryHeader(msgspec.Struct, frozen=True):
    """The fields of a header, in their order."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int

    def chain_crc_after(self, before: int) -> int:
        """Return the chain CRC that the entry must have after one with the chain CRC `before`."""
        row = (self.magic, self.index, self.term, self.channel, self.body_size, self.body_crc)
        return crc32(_CHAIN.pack(*row), before)


def header_at(data: Buffer, offset: int) -> EntryHeader:
    """Return the header at an offset, whatever it says."""
    return EntryHeader(*HEADER.unpack_from(data, offset))


class Block(msgspec.Struct, frozen=True, gc=False):
    """`data` holds len(sizes) whole entries; entry i is sizes[i] bytes from offsets[i] on."""

    data: memoryview
    offsets: Int64s
    sizes: Int64s

    @property
    def count(self) -> int:
        """Number of entries; code that runs for every append takes `len(sizes)` itself."""
        return len(self.sizes)

    def slice(self, start: int, stop: int) -> "Block":
        """Return entries start … stop - 1 as a block over the same bytes."""
        begin = int(self.offsets[start])
        end = int(self.offsets[stop - 1] + self.sizes[stop - 1])
        return Block(self.data[begin:end], self.offsets[start:stop] - begin, self.sizes[start:stop])


def encode_entry(
    body: Buffer,
    *,
    magic: int = Magic.NORMAL,
    channel: int = 0,
) -> bytes:
    """Return one unstamped entry: header with body CRC, index, term, pos and chain CRC zero."""
    size = len(body)
    header = HEADER.pack(magic, HEADER_SIZE + size, 0, 0, 0, channel, 0, crc32(body), size)
    return header + body


def _single_entry(body: Buffer, magic: Magic, channel: int = 0) -> Block:
    """Return a writable block of one unstamped entry."""
    data = memoryview(bytearray(encode_entry(body, magic=magic, channel=channel)))
    zero = np.zeros(1, dtype=np.int64)
    return Block(data, zero, zero + len(data))


def noop_block(*, compatible: bool = False) -> Block:
    """Return one unstamped NOOP; `compatible`: in the form that DLedger reads."""
    if compatible:
        return _single_entry(COMPATIBLE_NOOP, Magic.NORMAL, SYSTEM_CHANNEL)
    return _single_entry(b"", Magic.NOOP)


def config_block(body: bytes, *, compatible: bool = False) -> Block:
    """Return one unstamped CONFIG_CHANGE entry; see `noop_block`."""
    if compatible:
        return _single_entry(COMPATIBLE_CONFIG + body, Magic.NORMAL, SYSTEM_CHANNEL)
    return _single_entry(body, Magic.CONFIG_CHANGE)


def encode_block(bodies: Iterable[Buffer], *, channel: int = 0) -> bytes:
    """Return the unstamped entries of `bodies`, ready to be appended as one block."""
    return encode_checked(((body, crc32(body)) for body in bodies), channel=channel)


def encode_checked(bodies: Iterable[tuple[Buffer, int]], *, channel: int = 0) -> bytes:
    """Return the unstamped entries of bodies whose body CRCs are known."""
    parts: list[Buffer] = []
    pack = HEADER.pack
    normal = int(Magic.NORMAL)
    for body, crc in bodies:
        size = len(body)
        parts.append(pack(normal, HEADER_SIZE + size, 0, 0, 0, channel, 0, crc, size))
        parts.append(body)
    return b"".join(parts)


def parse_block(data: memoryview, *, count: int, entry_bytes_max: int) -> Block:
    """Find the entries of a block that came from outside.

    Raises `UnexpectedArgumentError` unless `data` holds exactly `count` whole entries, each at most
    `entry_bytes_max` long with body size = size - 48.
    """
    total = len(data)
    if 0 < count <= _FEW and (few := _few_parsed(data, count, entry_bytes_max)) is not None:
        return few
    if count <= 0 or total < count * HEADER_SIZE:
        raise UnexpectedArgumentError(f"a block of {total} bytes cannot hold {entries_text(count)}")
    size, rest = divmod(total, count)
    if not rest and HEADER_SIZE <= size <= entry_bytes_max and _is_all_of(size, data, count):
        offsets = np.arange(0, total, size, dtype=np.int64)
        return Block(data, offsets, np.full(count, size, dtype=np.int64))
    offsets, sizes = _walked_layout(data, count)
    block = Block(data, offsets, sizes)
    table = headers(block)
    fits = (table["size"] == sizes) & (table["body_size"] == sizes - HEADER_SIZE)
    if not fits.all() or int(sizes.max()) > entry_bytes_max:
        worst = int(np.argmin(fits)) if not fits.all() else int(np.argmax(sizes))
        raise UnexpectedArgumentError(
            f"entry {worst} of the block: size {int(sizes[worst])}, body size "
            f"{int(table['body_size'][worst])}, largest allowed {entry_bytes_max}"
        )
    return block


def _few_parsed(data: memoryview, count: int, entry_bytes_max: int) -> Block | None:
    """Return a block of few entries; None if anything is wrong with it."""
    offsets: list[int] = []
    sizes: list[int] = []
    offset, total = 0, len(data)
    for _ in range(count):
        if offset + HEADER_SIZE > total:
            return None
        (size,), (body_size,) = (
            _I32.unpack_from(data, offset + 4),
            _I32.unpack_from(data, offset + 44),
        )
        if not HEADER_SIZE <= size <= entry_bytes_max or body_size != size - HEADER_SIZE:
            return None
        offsets.append(offset)
        sizes.append(size)
        offset += size
    if offset != total:
        return None
    return Block(data, np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64))


def block_of_headers(data: memoryview) -> Block:
    """Return a block of entries without bodies; only its `headers` may be used.

    Raises `UnexpectedArgumentError` when the bytes are not whole headers.
    """
    count, rest = divmod(len(data), HEADER_SIZE)
    if rest:
        raise UnexpectedArgumentError(f"{len(data)} bytes are not whole headers")
    offsets = np.arange(0, len(data), HEADER_SIZE, dtype=np.int64)
    return Block(data, offsets, np.full(count, HEADER_SIZE, dtype=np.int64))


def block_from_index_records(data: memoryview, records: Buffer) -> Block:
    """Return the block whose index records are known: no walk over the headers is needed.

    The entries must be packed in `data` in the order of the records; positions do not matter.
    Raises `UnexpectedArgumentError` when the records do not describe `data`.
    """
    table = np.frombuffer(records, dtype=INDEX_RECORD_DTYPE)
    sizes = table["size"].astype(np.int64)
    ends = sizes.cumsum()
    if len(data) != (int(ends[-1]) if len(ends) else 0) or (sizes < HEADER_SIZE).any():
        raise UnexpectedArgumentError("index records do not describe the bytes they came with")
    return Block(data, ends - sizes, sizes)


def _is_all_of(size: int, data: memoryview, count: int) -> bool:
    """Whether every header states this size and the body size that belongs to it."""
    stated = np.ndarray((2, count), dtype=">i4", buffer=data, offset=4, strides=(40, size))
    return bool((stated[0] == size).all() and (stated[1] == size - HEADER_SIZE).all())


def _walked_layout(data: memoryview, count: int) -> tuple[Int64s, Int64s]:
    """Follow the size fields from entry to entry; a run of equal sizes is taken in one step."""
    sizes: list[int] = []
    offset, total, before, alike = 0, len(data), 0, 0
    read = _I32.unpack_from
    while offset + HEADER_SIZE <= total and len(sizes) < count:
        (size,) = read(data, offset + 4)
        if size < HEADER_SIZE or offset + size > total:
            break
        alike = alike + 1 if size == before else 0
        if alike == _RUN:
            times = _run_length(size, data, offset, count - len(sizes))
            sizes += [size] * times
            offset += size * times
            alike = 0
        else:
            sizes.append(size)
            offset += size
        before = size
    if len(sizes) != count or offset != total:
        raise UnexpectedArgumentError(
            f"entry {len(sizes)} of the block does not end inside it (byte {offset} of {total})"
        )
    table = np.array(sizes, dtype=np.int64)
    offsets = np.zeros(count, dtype=np.int64)
    np.cumsum(table[:-1], out=offsets[1:])
    return offsets, table


def _run_length(size: int, data: memoryview, offset: int, most: int) -> int:
    """Return how many entries from an offset on state this size, one after the other."""
    fitting = min(most, (len(data) - offset) // size)
    stated = np.ndarray((fitting,), dtype=">i4", buffer=data, offset=offset + 4, strides=(size,))
    known, window = 0, _WINDOW
    while known < fitting:
        is_same = stated[known : known + window] == size
        if not is_same.all():
            return known + int(np.argmin(is_same))
        known, window = known + len(is_same), 2 * window
    return known


def uniform_size(sizes: Int64s) -> int:
    """Return the size of all entries if it is one, else 0."""
    first = int(sizes[0])
    return first if first == sizes[-1] and bool((sizes == first).all()) else 0


def everywhere(buffer: memoryview | npt.NDArray[np.uint8], item: np.dtype[Any]) -> VoidRows:
    """Return a buffer as an item at every byte; indexed, numpy copies each of them whole."""
    return np.ndarray((len(buffer) - item.itemsize + 1,), item, buffer=buffer, strides=(1,))


def _headers(data: memoryview, offsets: Int64s, sizes: Int64s) -> npt.NDArray[Any]:
    """Return the headers as a structured array: a view if all sizes are equal, else a copy."""
    if uniform_size(sizes):
        return np.ndarray(
            (len(sizes),),
            dtype=HEADER_DTYPE,
            buffer=data,
            offset=int(offsets[0]),
            strides=(int(sizes[0]),),
        )
    table: npt.NDArray[Any] = everywhere(data, HEADER_VOID)[offsets].view(HEADER_DTYPE)
    return table


def headers(block: Block) -> npt.NDArray[Any]:
    """Return the headers of a block as a structured array of `HEADER_DTYPE` (do not write)."""
    return _headers(block.data, block.offsets, block.sizes)


def _few_headers(block: Block) -> list[tuple[int, ...]]:
    """Return the fields of each header, in the order of `HEADER_DTYPE`; for few entries."""
    return list(map(HEADER.unpack_from, repeat(block.data), block.offsets.tolist()))


def first_index_of(block: Block) -> int:
    """Return the index of the first entry of a stamped block."""
    index: int = HEADER.unpack_from(block.data, int(block.offsets[0]))[2]
    return index


def first_channel_of(block: Block) -> int:
    """Return the channel of the first entry."""
    return channel_at(block.data, int(block.offsets[0]))


def channel_at(data: memoryview, start: int) -> int:
    """Return the channel of the entry that starts there."""
    channel: int = HEADER.unpack_from(data, start)[5]
    return channel


def last_term_and_chain_of(block: Block) -> tuple[int, int]:
    """Return the term and the chain CRC of the last entry of a stamped block."""
    header = HEADER.unpack_from(block.data, int(block.offsets[-1]))
    return header[3], header[6]


def system_ordinals_of(block: Block) -> list[int]:
    """Return which entries, counted from 0, are on the system channel."""
    ordinals: list[int] = []
    if len(block.sizes) <= _FEW:
        for ordinal, header in enumerate(_few_headers(block)):
            if header[5] == SYSTEM_CHANNEL:
                ordinals.append(ordinal)
    else:
        ordinals = np.flatnonzero(headers(block)["channel"] == SYSTEM_CHANNEL).tolist()
    return ordinals


def put_body_crc(data: memoryview, offset: int, body_crc: int) -> None:
    """Change the body CRC that the header at an offset states."""
    _U32.pack_into(data, offset + 40, body_crc)


def is_noop(block: Block) -> bool:
    """Whether a block is one NOOP and nothing else, in either form."""
    return len(block.sizes) == 1 and own_magic(*_own_fields(block.data, 0)) == Magic.NOOP


def _own_fields(data: Buffer, offset: int) -> tuple[int, int, int, Buffer]:
    """Return what `own_magic` needs to know of the entry at an offset."""
    header = HEADER.unpack_from(data, offset)
    body = memoryview(data)[offset + HEADER_SIZE : offset + header[1]]
    return header[0], header[5], header[7], body


def own_magic(magic: int, channel: int, body_crc: int, body: Buffer) -> int:
    """Return the kind of an entry: the magic that it has, or would have without DLedger.

    In the form that DLedger reads, NOOPs and memberships are NORMAL entries on the system channel.
    Nobody else can append such ones: clients may start a block with some entries of that channel
    (`system_entry_of`), not with these, and DLedger writes channel 0 and no body CRC.
    """
    if magic != Magic.NORMAL or channel != SYSTEM_CHANNEL or not body_crc:
        return magic
    kind = bytes(body[: len(COMPATIBLE_CONFIG)])
    if kind == COMPATIBLE_CONFIG:
        return int(Magic.CONFIG_CHANGE)
    return int(Magic.NOOP) if kind == body == COMPATIBLE_NOOP else magic


def config_entries_of(block: Block) -> list[tuple[int, bytes]]:
    """Return (index, body) of each CONFIG_CHANGE entry of a stamped block.

    The body is the same in both forms.
    """
    data, config, offsets = block.data, int(Magic.CONFIG_CHANGE), block.offsets
    if len(offsets) > _FEW:
        table = headers(block)
        offsets = offsets[(table["magic"] == config) | (table["channel"] == SYSTEM_CHANNEL)]
    found = []
    for offset in offsets.tolist():
        header = HEADER.unpack_from(data, offset)
        if header[0] != config and header[5] != SYSTEM_CHANNEL:
            continue
        body = data[offset + HEADER_SIZE : offset + header[1]]
        if own_magic(header[0], header[5], header[7], body) == config:
            skipped = 0 if header[0] == config else len(COMPATIBLE_CONFIG)
            found.append((header[2], bytes(body[skipped:])))
    return found


def bodies_fit(block: Block) -> bool:
    """Whether every body has the body CRC its header states; for blocks made by a producer."""
    data = block.data
    if len(block.sizes) <= _FEW:
        for offset, header in zip(block.offsets.tolist(), _few_headers(block), strict=True):
            if crc32(data[offset + HEADER_SIZE : offset + header[1]]) != header[7]:
                return False
        return True
    expected = headers(block)["body_crc"].tolist()
    starts = (block.offsets + HEADER_SIZE).tolist()
    ends = (block.offsets + block.sizes).tolist()
    found = [crc32(data[start:end]) for start, end in zip(starts, ends, strict=True)]
    return bool(found == expected)


def stamp(block: Block, first_index: int, term: int, positions: Int64s, chain_crc: int) -> int:
    """Fill in index, term, pos and chain CRC of every entry in place.

    `positions[i]` is the byte offset entry i will have; `chain_crc` that of the entry before.
    Returns the chain CRC of the last entry.
    """
    count = len(block.sizes)
    if block.data.readonly:
        raise InvariantViolation("a stamped block must be writable")
    if len(positions) != count:
        raise InvariantViolation(f"one position an entry: {len(positions)}, {count}")
    if count <= _FEW:
        return _stamp_few(block, first_index, term, positions, chain_crc)
    table = headers(block)
    table["index"] = np.arange(first_index, first_index + count)
    table["term"] = term
    table["pos"] = positions
    chains = _continued(chain_crc, _chain_rows(table))
    table["chain_crc"] = np.frombuffer(struct.pack(f">{len(chains)}I", *chains), dtype=">u4")
    if not uniform_size(block.sizes):
        everywhere(block.data, HEADER_VOID)[block.offsets] = table.view(HEADER_VOID)
    return chains[-1]


def _stamp_few(block: Block, first_index: int, term: int, positions: Int64s, chain: int) -> int:
    data = block.data
    for ordinal, offset in enumerate(block.offsets.tolist()):
        header = HEADER.unpack_from(data, offset)
        index = first_index + ordinal
        chain = crc32(_CHAIN.pack(header[0], index, term, header[5], header[8], header[7]), chain)
        _INDEX_TERM_POS.pack_into(data, offset + 8, index, term, int(positions[ordinal]))
        _U32.pack_into(data, offset + 36, chain)
    return chain


def _continued(chain_crc: int, rows: list[bytes]) -> list[int]:
    return [chain_crc := crc32(row, chain_crc) for row in rows]


def _chain_rows(table: npt.NDArray[Any]) -> list[bytes]:
    rows = np.empty(len(table), dtype=_CHAIN_DTYPE)
    for name in _CHAIN_FIELDS:
        rows[name] = table[name]
    found: list[bytes] = rows.view(_CHAIN_VOID).tolist()
    return found


def chain_crc_rows(block: Block) -> list[bytes]:
    """Return the 32 bytes an entry that its chain CRC covers, besides the chain CRC before."""
    return _chain_rows(headers(block))


def chain_crcs(block: Block, chain_crc: int) -> list[int]:
    """Return the chain CRCs that the entries should have after an entry with `chain_crc`."""
    return _continued(chain_crc, chain_crc_rows(block))


def index_records(block: Block, positions: Int64s) -> bytes:
    """Return the 32-byte index record of each entry of a stamped block (spec 20 section 2).

    `positions` are the physical byte offsets, which on a follower may differ from header pos.
    """
    if len(block.sizes) <= _FEW:
        data = block.data
        parts = []
        for offset, pos in zip(block.offsets.tolist(), positions.tolist(), strict=True):
            header = HEADER.unpack_from(data, offset)
            parts.append(_INDEX_RECORD.pack(header[0], pos, header[1], header[2], header[3]))
        return b"".join(parts)
    table = headers(block)
    records = np.empty(block.count, dtype=INDEX_RECORD_DTYPE)
    for name in ("magic", "size", "index", "term"):
        records[name] = table[name]
    records["pos"] = positions
    return records.tobytes()


def position_of(records: Buffer) -> int:
    """Return the position that the first of some index records states."""
    position: int = _INDEX_RECORD.unpack_from(records)[1]
    return position


def term_runs_of(block: Block) -> list[tuple[int, int]]:
    """Return (term, first index) of each run of equal terms in a stamped block."""
    if len(block.sizes) <= _FEW:
        runs: list[tuple[int, int]] = []
        for header in _few_headers(block):
            if not runs or runs[-1][0] != header[3]:
                runs.append((header[3], header[2]))
        return runs
    table = headers(block)
    terms = table["term"].astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
    return [(int(terms[i]), int(table["index"][i])) for i in starts.tolist()]


def is_contiguous(block: Block, first_index: int, runs: Sequence[tuple[int, int]]) -> bool:
    """Whether a stamped block holds first_index, +1, … with the terms that `runs` states."""
    if len(block.sizes) <= _FEW:
        for index, header in enumerate(_few_headers(block), first_index):
            if header[2] != index:
                return False
        return term_runs_of(block) == list(runs)
    indexes = headers(block)["index"]
    expected = np.arange(first_index, first_index + block.count)
    return bool((indexes == expected).all()) and term_runs_of(block) == list(runs)


def check_proposal(block: Block, *, begin: int = 0) -> None:
    """Raise `UnexpectedArgumentError` unless users may append the entries from `begin` on."""
    if len(block.sizes) <= _FEW:
        mask = _few_data_mask(block)[begin:]
        wrong = None if all(mask) else begin + mask.index(False)
    else:
        table = data_mask(block)[begin:]
        wrong = None if table.all() else begin + int(np.argmin(table))
    if wrong is not None:
        raise UnexpectedArgumentError(
            f"entry {wrong} of the block is not a NORMAL entry on a user's channel"
        )


def decode_entries(block: Block) -> Iterator[Entry]:
    """Yield every entry of a stamped block, body copied out of the block's memory."""
    data = block.data
    unpack = HEADER.unpack_from
    for offset, size in zip(block.offsets.tolist(), block.sizes.tolist(), strict=True):
        magic, _, index, term, pos, channel, chain, body_crc, _ = unpack(data, offset)
        body = bytes(data[offset + HEADER_SIZE : offset + size])
        yield Entry(index, term, pos, body, magic, channel, chain, body_crc)


def data_mask(block: Block, rejected: Sequence[tuple[int, int]] = ()) -> npt.NDArray[np.bool_]:
    """Return which entries a user appended, as `Entry.is_data` says, without a Python loop.

    Entries whose index lies in a (first, last) of `rejected` are excluded.
    """
    if len(block.sizes) <= _FEW and not rejected:
        return np.array(_few_data_mask(block))
    return data_rows(headers(block), rejected)


def _few_data_mask(block: Block) -> list[bool]:
    normal, mask = int(Magic.NORMAL), []
    for header in _few_headers(block):
        mask.append(header[0] == normal and header[5] != SYSTEM_CHANNEL)
    return mask


def data_rows(
    table: npt.NDArray[Any], rejected: Sequence[tuple[int, int]] = ()
) -> npt.NDArray[np.bool_]:
    """Return the same for contiguous entries with these headers."""
    users: npt.NDArray[np.bool_] = table["magic"] == int(Magic.NORMAL)
    users &= table["channel"] != SYSTEM_CHANNEL
    if rejected:
        begin = int(table["index"][0])
        for first, last in rejected:
            users[max(0, first - begin) : max(0, last + 1 - begin)] = False
    return users
