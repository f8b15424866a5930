"""What kafka-python is told by coordinators, though another node has just become one."""

import time

from kafka.errors import CoordinatorLoadInProgressError, NotCoordinatorError

SECONDS = 60.0
PAUSE_S = 0.05


def told(ask, *arguments):
    """Return what `ask` returns; kafka-python does not ask again by itself."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return ask(*arguments)
        except (NotCoordinatorError, CoordinatorLoadInProgressError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
