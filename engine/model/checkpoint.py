"""A model in a folder, as the Hugging Face hub has it: `config.json`, safetensors (one file, or shards with an index).

Rules: every header is read, and all that is missing, unknown, of another shape or of another type is named in one error, before
memory is spent on a weight; a weight is widened, never narrowed; experts are stored one by one, as publishers do; a folder is
complete or it is not there (it is written beside its place and moved).
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tidegate.engine.model.config import ModelConfig
from tidegate.engine.model.hf_config import config_from_hf, config_to_hf
from tidegate.engine.model.network import Model
from tidegate.engine.model.shards import Shard
from tidegate.engine.model.tensor_parallel import ALONE, TensorParallel
from tidegate.engine.model.weights import MTP_MAY, weight_shapes

__all__ = ["CheckpointError", "check_checkpoint", "load_checkpoint", "read_config", "read_fields", "save_checkpoint"]

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
STORED = {"bfloat16": "BF16", "float32": "F32", "float64": "F64"}
MOST = 100_000_000  # bytes of a header; the format allows no more
NAMED = 8  # so many of each kind of trouble are named; a wrong config would else name thousands
EXPERTS = re.compile(r"(.*\.experts\.)(gate_up_proj|down_proj)")
# Publishers keep these in float32 whatever the rest is in.
WIDE = re.compile(r".*\.(gate\.weight|gate\.e_score_correction_bias|indexer\.weights_proj\.weight|indexer\.k_norm\.(weight|bias))")


class CheckpointError(ValueError):
    """A folder that is no checkpoint of a model computed here; the message is one line for the user."""


class Stored(NamedTuple):
    """What a header says of a tensor."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors names it: BF16, F32, ...


def read_fields(folder: str | Path) -> dict[str, Any]:
    """`folder`/config.json as it is; CheckpointError where there is none, or where it is no JSON object."""
    return _json(Path(folder) / CONFIG)


def read_config(folder: str | Path, *, dtype: str = "", lic8: bool = False) -> ModelConfig:
    """The model that `folder`/config.json describes; CheckpointError as `config_from_hf`.  dtype: compute in this instead; lic8: as in
    `ModelConfig`.
    """
    fields = read_fields(folder)
    try:
        return dataclasses.replace(config_from_hf(fields, dtype=dtype), lic8=lic8)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{Path(folder) / CONFIG}: {error}") from None


def check_checkpoint(folder: str | Path, *, dtype: str = "") -> ModelConfig:
    """What `load_checkpoint` will compute; CheckpointError where it would raise it.  Reads the headers only."""
    return _checked(Path(folder), dtype)[0]


def load_checkpoint(folder: str | Path, *, dtype: str = "", lic8: bool = False, group: TensorParallel = ALONE) -> Model:
    """The model in `folder`.  dtype: compute in this type, at least as wide as the stored one; else in the stored one.

    lic8: as in `ModelConfig`.  group: the ranks that compute it together; of a weight that they split, each reads its own part and no
    other.  Raises CheckpointError, before any weight is read, for a folder, a config or tensors that do not fit.
    """
    config, found = _checked(Path(folder), dtype)
    config = dataclasses.replace(config, lic8=lic8)
    return Model(config, _read(config, found, Shard(config, group)), group)


def _checked(folder: Path, dtype: str) -> tuple[ModelConfig, dict[str, Stored]]:
    stored = read_config(folder)
    config = read_config(folder, dtype=dtype)
    if config.torch_dtype.itemsize < stored.torch_dtype.itemsize:
        raise CheckpointError(
            f"{folder}: the weights are {stored.dtype}, and dtype {dtype} would round them; choose {stored.dtype} or wider"
        )
    found = _headers(folder)
    _check(folder, stored, found)
    return config, found


