"""Names of pool objects: a key says what its rows are, so that whoever has the same prefix finds them.

Rules: two blocks share a key exactly if layout, model and every token from the beginning of the prompt to the end of the block
(and the tokens after it on which its rows depend, where a layer looks ahead) are the same, cut into the same blocks; a key says
nothing about requests, runs or addresses; every part is hashed with its length, so that no two lists of parts read alike.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

__all__ = ["KEY_BYTES", "block_key", "chain_keys", "pool_objects", "private_key", "root_key", "stops_of"]

KEY_BYTES = 32


def root_key(layout: str, model: str) -> bytes:
    """Where a chain begins.

    layout: digest of what a block's bytes mean (sizes, dtypes, layers; where ranks hold different shares, the rank).  model:
    names the weights and everything else that rows depend on; two models that share it would read each other's rows.
    """
    return _hashed((b"root", layout.encode(), model.encode()))


def block_key(parent: bytes, tokens: Sequence[int], after: Sequence[int] = ()) -> bytes:
    """Key of the block that holds `tokens` (one at least, each 0..2**63 - 1) after the prefix that `parent` names.

    after: those that follow them, as far as its rows depend on them.
    """
    if len(parent) != KEY_BYTES or not tokens:
        raise ValueError(f"a parent of {len(parent)} bytes and {len(tokens)} tokens: a key has {KEY_BYTES} bytes, a block a token")
    return _hashed((b"block", parent, array("q", tokens).tobytes(), array("q", after).tobytes()))


def stops_of(tokens: int, block: int, chunk: int) -> list[int]:
    """Where the objects of a prompt end: at the end of each block, of each chunk, and of the prompt."""
    return sorted({*range(block, tokens, block), *range(chunk, tokens, chunk), tokens})


def pool_objects(tokens: int, block: int, chunk: int) -> int:
    """How many objects a prompt needs."""
    return len(stops_of(tokens, block, chunk))


def chain_keys(root: bytes, tokens: Sequence[int], stops: Iterable[int], *, lookahead: int = 0) -> list[bytes]:
    """Keys of the blocks that end before the tokens `stops` (ascending), each the parent of the next.

    lookahead: how many tokens after its own a row depends on; those after a prompt's end are not known to anyone, and its last rows
    are rows of that prompt alone.
    """
    keys, parent, first = [], root, 0
    for stop in stops:
        if not first < stop <= len(tokens):
            raise ValueError(f"a block of tokens {first}..{stop} of {len(tokens)}: stops ascend and lie within the prompt")
        parent = block_key(parent, tokens[first:stop], tokens[stop : stop + lookahead])
        keys.append(parent)
        first = stop
    return keys


def private_key(key: bytes, run: int) -> bytes:
    """A name that only `run` (a nonce) knows, for a block whose shared name another is writing under right now."""
    return _hashed((b"private", key, run.to_bytes(16, "big")))


def _hashed(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
