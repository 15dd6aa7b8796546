"""What a rank measures of itself: the phases of its machines, how old the oldest wait is, memory, bytes.

Rules: a machine's figure is called as the machine is, and labelled with the phase, as in tla/machines/; everything is counted when it is
asked for, in the owner's thread, from the tables that decide; what is over and forgotten is in the counters only.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.engine.http.metrics import Sample

if TYPE_CHECKING:
    from tidegate.engine.decode_core import DecodeCore
    from tidegate.engine.owner import Owner
    from tidegate.engine.prefill_core import PrefillCore
    from tidegate.engine.waiting import Watch

__all__ = ["decode_samples", "prefill_samples"]


def prefill_samples(core: PrefillCore, owner: Owner, *, calls: int, bytes_saved: int, bytes_loaded: int) -> list[Sample]:
    """Of a Prefill rank; calls: requests of the proxy that are not answered yet."""
    s, now, t = core.session, time.monotonic(), core.times
    return [
        *_phases({"PhysicalBuffer": s.slots, "Transfer": s.transfers, "PrefillRun": s.runs, "PoolObject": s.pool}),
        Sample("transfer_oldest_held_seconds", "Age of the oldest remote read without a verdict.", core.answers.oldest(now)),
        *_waits(core.watch),
        Sample("prefill_calls", "Prompts taken and not answered.", calls),
        *_blocks(core.blocks.free, core.blocks.blocks),
        *_preemptions(core.parking.preempted, core.parking.resumed),
        Sample("gave_way_total", "Times that a run gave its blocks to others between two chunks.", core.parking.gave_way),
        Sample("gates_total", "Layer buffers waited for and got.", t.gates),
        Sample("gate_wait_seconds_total", "Time that the computing thread waited for gates and fills.", t.blocked),
        Sample("save_seconds_total", "Time that saves took.", t.save),
        Sample("load_seconds_total", "Time that loads took.", t.load),
        Sample("saved_bytes_total", "Copied into the host pool.", bytes_saved),
        Sample("loaded_bytes_total", "Copied out of the host pool.", bytes_loaded),
        _refused(owner),
    ]


def decode_samples(core: DecodeCore, owner: Owner, *, waiting: int, drafted: int, accepted: int, dropped: int = 0) -> list[Sample]:
    """Of a Decode rank; waiting: prompts that have no memory yet; drafted, accepted: tokens that were guessed, and that came true;
    dropped: requests that gave their blocks to others, and began anew.
    """
    s, now, hot = core.session, time.monotonic(), core.memory.hot.counts
    return [
        *_phases({"RequestCompletion": s.attempts, "FailureInvalidation": s.dests, "Read": s.reads}),
        Sample("read_oldest_unanswered_seconds", "Age of the oldest report that Prefill has not answered.", core.oldest_unanswered(now)),
        Sample("reads_retried_total", "Reads that were begun again after a failure.", core.reads_retried),
        *_waits(core.watch),
        Sample("prefills", "Prefills that it reads from, whose memory it has mapped.", len(core.peers.lives)),
        Sample("prompts_waiting", "Prompts that wait for memory.", waiting),
        *_blocks(core.memory.allocator.free, core.memory.allocator.blocks),
        *_preemptions(core.parking.preempted, core.parking.resumed),
        Sample("gave_way_total", "Times that a request gave its blocks to others, and began anew.", dropped),
        Sample("hot_rows", "Requests that can have a hot buffer at once.", core.memory.rows),
        Sample("hot_rows_free", "Hot buffers that nobody has.", core.memory.free_rows),
        Sample("hot_hits_total", "Rows that top-k wanted and the hot buffer had.", hot.hits),
        Sample("hot_misses_total", "Rows that top-k wanted and the host pool gave.", hot.misses),
        Sample("hot_evictions_total", "Rows that made room in a hot buffer.", hot.evictions),
        Sample("hot_loaded_bytes_total", "Copied from the host pool into hot buffers.", hot.bytes_loaded),
        Sample("tokens_drafted_total", "Tokens that the MTP layer guessed and a forward verified.", drafted),
        Sample("tokens_accepted_total", "Of those, how many came true.", accepted),
        *(Sample("pulled_bytes_total", "Read from Prefill's memory.", n, (("kind", kind),)) for kind, n in sorted(core.pulled.items())),
        _refused(owner),
    ]


def _preemptions(preempted: int, resumed: int) -> tuple[Sample, Sample]:
    return (
        Sample("preemptions_total", "Times that a request was made to wait, so that others go on.", preempted),
        Sample("resumptions_total", "Times that such a request went on where it was.", resumed),
    )


def _waits(watch: Watch) -> Iterable[Sample]:
    waits = watch.waits()
    for kind, count in sorted(Counter(wait.kind for wait in waits).items()):
        yield Sample("waits", "Things that cannot go on now, by kind; tidegate why tells each.", count, (("kind", kind),))
    yield Sample("waits_past_limit", "Those that have waited longer than wait_limit_seconds.", sum(w.seconds > watch.limit for w in waits))


def _phases(tables: Mapping[str, Mapping[Any, Any]]) -> Iterable[Sample]:
    for machine, table in tables.items():
        about = f"{machine}s that are remembered, by phase."
        for phase, count in sorted(Counter(state.phase for state in table.values()).items()):
            yield Sample(_snake(machine), about, count, (("phase", phase),))


def _snake(machine: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", machine).lower()


def _blocks(free: int, blocks: int) -> tuple[Sample, Sample]:
    return Sample("blocks", "KV blocks there are.", blocks), Sample("blocks_free", "KV blocks that nobody has.", free)


def _refused(owner: Owner) -> Sample:
    return Sample("messages_refused_total", "Messages that broke the protocol, and were dropped.", owner.refused)
