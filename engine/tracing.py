"""What a worker process writes into its trace besides the copies that the data path records itself (docs/trace.md).

Rules: the first line of a trace is its header and the last one its end, which is written only when every copy has ended and
the session was told; a machine event is written by the session's observer, so after the session accepted it and before its
effects begin; a physical begin is written before the first byte moves, an end after the last one and before the session is
told.  With the null recorder nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidegate.engine.recorder import Recording, content_tag
from tidegate.protocol.messages import VERSION, TransferId
from tidegate.protocol.session import Observer
from tidegate.protocol.topology import SlotPlan

__all__ = ["FORMAT", "labels", "trace_begin", "trace_end", "trace_file", "trace_footer", "trace_header",
           "trace_observer"]  # fmt: skip

FORMAT = 1
"""Version of the format that docs/trace.md describes."""


def trace_file(role: str, rank: int) -> str:
    """Name of the file of a process within a trace directory; its stem is the recorder's `process`."""
    return f"{role}-{rank}.jsonl"


def trace_header(
    recorder: Recording,
    *,
    role: str,
    rank: int,
    incarnation: int,
    layers: int,
    plan: SlotPlan | None = None,
    chunk_tokens: int = 0,
    read_lease: bool = False,
) -> None:
    """Write the first line.  Prefill gives its plan, the tokens of a chunk, and whether it may revoke; Decode does not.

    ValueError for a plan that the model's `SlotOf` does not describe: nothing could judge its trace.
    """
    if not recorder.enabled:
        return
    if plan and plan.table:
        raise ValueError(f"slots {plan.table}: a trace is judged by a model whose layers are all of one kind; run without a trace")
    recorder.record(
        "header", format=FORMAT, protocol=VERSION, role=role, rank=rank, incarnation=incarnation, layers=layers,
        shared=sorted(plan.shared) if plan else [], shared_slots=plan.shared_slots if plan else 0,
        chunk_tokens=chunk_tokens, read_lease=read_lease,
    )  # fmt: skip
    recorder.flush()  # what remains of a run that is interrupted is known for its trace, cut off


def trace_observer(recorder: Recording) -> Observer | None:
    """The observer for PrefillSession or DecodeSession; None, which costs nothing, where nothing is recorded."""
    if not recorder.enabled:
        return None

    def observe(op: str, arguments: Mapping[str, Any]) -> None:
        recorder.record("event", op=op, **{name: _plain(value) for name, value in arguments.items()})

    return observe


def _plain(value: Any) -> Any:
    """A message as {"type": its tag, field: ...}, which is its wire form with the names of the fields; a transfer as a list."""
    tag = getattr(value, "__struct_config__", None) and value.__struct_config__.tag
    if tag is None:
        return msgspec.to_builtins(value)
    return {"type": tag} | {name: msgspec.to_builtins(getattr(value, name)) for name in value.__struct_fields__}


def labels(transfer: TransferId) -> dict[str, int | str]:
    """What names the step in a physical event: give it to `copying.Work` as its labels."""
    return {"run": transfer.run, "chunk": transfer.chunk, "layer": transfer.layer, "member": transfer.member}


def trace_begin(
    recorder: Recording, what: str, transfer: TransferId, slot: int, epoch: int, ranges: Sequence[tuple[int, int]] = ()
) -> None:
    """`write` (rows are computed into the slot) or `attend` begins.

    ranges: (offset, length) in bytes of the rows of this step, in the offsets that reads and saves count by.
    """
    if recorder.enabled:
        recorder.record(f"{what}_begin", slot=slot, epoch=epoch, **labels(transfer), ranges=ranges)


def trace_end(
    recorder: Recording, what: str, transfer: TransferId, slot: int, epoch: int, buffers: Sequence[Any], *, ok: bool = True
) -> None:
    """`write` or `attend` has ended; buffers: exactly the rows of this step (main, then index), for their tag."""
    if recorder.enabled:
        recorder.record(f"{what}_end", slot=slot, epoch=epoch, **labels(transfer), ok=ok, tag=content_tag(*buffers))


def trace_footer(recorder: Recording) -> None:
    """Write the last line: every copy has ended and its session knows.  A trace without it counts as cut off."""
    recorder.record("end")
