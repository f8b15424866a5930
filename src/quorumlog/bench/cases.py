"""The cases of the bench: every load is run in rounds, one after the other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quorumlog.bench import events, loads
from quorumlog.bench.figures import (
    MEGABYTE,
    Figure,
    Sample,
    pause_figure,
    rate_figure,
    value_figure,
)
from quorumlog.bench.limits import MachineLimits
from quorumlog.bench.processes import Usage
from quorumlog.client import Client
from quorumlog.client.contexts import Servers
from quorumlog.local import LocalCluster
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import MIB
from quorumlog.model.wording import counted

IN_FLIGHT = (1, 64, 512)
TAIL_BYTES = 1_024
CATCH_UP_BYTES = 1_024
RESTART_BYTES = 16_384
TIMEOUT_MS = 60_000
IDLE_PAUSE_S = 3.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts: seconds and rounds of each load, sizes of bodies in bytes.

    `read_entries` are there to be read, of each size at most `read_mib`; the leader is lost
    `losses` times in each way; a follower misses `catch_up_mib`; `restart_mib` are appended before
    all nodes restart. The last ones are for how cost grows: with clients, groups and GiB of the
    log, and over `steady_seconds`.
    """

    seconds: float = 3.0
    rounds: int = 3
    sizes: tuple[int, ...] = (256, 1_024, 16_384)
    read_entries: int = 200_000
    read_mib: int = 256
    losses: int = 10
    catch_up_mib: int = 512
    restart_mib: int = 1_024
    idle_seconds: float = 10.0
    client_counts: tuple[int, ...] = (1, 10, 100, 500)
    group_counts: tuple[int, ...] = (1, 10, 100, 1_000)
    lengths_gib: tuple[float, ...] = (1, 5, 10)
    steady_seconds: float = 600.0

    def quick(self) -> "Plan":
        """Return a plan that shows that everything works rather than how fast it is."""
        return msgspec.structs.replace(
            self,
            seconds=0.2,
            rounds=1,
            read_entries=5_000,
            read_mib=4,
            losses=1,
            catch_up_mib=16,
            restart_mib=16,
            idle_seconds=1.0,
            client_counts=(5,),
            group_counts=(5,),
            lengths_gib=(0.015625,),
            steady_seconds=1.0,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """The group that is measured; `cluster` if its nodes run here and may be stopped and killed.

    `pids` by node, of nodes on this machine: their processor time and memory are known. `certify`
    makes the certificates of nodes and of the user admin in a directory: further clusters that are
    made speak TLS, too; None: they do not.
    """

    servers: Servers
    group: str
    pids: Callable[[], dict[str, int]]
    cluster: LocalCluster | None = None
    certify: Callable[[Path, Sequence[str]], None] | None = None


class Bench:
    """One run of the bench."""

    def __init__(self, target: Target, plan: Plan, limits: MachineLimits | None) -> None:
        self.target = target
        self.plan = plan
        self.limits = limits

    def client(self) -> Client:
        """Return a client of the group; the caller closes it."""
        return Client(self.target.servers, self.target.group, timeout_ms=TIMEOUT_MS)

    async def _rounds(
        self, load: Callable[..., Awaitable[Sample]], *arguments: float
    ) -> list[Sample]:
        """Run a load with a client and these arguments, once a round."""
        samples = []
        for _ in range(self.plan.rounds):
            async with self.client() as log:
                await log.bounds()  # connected
                usage = Usage(self.target.pids())
                samples.append(usage.into(await load(log, *arguments)))
        return samples

    def _replicas(self) -> int:
        return max(1, len(self.target.pids()))

    def _of_disk(self, figure: Figure) -> Figure:
        """Compare with the disk: all replicas here write to the same one."""
        if self.limits is None or not figure.megabytes_per_second or not self.target.pids():
            return figure
        share = self.limits.written / self._replicas() / MEGABYTE
        return msgspec.structs.replace(
            figure,
            of_limit=figure.megabytes_per_second / share,
            limit=f"of 1/{self._replicas()} of the disk's sequential rate",
        )

    def _of_memory(self, figure: Figure) -> Figure:
        if self.limits is None or not figure.megabytes_per_second:
            return figure
        return msgspec.structs.replace(
            figure,
            of_limit=figure.megabytes_per_second * MEGABYTE / self.limits.copied,
            limit="of memcpy",
        )

    # -- cases ------------------------------------------------------------------------------

    async def append(self) -> AsyncIterator[Figure]:
        """Single appends: 1, 64 and 512 in flight."""
        for size in self.plan.sizes:
            for in_flight in IN_FLIGHT:
                samples = await self._rounds(
                    loads.single_appends, size, in_flight, self.plan.seconds
                )
                figure = rate_figure(f"append, {in_flight} in flight", samples, size)
                if in_flight == 1 and self.limits is not None and figure.p50_ms:
                    figure = msgspec.structs.replace(
                        figure,
                        of_limit=figure.p50_ms / 1_000 / self.limits.append_s,
                        limit="x two round trips and one fdatasync (p50)",
                    )
                yield figure

    async def batch(self) -> AsyncIterator[Figure]:
        """Atomic batches, four in flight."""
        for size in self.plan.sizes:
            samples = await self._rounds(loads.batches, size, self.plan.seconds)
            yield self._of_disk(rate_figure("append, batches of 128", samples, size))

    async def producer(self) -> AsyncIterator[Figure]:
        """A producer that is given as much as it takes."""
        for size in self.plan.sizes:
            samples = await self._rounds(loads.produced, size, self.plan.seconds)
            yield self._of_disk(rate_figure("producer", samples, size))

    async def read(self) -> AsyncIterator[Figure]:
        """One consumer: in order as blocks and as entries, single entries anywhere, the tail."""
        for size in self.plan.sizes:
            count = max(1, min(self.plan.read_entries, self.plan.read_mib * MIB // size))
            async with self.client() as log:
                _, committed = await log.bounds()
                await loads.fill(log, size, count)
            first, last = committed + 1, committed + count
            for case, load in (
                ("read in order, as blocks", loads.read_blocks),
                ("read in order, as entries", loads.read_entries),
            ):
                yield self._of_memory(
                    rate_figure(case, await self._rounds(load, first, last), size)
                )
            samples = await self._rounds(loads.random_gets, first, last, self.plan.seconds)
            yield rate_figure("get anywhere, 16 in flight", samples, size)
        samples = await self._rounds(loads.tail, TAIL_BYTES, self.plan.seconds)
        yield rate_figure("append to its reader, one at a time", samples, TAIL_BYTES)

    def own_cluster(self) -> LocalCluster:
        """Return the cluster that the bench made. Raises `UnexpectedArgumentError`."""
        if self.target.cluster is None:
            raise UnexpectedArgumentError(
                "this case needs a cluster that the bench starts itself, and may stop and kill: "
                "without --servers and --dir"
            )
        return self.target.cluster

    async def failover(self) -> AsyncIterator[Figure]:
        """The leader is stopped with SIGTERM, as in a rolling restart, and killed with SIGKILL."""
        stops = [
            await events.leader_stopped(self.own_cluster(), self.target.group)
            for _ in range(self.plan.losses)
        ]
        case = "leader stopped cleanly: no append for"
        unknown = f"{counted(sum(stop.unknown for stop in stops), 'append')} of unknown outcome"
        figure = pause_figure(case, [stop.seconds for stop in stops])
        yield msgspec.structs.replace(figure, note=f"{events.STOP_IN_FLIGHT} in flight, {unknown}")
        yield await self._losses("leader killed: no append for", silent=False)

    async def silence(self) -> AsyncIterator[Figure]:
        """The leader is frozen with SIGSTOP."""
        yield await self._losses("leader silent: no append for", silent=True)

    async def _losses(self, case: str, *, silent: bool) -> Figure:
        cluster, group = self.own_cluster(), self.target.group
        taken = [
            await events.leader_lost(cluster, group, silent=silent) for _ in range(self.plan.losses)
        ]
        return pause_figure(case, taken)

    async def catchup(self) -> AsyncIterator[Figure]:
        """A follower was away, without and with a load meanwhile."""
        size, count = CATCH_UP_BYTES, self.plan.catch_up_mib * MIB // CATCH_UP_BYTES
        found = await events.caught_up(
            self.own_cluster(), self.target.group, size, count, live_s=0.0
        )
        rate = found.bytes_per_second / MEGABYTE
        yield value_figure("follower catches up, nothing else", "MB/s", [rate])
        found = await events.caught_up(
            self.own_cluster(), self.target.group, size, count, live_s=self.plan.seconds
        )
        rate = found.bytes_per_second / MEGABYTE
        yield value_figure("follower catches up beside 64 in flight", "MB/s", [rate])
        share = found.rate_meanwhile / max(found.rate_before, 1e-9)
        note = f"{found.rate_meanwhile:,.0f}/s against {found.rate_before:,.0f}/s before"
        yield value_figure("appends meanwhile, of before", "x", [share], note=note)

    async def restart(self) -> AsyncIterator[Figure]:
        """All nodes restart with a long log."""
        async with self.client() as log:
            await loads.fill(log, RESTART_BYTES, self.plan.restart_mib * MIB // RESTART_BYTES)
        taken = [
            await events.restarted(self.own_cluster(), self.target.group)
            for _ in range(self.plan.rounds)
        ]
        case = f"restart with {self.plan.restart_mib:,} MiB, to the first append"
        yield pause_figure(case, taken)

    async def idle(self) -> AsyncIterator[Figure]:
        """Nothing happens."""
        await asyncio.sleep(IDLE_PAUSE_S)  # what came before is written, the group is quiescent
        sample = await events.idle(self.own_cluster(), self.plan.idle_seconds)
        used = sum(sample.node_cpu_seconds.values()) / sample.seconds * 100
        figure = value_figure("idle, all nodes", "% of a core", [used])
        yield msgspec.structs.replace(
            figure, seconds=sample.seconds, node_cpu_seconds=sample.node_cpu_seconds
        )
