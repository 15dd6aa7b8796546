"""The JSON bodies of the rendezvous, with the names of the upstream interface.

Rules: a body is exactly of its type: an unknown field, a wrong type, a number out of range or a prompt of mixed kinds is a Refusal
(400) that names what is wrong; nothing is coerced; what this release does not do (streaming, sampling, unequal TP, context
parallelism, a prefix that Decode has already) is refused by its name, never ignored.
"""

from __future__ import annotations

import hashlib
import ipaddress
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from tidegate.engine.http.errors import Refusal

__all__ = [
    "Choice",
    "Completion",
    "CompletionRequest",
    "DecodeParams",
    "DecodeRequest",
    "Delivered",
    "Instance",
    "PrefillDone",
    "PrefillParams",
    "PrefillRequest",
    "Prompt",
    "Text",
    "Usage",
    "child",
    "parse",
    "prompt_digest",
    "prompts_of",
]  # fmt: skip

T = TypeVar("T")
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Nonce = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\A[A-Za-z0-9_.:-]+\Z")]
Port = Annotated[int, Meta(ge=1, lt=1 << 16)]
Prompt = str | list[int]
"""One prompt: text, or token ids."""
MAX_PROMPTS = 1024


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server to the proxy: it is there, and will say so again within `seconds`; or it leaves."""

    role: Literal["prefill", "decode"]
    url: Annotated[str, Meta(max_length=2000)]
    seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0

    def checked(self) -> Instance:
        """Itself; Refusal if the address is not one of this host."""
        checked_url(self.url, "url", "")
        return self


class DecodeParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proxy to Decode: have it prefilled remotely; say where at `metaserver`.

    prompt_indices: which of the client's prompts these are, ascending; empty for all of them.
    """

    do_remote_decode: Literal[False]
    do_remote_prefill: Literal[True]
    metaserver: Annotated[str, Meta(max_length=2000)]
    prompt_indices: list[Annotated[int, Meta(ge=0, lt=MAX_PROMPTS)]] = []

    def indices(self, count: int) -> list[int]:
        """Of each of the `count` prompts that came with it; Refusal (400) if it names others."""
        found = self.prompt_indices or [*range(count)]
        if len(found) != count or any(a >= b for a, b in pairwise(found)):
            raise Refusal(400, f"prompt_indices is {found}: one for each of the {count} prompts, ascending, or left out")
        return found


class PrefillParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Decode to the metaserver, and on to Prefill: the destination of attempt `attempt` is registered; this Decode listens at
    `remote_host:remote_port`.

    prompt_digest: of the token ids that Decode admitted; Prefill computes no other prompt.
    """

    request_id: Name
    do_remote_prefill: Literal[False]
    do_remote_decode: Literal[True]
    remote_engine_id: Name
    remote_host: Annotated[str, Meta(min_length=1, max_length=255)]
    remote_port: Port
    remote_tp_size: Annotated[int, Meta(ge=1)]
    remote_pcp_size: int = 1
    remote_dcp_size: int = 1
    remote_cached_tokens: int
    attempt: Nonce
    incarnation: Nonce
    prompt_digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]

    def checked(self) -> PrefillParams:
        """Itself, or the Refusal of what is not served yet."""
        sizes = {"remote_pcp_size": self.remote_pcp_size, "remote_dcp_size": self.remote_dcp_size}
        for name, size in sizes.items():
            if size != 1:
                raise Refusal(400, f"{name} is {size}: this release serves 1", self.request_id)
        if self.remote_cached_tokens != 0:
            raise Refusal(400, f"remote_cached_tokens is {self.remote_cached_tokens}: this release serves 0", self.request_id)
        if not is_loopback(self.remote_host):
            why = "Decode's memory is pulled on one host; give a loopback address"
            raise Refusal(400, f"remote_host is {self.remote_host!r}: {why}", self.request_id)
        return self


class CompletionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Client to proxy.  prompt: text, token ids, or a list of either; max_tokens: None for the server's limit."""

    prompt: Annotated[str, Meta(min_length=1)] | Annotated[list[int | str | list[Token]], Meta(min_length=1)]
    model: Annotated[str, Meta(max_length=500)] = ""
    max_tokens: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    temperature: float = 0.0
    stream: bool = False


