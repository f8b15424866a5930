"""Whether entries that come block by block are whole, in order, and of one history."""

from quorumlog.client.results import FetchedBlock
from quorumlog.model.block import Block, block_from_index_records, chain_crcs
from quorumlog.model.errors import CorruptionError
from quorumlog.spark.source.verify import Verify, verify_block
from quorumlog.storage.entries.checksums import Words, header_table, header_words


class HistoryCheck:
    """Follows the entries of one log: bodies, order, and that they are one history.

    `index` is the next one, `chain_crc` that of the entry before (None: not known), `terms` are the
    first and the last term seen so far.
    """

    def __init__(self, index: int, chain_crc: int | None) -> None:
        self.index = index
        self.chain_crc = chain_crc
        self.terms: tuple[int, int] | None = None

    def take(self, fetched: FetchedBlock) -> tuple[Block, Words]:
        """Return the next entries with their `header_words`.

        Raises `CorruptionError` if they cannot be right.
        """
        block = block_from_index_records(fetched.data, fetched.records)
        words = header_words(block)
        if not fetched.is_checked:
            verify_block(block, words, self.index, Verify.SCREEN, bodies=True)
        first, last = header_table(words)[[0, -1]]
        first_term, term_before = self.terms or (int(first["term"]), 0)
        has_crcs = bool(first["chain_crc"] or first["body_crc"])  # DLedger writes none
        joins = int(first["term"]) >= term_before and (
            not has_crcs
            or self.chain_crc is None
            or chain_crcs(block.slice(0, 1), self.chain_crc) == [int(first["chain_crc"])]
        )
        if not joins:
            raise CorruptionError(
                f"entry {self.index} belongs to another history than the one before it",
                "",
                0,
                self.index,
            )
        self.index += block.count
        self.chain_crc = int(last["chain_crc"])
        self.terms = (first_term, int(last["term"]))
        return block, words
