"""A small DeepSeek-V3.2-shaped model: what the engine's own workers compute while the data path moves its KV.

`ModelConfig` says the shape, `Model` does the arithmetic, `PrefillKV` and `DecodeKV` are what it asks of storage,
`load_checkpoint` and `save_checkpoint` are between it and a folder, `ResidentKV` and `reference_generate` are the plain run that
every other run is compared with, `TensorParallel` is what several ranks that compute it together exchange (`GlooRanks`, `ALONE`).
"""

from tidegate.engine.model.checkpoint import CheckpointError, check_checkpoint, load_checkpoint, read_config, read_fields, save_checkpoint
from tidegate.engine.model.config import DTYPES, ModelConfig
from tidegate.engine.model.hf_config import indexer_types_of
from tidegate.engine.model.network import Model, greedy
from tidegate.engine.model.reference import ResidentKV, reference_generate, reference_prefill
from tidegate.engine.model.speculation import RollbackKV, SeparateStore, Speculating, SpeculativeStore, speculate
from tidegate.engine.model.storage import Chunk, DecodeBatch, DecodeKV, PrefillKV, Rows
from tidegate.engine.model.tensor_parallel import ALONE, GlooRanks, RankLost, TensorParallel
from tidegate.engine.model.tokens import Tokenizer

__all__ = [
    "ALONE",
    "DTYPES",
    "CheckpointError",
    "Chunk",
    "DecodeBatch",
    "DecodeKV",
    "GlooRanks",
    "Model",
    "ModelConfig",
    "PrefillKV",
    "RankLost",
    "ResidentKV",
    "RollbackKV",
    "Rows",
    "SeparateStore",
    "Speculating",
    "SpeculativeStore",
    "TensorParallel",
    "Tokenizer",
    "check_checkpoint",
    "greedy",
    "indexer_types_of",
    "load_checkpoint",
    "read_config",
    "read_fields",
    "reference_generate",
    "reference_prefill",
    "save_checkpoint",
    "speculate",
]
