"""Proof of the result: nothing acknowledged is missing, nothing was changed, replicas agree."""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds

from quorumlog.client import SyncClient
from quorumlog.demo.load import Loaded, body_digest
from quorumlog.demo.partition_reads import PartitionRead
from quorumlog.local import LocalCluster
from quorumlog.model.codes import ResponseCode
from quorumlog.model.wording import counted
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.store_files import scan_store

AGREE_SECONDS = 30.0
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class Proof:
    """What was compared. Empty `failures`: everything holds."""

    acknowledged: int = 0
    in_parquet: int = 0
    missing: int = 0
    foreign: int = 0
    duplicates: int = 0
    content_digest: str = ""
    committed_index: int = -1
    replicas: int = 0
    missing_in_topic: int = 0
    duplicates_in_topic: int = 0
    failures: list[str] = field(default_factory=list)


def content_digest(digests: Iterable[bytes]) -> str:
    """Return one digest over the sorted digests of bodies: equal sets of bodies, equal digest."""
    whole = hashlib.sha256()
    for digest in sorted(digests):
        whole.update(digest)
    return whole.hexdigest()


def parquet_digests(parquet: Path) -> list[bytes]:
    """Return the digest of every body in the Parquet files."""
    digests: list[bytes] = []
    for batch in ds.dataset(parquet, partitioning="hive").to_batches(columns=["body"]):
        digests += [body_digest(body) for body in batch.column("body").to_pylist()]
    return digests


def compare_content(proof: Proof, sent: list[bytes], found: list[bytes]) -> None:
    """Compare what was acknowledged with what is in Parquet, as multisets."""
    sent_counts, found_counts = Counter(sent), Counter(found)
    proof.acknowledged, proof.in_parquet = len(sent), len(found)
    proof.missing = (sent_counts - found_counts).total()
    extra = found_counts - sent_counts
    proof.foreign = sum(count for digest, count in extra.items() if digest not in sent_counts)
    proof.duplicates = extra.total() - proof.foreign
    expected, actual = content_digest(sent_counts), content_digest(found_counts)
    proof.content_digest = actual
    if proof.missing:
        proof.failures.append(
            f"{counted(proof.missing, 'acknowledged record is', 'acknowledged records are')} "
            f"missing in Parquet"
        )
    if proof.foreign:
        proof.failures.append(f"{counted(proof.foreign, 'record')} in Parquet never sent")
    if expected != actual:
        proof.failures.append("the content digest of Parquet differs from that of what was sent")
    if proof.duplicates:
        proof.failures.append(
            f"{counted(proof.duplicates, 'record is', 'records are')} there more than once"
        )


def compare_replicas(proof: Proof, cluster: LocalCluster, group: str) -> None:
    """Wait until all replicas have committed the same, then compare their chain CRCs."""
    deadline = time.monotonic() + AGREE_SECONDS
    states: set[tuple[int, int, int]] = set()
    with SyncClient(cluster.context, group) as client:
        while time.monotonic() < deadline:
            answers = client.status()
            reached = [status for status in answers if status.code == ResponseCode.SUCCESS]
            proof.replicas = len(reached)
            states = {
                (status.committed_index, status.end_index, status.committed_chain_crc)
                for status in reached
            }
            agreed = len(states) == 1 and all(first == last for first, last, _ in states)
            if agreed and len(reached) == len(cluster.node_ids):
                proof.committed_index = next(iter(states))[0]
                return
            time.sleep(_POLL_SECONDS)
    proof.failures.append(f"the replicas do not agree: (committed, end, chain CRC) {states}")


def compare_files(proof: Proof, cluster: LocalCluster, group: str) -> None:
    """Read the data files of every (stopped) replica and compare all entries, byte for byte."""
    digests = {}
    for node_id in cluster.node_ids:
        whole = hashlib.sha256()
        directory = str(cluster.group_directory(node_id, group))
        for entry, _, _ in scan_store(OsFileSystem(), directory):
            whole.update(f"{entry.index},{entry.term},{entry.magic},{entry.channel};".encode())
            whole.update(entry.body)
        digests[node_id] = whole.hexdigest()
    if len(set(digests.values())) != 1:
        proof.failures.append(f"the replicas' files differ: {digests}")


def prove_content(proof: Proof, loaded: Loaded, parquet: Path) -> None:
    """Compare everything acknowledged with everything in Parquet."""
    compare_content(proof, loaded.digests, parquet_digests(parquet))


def compare_partitions(
    proof: Proof, reader: str, sent: dict[int, PartitionRead], found: dict[int, PartitionRead]
) -> None:
    """Compare what a reader found in every partition with what was acknowledged for it."""
    for number, expected in sent.items():
        actual = found.get(number, PartitionRead(0, 0, ""))
        missing = max(0, expected.records - actual.records)
        duplicates = max(0, actual.records - expected.records)
        proof.missing_in_topic += missing
        proof.duplicates_in_topic += duplicates
        what = f"partition {number}, read by {reader}"
        if missing or duplicates:
            proof.failures.append(
                f"{what}: {counted(actual.records, 'record')} of {expected.records:,} acknowledged"
            )
        elif expected.digest != actual.digest:
            proof.failures.append(f"{what}: the digest differs from that of what was acknowledged")
        if actual.gaps:
            proof.failures.append(f"{what}: {counted(actual.gaps, 'offset')} out of order")
