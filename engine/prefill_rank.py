"""The process of a Prefill rank that is not the leader (`prefill_worker` is that one's)."""

from __future__ import annotations

from tidegate.engine.config import RunConfig
from tidegate.engine.faults import Injector
from tidegate.engine.hand_io import Leader, run_hand
from tidegate.engine.model import GlooRanks
from tidegate.engine.prefill_engine import layer_memory
from tidegate.engine.prefill_hand import PrefillHand
from tidegate.engine.prefill_steps import compute_step
from tidegate.engine.tracing import recorder_of

__all__ = ["main"]


def serve(leader: Leader) -> None:
    """Compute what the leader begins, until it says stop."""
    told, config = leader.told, leader.config(RunConfig)
    model = config.load_model(GlooRanks(told.meeting, rank=told.rank, size=told.size))
    faults = Injector(config.prefill_faults)
    hand = PrefillHand(
        leader, layer_memory(config.slot_layout()), plan=config.plan(), chunk_tokens=config.chunk,
        folder=told.more["pool"], extents=config.pool_objects, pin_seconds=config.pin_seconds, model=told.more["model"],
        lookahead=model.config.lookahead, read_lease=config.read_lease > 0,
        recorder=(recorder := recorder_of(config.trace, "prefill", told.rank, config.topology, config.trace_life)), faults=faults.copies(),
    )  # fmt: skip
    hand.open()
    while (parts := hand.next_step()) is not None:
        compute_step(hand, model, parts, faults)  # of what has failed the leader tells whoever waits
    hand.close()
    recorder.close()
    model.group.close()
    leader.left()


def main() -> None:
    """Entry of the process: `HandConfig` on standard input."""
    run_hand("prefill", serve)


if __name__ == "__main__":
    main()
