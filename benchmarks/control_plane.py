"""Acked layers per second between two processes: claim, write, READY, every check, READ_DONE and COMMITTED, for each layer.

Engines, sessions, owners, sockets, messages and checks of both sides are the product's (prefill_rig.py, sink.py).  `control` moves no byte:
saves end where they would begin, reads where their copy would, each address checked; `all` also saves and pulls rows of 8 bytes, one a
block.  A layer of one request is acked when Prefill has its READ_DONE; at most four (or one) are in flight, for so many slots there are;
the clock runs from the first request's first layer until every layer of all is acked.  Several requests are computed one after the other,
or, as servers do, all in one step: then four layers of each are in flight, and a layer of all is said in one breath.

Beside it, in turn, a bare echo over the same sockets (`echo.py`): messages of the same sizes, as many in flight, and nothing done with
them: READY there, READ_DONE back, COMMITTED there.  The ratio of the two within a round says what the product adds to what pyzmq takes.
CPU is that of both processes together.

Run: `python benchmarks/control_plane.py`; it prints, and judges nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from echo import Echo
from prefill_rig import Rig

LAYERS = 78


def cpu_of(pid: int) -> float:
    """CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def case(requests: int, blocks: int, *, in_flight: int, copies: bool, rounds: int, batched: bool = False) -> None:
    rig = Rig(layers=LAYERS, buffers=in_flight, chunks=1, chunk_tokens=blocks, block_size=1, widths={"main": 8}, dtype="int8",
              requests=requests, copies=copies, batched=batched)  # fmt: skip
    echo, layers, together = Echo(), LAYERS * requests, requests if batched else 1
    rates, ratios, used = [], [], 0.0
    for number in range(rounds + 3):
        cpu = time.process_time() + cpu_of(rig.decode_pid)
        rate = layers / rig.prefill()
        cpu = time.process_time() + cpu_of(rig.decode_pid) - cpu
        bare = layers / echo.layers(layers // together, in_flight=in_flight, together=together)
        if number >= 3:  # the first warm up
            rates.append(rate)
            ratios.append(rate / bare)
            used += cpu
    rig.close()
    echo.close()
    low, middle, high = statistics.quantiles(rates, n=4)
    how = f"{in_flight} in flight{', one step' if batched else ''}"
    print(f"{'all' if copies else 'control':7} {requests:2} x {blocks:3} blocks, {how}: {middle:6,.0f} layers/s "
          f"({low:,.0f} to {high:,.0f}, best {max(rates):,.0f}); {statistics.median(ratios):.2f} of a bare echo; "
          f"{1e6 * used / rounds / layers:.0f} us of CPU a layer", flush=True)  # fmt: skip


def main() -> int:
    for copies in (False, True):
        for requests, blocks, rounds in ((1, 64, 60), (32, 512, 5)):
            for in_flight in (1, 4):
                for batched in (False, True)[:requests]:
                    case(requests, blocks, in_flight=in_flight, copies=copies, rounds=rounds, batched=batched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
