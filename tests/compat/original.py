"""What DLedger does to a store that it goes on with, as runs of its releases showed it."""

from pathlib import Path

from quorumlog.model.block import HEADER

INDEX = 32


class Original:
    """A store's files, written as DLedger writes them: no CRCs, blanks, full-size files."""

    def __init__(self, directory, end_index, end_position, data_file, index_file):
        self.directory = Path(directory)
        self.index, self.position = end_index, end_position
        self._sizes = {"data": data_file, "index": index_file}

    def append(self, bodies, term):
        for body in bodies:
            size = 48 + len(body)
            file_size = self._sizes["data"]
            left = file_size - self.position % file_size
            if size + 8 > left:
                blank = b"\xff\xff\xff\xff" + left.to_bytes(4, "big")
                self._write("data", self.position, blank.ljust(left, b"\0"))
                self.position += left
            self.index += 1
            header = HEADER.pack(1, size, self.index, term, self.position, 0, 0, 0, len(body))
            self._write("data", self.position, header + body)
            record = (
                (1).to_bytes(4, "big")
                + self.position.to_bytes(8, "big")
                + size.to_bytes(4, "big")
                + self.index.to_bytes(8, "big")
                + term.to_bytes(8, "big")
            )
            self._write("index", self.index * INDEX, record)
            self.position += size

    def truncate(self, index, position):
        """Cut the log after an entry, which ends at a position."""
        for kind, end in (("data", position), ("index", (index + 1) * INDEX)):
            size = self._sizes[kind]
            for path in sorted((self.directory / kind).iterdir()):
                start = int(path.name)
                if start >= end:
                    path.unlink()
                elif start + size > end:
                    raw = path.read_bytes()
                    path.write_bytes(raw[: end - start].ljust(size, b"\0"))
        self.index, self.position = index, position

    def write_text(self, name, **values):
        """Replace a text file, and keep what it said before beside it."""
        path = self.directory / name
        if path.exists():
            path.with_name(f"{name}.bak").write_bytes(path.read_bytes())
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def _write(self, kind, position, data):
        size = self._sizes[kind]
        path = self.directory / kind / f"{position - position % size:020d}"
        raw = bytearray(path.read_bytes() if path.exists() else bytes(size))
        raw[position % size : position % size + len(data)] = data
        path.write_bytes(bytes(raw))
