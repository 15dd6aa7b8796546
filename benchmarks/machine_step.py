"""Events per second of a generated machine, beside the same life driven through `transitions`.

One event is a guard and its result, called as the engine calls them: `if CanX(s): s = X(s)`.  The life of a slot is claimed,
written, attended, saved, transferred and released.  Run: `python benchmarks/machine_step.py`; exit code 1 below the target.
"""

from __future__ import annotations

import sys
import timeit

from transitions import Machine

from tidegate.protocol.machines import physical_buffer as pb

TARGET = 700_000  # events per second of the generated module
LIVES = 20_000
TRANSFERS = frozenset((1, 2))
LIFE = (
    (pb.CanClaim, (), pb.Claim, (7, False)),
    (pb.CanWrite, (7,), pb.Write, (1, TRANSFERS, False)),
    (pb.CanAttended, (1,), pb.Attended, (1,)),
    (pb.CanSaveEnded, (1,), pb.SaveEnded, (1,)),
    (pb.CanTransferEnded, (1,), pb.TransferEnded, (1,)),
    (pb.CanTransferEnded, (2,), pb.TransferEnded, (2,)),
    (pb.CanRelease, (), pb.Release, ()),
)


class Refused(Exception):
    """A guard said no."""


def generated(lives: int) -> None:
    s = pb.Initial()
    for _ in range(lives):
        for can, guard_args, do, args in LIFE:
            if not can(s, *guard_args):
                raise Refused(can.__name__)
            s = do(s, *args)


class Slot:
    """The same slot as data behind conditions, as `transitions` wants it."""

    def __init__(self) -> None:
        self.epoch, self.owner = 0, 0
        self.attending: frozenset[int] = frozenset()
        self.saves: frozenset[int] = frozenset()
        self.transfers: frozenset[int] = frozenset()

    def owns(self, r, *_):
        return self.owner == r

    def attends(self, w):
        return w in self.attending

    def saving(self, w):
        return w in self.saves

    def transferring(self, t):
        return t in self.transfers

    def unused(self):
        return self.owner == 0 and not self.attending and not self.saves and not self.transfers

    def on_claim(self, r):
        self.epoch, self.owner = self.epoch + 1, r

    def on_write(self, r, w, ts):
        self.attending, self.saves, self.transfers, self.owner = self.attending | {w}, self.saves | {w}, self.transfers | ts, 0

    def on_attended(self, w):
        self.attending -= {w}

    def on_saved(self, w):
        self.saves -= {w}

    def on_transferred(self, t):
        self.transfers -= {t}


def with_transitions(lives: int) -> None:
    slot = Slot()
    table = [
        {"trigger": "claim", "source": "free", "dest": "computing", "after": "on_claim"},
        {"trigger": "write", "source": "computing", "dest": "draining", "conditions": "owns", "after": "on_write"},
        {"trigger": "attended", "source": "draining", "dest": None, "conditions": "attends", "after": "on_attended"},
        {"trigger": "saved", "source": "draining", "dest": None, "conditions": "saving", "after": "on_saved"},
        {"trigger": "transferred", "source": "draining", "dest": None, "conditions": "transferring", "after": "on_transferred"},
        {"trigger": "release", "source": "draining", "dest": "free", "conditions": "unused"},
    ]
    Machine(slot, states=["free", "computing", "draining"], initial="free", auto_transitions=False, transitions=table)
    for _ in range(lives):
        slot.claim(7)
        slot.write(7, 1, TRANSFERS)
        slot.attended(1)
        slot.saved(1)
        slot.transferred(1)
        slot.transferred(2)
        slot.release()


def rate(run, lives: int) -> float:
    """Events per second, the best of five."""
    return len(LIFE) * lives / min(timeit.repeat(lambda: run(lives), number=1, repeat=5))


def main() -> int:
    ours, theirs = rate(generated, LIVES), rate(with_transitions, LIVES // 10)
    print(f"generated   {ours:12,.0f} events/s  {1e6 / ours:6.2f} us each (target {TARGET:,})")
    print(f"transitions {theirs:12,.0f} events/s  {1e6 / theirs:6.2f} us each")
    print(f"ratio       {ours / theirs:12.1f}")
    return 0 if ours >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
