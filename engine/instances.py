"""The servers of one run: how many there are of each kind, where each listens, and what each is told.

Rules: all Prefills are alike and share one host pool; a Decode instance has `d_dp` DP ranks, each a server with its own pool, owner and
ports; DP ranks are counted through all Decode instances of the run, and port k of a range that begins at 0 is any free one; a Decode's
control ports follow the formula kv_port + dp_rank * d_tp + tp_rank, of which the leader of the TP ranks listens at the first.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tidegate.engine.config import RunConfig

__all__ = ["decode_told", "instance_rules", "ports", "prefill_told", "worker_names"]


def worker_names(role: str, count: int) -> list[str]:
    """What the workers of one kind are called: prefill, prefill.1, ..."""
    return [f"{role}.{number}" if number else role for number in range(count)]


def prefill_told(config: RunConfig, number: int) -> RunConfig:
    """What Prefill `number` (from 0) is told."""
    return msgspec.structs.replace(config, prefill_port=_nth(config.prefill_port, number))


def decode_told(config: RunConfig, dp_rank: int) -> RunConfig:
    """What the Decode of DP rank `dp_rank` (from 0, over all instances) is told: nothing of the others."""
    port = config.topology.port(config.port, dp_rank=dp_rank, d_rank=0) if config.port else 0
    return msgspec.structs.replace(config, port=port, decode_port=_nth(config.decode_port, dp_rank), d_dp=1, decodes=1)


def _nth(first: int, number: int) -> int:
    return first + number if first else 0


def ports(config: RunConfig) -> dict[str, range]:
    """The ports that are asked for, by what they are called; of those left to the system, none."""
    counts = {"port": (config.port, config.decode_ranks * config.d_tp), "proxy port": (config.proxy_port, 1),
              "prefill port": (config.prefill_port, config.prefills), "decode port": (config.decode_port, config.decode_ranks)}  # fmt: skip
    return {name: range(first, first + count) if first else range(0) for name, (first, count) in counts.items()}


def instance_rules(config: RunConfig) -> list[tuple[bool, str]]:
    """(kept?, the error if not), as `RunConfig._value_rules`."""
    counts = {"prefills": config.prefills, "decodes": config.decodes, "data_parallel_size": config.d_dp}
    rules = [(count >= 1, f"{name} is {count}: at least 1") for name, count in counts.items()]
    if not all(kept for kept, _ in rules):
        return rules
    asked = ports(config)
    first = {"port": config.port, "proxy port": config.proxy_port, "prefill port": config.prefill_port, "decode port": config.decode_port}
    rules += [(0 <= one < 65536, f"{name} is {one}: between 1 and 65535, or 0 for a free one") for name, one in first.items()]
    rules += [(not some or some[-1] < 65536, f"{name} is {first[name]}: {len(some)} servers come to {max(some, default=0)}, and a port "
               "lies between 1 and 65535; give a lower one, or 0 for free ones") for name, some in asked.items()]  # fmt: skip
    for (name, some), (second, others) in itertools.combinations(asked.items(), 2):
        shared = sorted(set(some) & set(others))
        both = f"{name} and {second} are both {shared[0]}" if shared else ""
        rules.append((not shared, f"{both}: give each server its own port, or 0 for a free one"))
    return rules
