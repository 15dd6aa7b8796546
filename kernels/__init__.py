"""Data-path operations: native where a compiler was there at install time, torch elsewhere and on other devices, with the same
results.

`append_rows` writes new tokens into a paged host pool; `Residency` says which of the positions that a step reads are in a hot
buffer, and which take whose slot; `fetch_misses` and `fetch_rows` bring the missing rows (over a `RowPath`, if many times); `copy_ranges`
moves blocks of layers; `quantize_rows` and `dequantize_rows` keep the indexer's rows in 8 bits.
Nothing here knows requests, peers or the protocol.
"""

from tidegate.kernels.copy import copy_ranges
from tidegate.kernels.dispatch import available, chosen, forced
from tidegate.kernels.lic8 import dequantize_rows, quantize_rows
from tidegate.kernels.residency import Residency, Step
from tidegate.kernels.rows import RowPath, append_rows, fetch_misses, fetch_rows

__all__ = [
    "Residency", "RowPath", "Step", "append_rows", "available", "chosen", "copy_ranges", "dequantize_rows", "fetch_misses", "fetch_rows",
    "forced", "quantize_rows",
]  # fmt: skip
