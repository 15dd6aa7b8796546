"""A small DeepSeek-V3.2-shaped model: what the engine computes while the data path moves its KV.

`ModelConfig` says the shape, `Model` does the arithmetic, `PrefillKV` and `DecodeKV` are what it asks of storage,
`ResidentKV` and `reference_generate` are the plain run that every other run is compared with.
"""

from tidegate.engine.model.config import ModelConfig
from tidegate.engine.model.network import DecodeKV, Model, PrefillKV, greedy
from tidegate.engine.model.reference import ResidentKV, reference_generate

__all__ = ["DecodeKV", "Model", "ModelConfig", "PrefillKV", "ResidentKV", "greedy", "reference_generate"]
