"""From the options of `tidegate prefill` and `tidegate decode` to what the worker is told.

Rules: the configuration file is the one that `tidegate run` reads, for both instances, so that two servers that are given the same file
fit each other; what is not in it and must be equal on both sides (model, longest prompt, new tokens, requests at once) is an option of
both verbs with the same default.  ConfigError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.engine.config import RunConfig
from tidegate.engine.errors import ConfigError
from tidegate.engine.instances import decode_told
from tidegate.engine.memory import available, refuse_memory
from tidegate.engine.model_options import model_options
from tidegate.engine.run_options import run_config, run_settings
from tidegate.engine.settings import read_settings

__all__ = ["checked_urls", "server_config"]


def server_config(
    file: Path | None, model: Path | None, *, layers: int | None, seed: int | None, index_topk_freq: int | None, max_prompt: int,
    new_tokens: int, concurrency: int, control_port: int | None = None, d_dp: int | None = None, dp_rank: int | None = None, **rest: Any,
) -> RunConfig:  # fmt: skip
    """What a server without requests of its own is told; dp_rank: of the d_dp that Decode has; rest: other fields of RunConfig."""
    if max_prompt < 1:
        raise ConfigError(f"--max-prompt is {max_prompt}: a prompt has at least 1 token")
    settings = run_settings(read_settings(file) if file else None, {} if d_dp is None else {"--d-dp": d_dp})
    config = run_config(
        settings, (), max_prompt=max_prompt, new_tokens=new_tokens,
        **model_options(model, layers=layers, seed=seed, index_topk_freq=index_topk_freq), **rest,
    )  # fmt: skip
    change: dict[str, Any] = {} if settings.decode.max_num_seqs else {"concurrency": concurrency}
    if control_port is not None:
        change["port"] = control_port
    config = msgspec.structs.replace(config, **change).checked()
    if dp_rank is not None:
        if not 0 <= dp_rank < config.d_dp:
            raise ConfigError(f"--dp-rank is {dp_rank}: of {config.d_dp} DP ranks the last is {config.d_dp - 1}")
        config = decode_told(config, dp_rank)
    refuse_memory(config, available())
    return config


def checked_urls(option: str, urls: list[str]) -> tuple[str, ...]:
    """Base URLs without a slash at the end."""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise ConfigError(f"{option} is {url!r}: give http://HOST:PORT")
    return tuple(url.rstrip("/") for url in urls)
