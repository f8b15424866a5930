"""Standard streams that this process was started without (`<&-`, `>&-`, a bare daemon).

Their numbers would go to the next sockets, and the event loop ends a process that closes one of
those.
"""

import os

_STANDARD = (0, 1, 2)


def fill_standard_streams() -> None:
    """Open the null device in place of every standard stream that is closed.

    Raises `OSError` if no descriptor is left.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