class DecodeRequest(CompletionRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Proxy to Decode."""

    kv_transfer_params: DecodeParams


class PrefillRequest(CompletionRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Proxy to Prefill: one prompt."""

    kv_transfer_params: PrefillParams
    min_tokens: Literal[1] = 1


class Choice(msgspec.Struct, frozen=True):
    """The answer to prompt `index`."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str = "length"


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, frozen=True):
    """Decode's answer, and the proxy's: one choice for each prompt, in their order."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: str = "text_completion"


class PrefillDone(msgspec.Struct, frozen=True):
    """Prefill's answer: run `run` of the attempt is over, and Decode has read all of it."""

    id: str
    run: int
    attempt: int
    object: str = "prefill"


class Delivered(msgspec.Struct, frozen=True):
    """The metaserver's answer: a Prefill began a run of this attempt; Decode has heard, or will, from it how it ended."""

    request_id: str
    attempt: int
    prefill: str


@dataclass(frozen=True, slots=True)
class Text:
    """A tokenizer: text to token ids, and back."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


def parse(data: bytes, kind: type[T]) -> T:
    """The body in `data`; Refusal (400) that says what is wrong and where."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Refusal(400, f"this is no {kind.__name__}: {error}") from None
    except (RecursionError, UnicodeDecodeError) as error:
        raise Refusal(400, f"this is no {kind.__name__}: {type(error).__name__}, {error}") from None


def prompts_of(body: CompletionRequest) -> list[Prompt]:
    """The prompts of `body`, in order, each text or token ids; Refusal (400) for what cannot be answered as asked."""
    if body.stream:
        raise Refusal(400, "stream is true: answers are given whole, leave it out")
    if body.temperature != 0:
        raise Refusal(400, f"temperature is {body.temperature}: the most likely token is taken, give 0 or leave it out")
    prompts = _prompts(body.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise Refusal(400, f"{len(prompts)} prompts in one request: at most {MAX_PROMPTS}")
    for index, one in enumerate(prompts):
        if not one:
            raise Refusal(400, f"prompt {index} is empty: a prompt has at least one token")
        if not isinstance(one, str) and not all(0 <= token < 1 << 31 for token in one):
            raise Refusal(400, f"prompt {index} has a token id that is negative, or 2**31 and more")
    return prompts


def _prompts(prompt: str | list[int | str | list[int]]) -> list[Prompt]:
    if isinstance(prompt, str):
        return [prompt]
    tokens = [one for one in prompt if isinstance(one, int)]
    if len(tokens) == len(prompt):
        return [tokens]
    if tokens:
        raise Refusal(400, "prompt mixes token ids with prompts: give text, a list of token ids, or a list of either")
    return [one for one in prompt if not isinstance(one, int)]


def prompt_digest(tokens: Sequence[int]) -> str:
    """16 hex digits that name this sequence of token ids."""
    return hashlib.blake2b(struct.pack(f"<{len(tokens)}I", *tokens), digest_size=8).hexdigest()


def child(parent: str, index: int) -> str:
    """The id by which Decode and Prefill know prompt `index` of request `parent`."""
    return f"cmpl-{parent}-{index}"


def is_loopback(host: str) -> bool:
    """Is it an address of this host that nobody else can reach?  Names are not looked up: the answer must not change later."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_url(url: str, what: str = "metaserver", path: str = "/v1/metaserver") -> str:
    """`url` if it is one of a server on this host that may be asked; Refusal (400), with a good one: what and path are for that."""
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and is_loopback(parts.hostname or "") and parts.port and not parts.username
    except ValueError:
        good = False
    if not good:
        raise Refusal(400, f"{what} is {url[:200]!r}: give http://127.0.0.1:PORT{path}, servers are asked on this host only")
    return url
