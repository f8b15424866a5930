"""Programs that use Spark in a process of their own."""

import signal
import subprocess
import sys

END_SECONDS = 60.0


def output_of(*command, seconds, **options):
    """Run Python as such a program; return what it prints.

    It must succeed within some seconds; otherwise the failure has what it said, and where each of
    its threads is: Spark's own waits have no bounds.
    """
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as program:
        try:
            try:
                printed, said = program.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGABRT)
                printed, said = program.communicate(timeout=END_SECONDS)
        except BaseException:
            program.kill()
            raise
    assert program.returncode == 0, said
    return printed
