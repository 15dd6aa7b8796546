"""What Prefill and Decode say to each other.

Rules: every message names its work in full (transfer, run, slot, epoch, member, incarnation), so that a late or repeated one
can never speak for another; the first byte on the wire is the protocol version, and a message of another version, or one that
is not exactly of its type, is a RemoteProtocolError and never anything else.  What each must carry, and the counterexample
without it, is told in docs/protocol.md.
"""

from __future__ import annotations

import msgspec

from tidegate.protocol.errors import RemoteProtocolError

__all__ = [
    "VERSION", "Abort", "Blocks", "Committed", "Message", "ReadDone", "ReadFailed", "Ready", "Retire", "Retired", "Revoked",
    "RunFailed", "Start", "TransferId", "decode", "encode", "run_of",
]  # fmt: skip

VERSION = 2


class TransferId(msgspec.Struct, frozen=True, array_like=True, order=True, cache_hash=True):
    """One remote read: what member `member` of a contributor group offers of (`chunk`, `layer`) of prefill run `run`."""

    run: int
    chunk: int
    layer: int
    member: int = 0

    def __str__(self) -> str:
        return f"run {self.run} chunk {self.chunk} layer {self.layer} member {self.member}"


class Start(msgspec.Struct, frozen=True, array_like=True, tag="START"):
    """Decode, through the proxy, to Prefill: destinations are registered; prefill `prompt` for this attempt."""

    request: str
    attempt: int
    incarnation: int
    tokens: int
    prompt: tuple[int, ...] = ()


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="READY"):
    """Prefill: tokens [start, stop) of `transfer.layer` stand in `slot`, epoch `epoch`, and stay there until you answer.

    `final`: this is the last chunk, so the run has `transfer.chunk` chunks.  `table`: the name of the step's BLOCKS, which say where in
    the slot these tokens are; an address, which the sender's engine fills in.
    """

    request: str
    attempt: int
    transfer: TransferId
    slot: int
    epoch: int
    incarnation: int
    start: int
    stop: int
    final: bool
    table: int = 0


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="BLOCKS"):
    """Prefill, to Decode's engine and not to its session: the blocks that hold the rows of (`run`, `chunk`), the same in every slot.

    Said once for a step, before its first READY, and with each READY that is said again; what each READY names it by is `table`, a
    digest of all the rest.  ids: little-endian int32, in the order of the tokens.
    """

    run: int
    chunk: int
    member: int
    incarnation: int
    table: int
    ids: bytes


class ReadDone(msgspec.Struct, frozen=True, array_like=True, tag="READ_DONE"):
    """Decode: the bytes of `transfer` have landed.  Resent until it is answered."""

    transfer: TransferId
    slot: int
    epoch: int
    incarnation: int


class ReadFailed(msgspec.Struct, frozen=True, array_like=True, tag="READ_FAILED"):
    """Decode: `transfer` was refused, or its read failed; the bytes will not be used."""

    transfer: TransferId
    slot: int
    epoch: int
    incarnation: int
    reason: str = ""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="COMMITTED"):
    """Prefill: `transfer` was still held when your first READ_DONE came; believe what you read."""

    transfer: TransferId


class Revoked(msgspec.Struct, frozen=True, array_like=True, tag="REVOKED"):
    """Prefill: do not believe what you read of `transfer`; or the answer to READ_FAILED."""

    transfer: TransferId


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="ABORT"):
    """Decode: attempt `attempt` is over; its runs may stop.  One goes to each member."""

    request: str
    attempt: int
    reason: str = ""
    member: int = 0


class RunFailed(msgspec.Struct, frozen=True, array_like=True, tag="RUN_FAILED"):
    """Prefill: run `run` of `attempt` has failed at `member`; no further READY will come.  Resent until the attempt is retired."""

    request: str
    attempt: int
    run: int
    reason: str = ""
    member: int = 0


class Retire(msgspec.Struct, frozen=True, array_like=True, tag="RETIRE"):
    """Decode: nothing of attempt `attempt` is read, or asked about, ever again.  Resent until it is answered."""

    request: str
    attempt: int


class Retired(msgspec.Struct, frozen=True, array_like=True, tag="RETIRED"):
    """Prefill: I have heard that `attempt` is over; you may forget it."""

    attempt: int


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
