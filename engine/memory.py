"""How much memory a run sets aside, and whether this machine has it.

Rules: everything that a run allocates it allocates at its beginning, so what is not there is refused before a process exists, with each
part of the sum; sizes are those of `RunConfig`, and a test holds them to what the workers allocate.
"""

from __future__ import annotations

from pathlib import Path

from tidegate.engine.config import GIB, RunConfig
from tidegate.engine.errors import ConfigError
from tidegate.engine.prefill_copies import extent_layout

__all__ = ["available", "needed", "refuse_memory"]


def needed(config: RunConfig) -> dict[str, int]:
    """Bytes by what they are for, all workers together; the model's weights are not among them."""
    model, layout = config.model_config(), config.slot_layout()
    kinds = config.row_kinds()
    main = next(kind.row_bytes for kind in kinds if kind.name == "main")
    rows = {kind.name: kind.row_bytes * (model.cache_layers if kind.layers is None else len(kind.layers)) for kind in kinds}
    return {
        "layer buffers": config.prefills * config.p_tp * layout.size,
        "Prefill's host pool": config.pool_objects * extent_layout(layout).size,
        "Decode's host pool": config.decode_ranks * config.decode_blocks * config.block_size
        * (rows["main"] + config.d_tp * (sum(rows.values()) - rows["main"])),
        "hot buffers": config.decode_ranks * config.d_tp * config.concurrency * model.cache_layers * config.hot_buffer * main,
    }


def available(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of memory that this machine can give without swapping (MemAvailable)."""
    line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def refuse_memory(config: RunConfig, room: int) -> None:
    """ConfigError if the run needs more than `room` bytes."""
    parts = needed(config)
    if (need := sum(parts.values())) > room:
        said = ", ".join(f"{name} {size / GIB:,.2f}" for name, size in parts.items())
        raise ConfigError(
            f"{config.concurrency} requests at once of up to {config.max_tokens} tokens need {need / GIB:,.2f} GiB of memory ({said}): "
            f"{room / GIB:,.2f} GiB are available; give fewer (--prompts, max_num_seqs) or shorter prompts (--prompt-file)"
        )
