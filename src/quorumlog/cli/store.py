"""`quorumlog store`: look into a store's files without a server, check them, and repair them."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from quorumlog.cli.errors import BeyondEndError, CommandError
from quorumlog.cli.options import AsJson
from quorumlog.cli.output import (
    body_text,
    channel_text,
    entry_object,
    magic_name,
    print_json,
    print_line,
    print_note,
    print_table,
)
from quorumlog.cli.progress import progress_bar
from quorumlog.machine.cluster.commands import masked
from quorumlog.model.codes import Magic
from quorumlog.model.entry import Entry
from quorumlog.model.errors import StorageError
from quorumlog.model.wording import counted, entries_text
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import DATA, NodeDirectory
from quorumlog.storage.log.settle import Settled, settle_node, why_no_node
from quorumlog.storage.offline.discard import Loss, discard_journal, find_loss
from quorumlog.storage.offline.original_export import export_original
from quorumlog.storage.offline.partitions import StoredPartition, list_partitions
from quorumlog.storage.offline.repair import repair_store, truncate_store
from quorumlog.storage.offline.store_files import scan_store
from quorumlog.storage.offline.verify import StoreReport, magic_names, verify_store

PREVIEW_CHARACTERS = 60
HINTS_MAX = 9
"""Groups' directories named to who gave one above them: one each of a local cluster's nodes."""
PATHS_SHOWN = 8
"""Groups' directories named before a reason that all of them have."""
EPOCHS_SHOWN = 3
"""The newest leader epochs of a partition that the table of partitions shows."""
PARTITION_COLUMNS = (
    "TOPIC",
    "PARTITION",
    "TOPIC-ID",
    "CHANNEL",
    "START",
    "END",
    "BATCHES",
    "BYTES",
    "EPOCHS",
)
COLUMNS = "{:>10}  {:>6}  {:>12}  {:>8}  {:<13}  {:>10}  {}"

app = typer.Typer(
    help="Look into a store's files, check and repair them, without a server.", no_args_is_help=True
)

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A group's directory (it contains data/), ours or DLedger's."
    ),
]
DataPath = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH,...",
        help="Directories of the data files, if not DIR/data.",
        show_default=False,
    ),
]


@app.callback()
def _family() -> None:
    pass


