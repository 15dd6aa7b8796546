"""Servers that have nothing to do have nothing: what each still holds when every client is answered, in words.

Rules: what a machine holds is told by its phase, as /metrics names it, and what the system holds for a process by /proc; a phase is
not at rest unless it stands here; what a process may keep (idle connections, threads that wait for work) is bounded by what it had when
it had first rested, so whatever grows with the requests is found.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.engine.soak.processes import Holding

__all__ = ["AT_REST", "grown", "unrest"]

AT_REST: dict[str, dict[str, tuple[str, ...]]] = {
    "prefill": {
        "physical_buffer": ("free",), "transfer": ("idle", "done", "failed", "revoked"), "prefill_run": ("idle", "done", "failed"),
        "pool_object": ("absent", "readable", "failed", "gone"),
    },
    "decode": {
        "request_completion": ("idle", "released", "failed"), "failure_invalidation": ("idle", "reclaimed"),
        "read": ("idle", "committed", "revoked"),
    },
    "proxy": {},
}  # fmt: skip
"""Machine -> the phases in which it holds nothing and waits for nobody."""
ZERO = {"prefill": ("prefill_calls",), "decode": ("prompts_waiting",), "proxy": ("requests_open",)}
ALL_FREE = {"prefill": ("blocks",), "decode": ("blocks", "hot_rows"), "proxy": ()}
SPARE_MEMORY = 64 << 20
"""Bytes: what an allocator keeps of the threads and bodies that there were."""
SPARE_FILES, SPARE_THREADS, SPARE_CONNECTIONS = 4, 16, 160


def unrest(role: str, figures: Mapping[str, float], *, prefills: int = 0) -> list[str]:
    """What a server with these figures still holds or waits for.  prefills: how many there are for a Decode to have met; 0: any number."""
    found = []
    for name, count in figures.items():
        machine, _, phase = name.partition(" ")
        if count and phase and machine in AT_REST[role] and phase not in AT_REST[role][machine]:
            found.append(f"{count:g} {machine} in phase {phase}")
    found += [f"{figures[name]:g} {name}" for name in ZERO[role] if figures[name]]
    if role == "decode" and 0 < prefills < figures["prefills"]:
        found.append(f"{figures['prefills']:g} prefills are met, and there are {prefills}")
    for name in ALL_FREE[role]:
        if figures[f"{name}_free"] != figures[name]:
            found.append(f"{figures[name] - figures[f'{name}_free']:g} of {figures[name]:g} {name} are taken")
    return [f"{role}: {one}" for one in found]


def grown(role: str, before: Holding, now: Holding) -> list[str]:
    """What a process holds now that it did not hold at its first rest."""
    found = [
        f"{count} descriptors of {kind or 'no name'}, first {before.files.get(kind, 0)}"
        for kind, count in now.files.items() if count > before.files.get(kind, 0) + SPARE_FILES
    ]  # fmt: skip
    if now.threads > before.threads + SPARE_THREADS:
        found.append(f"{now.threads} threads, first {before.threads}")
    if now.connections > SPARE_CONNECTIONS:
        found.append(f"{now.connections} connections")
    if now.resident > before.resident + SPARE_MEMORY:
        found.append(f"{now.resident >> 20} MiB of memory, first {before.resident >> 20}")
    if before.memory_files and now.memory_files > before.memory_files:  # 0: it has met nobody yet
        found.append(f"{now.memory_files} pieces of shared memory, first {before.memory_files}")
    return [f"{role}: {one}" for one in found]
