"""Plain oracles of the kernels, and memory in which a wrong row number shows."""

import random

import pytest
import torch

from tidegate.kernels.residency import Residency

PRODUCT = ((torch.bfloat16, 512), (torch.bfloat16, 64))  # K and V parts of a main row


def parts(kinds, *shape, seed=0):
    """Parts of random bytes, each in the middle of guard rows, in which a row number a little outside would be seen."""
    g, made = torch.Generator().manual_seed(seed), []
    for dtype, width in kinds:
        size = torch.Size(shape).numel()
        whole = torch.randint(0, 256, ((size + 8) * width * dtype.itemsize,), dtype=torch.uint8, generator=g)
        made.append((whole, whole.view(dtype).view(-1, width)[4:-4].view(*shape, width)))
    return [whole for whole, _ in made], [part for _, part in made]


class Oracle:
    """One row, said plainly: a list of (position, slot), next victim first."""

    def __init__(self, hot):
        self.hot, self.attempt, self.entries = hot, 0, [(-1, slot) for slot in range(hot)]

    def drop(self, keep):
        empty = [(-1, slot) for position, slot in self.entries if not 0 <= position < keep]
        self.entries = empty + [(p, slot) for p, slot in self.entries if 0 <= p < keep]

    def asked_once(self, asked, length):
        return list(dict.fromkeys(p for p in asked if 0 <= p < length))

    def step(self, asked, length, attempt, keep):
        """(slots, missed positions, their slots, hits, evictions)"""
        if attempt != self.attempt:
            self.__init__(self.hot)
            self.attempt = attempt
        self.drop(min(keep, length))
        once = set(wanted := self.asked_once(asked, length))
        hits = [entry for entry in self.entries if entry[0] in once]
        rest = [entry for entry in self.entries if entry[0] not in once]
        resident = {position for position, _ in hits}
        missed = [p for p in wanted if p not in resident]
        victims, rest = rest[: len(missed)], rest[len(missed) :]
        given_to = [(p, slot) for p, (_, slot) in zip(missed, victims, strict=True)]
        self.entries = rest + given_to + hits
        slot_of = {p: slot for p, slot in self.entries if p >= 0}
        slots = [slot_of[p] if 0 <= p < length else -1 for p in asked]
        return slots, missed, [slot for _, slot in given_to], len(hits), sum(p >= 0 for p, _ in victims)


class Pair:
    """A table and its oracles, stepped together and compared in everything that they hold and say."""

    def __init__(self, rows, hot):
        self.table, self.oracles, self.hot = Residency(rows, hot), [Oracle(hot) for _ in range(rows)], hot

    def state(self):
        t = self.table
        return [t.positions.tolist(), t.slots.tolist(), t.attempts.tolist()]

    def check_state(self):
        assert self.state() == [
            [[p for p, _ in o.entries] for o in self.oracles],
            [[slot for _, slot in o.entries] for o in self.oracles],
            [o.attempt for o in self.oracles],
        ]

    def step(self, entries, dtype=torch.int64, threads=1):
        """entries: (row, asked, length, attempt, keep) each; a step that asks for too much must change nothing."""
        rows, asked, lengths, attempts, keep = (list(column) for column in zip(*entries, strict=True))
        k = len(asked[0])
        arguments = (torch.tensor(asked, dtype=dtype).reshape(len(rows), k), lengths, attempts)
        known = {"keep": keep, "rows": rows, "threads": threads}
        most = [len(self.oracles[0].asked_once(a, length)) for a, length in zip(asked, lengths, strict=True)]
        if too_much := [i for i, n in enumerate(most) if n > self.hot]:
            before = self.state()
            with pytest.raises(ValueError, match=rf"entry {too_much[0]} asks for {most[too_much[0]]} distinct .* of {self.hot}:"):
                self.table.step(*arguments, **known)
            assert self.state() == before
            return
        said = self.table.step(*arguments, **known)
        for i, (row, *rest) in enumerate(entries):
            slots, missed, given_to, hits, evictions = self.oracles[row].step(*rest)
            assert said.slots[i].tolist() == slots
            padding = [-1] * (k - len(missed))
            assert said.miss_positions[i].tolist() == missed + padding
            assert said.miss_slots[i].tolist() == given_to + padding
            assert said.counts[:, i].tolist() == [hits, len(missed), evictions]
        self.check_state()

    def truncate(self, keep, attempts, rows):
        self.table.truncate(keep, attempts, rows=rows)
        for row, attempt, limit in zip(rows, attempts, keep, strict=True):
            if self.oracles[row].attempt == attempt:
                self.oracles[row].drop(limit)
        self.check_state()


def drifting(seed, hot, k, steps, *, rows=3, context=700, overlap=0.85):
    """Top-k rows as decoding makes them: most positions stay from step to step, the context grows, a few are padding."""
    g = random.Random(seed)
    asked = [[g.randrange(context // 2) for _ in range(k)] for _ in range(rows)]
    for t in range(steps):
        yield [[p if g.random() > 0.02 else g.choice((-1, 2**31 - 1)) for p in row] for row in asked], context // 2 + t
        asked = [[p if g.random() < overlap else g.randrange(context // 2 + t) for p in row] for row in asked]