@app.command(name="dump")
def dump_command(
    directory: Directory,
    start: Annotated[int, typer.Option("--from", metavar="INDEX", help="First index.")] = 0,
    count: Annotated[
        int | None,
        typer.Option("--count", min=0, help="The most entries to print.", show_default="all"),
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Print whole bodies.")] = False,
    data: DataPath = "",
    as_json: AsJson = False,
) -> None:
    """Print the entries of a store as they lie on disk, committed or not.

    Verifiers of passwords are shown as ***.
    """
    found = scan_store(
        OsFileSystem(), group_directory(directory, anywhere=bool(data)), _paths(data)
    )
    last_file, last = "", -1

    def wanted() -> Iterator[tuple[Entry, str, int]]:
        nonlocal last
        for row in found:
            last = row[0].index
            if last >= start:
                yield row

    for entry, file, offset in islice(wanted(), count):
        shown = structs.replace(entry, body=masked(entry.body))
        fields = {**entry_object(shown), "size": entry_object(entry)["size"]}
        if as_json:
            print_json({**fields, "file": file, "offset": offset})
            continue
        if file != last_file:
            print_line(f"{file}:")
            print_line(COLUMNS.format("INDEX", "TERM", "POS", "SIZE", "MAGIC", "CHANNEL", "BODY"))
            last_file = file
        print_line(
            COLUMNS.format(
                *(fields[name] for name in ("index", "term", "pos", "size")),
                magic_name(entry.magic),
                channel_text(entry.channel),
                body_text(shown, None if body else PREVIEW_CHARACTERS),
            )
        )
    if start > max(last, 0) and count != 0:
        end = f"its last index is {last}" if last >= 0 else "it has no entry"
        raise BeyondEndError(f"index {start} is beyond the end of {directory}: {end}")


@app.command(name="verify")
def verify_command(directory: Directory, data: DataPath = "", as_json: AsJson = False) -> None:
    """Read every byte and check every CRC, header and index record. Changes nothing.

    Exit status 1 if anything is wrong. May run beside the node.
    """
    report = _verified(directory, data)
    if as_json:
        print_json(_report_object(report))
    else:
        for finding in report.findings:
            place = f"{finding.path}: byte {finding.offset}"
            entry = "" if finding.index is None else f", entry {finding.index}"
            if finding.last_index not in (None, finding.index):
                entry += f" to {finding.last_index}"
            print_line(f"{finding.kind}: {place}{entry}: {finding.text}")
        if report.tail_text:
            print_line(f"torn tail, cut at the next start: {report.tail_text}")
        unchecked = report.unchecked_entries
        total = report.findings_total
        found = counted(total, "finding") if total else "no findings"
        without = f", {unchecked} of them without CRCs (written by DLedger)" if unchecked else ""
        print_line(
            f"{entries_text(report.entries)} checked, {report.begin_index} to {report.end_index}"
            f"{without}: {found}"
        )
    if report.findings_total:
        raise typer.Exit(1)


@app.command(name="stats")
def stats_command(directory: Directory, data: DataPath = "", as_json: AsJson = False) -> None:
    """Say what a store holds: whose it is, indexes, terms, sizes, kinds. Changes nothing."""
    report = _verified(directory, data)
    if as_json:
        print_json(_report_object(report))
        return
    owner, state = report.identity, report.hard_state
    mean = report.body_bytes / report.entries if report.entries else 0.0
    rows = [
        ("directory", report.directory),
        ("written by", f"group {owner.group}, member {owner.self_id}" if owner else "DLedger"),
        ("kind", f"partitions ({report.partitions})" if report.partitions else "log"),
        ("term, vote", f"{state.term}, {state.vote or 'none'}" if state else "unreadable"),
        ("indexes", f"{report.begin_index} to {report.end_index}"),
        ("committed, at least", str(report.committed_index)),
        ("entries", str(report.entries)),
        ("without CRCs", str(report.unchecked_entries)),
        ("kinds", ", ".join(f"{k} {n}" for k, n in magic_names(report.magics).items())),
        ("DLedger reads it", _readers_text(report)),
        (
            "channels",
            ", ".join(f"{channel_text(c)}: {n}" for c, n in report.channels.most_common(10)),
        ),
        ("terms", _terms_text(report)),
        ("body bytes", str(report.body_bytes)),
        ("bodies", f"{report.smallest_body} to {report.largest_body}, on average {mean:.1f} bytes"),
        ("data files", f"{report.data_files} of {report.data_file_bytes} bytes"),
        ("index files", str(report.index_files)),
        ("findings", str(report.findings_total)),
    ]
    print_table(("STORE", ""), rows)


@app.command(name="partitions")
def partitions_command(directory: Directory, data: DataPath = "", as_json: AsJson = False) -> None:
    """Say which partitions of topics a store holds, and what of them. Changes nothing.

    Counts what lies on disk, committed or not. Exit status 1 if some of it cannot be read.
    """
    target = group_directory(directory, anywhere=bool(data))
    report = list_partitions(OsFileSystem(), target, _paths(data))
    if as_json:
        print_json(asdict(report))
    elif not report.partitions and not report.damage:
        print_note(f"{target} holds no partitions of topics")
    else:
        print_table(PARTITION_COLUMNS, [_partition_row(one) for one in report.partitions])
        for text in report.damage:
            print_line(f"not read: {text}")
    if report.damage:
        raise typer.Exit(1)


@app.command(name="repair")
def repair_command(
    directory: Directory,
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from", metavar="DIR2", help="Another replica's directory, or a copy; repeatable."
        ),
    ],
    data: DataPath = "",
    as_json: AsJson = False,
) -> None:
    """Put other replicas' entries in the place of damaged ones. The node must be stopped.

    An entry is taken only if index, term, size and CRCs show that it is the very one that is
    damaged. Exit status 1 if damage is left, or if DIR2 is no replica of the same group.
    """
    target = group_directory(directory, anywhere=bool(data))
    with progress_bar("checking") as progress:
        report = repair_store(
            OsFileSystem(),
            target,
            [group_directory(source) for source in sources],
            _paths(data),
            progress,
        )
    if as_json:
        print_json(asdict(report))
    else:
        for reason in report.reasons or ():
            print_line(f"not taken: {reason}")
        print_line(
            f"{entries_text(report.repaired_entries)} repaired, "
            f"{counted(report.mended_index_records, 'index record')} repaired, "
            f"{_damage_text(report.left)}"
        )
    if report.left:
        raise typer.Exit(1)


