"""Processes that are started as by a shell, also when the tests run beside a script or by `nohup`.

A process inherits which signals are ignored: one that is to end by a signal would not.
"""

import signal
from contextlib import contextmanager


@contextmanager
def default_signals():
    """Within this block, the signals that end a program have their default effect in new ones."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
