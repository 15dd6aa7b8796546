"""Compiles bare.cpp for this machine, as a user would who needs nothing but speed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["bare_library"]


def bare_library() -> ctypes.CDLL:
    """The loops; the process ends with a message where no C++ compiler is found."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        sys.exit("no C++ compiler on this machine: there is nothing to compare with; install one")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "bare.so"
        source = Path(__file__).with_name("bare.cpp")
        subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", source, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.bare_rows.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 3
    loaded.bare_ranges.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64]
    loaded.bare_rows.restype = loaded.bare_ranges.restype = None
    return loaded
