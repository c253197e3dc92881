"""tinygrad's own test of operations (test/backend/test_ops.py, PyTorch's results) on a modelled card: a judge of what
the model's interpreter makes of code that another compiler wrote. Called by tinygrad_boot.py and tinygrad_boot_nv.py."""
import os
import sys
import unittest


def judge_operations():
    """JUDGE_OPS: "all", or parts of the names of tests, with blanks between them. Forward passes alone. Exit code: 1 if a
    test fails; what PyTorch 1.13 of Debian 12 lacks (scaled_dot_product_attention, any() over several axes, max_pool2d of
    integers) is an error there, on every device of tinygrad alike."""
    names = os.environ.get("JUDGE_OPS", "").split()
    if not names:
        return 0
    sys.path.insert(0, os.environ["PYTHONPATH"])
    os.environ["FORWARD_ONLY"] = "1"
    import test.backend.test_ops as suite
    arguments = [] if names == ["all"] else [word for name in names for word in ("-k", name)]
    program = unittest.main(module=suite, argv=["test_ops", *arguments], verbosity=2, exit=False)
    return 0 if program.result.wasSuccessful() else 1
