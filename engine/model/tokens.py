"""Text to tokens and back: the folder's `tokenizer.json`, or bytes where it has none.

Rules: without a tokenizer a token below 256 is the byte itself, so any file can be a prompt; with one, a prompt that is not UTF-8
is refused, not repaired.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.engine.model.checkpoint import CheckpointError
from tidegate.engine.model.config import BYTES

__all__ = ["Tokenizer"]


class Tokenizer:
    """Of the model in `folder` ("": of one that has no folder); reads at most one file.  CheckpointError where it cannot."""

    def __init__(self, folder: str | Path = "") -> None:
        path = Path(folder) / "tokenizer.json"
        self._inner: Any = _open(path) if folder and path.exists() else None

    @property
    def reads_text(self) -> bool:
        """Is there a tokenizer.json?"""
        return self._inner is not None

    def encode(self, data: bytes) -> list[int]:
        """Tokens of a prompt, no marks added.  ValueError for bytes that are not UTF-8, where the tokenizer wants text."""
        if self._inner is None:
            return list(data)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start} of the prompt is not UTF-8, and tokenizer.json reads text; give a text file") from None
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        """Text of `tokens`; bytes that are not UTF-8 show as replacement characters, marks as nothing."""
        if self._inner is not None:
            return str(self._inner.decode(tokens, skip_special_tokens=True))
        return bytes(token for token in tokens if token < BYTES).decode(errors="replace")


def _open(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Inner
    except ImportError:
        raise CheckpointError(f"{path}: the package tokenizers reads this and is not installed; pip install 'tidegate[model]'") from None
    try:
        return Inner.from_file(str(path))
    except Exception as error:  # the package raises bare Exception
        raise CheckpointError(f"{path}: the package tokenizers cannot read it: {error}") from None