def save_checkpoint(model: Model, folder: str | Path) -> None:
    """Write `model` into the new `folder`; transformers' AutoModelForCausalLM.from_pretrained reads it too.

    Raises CheckpointError where `folder` is there already or the model has only one rank's weights, and OSError where it cannot be
    written.
    """
    from safetensors.torch import save_file

    if model.group.size > 1:
        raise CheckpointError(f"one of {model.group.size} ranks has only its part of the weights: save the model that one rank computes")

    target = Path(folder)
    if target.exists():
        raise CheckpointError(f"{target} is there already: a checkpoint is written into a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (scratch / CONFIG).write_text(json.dumps(config_to_hf(model.config), indent=2) + "\n")
        save_file(dict(_one_by_one(model.weights)), scratch / SINGLE, metadata={"format": "pt"})
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _one_by_one(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights.items():
        for stored, part in _stored_parts(name, tuple(tensor.shape)):
            yield stored, tensor[part].contiguous()


def _stored_parts(name: str, shape: tuple[int, ...]) -> list[tuple[str, Any]]:
    """(name in the file, which part of the weight it is) of each stored tensor of a weight."""
    if not (match := EXPERTS.fullmatch(name)):
        return [(name, ...)]
    prefix, kind = match.groups()
    if kind == "down_proj":
        return [(f"{prefix}{expert}.down_proj.weight", expert) for expert in range(shape[0])]
    half = shape[1] // 2
    halves = (("gate", slice(0, half)), ("up", slice(half, None)))
    return [(f"{prefix}{expert}.{which}_proj.weight", (expert, rows)) for expert in range(shape[0]) for which, rows in halves]


def _due(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that a checkpoint must have."""
    for name, shape in weight_shapes(config):
        for stored, _ in _stored_parts(name, shape):
            if stored == name:
                yield name, shape
            else:
                yield stored, (shape[1] if stored.endswith("down_proj.weight") else shape[1] // 2, shape[2])


def _may(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors that a checkpoint may have besides."""
    size = (config.vocab_size, config.hidden_size)
    return {f"model.layers.{n}.{name}": size for n in range(config.num_hidden_layers, config.cache_layers) for name in MTP_MAY}


def _check(folder: Path, config: ModelConfig, found: Mapping[str, Stored]) -> None:
    due, may = dict(_due(config)), _may(config)
    known = due | may
    shapes = [f"{n} is {list(found[n].shape)} where {list(s)} is due" for n, s in known.items() if n in found and found[n].shape != s]
    types = [
        f"{name} is {found[name].dtype} where {STORED[config.dtype]} is due" for name in known
        if name in found and found[name].dtype != STORED[config.dtype] and not (WIDE.fullmatch(name) and found[name].dtype == "F32")
    ]  # fmt: skip
    missing, extra = [name for name in due if name not in found], [name for name in found if name not in known]
    troubles = [("missing", missing), ("not of this model", extra), ("of another shape", shapes), ("of another type", types)]
    if any(names for _, names in troubles):
        said = "; ".join(f"{len(n)} {what}: {', '.join(n[:NAMED])}{', ...' if len(n) > NAMED else ''}" for what, n in troubles if n)
        raise CheckpointError(f"{folder}: the tensors are not those that {CONFIG} describes: {said}")


def _read(config: ModelConfig, found: Mapping[str, Stored], shard: Shard) -> dict[str, Tensor]:
    from safetensors import safe_open

    opened: dict[Path, Any] = {file: safe_open(file, framework="pt") for file in {stored.file for stored in found.values()}}
    shapes = dict(weight_shapes(config)) | {name: shape for name, shape in _may(config).items() if name in found}
    weights = {}
    for name, shape in shapes.items():
        mine = shard.shape(name, shape)
        parts = _stored_parts(name, mine)
        kept_wide = found[parts[0][0]].dtype == "F32" and config.dtype == "bfloat16"
        weight = torch.empty(mine, dtype=torch.float32 if kept_wide else config.torch_dtype)
        for stored, part in parts:
            weight[part] = opened[found[stored].file].get_slice(stored)[shard.stored(stored, found[stored].shape)]
        weights[name] = weight
    return weights


def _headers(folder: Path) -> dict[str, Stored]:
    """Every tensor that the folder holds."""
    if (index := folder / INDEX).exists():
        where = _json(index).get("weight_map")
        if not isinstance(where, dict) or not where:
            raise CheckpointError(f"{index}: weight_map is missing: it says which file holds a tensor")
        if strange := [name for name in set(where.values()) if Path(str(name)).name != name]:
            raise CheckpointError(f"{index}: shard {strange[0]!r} is not a file name: shards lie beside their index")
        headers = {name: _header(folder / name) for name in sorted(set(where.values()))}
        lost = [tensor for tensor, name in where.items() if tensor not in headers[name]]
        if lost:
            raise CheckpointError(f"{index}: {', '.join(lost[:NAMED])}: not in the shard that the index names")
        return {tensor: stored for header in headers.values() for tensor, stored in header.items()}
    return _header(folder / SINGLE)


def _header(file: Path) -> dict[str, Stored]:
    """What safetensors' own reader would find; read by hand, because that reader says neither which tensor is at fault nor its
    bounds.  Format: 8 bytes length, little endian, then JSON (https://huggingface.co/docs/safetensors).
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            fields: Any = json.loads(f.read(length)) if length <= min(size - 8, MOST) else None
        fields.pop("__metadata__", None)
        out = {name: Stored(file, tuple(field["shape"]), field["dtype"]) for name, field in fields.items()}
        end = 8 + length + max((field["data_offsets"][1] for field in fields.values()), default=0)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: no such file; a checkpoint has {SINGLE}, or {INDEX} and its shards") from None
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error):
        raise CheckpointError(f"{file}: this is no safetensors file: its header cannot be read") from None
    if end != size:
        raise CheckpointError(f"{file}: {size} bytes where its header promises {end}: it was cut, copy it again")
    return out


def _json(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; a model folder has {CONFIG} and {SINGLE} (or {INDEX} and its shards)") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return fields
