"""A Prefill engine whose pool has the beginning of a prompt already: that is copied, and not computed."""


import pytest
from embed_decode import CHUNK, LAYERS, WIDTHS, pattern
from prefill_tools import LONG, opened

from tidegate.engine.copying import Outcome
from tidegate.engine.prefill_copies import PoolCopies
from tidegate.engine.prefill_engine import RunOver
from tidegate.engine.streams import CpuStream
from tidegate.protocol.messages import Abort


class Backed(PoolCopies):
    """Has the first `tokens` tokens of every prompt; a fill of `bad` (chunk, layer) fails."""

    def __init__(self, *arguments, tokens, blocks, bad=None, **options):
        super().__init__(*arguments, **options)
        self.blocks = blocks
        self.tokens, self.bad, self.ended, self.stream = tokens, bad, [], CpuStream("fills")

    def begin(self, run, start, blocks):
        super().begin(run, start, blocks)
        return min(self.tokens, start.tokens - 1)

    def fill(self, step, work, first, end, on_end):
        views = self.memory.token_views(work.slot, self.blocks.holding(step.run, first, end), first, end)
        counts = [len(view) for view in views[: len(views) // 2]]
        rows = [piece for width in WIDTHS.values() for piece in pattern(step.layer - 1, first, end, width).split(counts)]
        ok = (step.chunk, step.layer) != self.bad

        def copy():
            for view, piece in zip(views, rows, strict=True):
                view.copy_(piece)
            self._post(lambda: on_end(step, Outcome(ok, True, "" if ok else "no such object", seconds=0.01)))

        self.stream.run(copy)

    def end(self, run):
        self.ended.append(run)
        super().end(run)

    def drain(self):
        self.stream.close()
        super().drain()


def backed(rig, **options):
    core, owner = rig.engine.core, rig.engine.owner
    copies = Backed(rig.pool, rig.memory, blocks=rig.engine.blocks, span=core.span, post=owner.post, **options)
    rig.engine.attach(copies=copies, links=rig.engine.core.links)
    return copies


@pytest.mark.parametrize("tokens", [16, 48, 64, 96, 200])
def test_what_the_pool_has_is_copied_and_not_computed(tmp_path, tokens):
    with opened(tmp_path / "pool") as rig:
        copies = backed(rig, tokens=tokens)
        rig.inbox.ask("a", LONG)
        run = rig.engine.next_run()
        rig.prefill(run)
        assert rig.outcome() == ("a", "")
        assert rig.computed == (LONG - min(tokens, LONG - 1)) * LAYERS
    assert copies.ended == [run.nonce]
    assert rig.stats["slots_free"] == 3


def test_a_run_whose_backing_fails_is_given_up_and_the_next_one_goes_on(tmp_path):
    with opened(tmp_path / "pool") as rig:
        backed(rig, tokens=64, bad=(2, 3))
        rig.inbox.ask("a", LONG)
        run = rig.engine.next_run()
        with pytest.raises(RunOver, match=f"run {run.nonce} chunk 2 layer 2: no such object"):
            rig.prefill(run)
        rig.hears("waits for Decode to give it up")
        assert rig.inbox.engine.abort(next(iter(rig.inbox.asked)), "too slow")
        assert rig.outcome() == ("a", "too slow")
        rig.engine.core.copies.bad = None
        rig.inbox.ask("b", LONG)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("b", "")
    assert rig.stats["slots_free"] == 3


def test_a_run_that_fails_between_claim_and_fill_is_over(tmp_path):
    """What it had pinned has been given up, so nothing may be copied for it any more."""
    with opened(tmp_path / "pool") as rig:
        copies, core = backed(rig, tokens=64), rig.engine.core
        fill, asked = core.fill, []

        def late(step, at, first, end):
            if step.layer == 2:
                start = core.session.starts[step.run]
                core.execute(core.receive(Abort(start.request, start.attempt, "too slow")))
            asked.append(step.layer)
            filled = fill(step, at, first, end)
            asked.append("filled")
            return filled

        core.fill = late
        rig.inbox.ask("a", LONG)
        run = rig.engine.next_run()
        with pytest.raises(RunOver, match=f"run {run.nonce} is failed"):
            rig.prefill(run)
        assert asked == [1, "filled", 2]
        assert copies.ended == [run.nonce]
        core.fill = fill
        rig.inbox.ask("b", LONG)
        rig.prefill(rig.engine.next_run())
        assert rig.outcome() == ("b", "")
    assert rig.stats["slots_free"] == 3


def test_a_step_that_is_to_be_computed_is_not_copied(tmp_path):
    with opened(tmp_path / "pool") as rig:
        backed(rig, tokens=16)
        rig.inbox.ask("a", CHUNK)
        run = rig.engine.next_run()
        rig.engine.start(run, 1)
        with pytest.raises(ValueError, match=r"tokens 16\.\.48 of run \d+ chunk 1 layer 0 are in no pool: compute them"):
            rig.engine.copy_step()