@app.command(name="truncate")
def truncate_command(
    directory: Directory,
    start: Annotated[
        int, typer.Option("--from", metavar="INDEX", min=0, help="First index to remove.")
    ],
    data: DataPath = "",
    as_json: AsJson = False,
) -> None:
    """Remove an entry and all after it; never one that is known to be committed.

    The node must be stopped. Exit status 3 if the log ends before that entry.
    """
    removed = truncate_store(
        OsFileSystem(), group_directory(directory, anywhere=bool(data)), start, _paths(data)
    )
    if as_json:
        print_json({"removed": removed, "end_index": start - 1})
    else:
        print_line(f"{entries_text(removed)} removed, from {start} on")


@app.command(name="export-original")
def export_command(
    directory: Directory,
    target: Annotated[
        Path, typer.Option("--to", metavar="DIR2", help="The new directory to write.")
    ],
    data: DataPath = "",
    as_json: AsJson = False,
) -> None:
    """Write the log once more, in a form that DLedger 0.2.7 to 0.4.0 opens and continues.

    Indexes, terms and bodies stay; the store itself is not changed. The node must be stopped. Name
    DIR2 as DLedger does: dledger-MEMBER.
    """
    source = group_directory(directory, anywhere=bool(data))
    with progress_bar("writing") as progress:
        report = export_original(OsFileSystem(), source, str(target), _paths(data), progress)
    if as_json:
        print_json(asdict(report))
        return
    print_line(
        f"{entries_text(report.entries)} written to {target}, {report.begin_index} to "
        f"{report.end_index}, term {report.term}; {report.system_entries} of them are the group's "
        f"own, on channel -1, which applications of DLedger must skip ({report.rewritten_entries} "
        "NOOPs and memberships were converted)"
    )


