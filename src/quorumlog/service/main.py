"""A node process from start to exit."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading

import uvloop

from quorumlog.log_events import log_event, reason_of
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import QuorumlogError
from quorumlog.node.descriptors import SPARE, raise_limit
from quorumlog.node.node import Node
from quorumlog.service.garbage import GarbageCollection
from quorumlog.service.kafka_clients import load_kafka
from quorumlog.service.logins import load_logins
from quorumlog.service.logs import last_words, set_group_levels, set_up_logs
from quorumlog.service.served_node import ServedNode
from quorumlog.service.watchdog import watchdog_if_wanted
from quorumlog.storage.files.os_files import SPARES
from quorumlog.transport.standard_streams import fill_standard_streams

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
SWITCH_S = 0.000_5
"""How long a thread that is ready waits for the interpreter (CPython: 5 ms). The disk thread needs
it several times for each group commit; a loop that is never idle gives it up only when asked to."""
UMASK = 0o077
"""What a state machine or a library writes is for this user alone, as the node's files are."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLEAN_STOP_S = 60.0
FAILED_STOP_S = 10.0
"""A node that has to stop, or has not started yet, is ended after this time, even if its disk or
its state machine never returns: only a process that has ended is started again."""


def serve(config: NodeConfig) -> int:
    """Run a node until SIGTERM or SIGINT; return its exit status.

    0 after a clean stop, also during the start; 1 when it could not start, or when it had to stop
    because its disk failed or a check found a bug. The reason goes to standard error as one line.
    """
    try:
        fill_standard_streams()
        os.umask(UMASK)
        sys.setswitchinterval(SWITCH_S)
        set_up_logs(config.log_level)
        before, after = raise_limit(config)
        SPARES.hold(SPARE)
        log_event(
            logger,
            logging.INFO,
            "file descriptors",
            node=config.self_id,
            before=before,
            limit=after,
            spare=SPARE,
        )
        load_kafka(config)
        load_logins(config)
        gc.freeze()  # of what was imported nothing is garbage; a look at all of it takes 0.1 s
        return uvloop.run(_serve(config))
    except (QuorumlogError, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        log_event(logger, logging.ERROR, "node failed", node=config.self_id, reason=reason)
        last_words(f"quorumlog: {config.self_id}: {reason}")
        return EXIT_FAILED


def exit_within(seconds: float, self_id: str) -> None:
    """End this process after a number of seconds, if it has not ended by itself."""

    def exit_now() -> None:
        last_words(
            f"quorumlog: {self_id}: could not stop within {seconds:g} s (a disk or a state machine "
            "does not answer, or much has to be read at the start); exits anyway"
        )
        os._exit(EXIT_FAILED)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()


async def _serve(config: NodeConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    garbage = GarbageCollection(loop)
    garbage.start()
    watchdog = watchdog_if_wanted()
    served = ServedNode(config, {})
    node = served.node
    if node.tls is not None:
        loop.add_signal_handler(signal.SIGHUP, node.check_tls)
    node.hosting.configured = lambda configs: set_group_levels(
        {config.group: config.log_level for config in configs}
    )
    node.failure.add_done_callback(lambda _: stop.set())
    try:
        if is_running := await _started(served, stop):
            garbage.started()
            _log_started(node)
            await stop.wait()
    finally:
        garbage.stop()
        if watchdog is not None:
            watchdog.stop()
    is_short = node.failure.done() or not is_running
    exit_within(FAILED_STOP_S if is_short else CLEAN_STOP_S, config.self_id)
    await served.stop()
    for number in STOP_SIGNALS:  # another one changes nothing, nor the exit status
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    if node.failure.done():
        last_words(f"quorumlog: {config.self_id}: {node.failure.result()}")
        return EXIT_FAILED
    log_event(logger, logging.INFO, "node stopped", node=config.self_id)
    return EXIT_OK


async def _started(served: ServedNode, stop: asyncio.Event) -> bool:
    """Start a node; False: it was asked to stop before it had started. Raises what `start` does."""
    starting = asyncio.ensure_future(served.start())
    asked = asyncio.ensure_future(stop.wait())
    await asyncio.wait([starting, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    return False


def _log_started(node: Node) -> None:
    log_event(
        logger,
        logging.INFO,
        "node started",
        node=node.config.self_id,
        listen=node.config.listen_address,
        admin=node.config.admin_listen,
        connections_max=node.descriptors.connections,
        groups=sorted(node.replicas),
    )
