"""Acked layers per second of one request of 64 blocks: claim, write, READY, READ_DONE and COMMITTED between two processes.

Sessions, owners, sockets and messages are the product's.  `control` moves no byte: reads and saves end where they would begin; `all`
also saves and pulls 64 blocks of one row of 8 bytes for each layer.  A layer is acked when Prefill has its READ_DONE; at most four (or
one) are in flight, for so many slots there are.  CPU time is that of both processes together, so it says what a layer costs where
others use the machine too.

Run: `python benchmarks/control_plane.py`; it prints, and judges nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from prefill_rig import Rig

LAYERS, BLOCKS, ROUNDS = 64, 64, 30


def cpu_of(pid: int) -> float:
    """CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def case(name: str, *, in_flight: int, copies: bool) -> None:
    rig = Rig(layers=LAYERS, buffers=in_flight, chunks=1, chunk_tokens=BLOCKS, block_size=1, widths={"main": 8}, dtype="int8",
              copies=copies)  # fmt: skip
    for _ in range(3):
        rig.prefill()
    began = time.process_time() + cpu_of(rig.decode_pid)
    rates = sorted(LAYERS / rig.prefill() for _ in range(ROUNDS))
    cpu = (time.process_time() + cpu_of(rig.decode_pid) - began) / ROUNDS / LAYERS
    rig.close()
    low, middle, high = statistics.quantiles(rates, n=4)
    print(f"{name:8} {in_flight} in flight: {middle:6,.0f} layers/s ({low:,.0f} to {high:,.0f}, best {rates[-1]:,.0f}); "
          f"{1e6 * cpu:.0f} us of CPU a layer", flush=True)  # fmt: skip


def main() -> int:
    for copies in (False, True):
        for in_flight in (1, 4):
            case("all" if copies else "control", in_flight=in_flight, copies=copies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
