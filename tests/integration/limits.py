"""What every script of tests needs of its surroundings.

Time-outs grow with the load of the machine: ctest hands the factor down (cmake/TestLimits.cmake).

A shell without job control ignores SIGINT and SIGQUIT for what it runs in the background, and all below inherits
that: a signal that comes before a program has a handler of its own would be lost. Importing this undoes it.
"""

import os
import signal

for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, action)


def seconds(idle):
    """How long to wait for what takes at most `idle` seconds on an idle machine."""
    factor = os.environ.get("BM_TEST_TIME_FACTOR", "1")
    return idle * max(1, int(factor)) if factor.isdigit() else idle
