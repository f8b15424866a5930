"""One run from one seed: faults for a while, then none, after which the group must recover."""

from random import Random
from typing import TypeAlias

from quorumlog.model.errors import QuorumlogError
from quorumlog.model.hooks import AppendHook
from quorumlog.sim.clean_stops import CleanStops
from quorumlog.sim.cluster import DATA_FILE_BYTES, SEAL_LIMITS, SimulatedCluster
from quorumlog.sim.epilogues import lose_a_disk_while_idle, promote_without_telling
from quorumlog.sim.faults import Faults, name_of
from quorumlog.sim.finding import Finding, Outcome, found_by
from quorumlog.sim.hook import make_hook
from quorumlog.sim.impostors import Impostors
from quorumlog.sim.machine_faults import MachineFaults
from quorumlog.sim.machines import KEY_VALUES, REGISTERS
from quorumlog.sim.slow_links import SlowLinks
from quorumlog.topics.retention import RetentionRule

CLIENTS = 3
FOUNDING_MS = 4_000
CONVERGE_MS = 10_000
"""Time after the last fault within which a leader is elected, all replicas have become equal and an
append was served."""
STARTING_MS = 500
MINORITIES_DOWN = 0.4
"""Share of runs in which the others must first serve without one voter."""
IDLE_WIPES, PROMOTIONS = 0.3, 0.2
"""Shares of runs that end with one of the epilogues."""
TRIMMED = 0.4
"""Share of runs in which old entries are removed."""
AGED = 0.6
"""Share of runs without a state machine, of those in which no size bounds the log, in which entries
are removed by age."""
HOURS_MS = (2_000, 4_000, 8_000)
"""How long the hour lasts for which such a run keeps entries."""
COMPARED = 0.25
"""Share of runs without a state machine in which replicas compare their tables often."""
MACHINES = 0.5
"""Share of runs in which the group has a state machine."""
DAMAGED_MACHINES = 0.6
"""Share of runs with a state machine and flipped bits in which one machine is damaged, too."""
CLEAN_STOPS = 0.3
"""Share of runs in which nodes are also asked to stop."""
IMPOSTORS = 0.3
"""Share of runs in which somebody speaks in members' names."""
SESSIONS = 0.5
"""Share of runs in which clients are idempotent producers."""
TRANSACTIONS = 0.6
"""Share of runs without a state machine in which one client writes transactions."""
HOOKS = 0.2
"""Share of runs in which leaders have an append hook."""
PARTITIONS = 0.2
"""Share of runs in which the group holds partitions; it has no state machine then, nor a hook."""
RETAINED = 0.6
"""Share of these runs in which partitions give up records by rules."""
KEPT_BYTES = (1, 700, 3_000, 12_000)
KEPT_MS = (700, 2_000, 6_000)
"""What such rules keep; each partition has a rule for bytes, for ages, for both, or none."""
STABLE_MS = 2_500
"""How long a converged group must go on without another election."""

CHANNELS = 200
"""More than a run opens."""

_Others: TypeAlias = MachineFaults | CleanStops | Impostors | SlowLinks


def run_seed(
    seed: int,
    *,
    seconds: float = 30.0,
    nodes: int = 3,
    cluster_type: type[SimulatedCluster] = SimulatedCluster,
    has_partitions: bool | None = None,
) -> Outcome:
    """Simulate a group of `nodes` founders: `seconds` of faults, then until it has recovered.

    `has_partitions`: whether it holds partitions of topics; None: the seed decides.
    """
    if has_partitions is None:
        has_partitions = _drawn("partitions", seed).random() < PARTITIONS
    machine = {} if has_partitions else _machine(seed)
    settings = _retention(seed) or ({} if machine else _ages(seed))
    settings |= machine or _digests(seed)
    rules = _rules(seed) if has_partitions else {}
    if has_partitions:
        settings |= {"kind": "partitions"}
    if rules:
        settings |= {"clean_interval": 100}
    cluster = cluster_type(
        seed,
        nodes,
        spares=2,
        has_sessions=_drawn("sessions", seed).random() < SESSIONS,
        has_transactions=not machine and _drawn("transactions", seed).random() < TRANSACTIONS,
        append_hook=None if has_partitions else _append_hook(seed),
        seal_limits=SEAL_LIMITS,
        max_push_time_out_ms=500,
        **settings,
    )
    cluster.rules = rules
    faults = Faults(cluster, seed)
    chance = _drawn("machine faults", seed)
    machine_faults = MachineFaults(cluster, faults.victim, chance)
    has_machine_faults = faults.flips and chance.random() < DAMAGED_MACHINES
    stops_chance = _drawn("who stops", seed)
    has_stops = stops_chance.random() < CLEAN_STOPS
    stops = CleanStops(cluster, faults.start_node, stops_chance)
    lies_chance = _drawn("impostors", seed)
    has_lies = lies_chance.random() < IMPOSTORS
    impostors = Impostors(cluster, lies_chance)
    slow_links = SlowLinks(cluster, _drawn("slow links", seed))
    others: list[_Others] = [slow_links]
    if has_machine_faults:
        others.append(machine_faults)
    if has_stops:
        others.append(stops)
    if has_lies:
        others.append(impostors)
    finding = found_by(lambda: _live_through(cluster, faults, others, seconds))
    clock = cluster.clock
    return Outcome(
        seed,
        clock.now_ms,
        clock.events,
        cluster.clients.appended,
        cluster.clients.reads,
        cluster.network.trace.text,
        [name_of(kind) for kind in faults.kinds]
        + ["clean_stops"] * has_stops
        + ["impostors"] * has_lies
        + ["slow_links"] * slow_links.are_chosen
        + ["partitions of topics"] * has_partitions,
        _histories(cluster, faults, stops, impostors, slow_links),
        finding,
    )


