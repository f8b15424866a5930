"""What a store keeps resident of its files while it reads them."""

import re
from pathlib import Path

from quorumlog.storage.files import file_sequence
from store_access import Opened

MIB = 1 << 20
HELD_MAX = 4 * MIB
LOG_BYTES = 32 * MIB


def resident_bytes(directory):
    """Of files below a directory that this process has mapped."""
    held, is_below = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_below = str(directory) in line
        elif is_below and line.startswith("Rss:"):
            held += int(line.split()[1]) * 1024
    return held


def test_neither_reading_nor_checking_a_long_log_holds_it_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(file_sequence, "MAPPED_BYTES_MAX", HELD_MAX)
    sizes = {"data_file": 2 * LOG_BYTES, "index_file": MIB}
    opened = Opened(tmp_path, **sizes)
    for _ in range(LOG_BYTES // MIB):
        opened.append([b"x" * 16_000] * (MIB // 16_000))
    opened.checkpoint()
    opened.close()
    opened = Opened(tmp_path, **sizes)
    for look in (opened.log.verify, lambda *run: opened.log.read(*run).last_index):
        most, index = 0, 0
        while index <= opened.log.end_index:
            index = look(index, opened.log.end_index, MIB) + 1
            most = max(most, resident_bytes(tmp_path))
        assert most < LOG_BYTES // 2
    opened.close()
