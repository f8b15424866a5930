"""Stores to damage on purpose: many small files, three terms; a bit flipped anywhere in them."""

from store_access import Opened, stored_block

SIZES = {"data_file": 2_000, "index_file": 32 * 8}
BODIES = [f"entry {number} ".encode() * (number % 7 + 1) for number in range(60)]


def filled(directory, *, checkpoint=False, **settings):
    """A store of three terms over many files, closed."""
    opened = Opened(directory, **{**SIZES, **settings})
    for term in (1, 2, 3):
        opened.append(BODIES[20 * (term - 1) : 20 * term], term=term)
    opened.log.note_committed(50)
    if checkpoint:
        opened.checkpoint()
    places = [opened.log._place_of(index) for index in range(60)]
    opened.close()
    return places


def file_of(directory, position, room="data"):
    size = SIZES["data_file"] if room == "data" else SIZES["index_file"]
    start = position // size * size
    return directory / room / f"{start:020d}", position - start


def flip(directory, position, room="data", mask=0x10):
    path, offset = file_of(directory, position, room)
    raw = bytearray(path.read_bytes())
    raw[offset] ^= mask
    path.write_bytes(bytes(raw))
    return path, offset


HEADER_FIELDS = {
    "magic": 3,
    "size": 7,
    "index": 15,
    "index, highest bit": 8,
    "term": 23,
    "channel": 35,
    "chain CRC": 38,
    "body CRC": 42,
    "body size": 47,
    "body": 50,
}


def repair_all(opened, directory):
    """Ask the other copy for exactly what is damaged."""
    other = Opened(directory, **SIZES)
    try:
        for first, last in list(opened.log.damaged):
            opened.submit(opened.log.repair(stored_block(other.log, first, last)))
    finally:
        other.close()
