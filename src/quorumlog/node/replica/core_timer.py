"""When a replica's core is ticked, and whether its node lets it campaign then."""

from collections.abc import Callable

from quorumlog.model.codes import Role
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.raft.events import Ticked


class CoreTimer:
    """The timer of one replica's core. `tick_leader` is called after each tick of a leader."""

    def __init__(self, context: ReplicaContext, tick_leader: Callable[[], object]) -> None:
        self._context = context
        self._tick_leader = tick_leader
        self.timer = context.timers.new(self._tick)
        """The replica itself sets it to an earlier time, after every step."""

    def _tick(self, now_ms: int) -> None:
        core = self._context.core
        due_ms = core.next_deadline_ms()
        if now_ms < due_ms:  # it has moved, as when a leader was heard from
            self.timer.set(due_ms)
            return
        if core.is_due_to_campaign(now_ms) and not self._may_campaign(now_ms):
            throttle = self._context.environment.election_throttle
            pause_ms = throttle.pause_ms(self._context.config.election_timeout_min_ms)
            self.timer.set(now_ms + pause_ms)
            return
        self._context.step(Ticked())
        if core.role is Role.LEADER:
            self._tick_leader()

    def _may_campaign(self, now_ms: int) -> bool:
        """Whether the node lets this group campaign now; else it is woken up after others."""
        config, throttle = self._context.config, self._context.environment.election_throttle
        if throttle.admits(config.group, now_ms, config.election_timeout_max_ms):
            return True
        is_first = not self._context.core.voted_for_another
        throttle.wait(config.group, self._campaign_now, is_first=is_first)
        return False

    def _campaign_now(self) -> bool:
        """Campaign at once, if that is due; return whether it is."""
        now_ms = self._context.environment.now_ms()
        is_due = self._context.core.is_due_to_campaign(now_ms)
        if is_due:
            self.timer.set(now_ms)
        return is_due
