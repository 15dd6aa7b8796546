"""What the tests of kernels share: every implementation this machine has, and its compiler."""

import mmap
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

from tidegate.kernels import dispatch

NATIVE = Path(__file__).parents[1] / "kernels" / "native"
FLAGS = {
    "portable": [],
    "avx2": ["-fno-tree-vectorize", "-mavx2", "-mbmi", "-mpopcnt"],
    "avx512": ["-fno-tree-vectorize", "-mavx2", "-mbmi", "-mpopcnt", "-mavx512f", "-mavx512bw"],
}
SOURCES = ("dispatch", "quantize", "ranges", "residency", "rows")


def implementations():
    return dispatch.available()


def sparse(size: int) -> torch.Tensor:
    """`size` bytes of memory of which only pages that are touched exist."""
    fd = os.memfd_create("sparse")
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    os.close(fd)
    return torch.from_numpy(np.frombuffer(mapping, np.uint8))


def compiler():
    """A C++ compiler of this machine, or None."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def compile_object(source: Path, target: Path, *flags: str) -> Path:
    command = [compiler(), "-std=c++17", "-fPIC", f"-I{NATIVE}", *flags, "-c", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def native_sets():
    """Instruction sets that can be compiled and run here."""
    return [name for name in FLAGS if name in dispatch.available()]


def compile_native(folder: Path, *flags: str, only: tuple[str, ...] | None = None) -> dict[str, Path]:
    """Objects of the library by name, for the instruction sets of this machine (or `only`)."""
    sets = only or tuple(native_sets())
    define = ["-DTG_X86"] if "avx512" in sets and "avx2" in sets else []
    objects = {name: compile_object(NATIVE / f"{name}.cpp", folder / f"{name}.o", *define, *flags) for name in SOURCES}
    for name in sets:
        objects[name] = compile_object(
            NATIVE / "variant.cpp", folder / f"{name}.o", f"-DTG_VARIANT={name}_variant", *FLAGS[name], *flags
        )
    return objects


def link(objects: dict[str, Path], target: Path, *flags: str, shared: bool = True) -> Path:
    """A library, or a program, of `objects`."""
    command = [compiler(), *flags, *(["-shared"] if shared else []), "-pthread", *map(str, objects.values()), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target
