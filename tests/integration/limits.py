"""Time-outs that grow with the load of the machine: ctest hands the factor down (cmake/TestLimits.cmake)."""

import os


def seconds(idle):
    """How long to wait for what takes at most `idle` seconds on an idle machine."""
    factor = os.environ.get("BM_TEST_TIME_FACTOR", "1")
    return idle * max(1, int(factor)) if factor.isdigit() else idle