def _drawn(what: str, seed: int) -> Random:
    """Return a random source of its own for one purpose: other draws do not change it."""
    return Random(f"{what} {seed}")  # noqa: S311  (nothing secret)


def _append_hook(seed: int) -> AppendHook | None:
    """Return the append hook that nodes have in some runs."""
    random = _drawn("append hook", seed)
    return make_hook(random) if random.random() < HOOKS else None


def _retention(seed: int) -> dict[str, object]:
    """Return settings with which, in some runs, entries are removed that replicas still need."""
    random = _drawn("retention", seed)
    if random.random() >= TRIMMED:
        return {}
    files = random.randint(1, 4)
    return {
        "retention_bytes": files * DATA_FILE_BYTES,
        "follower_retention_bytes": random.choice((0, (files + 2) * DATA_FILE_BYTES)),
    }


def _rules(seed: int) -> dict[int, RetentionRule]:
    """Return rules by which, in some runs, partitions give up records, by channel."""
    random = _drawn("rules", seed)
    if random.random() >= RETAINED:
        return {}
    return {
        channel: RetentionRule(
            random.choice(KEPT_MS) if random.random() < 0.5 else None,
            random.choice(KEPT_BYTES) if random.random() < 0.5 else None,
        )
        for channel in range(1, CHANNELS)
    }


def _ages(seed: int) -> dict[str, object]:
    """Return settings with which, in some runs, entries are removed once they are old."""
    random = _drawn("ages", seed)
    if random.random() >= AGED:
        return {}
    hours = range(0, 24, random.choice((1, 2)))
    return {
        "file_reserved_hours": 1,
        "hour_ms": random.choice(HOURS_MS),
        "delete_when": ";".join(map(str, hours)),
        "clean_interval": 100,
    }


def _machine(seed: int) -> dict[str, object]:
    """Return settings with which, in some runs, the group has a state machine."""
    random = _drawn("machine", seed)
    if random.random() >= MACHINES:
        return {}
    return {
        "snapshot_threshold": random.choice((15, 60, 250)),
        "max_snapshot_reserved_num": random.randint(1, 3),
        "reset_snapshot_entries_but_keep_last_entries_num": random.choice((0, 10)),
        "state_machine": random.choice((REGISTERS, KEY_VALUES)),
        "digest_entries": random.choice((1, 8, 64)),
    }


def _digests(seed: int) -> dict[str, object]:
    """Return settings with which, in some runs, replicas compare their tables often."""
    random = _drawn("digests", seed)
    if random.random() >= COMPARED:
        return {}
    return {"digest_entries": random.choice((8, 64))}


def _live_through(
    cluster: SimulatedCluster,
    faults: Faults,
    others: list[_Others],
    seconds: float,
) -> None:
    for node_id in cluster.founders:
        cluster.nodes[node_id].start()
    cluster.clients.start(CLIENTS)
    # a group is founded while all its founders are up; from then on anything may happen
    cluster.run_until(FOUNDING_MS)
    faults.start()
    for other in others:
        other.start()
    cluster.run_until(FOUNDING_MS + int(seconds * 1_000))
    cluster.clients.is_running = False
    for other in others:
        other.end()
    faults.end()
    cluster.run_until(cluster.clock.now_ms + STARTING_MS)  # what crashed while it was started
    faults.end()
    cluster.read_everything()
    absent = faults.keep_one_down() if cluster.clock.random.random() < MINORITIES_DOWN else None
    if absent is not None:
        cluster.run_until_served(CONVERGE_MS)
        absent.start()
    cluster.run_until_equal(CONVERGE_MS)
    chance = cluster.clock.random.random()
    if chance < IDLE_WIPES:
        lose_a_disk_while_idle(cluster, faults, CONVERGE_MS)
    elif chance < IDLE_WIPES + PROMOTIONS:
        promote_without_telling(cluster, CONVERGE_MS)
    cluster.require_stable(STABLE_MS)
    cluster.run_until_idle(CONVERGE_MS)
    cluster.check_end()
    if not cluster.clients.appended:
        raise Finding("liveness", "nothing was ever appended")


def _histories(
    cluster: SimulatedCluster,
    faults: Faults,
    stops: CleanStops,
    impostors: Impostors,
    slow_links: SlowLinks,
) -> dict[str, list[str]]:
    histories = {node_id: node.history() for node_id, node in cluster.nodes.items()}
    histories["faults"] = faults.happened
    histories["clean stops"] = stops.happened
    histories["impostors"] = impostors.happened
    histories["slow links"] = slow_links.happened
    try:
        histories["state"] = cluster.describe().split("; ")
    except QuorumlogError as error:
        histories["state"] = [repr(error)]
    return histories
