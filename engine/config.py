"""What the two workers of a run are told; plain data that crosses the process border as JSON.

Rules: everything is validated by `RunConfig.checked` before a process, socket or byte exists; an error names the value, the
rule and the way out; both workers get the same configuration, so that they agree on every size.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from tidegate.engine.errors import ConfigError
from tidegate.engine.fault_spec import FaultSpec
from tidegate.engine.http.bodies import Text
from tidegate.engine.http.prompts import Limits
from tidegate.engine.instances import instance_rules
from tidegate.engine.model import (
    ALONE,
    DTYPES,
    Model,
    ModelConfig,
    TensorParallel,
    Tokenizer,
    check_checkpoint,
    load_checkpoint,
    read_config,
    save_checkpoint,
)
from tidegate.engine.paged_rows import RowKind
from tidegate.engine.planner import ITEM_BYTES, CacheSpec, LayerPlan, plan_layers
from tidegate.engine.pool_keys import pool_objects
from tidegate.engine.slot_layout import SlotLayout, plan_layout
from tidegate.protocol.topology import SlotPlan, Topology

__all__ = ["ConfigError", "FaultSpec", "Request", "RunConfig"]

GIB = 1 << 30
# Rows -> kind of cache, its name in a layer.
CACHES = {"main": ("main", "attn"), "index": ("indexer", "indexer.k_cache"), "scale": ("scale", "indexer.k_scale")}


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt.  Ids are the client's and may repeat."""

    id: str
    prompt: tuple[int, ...]


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes, policies and prompts of one run; the defaults are the demo's."""

    requests: tuple[Request, ...]
    new_tokens: int = 16
    chunk: int = 512
    block_size: int = 128  # tokens of a KV block, on both sides
    num_blocks: int = 0  # blocks in each of Prefill's layer buffers; 0: as many as the longest prompts at once need
    shared_buffers: int | None = 3  # None: every layer owns its buffer
    independent_layers: tuple[int, ...] | Literal["all"] = (0,)  # numbers from 0; negative ones count from the last
    prefetch_layers: int | None = None  # below shared_buffers; None: 1
    hot_buffer: int = 128
    host_memory_gib: float = 128.0  # for main KV on Decode
    # Beside a checkpoint: its dtype at most, which may be wider than the stored one.
    model: dict[str, int | float | str | bool | tuple[str, ...]] = {}
    checkpoint: str = ""  # folder of the model; "": the seeded one that `model` and `seed` name
    drafts: int = 0  # tokens that Decode's MTP layer guesses for each request in a forward
    lic8: bool = False  # indexer rows as int8 with a scale each, in both workers and in the run that they are compared with
    seed: int = 0
    port: int = 0  # of Decode's control plane; like those below, on loopback, 0: any free one
    proxy_port: int = 0
    prefill_port: int = 0  # HTTP
    decode_port: int = 0  # HTTP
    wait_limit_seconds: float = 30.0  # what waits for longer is said in the log, and makes /health false
    read_retries: int = 0  # of a read whose copy failed and has stopped
    max_retries: int = 3  # of an HTTP request between proxy, Prefill and Decode, after the first try
    retry_delay: float = 0.1  # seconds before the first of them; doubles each time
    max_prompt: int = 0  # tokens to set memory aside for; 0: the longest of requests
    max_waiting: int = 256  # prompts that may wait for memory on Decode, or be open on Prefill
    concurrency: int = 2
    prefill_lanes: int = 1  # requests that Prefill computes side by side; 1: one after the other
    step_tokens: int = 0  # that it computes in one step of several requests; 0: those of a chunk
    p_tp: int = 1  # ranks of Prefill, a multiple of
    d_tp: int = 1  # those of a DP rank of Decode
    d_dp: int = 1  # DP ranks of a Decode instance, each with room for `concurrency` requests
    prefills: int = 1  # Prefill instances
    decodes: int = 1  # Decode instances
    pull_threads: int = 2
    trace: str = ""  # folder
    trace_life: str = ""  # what the leader calls itself there, for the other ranks
    pool_blocks: int = 0  # blocks that Prefill's host pool holds; 0: twice what each one's longest prompts at once need
    pool_folder: str = ""
    scratch_folder: str = ""  # the parent's, for this run; a worker that outlives the parent removes it
    read_lease: float = 0.0
    resend_seconds: float = 0.5
    deadline_seconds: float = 120.0
    preempt_after: int = 0  # tokens that a request makes on Decode before it gives way to others; 0: it never does
    prefill_preempt_after: int = 0  # tokens of a prompt that Prefill computes before it gives way, likewise
    abort_after: dict[str, float] = {}  # request id -> seconds after which its client gives up; for tests
    proxy_faults: tuple[FaultSpec, ...] = ()  # of START
    prefill_faults: tuple[FaultSpec, ...] = ()
    decode_faults: tuple[FaultSpec, ...] = ()
    tags: bool = False
    poison: bool = False  # fill memory that is free, Prefill's slots and Decode's blocks and hot buffers, with NaN; for tests

    def model_config(self) -> ModelConfig:
        """ValueError for a shape, or for a checkpoint's config.json, that cannot be computed."""
        if not self.checkpoint:
            return ModelConfig.from_dict(self.model | {"lic8": self.lic8})
        if more := sorted(set(self.model) - {"dtype"}):
            raise ConfigError(f"model fields {', '.join(more)} are given beside the checkpoint {self.checkpoint}, which says them itself")
        return read_config(self.checkpoint, dtype=str(self.model.get("dtype", "")), lic8=self.lic8)

    def limits(self, new_tokens: int) -> Limits:
        """What a server takes and how it reads text: by the checkpoint's tokenizer, without one bytes are tokens."""
        tokenizer = Tokenizer(self.checkpoint)
        text = Text(lambda text: tokenizer.encode(text.encode()), lambda tokens: tokenizer.decode([*tokens]))
        return Limits(self.max_tokens, self.model_config().vocab_size, new_tokens, text)

    def load_model(self, group: TensorParallel = ALONE) -> Model:
        """The model, out of its folder if it has one, as one rank of `group`; ValueError as `load_checkpoint`."""
        if self.checkpoint:
            return load_checkpoint(self.checkpoint, dtype=self.model_config().dtype, lic8=self.lic8, group=group)
        return Model.random(self.model_config(), self.seed, group)

    def with_checkpoint(self, folder: Path) -> RunConfig:
        """Itself if it names a checkpoint; else the same run of the seeded model, written into the new `folder`."""
        if self.checkpoint:
            return self
        model = self.load_model()
        save_checkpoint(model, folder)
        return msgspec.structs.replace(self, checkpoint=str(folder), model={"dtype": model.config.dtype})

    def caches(self) -> dict[str, CacheSpec]:
        """What Prefill registers: a main cache for each layer, an indexer cache for each that has an indexer, all in the same blocks."""
        model, found = self.model_config(), {}
        for layer in range(model.cache_layers):
            for rows, (dtype, width) in model.row_kinds(layer).items():
                kind, name = CACHES[rows]
                size = self.prefill_blocks * self.block_size * width * ITEM_BYTES[dtype]
                found[f"model.layers.{layer}.self_attn.{name}"] = CacheSpec(
                    kind=kind, dtype=dtype, widths=(width,), block_size=self.block_size, bytes=size
                )
        return found

    def layer_plan(self) -> LayerPlan:
        """Which buffers there are; ConfigError where the layers cannot be planned so."""
        return plan_layers(
            self.caches(), shared_buffers=self.shared_buffers, independent=self.independent_layers,
            prefetch_layers=self.prefetch_layers,
        )  # fmt: skip

    def plan(self) -> SlotPlan:
        """Which slot each layer uses: what a PrefillSession needs."""
        return self.layer_plan().slots

    def row_kinds(self) -> list[RowKind]:
        """What a token's rows are, and in which layers: what a Decode engine needs."""
        model = self.model_config()
        full = tuple(layer for layer in range(model.cache_layers) if model.has_indexer(layer))
        some = {} if len(full) == model.cache_layers else {"index": full, "scale": full}
        return [RowKind(name, dtype, width, some.get(name)) for name, (dtype, width) in model.row_kinds(0).items()]

    def slot_layout(self) -> SlotLayout:
        """What lies where in Prefill's layer memory."""
        kinds, slots, model = self.row_kinds(), self.plan(), self.model_config()
        return plan_layout(
            [slots.slot_of(layer) for layer in range(1, slots.layers + 1)], {kind.name: kind.width for kind in kinds},
            model.dtype, blocks=self.prefill_blocks, block_size=self.block_size,
            dtypes={kind.name: kind.dtype for kind in kinds},
            kinds_of_layer=[tuple(model.row_kinds(layer)) for layer in range(model.cache_layers)],
        )  # fmt: skip

    @property
    def topology(self) -> Topology:
        """Which rank feeds which; ValueError where they do not fit."""
        return Topology(p_tp=self.p_tp, d_tp=self.d_tp)

    @property
    def pin_seconds(self) -> float:
        """How long Prefill's pool keeps what a run has pinned and does not load: longer than a run lasts."""
        return max(300.0, 4 * self.deadline_seconds)

    @property
    def decode_ranks(self) -> int:
        """DP ranks of all Decode instances: each a server."""
        return self.decodes * self.d_dp

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest prompt."""
        return max(self.max_prompt, *(len(request.prompt) for request in self.requests), 0)

    @property
    def prefill_blocks(self) -> int:
        """Blocks in each of Prefill's layer buffers: the longest prompts that can be here at once find room."""
        longer = sorted(n for request in self.requests if (n := len(request.prompt)) > self.max_prompt)[-self.concurrency :]
        blocks = sum(-(-n // self.block_size) for n in longer)
        return self.num_blocks or blocks + (self.concurrency - len(longer)) * -(-self.max_prompt // self.block_size)

    @property
    def block_bytes(self) -> int:
        """Host memory of a block on Decode: main KV of all layers."""
        model = self.model_config()
        return self.block_size * model.cache_layers * model.main_width * model.torch_dtype.itemsize

    @property
    def request_blocks(self) -> int:
        """Blocks that the longest request needs on Decode, prompt and new tokens."""
        return -(-(self.max_tokens + self.new_tokens) // self.block_size)

    @property
    def decode_blocks(self) -> int:
        """Blocks of Decode's pool: as many as may be needed at once, or as the host memory holds."""
        return min(self.concurrency * self.request_blocks, int(self.host_memory_gib * GIB // self.block_bytes))

    @property
    def pool_objects(self) -> int:
        """Blocks that the host pool of the Prefills holds."""
        return self.pool_blocks or 2 * self.prefills * self.concurrency * pool_objects(self.max_tokens, self.block_size, self.chunk)

    def checked(self) -> RunConfig:
        """Itself, or ConfigError."""
        try:
            model = self.model_config()
            if self.checkpoint:
                check_checkpoint(self.checkpoint, dtype=model.dtype)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for good, why in self._value_rules(model):
            if not good:
                raise ConfigError(why)
        for good, why in self._size_rules(model):
            if not good:
                raise ConfigError(why)
        self.layer_plan()
        return self

    def _value_rules(self, model: ModelConfig) -> list[tuple[bool, str]]:
        """(kept?, the error if not) of rules about single values; `_size_rules` relies on them."""
        rules: list[tuple[bool, str]] = [
            *((math.isfinite(value), f"{name.removesuffix('_seconds').replace('_', ' ')} is {value}: give a finite number")
              for name, value in msgspec.structs.asdict(self).items() if isinstance(value, float)),
            (bool(self.requests) or self.max_prompt > 0, "no prompt was given: give --prompt-file with at least one byte"),
            (all(r.prompt for r in self.requests), "a prompt is empty: a prompt has at least one token"),
            (self.new_tokens >= 1, f"new tokens is {self.new_tokens}: at least 1"),
            (self.chunk >= 1, f"chunk is {self.chunk}: a chunk has at least 1 token"),
            (self.block_size >= 1, f"block_size is {self.block_size}: a block has at least 1 token"),
            (self.block_size < 1 or (self.hot_buffer >= model.index_topk and self.hot_buffer % self.block_size == 0),
             f"topk_buffer_size is {self.hot_buffer}: a hot buffer is made of whole blocks of {self.block_size} tokens and holds what one "
             f"step reads, index_topk = {model.index_topk} rows; give {self._hot_buffer(model.index_topk)}, or another block_size"),
            (self.drafts >= 0, f"num_speculative_tokens is {self.drafts}: 0 (no speculation) or more"),
            (self.drafts == 0 or model.num_nextn_predict_layers > 0,
             f"num_speculative_tokens is {self.drafts} and num_nextn_predict_layers 0: this model has no MTP layer to draft with; give 0, "
             "or a model that has one"),
            (model.dtype in DTYPES, f"dtype is {model.dtype!r}: choose one of {', '.join(DTYPES)}"),
            *instance_rules(self),
            (self.max_retries >= 0, f"max retries is {self.max_retries}: 0 (never again) or more"),
            (self.retry_delay >= 0, f"retry delay is {self.retry_delay} s: 0 or more"),
            (self.max_waiting >= 1, f"max waiting is {self.max_waiting}: at least 1 prompt may wait"),
            (self.concurrency >= 1, f"concurrency is {self.concurrency}: at least one request at once"),
            (min(self.p_tp, self.d_tp) >= 1 and self.p_tp % max(1, self.d_tp) == 0,
             f"tensor_parallel_size is {self.p_tp} on Prefill and {self.d_tp} on Decode: both start at 1, and Prefill's is a multiple of "
             "Decode's"),
            *((ranks < 1 or model.parts % ranks == 0,
               f"tensor_parallel_size is {ranks} on {side}: this model is computed in {model.parts} parts, which the ranks share evenly; "
               f"give {_divisors(model.parts)}") for side, ranks in (("Prefill", self.p_tp), ("Decode", self.d_tp))),
            (self.prefill_lanes >= 1, f"max_num_seqs is {self.prefill_lanes} on Prefill: at least one request is computed at a time"),
            (self.step_tokens == 0 or self.step_tokens >= self.chunk,
             f"step_tokens is {self.step_tokens}: a step holds a chunk of {self.chunk} tokens at least"),
            *((after >= 0, f"preempt_after_tokens is {after} on {side}: 0 (never) or more")
              for after, side in ((self.prefill_preempt_after, "Prefill"), (self.preempt_after, "Decode"))),
            (self.pull_threads >= 1, f"pull threads is {self.pull_threads}: at least 1 must copy"),
            (self.read_lease >= 0, f"read lease is {self.read_lease} s: 0 (never revoke) or more"),
            (self.wait_limit_seconds > 0, f"wait limit is {self.wait_limit_seconds} s: more than 0"),
            (self.read_retries >= 0, f"data_read_retries is {self.read_retries}: 0 (never again) or more"),
            (self.resend_seconds > 0, f"resend interval is {self.resend_seconds} s: more than 0"),
            (self.deadline_seconds > 0, f"deadline is {self.deadline_seconds} s: more than 0"),
        ]  # fmt: skip
        return rules

    def _hot_buffer(self, topk: int) -> int:
        """The smallest good one that is no smaller than what was given."""
        block = max(1, self.block_size)
        return -(-max(self.hot_buffer, topk) // block) * block

    def _size_rules(self, model: ModelConfig) -> list[tuple[bool, str]]:
        need, room = self.request_blocks * self.block_bytes, self.host_memory_gib * GIB
        longest, blocks = self.max_tokens + self.new_tokens, -(-self.max_tokens // self.block_size)
        objects = pool_objects(self.max_tokens, self.block_size, self.chunk)
        worst = max((t for r in self.requests for t in r.prompt), default=0)
        return [
            (self.num_blocks == 0 or self.num_blocks >= blocks,
             f"num_blocks is {self.num_blocks}: the longest prompt needs {blocks} blocks of {self.block_size}; give at least as many, "
             "or leave it (num_gpu_blocks_override) out"),
            (self.pool_blocks == 0 or self.pool_blocks >= objects * self.prefills,
             f"pool_blocks is {self.pool_blocks}: the longest prompt needs {objects} of {self.block_size} tokens in chunks of "
             f"{self.chunk}, on each of {self.prefills} Prefills; give at least {objects * self.prefills}, or 0"),
            (longest <= model.max_position_embeddings,
             f"{longest} tokens in the longest request: the model ends at {model.max_position_embeddings}; give a shorter prompt or fewer "
             "new tokens (--prompt-file, --new-tokens)"),
            (need <= room,
             f"the host pool is of {self.host_memory_gib:g} GiB (dram_size_per_dp_GB): one request of {longest} tokens needs "
             f"{math.ceil(need / GIB * 1000) / 1000:g} GiB; give at least that"),
            (worst < model.vocab_size, f"token {worst} is outside the vocabulary of {model.vocab_size}"),
        ]  # fmt: skip


def _divisors(parts: int) -> str:
    """Numbers of ranks that share so many parts evenly, in words."""
    return ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