@app.command(name="settle")
def settle_command(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A node's directory (it contains those of its groups)."),
    ],
    journal: Annotated[
        str,
        typer.Option(
            "--journal",
            metavar="PATH",
            help="The node's journalDirectory, if it has one.",
            show_default=False,
        ),
    ] = "",
    discard: Annotated[
        bool,
        typer.Option(
            "--discard",
            help="Where the journal is lost, go on without what it held; without this option you "
            "are told what that is. Only for groups that have no other member.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write what only the journal of a crashed node holds to the files of its groups.

    A node does this by itself when it starts. The node must be stopped. Exit status 1 if a group's
    entries could not be written; its part of the journal is kept.
    """
    if not directory.is_dir():
        raise CommandError(f"{directory}: no such directory")
    files = OsFileSystem()
    why_not = why_no_node(files, str(directory), journal)
    if why_not:
        raise CommandError(f"{why_not}; nothing is changed")
    node = NodeDirectory(files, str(directory))
    try:
        settled = settle_node(files, str(directory), journal)
        failed = {path: str(error) for path, error in settled.failed.items()}
        losses = _losses(files, settled, failed, discard=discard)
        if losses and discard:
            settle_node(files, str(directory), journal)  # removes what nobody needs any more
    finally:
        node.close()
    if as_json:
        discarded = {path: asdict(loss) for path, loss in losses.items() if discard}
        print_json({"settled": settled.groups, "failed": failed, "discarded": discarded})
    else:
        for path, size in settled.groups.items():
            print_line(f"{path}: settled, {size} bytes written")
        for path, loss in losses.items():
            if discard:
                print_line(f"{path}: goes on without the journal: {_loss_text(loss)}")
        if not settled.groups and not settled.failed:
            print_line(f"{directory}: nothing to settle, the groups' files hold everything")
    if failed:
        raise CommandError(_reasons(failed))


def _reasons(failed: dict[str, str]) -> str:
    """Return each reason once, after the directories of the groups that cannot be settled by it."""
    paths_of: dict[str, list[str]] = {}
    for path, text in failed.items():
        paths_of.setdefault(text, []).append(path)
    reasons = []
    for text, paths in paths_of.items():
        more = len(paths) - PATHS_SHOWN
        shown = ", ".join(paths[:PATHS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
        reasons.append(f"{shown}: {text}")
    return "; ".join(reasons)


def _losses(
    files: OsFileSystem, settled: Settled, failed: dict[str, str], *, discard: bool
) -> dict[str, Loss]:
    """Return what each group gives up whose journal is lost; with `discard` it is given up now.

    `failed` says why a group may not, or what the option would do.
    """
    losses: dict[str, Loss] = {}
    for path in settled.lost:
        try:
            loss = discard_journal(files, path) if discard else find_loss(files, path)
        except StorageError as error:
            if discard:
                failed[path] = f"not discarded: {error}"
            continue
        losses[path] = loss
        if discard:
            del failed[path]
        else:
            failed[path] += (
                f". {path} has no other member; with --discard it goes on without the journal: "
                f"{_loss_text(loss)}"
            )
    return losses


def _loss_text(loss: Loss) -> str:
    text = (
        f"its log ends with entry {loss.kept_index}. It is known that nothing is missing up to "
        f"{loss.proven_index}; whatever was acknowledged after that, and is not among the entries "
        f"up to {loss.kept_index}, is given up permanently"
    )
    if loss.damaged:
        text += f"; {_damage_text(list(loss.damaged))}"
    return text


def _partition_row(one: StoredPartition) -> tuple[str, ...]:
    epochs = [f"{epoch} from {start}" for epoch, start in one.epochs[-EPOCHS_SHOWN:]]
    numbers = (one.channel, one.log_start, one.end, one.batches, one.size_bytes)
    return one.topic, str(one.partition), one.topic_id, *map(str, numbers), ", ".join(epochs)


# -- shared ---------------------------------------------------------------------------------------


def _verified(directory: Path, data: str) -> StoreReport:
    target = group_directory(directory, anywhere=bool(data))
    with progress_bar("reading") as progress:
        return verify_store(OsFileSystem(), target, _paths(data), progress)


def _report_object(report: StoreReport) -> dict[str, object]:
    fields: dict[str, object] = asdict(report)
    fields["magics"] = magic_names(report.magics)
    fields["channels"] = {str(channel): count for channel, count in report.channels.items()}
    for name in ("identity", "hard_state"):
        value = getattr(report, name)
        fields[name] = (
            None if value is None else {key: getattr(value, key) for key in _names(value)}
        )
    return fields


def _names(value: object) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(value, "__struct_fields__", None) or tuple(
        getattr(value, "__dataclass_fields__", ())
    )
    return names


def _terms_text(report: StoreReport) -> str:
    shown = ", ".join(f"{term} from {first}" for term, first in report.terms[:8])
    more = len(report.terms) - 8
    return f"{shown} and {more} more" if more > 0 else shown


def _readers_text(report: StoreReport) -> str:
    """Return which versions of DLedger read the whole log."""
    if set(report.magics) <= {int(Magic.NORMAL)}:
        return "0.2.7 to 0.4.0"
    return "0.4.0; earlier ones what store export-original writes"


def _damage_text(ranges: list[tuple[int, int]]) -> str:
    if not ranges:
        return "no damage left"
    shown = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges]
    is_one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"damage left in {'entry' if is_one else 'entries'} {', '.join(shown)}"


def _paths(data: str) -> list[str]:
    return [path.strip() for path in data.split(",") if path.strip()]


def group_directory(directory: Path, *, anywhere: bool = False) -> str:
    """Return the directory if it is a group's, else say which ones below it are.

    `anywhere`: its data files are elsewhere, so any directory may be one. Raises `CommandError`.
    """
    if anywhere or (directory / DATA).is_dir():
        return str(directory)
    if not directory.is_dir():
        raise CommandError(f"{directory}: no such directory")
    below = _groups_below(directory, f"*/{DATA}") or _groups_below(directory, f"*/*/{DATA}")
    more = len(below) - HINTS_MAX
    shown = [*below[:HINTS_MAX], *([f"one of {more} more"] if more > 0 else [])]
    hint = f"; try {' or '.join(shown)}" if shown else ""
    raise CommandError(f"{directory} is no group's directory: it contains no {DATA}/{hint}")


def _groups_below(directory: Path, pattern: str) -> list[str]:
    """Return the groups' directories whose data is where a pattern says."""
    return sorted(str(found.parent) for found in directory.glob(pattern) if found.is_dir())
