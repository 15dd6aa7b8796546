"""What Prefill and Decode say to each other.

Rules: every message names its work in full (transfer, run, slot, epoch, member, incarnation), so that a late or repeated one
can never speak for another; the first byte on the wire is the protocol version, and a message of another version, or one that
is not exactly of its type, is a RemoteProtocolError and never anything else; every field has its limit, which stands here, so
that no peer's message takes more memory, or a larger number, than ours ever would.  What each must carry, and the counterexample
without it, is told in docs/protocol.md.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.protocol.errors import RemoteProtocolError

__all__ = [
    "MAX_BLOCKS", "MAX_NAME", "MAX_REASON", "MAX_TOKENS", "VERSION", "Abort", "Blocks", "Committed", "Message", "ReadDone", "ReadFailed",
    "Ready", "Retire", "Retired", "Revoked", "RunFailed", "Start", "TransferId", "decode", "encode", "nameable", "run_of",
]  # fmt: skip

VERSION = 2
MAX_NAME = 200
"""Characters of a request's name; as HTTP bodies allow."""
MAX_REASON = 2000
"""Characters of a reason, which is for people: a longer one is cut where it is said."""
MAX_TOKENS = 1 << 22
"""Of one prompt."""
MAX_BLOCKS = 1 << 20
"""Of one step."""
LARGEST = (1 << 63) - 1

Nonce = Annotated[int, Meta(ge=0, le=LARGEST)]
"""A name (run, attempt, incarnation, digest), or an epoch: one for each time a slot was filled."""
Index = Annotated[int, Meta(ge=0, lt=1 << 31)]
"""A place among others (chunk, layer, member, slot, token): small enough for any product of two."""
Bound = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Of a range of tokens: one that does not fit is answered, and ends its request; what no arithmetic bears is no message."""
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]


def nameable(request: str) -> bool:
    """Can a message carry this name?"""
    try:
        request.encode()
    except UnicodeEncodeError:  # half a character, as in file names that are no text
        return False
    return len(request) <= MAX_NAME


class _Reasoned(msgspec.Struct, frozen=True, array_like=True):
    """Base of what carries a reason: whatever it was made of, an error's text say, it can be said."""

    def __post_init__(self) -> None:
        reason: str = self.reason  # type: ignore[attr-defined]
        if len(reason) > MAX_REASON or not reason.isascii():
            cut = reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 4]} ..."
            msgspec.structs.force_setattr(self, "reason", cut.encode(errors="replace").decode())


class TransferId(msgspec.Struct, frozen=True, array_like=True, order=True, cache_hash=True):
    """One remote read: what member `member` of a contributor group offers of (`chunk`, `layer`) of prefill run `run`."""

    run: Nonce
    chunk: Index
    layer: Index
    member: Index = 0

    def __str__(self) -> str:
        return f"run {self.run} chunk {self.chunk} layer {self.layer} member {self.member}"


class Start(msgspec.Struct, frozen=True, array_like=True, tag="START"):
    """Decode, through the proxy, to Prefill: destinations are registered; prefill `prompt` for this attempt."""

    request: Name
    attempt: Nonce
    incarnation: Nonce
    tokens: Index
    prompt: Annotated[tuple[Token, ...], Meta(max_length=MAX_TOKENS)] = ()


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="READY"):
    """Prefill: tokens [start, stop) of `transfer.layer` stand in `slot`, epoch `epoch`, and stay there until you answer.

    `final`: this is the last chunk, so the run has `transfer.chunk` chunks.  `table`: the name of the step's BLOCKS, which say where in
    the slot these tokens are; an address, which the sender's engine fills in.
    """

    request: Name
    attempt: Nonce
    transfer: TransferId
    slot: Index
    epoch: Nonce
    incarnation: Nonce
    start: Bound
    stop: Bound
    final: bool
    table: Nonce = 0


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="BLOCKS"):
    """Prefill, to Decode's engine and not to its session: the blocks that hold the rows of (`run`, `chunk`), the same in every slot.

    Said once for a step, before its first READY, and with each READY that is said again; what each READY names it by is `table`, a
    digest of all the rest.  ids: little-endian int32, in the order of the tokens.
    """

    run: Nonce
    chunk: Index
    member: Index
    incarnation: Nonce
    table: Nonce
    ids: Annotated[bytes, Meta(max_length=4 * MAX_BLOCKS)]


class ReadDone(msgspec.Struct, frozen=True, array_like=True, tag="READ_DONE"):
    """Decode: the bytes of `transfer` have landed.  Resent until it is answered.

    incarnation: of the Prefill that said READY; reader: of the Decode that says this, for another life of it knows nothing of the read.
    """

    transfer: TransferId
    slot: Index
    epoch: Nonce
    incarnation: Nonce
    reader: Nonce


class ReadFailed(_Reasoned, frozen=True, array_like=True, tag="READ_FAILED"):
    """Decode: `transfer` was refused, or its read failed; the bytes will not be used.  Fields as of READ_DONE."""

    transfer: TransferId
    slot: Index
    epoch: Nonce
    incarnation: Nonce
    reader: Nonce
    reason: Reason = ""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="COMMITTED"):
    """Prefill: `transfer` was still held when your first READ_DONE came; believe what you read."""

    transfer: TransferId


class Revoked(msgspec.Struct, frozen=True, array_like=True, tag="REVOKED"):
    """Prefill: do not believe what you read of `transfer`; or the answer to READ_FAILED."""

    transfer: TransferId


class Abort(_Reasoned, frozen=True, array_like=True, tag="ABORT"):
    """Decode: attempt `attempt` is over; its runs may stop.  One goes to each member."""

    request: Name
    attempt: Nonce
    reason: Reason = ""
    member: Index = 0


class RunFailed(_Reasoned, frozen=True, array_like=True, tag="RUN_FAILED"):
    """Prefill: run `run` of `attempt` has failed at `member`; no further READY will come.  Resent until the attempt is retired."""

    request: Name
    attempt: Nonce
    run: Nonce
    reason: Reason = ""
    member: Index = 0


class Retire(msgspec.Struct, frozen=True, array_like=True, tag="RETIRE"):
    """Decode: nothing of attempt `attempt` is read, or asked about, ever again.  Resent until it is answered."""

    request: Name
    attempt: Nonce


class Retired(msgspec.Struct, frozen=True, array_like=True, tag="RETIRED"):
    """Prefill: I have heard that `attempt` is over; you may forget it."""

    attempt: Nonce


Message = Start | Ready | Blocks | ReadDone | ReadFailed | Committed | Revoked | Abort | RunFailed | Retire | Retired



def run_of(message: Message) -> int:
    """The run that `message` is about, by its own name or its transfer's; 0 if it names none."""
    transfer = getattr(message, "transfer", None)
    return int(getattr(message, "run", 0) if transfer is None else transfer.run)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of `message`: one version byte, then msgpack."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in `data`; RemoteProtocolError if its version or its shape is not ours."""
    if not data or data[0] != VERSION:
        found = data[0] if data else "no byte"
        raise RemoteProtocolError(
            f"protocol version {found}, this side speaks {VERSION}: run the same release on both sides",
            machine="wire", state=f"{len(data)} bytes", event=bytes(data[:16]),
        )  # fmt: skip
    try:
        return _decoder.decode(memoryview(data)[1:])
    except (msgspec.MsgspecError, RecursionError) as error:  # nesting, even in what would be skipped
        raise RemoteProtocolError(
            f"not a message of version {VERSION}: {error}",
            machine="wire", state=f"{len(data)} bytes", event=bytes(data[:16]),
        ) from error  # fmt: skip
