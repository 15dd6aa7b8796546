"""Which model `tidegate run` computes, and the tokens of its prompt.

Rule: what is wrong with a folder or a file is said here, before anything is started; a seeded model's options beside a folder are a
contradiction, and refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.engine.errors import ConfigError
from tidegate.engine.model import CheckpointError, Tokenizer, indexer_types_of, read_fields
from tidegate.engine.refusals import refuse_model

__all__ = ["model_options", "tokens_of"]


def model_options(
    folder: Path | None, *, layers: int | None, seed: int | None, index_topk_freq: int | None = None
) -> dict[str, Any]:
    """The fields of RunConfig that say which model is run.  ConfigError for options that contradict each other, and for a folder
    whose model cannot be offloaded; its tensors are checked by `RunConfig.checked`.
    """
    if folder is None:
        return {"model": _seeded(8 if layers is None else layers, 1 if index_topk_freq is None else index_topk_freq), "seed": seed or 0}
    for name, value in (("--layers", layers), ("--seed", seed), ("--index-topk-freq", index_topk_freq)):
        if value is not None:
            raise ConfigError(f"{name} is {value} beside --model {folder}: it is of the seeded model; leave one of them out")
    try:
        refuse_model(read_fields(folder), f"{folder}/config.json")
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    return {"checkpoint": str(folder)}


def _seeded(layers: int, index_topk_freq: int) -> dict[str, Any]:
    """Fields of the seeded model; it is of GLM-5's type where layers share, for DeepSeek's layers do not."""
    if index_topk_freq < 1:
        raise ConfigError(f"--index-topk-freq is {index_topk_freq}: of so many layers one has an indexer; at least 1, which is all")
    fields = {"num_hidden_layers": layers}
    types = indexer_types_of(fields | {"index_topk_freq": index_topk_freq})
    return fields | ({"model_type": "glm_moe_dsa", "indexer_types": types} if types else {})


def tokens_of(path: Path, folder: Path | None) -> list[int]:
    """Tokens of the text file `path`, by the tokenizer of the model in `folder`.  ConfigError if either is unreadable or empty."""
    try:
        if tokens := Tokenizer(folder or "").encode(path.read_bytes()):
            return tokens
    except OSError as error:
        raise ConfigError(f"prompt file {path}: {error.strerror}; give a readable file with --prompt-file") from None
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        raise ConfigError(f"prompt file {path}: {error}") from None
    raise ConfigError(f"prompt file {path} is empty: a prompt has at least one token; give another with --prompt-file")
