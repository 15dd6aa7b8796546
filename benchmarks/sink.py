"""The Decode side of the benchmarks of Prefill: takes rows as fast as it can and computes nothing.

A process of its own: `python sink.py '{"layers": 8, ...}'` (Sizes, as JSON).  It prints its port; each line of standard input asks for
`requests` prompts of `tokens` tokens, and is answered by a line once all of them are here: "ok", or what went wrong.  Engine, session,
sockets, checks and pulls are the product's; without `pull` a read ends where its copy would begin, after every check, and what is left is
the control plane.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from tidegate.engine.copying import OnOutcome, Outcome, Work
from tidegate.engine.decode_engine import DecodeEngine, RowKind
from tidegate.engine.pull_shm import Part, ShmPull


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """blocks: for all requests together."""

    layers: int
    block_size: int
    blocks: int
    tokens: int
    requests: int
    kinds: tuple[RowKind, ...]
    pull: bool


class CheckedOnly(ShmPull):
    """Refuses what ShmPull refuses, and copies nothing."""

    def submit(self, peer: str, parts: Sequence[Part], work: Work, on_outcome: OnOutcome) -> None:
        try:
            self._checked(peer, parts)
        except ValueError as error:
            on_outcome(Outcome(False, True, str(error)))
        else:
            on_outcome(Outcome(True, True))


def main(text: str) -> None:
    sizes = msgspec.json.decode(text, type=Sizes)
    engine = DecodeEngine(
        sizes.kinds, layers=sizes.layers, blocks=sizes.blocks, block_size=sizes.block_size, rows=sizes.requests, hot=1,
        backend=ShmPull() if sizes.pull else CheckedOnly(), on_crash=lambda error: print(repr(error), flush=True),
    )  # fmt: skip
    engine.open()
    print(engine.port, flush=True)
    first = 0  # token of the next prompt: none begins as another does, or Prefill's pool would have its rows, and nothing be saved
    for _ in sys.stdin:
        for number in range(sizes.requests):
            engine.admit(f"cmpl-{number:032x}-0", range(first, first + sizes.tokens), new_tokens=0)
            first += 1
        here = 0
        while here < sizes.requests and not (wrong := engine.failed()):
            done = engine.completed(wait=True) or []
            here += len(done)
            for attempt in done:
                engine.finish(attempt)
        print(wrong[0].reason if wrong else "ok", flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
