"""The process of a Decode rank that is not the leader (`decode_worker` is that one's)."""

from __future__ import annotations

from tidegate.engine.config import RunConfig
from tidegate.engine.decode_hand import DecodeHand
from tidegate.engine.decode_steps import decode_memory, make_forward
from tidegate.engine.faults import Injector
from tidegate.engine.hand_io import Leader, run_hand
from tidegate.engine.model import GlooRanks, Speculating
from tidegate.engine.tracing import recorder_of

__all__ = ["main"]


def serve(leader: Leader) -> None:
    """Make the forwards that the leader makes, until it says stop."""
    told, config = leader.told, leader.config(RunConfig)
    model = config.load_model(GlooRanks(told.meeting, rank=told.rank, size=told.size))
    memory = decode_memory(config, model.config, {name: int(file) for name, file in told.more.items()})
    recorder = recorder_of(config.trace, "decode", told.rank, config.topology, config.trace_life)
    hand = DecodeHand(
        leader, memory, members=config.p_tp, pull_threads=config.pull_threads, recorder=recorder,
        faults=Injector(config.decode_faults).copies(),
    )  # fmt: skip
    hand.open()
    while (word := hand.next_forward()) is not None:
        requests = [Speculating(attempt, token, position, end, [*drafts]) for attempt, token, position, end, drafts in word.requests]
        make_forward(model, hand, requests, drafts=config.drafts)
    hand.close()
    recorder.close()
    model.group.close()
    leader.left()


def main() -> None:
    """Entry of the process: `HandConfig` on standard input."""
    run_hand("decode", serve)


if __name__ == "__main__":
    main()
