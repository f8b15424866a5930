"""State machines for tests."""

from quorumlog.machine import StateMachine


class Counter(StateMachine):
    """Adds up the numbers that are appended; `applied` are the indexes it was given."""

    def __init__(self):
        self.total = 0
        self.applied = []

    def apply(self, entries):
        results = []
        for entry in entries:
            self.total += int(entry.body)
            self.applied.append(entry.index)
            results.append(b"%d" % self.total)
        return results

    def query(self, query):
        return b"%d" % self.total

    def save_snapshot(self, writer):
        writer.write(b"%d" % self.total)

    def load_snapshot(self, reader):
        self.total = int(reader.read())
        self.applied.clear()

    def digest(self):
        return b"%d" % self.total
