"""Which implementation runs: the one place where kernels look at devices and instruction sets.

Rules: tensors that all lie in host memory go to the native library, all others to the torch versions (kernels/reference.py);
so does everything where the install found no compiler; the best instruction set that the CPU has is taken, unless
TIDEGATE_KERNELS or `forced` names one; a name that cannot be had is an error, never a silent fallback.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

import tidegate.kernels
from tidegate.kernels.abi import STRUCTURES

__all__ = ["Native", "available", "bind", "chosen", "forced", "native_for"]

LIBRARY = "libtg_kernels.so"
VARIABLE = "TIDEGATE_KERNELS"
TORCH = "torch"
SETS = {"portable": 0, "avx2": 1, "avx512": 2}  # as in native/tidegate.h, best last
_forced: ContextVar[str | None] = ContextVar("forced", default=None)


class Native(NamedTuple):
    """The native library and the number of the instruction set to use."""

    library: ctypes.CDLL
    isa: int


@cache
def native_library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where the install found no C++ compiler."""
    for folder in tidegate.kernels.__path__:  # an editable install has two: the sources, and where CMake installed
        path = Path(folder) / LIBRARY
        if path.exists():
            return bind(path)
    return None


def bind(path: Path | str) -> ctypes.CDLL:
    """The library at `path`, its functions typed; OSError where it cannot be loaded, or was built from other sources."""
    library = ctypes.CDLL(str(path))  # CDLL, not PyDLL: the GIL is released during every call
    try:
        library.tg_sizes.restype = library.tg_isas.restype = ctypes.c_int64
        library.tg_sizes.argtypes = [ctypes.c_int64]
        for name in ("tg_residency_step", "tg_truncate", "tg_copy_rows", "tg_fetch_misses"):
            getattr(library, name).restype = ctypes.c_int32
            getattr(library, name).argtypes = [ctypes.c_void_p]
        for name in ("tg_quantize", "tg_dequantize"):
            getattr(library, name).restype = None
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.tg_copy_ranges.restype = ctypes.c_int64
        library.tg_copy_ranges.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3
        library.tg_first_outside.restype = library.tg_first_astray.restype = ctypes.c_int64
        library.tg_first_outside.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
        library.tg_first_astray.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        fits = [library.tg_sizes(i) for i in range(len(STRUCTURES))] == [ctypes.sizeof(s) for s in STRUCTURES]
    except AttributeError:
        fits = False
    if not fits:
        raise OSError(f"{path} was built from other sources than this package: install it again (make install)")
    return library


@cache
def available() -> tuple[str, ...]:
    """The names that can be forced here, best first; "torch" is always the last."""
    library = native_library()
    found = [name for name, bit in SETS.items() if library is not None and library.tg_isas() >> bit & 1]
    return (*reversed(found), TORCH)


@cache
def _default() -> str:
    return _checked(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else available()[0]


def _checked(name: str) -> str:
    if name not in available():
        raise ValueError(f"{VARIABLE} is {name!r}: this machine and install have {', '.join(available())}; name one, or unset it")
    return name


def chosen() -> str:
    """What host memory is handled by now: the name forced, or else the best there is.

    The environment is read once.  ValueError where TIDEGATE_KERNELS names what this machine, or this install, does not have.
    """
    return _forced.get() or _default()


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Use `name` (one of `available()`) in this thread until the end of the block, whatever the environment says."""
    token = _forced.set(_checked(name))
    try:
        yield
    finally:
        _forced.reset(token)


def native_for(*tensors: Tensor) -> Native | None:
    """The native library if it is to handle `tensors`, or None: then the torch version is."""
    if not all(tensor.is_cpu for tensor in tensors):
        return None
    return _native(chosen())


@cache
def _native(name: str) -> Native | None:
    library = native_library()
    return Native(library, SETS[name]) if name != TORCH and library is not None else None
