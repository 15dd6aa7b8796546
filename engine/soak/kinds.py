"""What can go wrong in a soak, by name, and what a life of the servers is: their sizes and the faults that they are born with.

Rules: the names are those of `tidegate sim` where the fault is the same; everything here is drawn from the seed, so the same seed
draws the same lives and the same deeds, in the same order (what the clock of real processes makes of them differs); whether a fault
may cost a request its answer stands here, beside its name, and decides what an error is: of one that may not, none is taken.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from tidegate.engine.config import RunConfig
from tidegate.engine.errors import ConfigError
from tidegate.engine.fault_spec import FaultSpec
from tidegate.engine.pool_keys import pool_objects

__all__ = ["KINDS", "Kind", "Life", "Sizes", "chosen", "draw_life"]


class Kind(msgspec.Struct, frozen=True):
    """about: for people; costs: may a request that it meets end with an error?  deed: is it done to running processes, rather than
    asked of a worker when it starts?
    """

    about: str
    costs: bool
    deed: bool = False


KINDS: dict[str, Kind] = {
    "loss": Kind("a message that is answered or said again is lost", costs=False),
    "silence": Kind("a message that is said once is lost: START, ABORT, RUN_FAILED, BLOCKS", costs=True),
    "dup": Kind("a message comes twice", costs=False),
    "wire": Kind("among what is said comes what means nothing, or meant something once", costs=False),
    "order": Kind("what is said together comes in another order, or later", costs=False),
    "slow": Kind("a read, save or load takes long", costs=False),
    "fail": Kind("a read fails, and nothing lands", costs=True),
    "unknown": Kind("a read fails, and its bytes may land later", costs=True),
    "save": Kind("a save to the pool fails", costs=True),
    "load": Kind("a load from the pool fails", costs=True),
    "revoke": Kind("Prefill has a read lease, and reads outlast it", costs=True),
    "abort": Kind("a client leaves before it is answered", costs=False),
    "evict": Kind("the pool evicts everything that nobody has pinned", costs=False, deed=True),
    "full": Kind("the pool is full for a while", costs=True, deed=True),
    "strangers": Kind("anyone comes to any port, and says anything", costs=False, deed=True),
    "stop": Kind("a process is stopped (SIGSTOP) and goes on", costs=False, deed=True),
    "cut": Kind("the TCP connections of a process are shut down", costs=True, deed=True),
    "kill": Kind("a process is killed (-9) and started again at the same address", costs=True, deed=True),
}

MODEL: dict[str, int | float | str | bool] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "first_k_dense_replace": 4, "q_lora_rank": 32,
    "kv_lora_rank": 96, "qk_rope_head_dim": 16, "index_topk": 12, "index_head_dim": 32, "dtype": "bfloat16",
}  # fmt: skip
RESENT = ("READY", "READ_DONE", "READ_FAILED", "COMMITTED", "REVOKED", "RETIRE", "RETIRED")
SAID_ONCE = ("ABORT", "RUN_FAILED", "BLOCKS")
CHUNKS = (32, 48, 80, 100)
PATIENCE = 60.0
"""Deadline of a request, in seconds, where nothing that it waits for can be lost."""


class Sizes(msgspec.Struct, frozen=True):
    """Of every life of one soak: what the servers, the pool and the run that answers are compared with must agree on."""

    max_prompt: int = 240
    new_tokens: int = 8
    block_size: int = 16

    @property
    def pool_blocks(self) -> int:
        """Little, so that the pool evicts; enough for the longest prompts at once, and as many again of what they leave behind."""
        return 6 * pool_objects(self.max_prompt, self.block_size, min(CHUNKS))


class Life(msgspec.Struct, frozen=True):
    """The servers from one start of Prefill and Decode to their end.  faults: names of `KINDS` that they were born with."""

    number: int
    config: RunConfig
    faults: tuple[str, ...]

    @property
    def costs(self) -> bool:
        return any(KINDS[name].costs for name in self.faults)


def chosen(text: str) -> tuple[str, ...]:
    """The faults that `text` names, with commas, or "all", or "none".  ConfigError for a name that there is not."""
    named = [name.strip() for name in text.split(",") if name.strip()]
    if named == ["all"]:
        return tuple(KINDS)
    if unknown := sorted(set(named) - {"none", *KINDS}):
        raise ConfigError(f"no fault is named {', '.join(unknown)}: choose from {', '.join(KINDS)}, or all, or none")
    return tuple(name for name in KINDS if name in named)


def draw_life(seed: int, number: int, faults: Collection[str], sizes: Sizes, **rest: object) -> Life:
    """Life `number` of a soak; of `faults` a few strike in each life, in the first none, so that there is something to compare with.

    rest: other fields of RunConfig (ports, folders).
    """
    draw = random.Random(f"{seed}/life/{number}")
    born = [name for name in faults if not KINDS[name].deed and name != "abort"]
    mine = tuple(sorted(draw.sample(born, min(len(born), draw.randint(1, 3)) if number else 0)))
    prefill, decode, proxy = _specs(mine, draw)
    always = random.Random(f"{seed}/slots")  # the pool lives on, and its objects are laid out by the slots
    shared = always.choice((1, 2, 2, 3, None))
    fields = {
        "requests": (), "model": MODEL, "max_prompt": sizes.max_prompt, "new_tokens": sizes.new_tokens, "block_size": sizes.block_size,
        "hot_buffer": sizes.block_size * draw.choice((1, 2)), "pool_blocks": sizes.pool_blocks, "poison": True, "resend_seconds": 0.1,
        "chunk": draw.choice(CHUNKS), "shared_buffers": shared, "independent_layers": always.choice(((), (0,), (-1,))) if shared else "all",
        "concurrency": draw.randint(1, 4), "pull_threads": draw.randint(1, 2), "retry_delay": 0.1, "max_retries": 4,
        "read_lease": 1.0 if "revoke" in mine else 0.0,
        "deadline_seconds": 12.0 if "silence" in mine else PATIENCE,
        "prefill_faults": prefill, "decode_faults": decode, "proxy_faults": proxy,
    } | rest  # fmt: skip
    return Life(number, msgspec.convert(fields, RunConfig).checked(), mine)


def _specs(names: Collection[str], draw: random.Random) -> tuple[tuple[FaultSpec, ...], tuple[FaultSpec, ...], tuple[FaultSpec, ...]]:
    """What Prefill, Decode and the proxy are asked to do wrong."""
    both: list[FaultSpec] = []
    decode: list[FaultSpec] = []
    prefill: list[FaultSpec] = []
    proxy: list[FaultSpec] = []

    def spec(where: str, mode: str, chance: float, **more: object) -> FaultSpec:
        fields = {"where": where, "mode": mode, "chance": chance * draw.uniform(0.5, 1.5), "seed": draw.getrandbits(32)}
        return msgspec.convert(fields | more, FaultSpec)

    if "loss" in names:
        both += [spec("send", "lose", 0.1, what=tag) for tag in RESENT]
    if "dup" in names:
        both += [spec("send", "double", 0.2, what=tag) for tag in RESENT + SAID_ONCE]
        proxy.append(spec("send", "double", 0.2, what="START"))
    if "wire" in names:
        both.append(spec("wire", "ok", 0.15))
    if "order" in names:
        both.append(spec("wire", "reorder", 0.3))
    if "silence" in names:
        both += [spec("send", "lose", 0.05, what=tag) for tag in SAID_ONCE]
        proxy.append(spec("send", "lose", 0.05, what="START"))
    if "fail" in names:
        decode.append(spec("read", "quiet", 0.01))
    if "unknown" in names:
        decode.append(spec("read", "unknown", 0.01, delay=draw.uniform(0.1, 1.0)))
    if "save" in names:
        prefill.append(spec("save", "quiet", 0.02))
    if "load" in names:
        prefill += [spec("load", "quiet", 0.02), spec("fill", "quiet", 0.02)]
    if "revoke" in names:
        decode.append(spec("read", "ok", 0.01, delay=2.0))
    if "slow" in names:
        decode.append(spec("read", "ok", 0.05, delay=draw.uniform(0.05, 0.5)))
        prefill += [spec(where, "ok", 0.05, delay=draw.uniform(0.05, 0.3)) for where in ("save", "load", "fill")]
    return tuple(prefill + both), tuple(decode + both), tuple(proxy)
