"""Tidegate: layerwise and sparse KV cache offloading whose every safety decision is made by a model-checked state machine.

Four layers, imports going one way: `protocol` <- `engine` -> `kernels`; `spec` (the toolchain around TLA+) imports `protocol`.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tidegate")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
