"""The published implementation as judge: logits of a run against transformers' model of its type, in float64, chunk by chunk.

Rules: transformers shares with us the checkpoint and nothing else; its top-k is made stable (lowest position first), because torch
breaks ties as it likes; it is imported when asked for and at no other time; where the two read other rows of the context, the first
such place is reported with the gap between the scores, because then logits tell of a near tie and not of arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tidegate.engine.model import Model, Rows, greedy, load_checkpoint, reference_generate
from tidegate.engine.model.arithmetic import top_mask
from tidegate.engine.model.attention import Attention, Projected

__all__ = ["LIMIT", "Differing", "OracleError", "OracleReport", "need_transformers", "oracle_compare"]

LIMIT = 1e-4  # of a logit; transformers keeps norms, softmax and the router in float32 even in a float64 model
Sets = dict[tuple[int, int], frozenset[int]]  # (layer, position) -> positions chosen


class OracleError(RuntimeError):
    """The comparison cannot be made; the message is one line for the user."""


class Differing(NamedTuple):
    """A token whose attention reads other rows in the two implementations.

    gap: by how much, in transformers' scores, the best row that only it chose beats the worst that only we chose.
    """

    layer: int  # from 0
    position: int
    gap: float


class OracleReport(NamedTuple):
    """What came of it."""

    prompt_tokens: int
    new_tokens: int
    max_difference: float  # of any logit of any new token
    argmax_equal: bool  # for every new token
    resident_equal: bool  # the engine's logits are, to the bit, those of the resident float64 run whose sets were compared
    sets: int  # top-k sets compared
    differing: tuple[Differing, ...]  # in the order of positions, then layers: the first one explains the others

    @property
    def agrees(self) -> bool:
        return self.argmax_equal and self.max_difference < LIMIT

    def lines(self) -> list[str]:
        """For the user."""
        out = [
            f"{self.new_tokens} tokens after a prompt of {self.prompt_tokens}: largest logit difference {self.max_difference:.2g} "
            f"(limit {LIMIT:g}), argmax {'equal' if self.argmax_equal else 'NOT equal'}",
            f"top-k sets: {len(self.differing)} of {self.sets} differ",
        ]
        if self.differing:
            d = self.differing[0]
            out.append(f"first at layer {d.layer}, position {d.position}: the scores are {d.gap:.2g} apart")
        if not self.resident_equal:
            out.append("the engine's logits are not those of its own model with everything resident: look there first")
        return out


def oracle_compare(
    checkpoint_folder: str | Path,
    prompt_tokens: Sequence[int],
    chunk: int,
    new_tokens: int,
    engine_logits: npt.NDArray[np.float32] | npt.NDArray[np.float64],
) -> OracleReport:
    """Compare `engine_logits` [new_tokens, vocab] of a greedy float64 run of the checkpoint with transformers'.

    transformers prefills the prompt in chunks of `chunk` tokens, as the engine did, and is then fed the engine's tokens.  Runs in
    this process, with the torch threads that it has.  Raises OracleError where transformers is not installed or too old, ValueError for
    logits of another shape, and CheckpointError as `load_checkpoint`.
    """
    theirs = _theirs(checkpoint_folder)
    model = load_checkpoint(checkpoint_folder, dtype="float64")
    if engine_logits.shape != (due := (new_tokens, model.config.vocab_size)):
        raise ValueError(f"the engine's logits are {engine_logits.shape} where {due} are due")
    own = _watched(model)
    # In one chunk, because a tile that two chunks share is computed by both, and either notes rubbish for the other's tokens.
    _, resident = reference_generate(model, prompt_tokens, len(prompt_tokens), new_tokens)
    got = torch.from_numpy(np.array(engine_logits))
    judge = _Judge()
    want = _their_logits(theirs, judge, prompt_tokens, chunk, greedy(got))
    compared = {place: chosen for place, chosen in own.items() if place in judge.sets}
    differing = [Differing(*place, judge.gap(place, chosen)) for place, chosen in compared.items() if judge.sets[place] != chosen]
    return OracleReport(
        prompt_tokens=len(prompt_tokens), new_tokens=new_tokens, max_difference=_difference(got, want),
        argmax_equal=greedy(got) == greedy(want), resident_equal=torch.equal(resident.to(got.dtype), got), sets=len(compared),
        differing=tuple(sorted(differing, key=lambda d: (d.position, d.layer))),
    )  # fmt: skip


def _difference(got: Tensor, want: Tensor) -> float:
    apart = (got.double() - want).abs().max()
    return float("inf") if apart.isnan() else float(apart)


# ---- our side


class _Watched(Attention):
    """An attention that notes what it chose."""

    def __init__(self, plain: Attention, layer: int, seen: Sets) -> None:
        self.__dict__.update(plain.__dict__)
        self._layer, self._seen = layer, seen

    def scores(self, p: Projected, begin: int, keys: Tensor) -> Tensor:
        scores = super().scores(p, begin, keys)
        for row, chosen in enumerate(top_mask(scores, self.config.index_topk), begin):
            self._seen[self._layer, row] = frozenset(chosen[: row + 1].nonzero()[:, 0].tolist())
        return scores

    def choose(self, p: Projected, row: int, rows: Rows) -> Tensor:
        positions = super().choose(p, row, rows)
        self._seen[self._layer, len(rows["index"]) - 1] = frozenset(positions.tolist())
        return positions


def _watched(model: Model) -> Sets:
    seen: Sets = {}
    for layer in model.layers:
        layer.attention = _Watched(layer.attention, layer.number, seen)
    return seen


# ---- their side


class _Judge(TorchFunctionMode):
    """While it is entered, torch's top-k is stable; what the indexer of `layer` chose is noted, with its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: int | None = None
        self.scores: dict[tuple[int, int], Tensor] = {}
        self.sets: Sets = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, torch.Tensor.topk):
            return self._top(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _top(self, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, indices = (part.narrow(dim, 0, k) for part in torch.sort(x, dim=dim, descending=largest, stable=True))
        if self.layer is not None:
            queries, keys = x.shape[-2:]
            for row in range(queries):
                place = (self.layer, keys - queries + row)
                self.scores[place] = x[0, row].clone()
                self.sets[place] = frozenset(i for i in indices[0, row].tolist() if i <= place[1])
        return torch.return_types.topk((values, indices))

    def gap(self, place: tuple[int, int], ours: frozenset[int]) -> float:
        theirs, scores = self.sets[place], self.scores[place]
        return max((float(scores[i]) for i in theirs - ours), default=0.0) - min((float(scores[i]) for i in ours - theirs), default=0.0)

    @contextlib.contextmanager
    def watching(self, layers: Sequence[Any]) -> Iterator[None]:
        """Entered, with hooks that say whose indexer runs."""

        def enter(number: int) -> Any:
            return lambda *_: setattr(self, "layer", number)

        hooks = []
        for number, layer in enumerate(layers):
            if (indexer := layer.self_attn.indexer) is not None:  # the layer shares another's
                hooks.append(indexer.register_forward_pre_hook(enter(number)))
                hooks.append(indexer.register_forward_hook(lambda *_: setattr(self, "layer", None)))
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()


def need_transformers() -> Any:
    """The module transformers; OracleError where it is not installed, or older than the model."""
    way_out = "pip install 'tidegate[model]', or leave out --oracle"
    try:
        import transformers
    except ImportError as error:
        raise OracleError(f"the oracle is transformers, and it cannot be imported ({error}): {way_out}") from None
    if not hasattr(transformers, "DeepseekV32ForCausalLM"):
        raise OracleError(f"transformers {transformers.__version__} has no DeepseekV32, version 5 has: {way_out}")
    return transformers


def _theirs(folder: str | Path) -> Any:
    """transformers' model of the checkpoint, float64."""
    transformers = need_transformers()
    log: Any = transformers.utils.logging
    before = log.get_verbosity()
    log.set_verbosity_error()  # or it reports the MTP layer, which it does not compute, as a mistake
    log.disable_progress_bar()
    try:
        options = {"attn_implementation": "eager", "experts_implementation": "eager", "local_files_only": True}
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **options).eval()
    finally:
        log.set_verbosity(before)


def _their_logits(theirs: Any, judge: _Judge, prompt: Sequence[int], chunk: int, tokens: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] of the prompt's last token and of all `tokens` but the last."""
    state: Mapping[str, Any] = {}
    logits = []
    pieces = [list(prompt[i : i + chunk]) for i in range(0, len(prompt), chunk)] + [[token] for token in tokens[:-1]]
    with torch.no_grad(), judge.watching(theirs.model.layers):
        for number, piece in enumerate(pieces):
            out = theirs(torch.tensor([piece]), use_cache=True, logits_to_keep=1, **state)
            name = "cache" if "cache" in out else "past_key_values"  # renamed in 5.2x
            state = {name: out[name]}
            if number >= len(pieces) - len(tokens):
                logits.append(out.logits[0, -1].double())
    return torch.stack(logits)
