"""What a worker process writes into its trace besides the copies that the data path records itself (docs/trace.md).

Rules: the first line of a trace is its header and the last one its end, which is written only when every copy has ended and
the session was told; a machine event is written by the session's observer, so after the session accepted it and before its
effects begin; a physical begin is written before the first byte moves, an end after the last one and before the session is
told.  With the null recorder nothing is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tidegate.engine.event_trace import EventsToo, with_events
from tidegate.engine.recorder import NULL, NullRecorder, Recorder, Recording, content_tag, range_tags
from tidegate.protocol.messages import VERSION, TransferId
from tidegate.protocol.session import Observer
from tidegate.protocol.topology import ALONE, SlotPlan, Topology

__all__ = ["FORMAT", "labels", "recorder_of", "trace_begin", "trace_end", "trace_file", "trace_footer", "trace_header",
           "trace_observer"]  # fmt: skip

FORMAT = 3
"""Version of the format that docs/trace.md describes."""


def trace_file(life: str, rank: int) -> str:
    """Name of the file of a process within a trace directory; its stem is the recorder's `process`."""
    return f"{life}-{rank}.jsonl"


def recorder_of(folder: str, role: str, rank: int, topology: Topology, life: str = "") -> Recorder | NullRecorder | EventsToo:
    """What a rank of a worker records with, in `folder`; without one, nothing, or what `with_events` does.  life: what the leader's
    recorder says that it is called; left out by the leader, who takes the first name that nobody has: an instance that comes back after
    a crash, or that is beside others, has files of its own.  Raises as `Recorder`.
    """
    recorder = _in_folder(Path(folder), role, rank, topology, life) if folder else NULL
    return recorder if rank else with_events(recorder, Path(trace_file(role, rank)).stem)  # every session is rank 0's


def _in_folder(folder: Path, role: str, rank: int, topology: Topology, life: str) -> Recorder:
    for name in [life] if life else itertools.chain([role], (f"{role}.{n}" for n in itertools.count(1))):
        path = folder / trace_file(name, rank)
        try:
            return Recorder(path, path.stem, by_range=topology != ALONE)
        except FileExistsError:
            if life:
                raise
    raise AssertionError("there is always another name")


def trace_header(
    recorder: Recording,
    *,
    role: str,
    rank: int,
    incarnation: int,
    layers: int,
    ranks: int = 1,
    members: int = 1,
    plan: SlotPlan | None = None,
    chunk_tokens: int = 0,
    read_lease: bool = False,
    memories: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the first line.  ranks: of the instance; members: Prefill ranks that this side speaks for or with.  Prefill gives its plan,
    the tokens of a chunk, and whether it may revoke; Decode the file that each of its regions lies in, "" if nobody else has it.

    ValueError for a plan that the model's `SlotOf` does not describe: nothing could judge its trace.  Of the events alone its slots are
    told.
    """
    if not recorder.hears:
        return
    table = {"table": plan.table} if plan and plan.table else {}
    if plan and table and recorder.enabled:
        raise ValueError(f"slots {plan.table}: a trace is judged by a model whose layers are all of one kind; run without a trace")
    recorder.record(
        "header", format=FORMAT, protocol=VERSION, role=role, rank=rank, ranks=ranks, members=members, incarnation=incarnation,
        layers=layers, shared=sorted(plan.shared) if plan else [], shared_slots=plan.shared_slots if plan else 0,
        chunk_tokens=chunk_tokens, read_lease=read_lease, memories=dict(memories), **table,
    )  # fmt: skip


def trace_observer(recorder: Recording) -> Observer | None:
    """The observer for PrefillSession or DecodeSession; None, which costs nothing, where nothing is recorded."""
    if not recorder.hears:
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
    recorder: Recording, what: str, transfer: TransferId, slot: int, epoch: int, ranges: Sequence[tuple[int, int]] = (),
    regions: Sequence[str] = (),
) -> None:  # fmt: skip
    """`write` (rows are computed into the slot) or `attend` begins.

    ranges: (offset, length) in bytes of the rows of this step, in the offsets that reads and saves count by; regions: what lies in each.
    """
    if recorder.enabled:
        recorder.record(f"{what}_begin", slot=slot, epoch=epoch, **labels(transfer), ranges=ranges, regions=regions)


def trace_end(
    recorder: Recording, what: str, transfer: TransferId, slot: int, epoch: int, buffers: Sequence[Any], *, ok: bool = True
) -> None:
    """`write` or `attend` has ended; buffers: exactly the rows of this step (main, then index), for their tag, and of a write one for
    each range, for theirs.
    """
    if recorder.enabled:
        more = {"tags": range_tags(buffers)} if recorder.by_range and what == "write" else {}
        recorder.record(f"{what}_end", slot=slot, epoch=epoch, **labels(transfer), ok=ok, tag=content_tag(*buffers), **more)


def trace_footer(recorder: Recording) -> None:
    """Write the last line: every copy has ended and its session knows.  A trace without it counts as cut off."""
    recorder.record("end")
