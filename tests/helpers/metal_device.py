"""The device of the Metal backend that this build has, and how a test steers a software one."""

import ctypes
from pathlib import Path

from toynn.backends import metal

__all__ = ["SKIP", "software"]

#: Why the tests of the backend cannot run here, or None.
SKIP = None
if metal.missing() is not None:
    SKIP = f"{metal.missing()} (on Linux: TOYNN_METAL=standin python setup.py build_ext --inplace)"


def software():
    """Return the controls of standin.h, set as at the start; None: the device is a real one."""
    for line in Path("/proc/self/maps").read_text().splitlines() if SKIP is None else ():
        if line.endswith("/libstandin.so"):
            controls = ctypes.CDLL(line.split()[-1])
            controls.standin_reset()
            for name in ("live", "commits", "dispatches"):
                getattr(controls, f"standin_{name}").restype = ctypes.c_long
            for name in ("fail_after", "fail_inside"):
                getattr(controls, f"standin_{name}").argtypes = [ctypes.c_long]
            for name in ("seed", "limit"):
                getattr(controls, f"standin_{name}").argtypes = [ctypes.c_ulong]
            return controls
    return None
