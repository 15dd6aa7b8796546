"""The bounds of a World: the constants of tla/system/System.tla, in Python.

Rules: a Bounds and a .cfg say the same (`from_cfg`, `cfg_text`), so that TLC and the sessions are held to one configuration;
layers, chunks, runs, attempts and blocks count from 1, their bounds are the highest of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.protocol.topology import SlotPlan, Topology
from tidegate.spec.errors import SpecError
from tidegate.spec.values import TRUE, parse, show

__all__ = ["CHUNK_TOKENS", "FAULTS", "INVARIANTS", "Bounds"]

FAULTS = ("loss", "dup", "fail", "unknown", "save", "load", "evict", "abort", "revoke", "crash_decode", "crash_prefill")
"""The keys of `used` in System.tla, and the names of the budgets here."""

INVARIANTS = (
    "ReuseSafe", "GateBeforePublish", "LoadBeforeCompute", "PublishAfterComplete", "AckIdentity", "DestinationLifetime",
    "RankLifetime", "IndexerCover", "ScheduleSafe", "FailClosed", "OneVerdict", "BlastRadius", "NoLeak", "AnswerDue", "NothingKept",
    "LostIsOver",
)  # fmt: skip

CHUNK_TOKENS = 4
"""Tokens of a full chunk in a World."""

_NAMES = {
    "SharedSlots": "shared_slots", "NumChunks": "chunks", "MaxLoss": "loss", "MaxDup": "dup", "MaxFail": "fail",
    "MaxUnknown": "unknown", "MaxSaveFail": "save", "MaxLoadFail": "load", "MaxEvict": "evict", "MaxAbort": "abort",
    "MaxRevoke": "revoke", "MaxCrashDecode": "crash_decode", "MaxCrashPrefill": "crash_prefill", "IndexerBlocks": "indexer_blocks",
}  # fmt: skip
_FLAGS = {"ReadLease": "read_lease", "Retiring": "retiring", "GivingWay": "giving_way"}
_RANKS = {"Members": "members", "DecodeRanks": "decode_ranks"}
_SETS = {"Layers": "layers", "Runs": "runs", "Attempts": "attempts", "Blocks": "blocks", "Lanes": "lanes"}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How large a World is and how often each fault may strike.

    shared: the layers that share slots; chunks: the most that a run has; prompts: chunks of attempt 1, 2, ... (all `chunks`
    if absent; the last one counts for the rest); requests: request ids of attempt 1, 2, ... likewise: by default one id for
    all, the hardest case.  members: Prefill ranks; decode_ranks: Decode ranks, each fed by as many members; indexer_blocks: of a step,
    which the members of one Decode rank share out; lanes: sets of
    blocks that a slot has; order: the model's constraint on what comes first, `Eager`, `Calm` or none; retiring: do sessions forget
    what is over?  giving_way: may a run give its room to others between two chunks?
    """

    layers: int = 1
    shared: frozenset[int] = frozenset((1,))
    shared_slots: int = 1
    chunks: int = 1
    runs: int = 1
    attempts: int = 1
    blocks: int = 1
    read_lease: bool = False
    retiring: bool = False
    giving_way: bool = False
    loss: int = 0
    dup: int = 0
    fail: int = 0
    unknown: int = 0
    save: int = 0
    load: int = 0
    evict: int = 0
    abort: int = 0
    revoke: int = 0
    crash_decode: int = 0
    crash_prefill: int = 0
    prompts: tuple[int, ...] = ()
    requests: tuple[str, ...] = ("request",)
    members: int = 1
    decode_ranks: int = 1
    lanes: int = 1
    indexer_blocks: int = 1
    order: str = ""

    @property
    def plan(self) -> SlotPlan:
        return SlotPlan(layers=self.layers, shared=self.shared, shared_slots=self.shared_slots)

    @property
    def topology(self) -> Topology:
        return Topology(p_tp=self.members, d_tp=self.decode_ranks)

    @property
    def parts(self) -> range:
        """What lies at one (chunk, layer) of a destination: of each Decode rank its share of the main K/V, then the indexer's blocks."""
        return range(self.decode_ranks * (self.indexer_blocks + 1))

    def sends(self, member: int) -> frozenset[int]:
        """The parts that a member sends (`Sends` of the model)."""
        t = self.topology
        first, end = (self.indexer_blocks * place // t.ratio for place in (t.member(member), t.member(member) + 1))
        own = t.d_rank(member) * (self.indexer_blocks + 1)
        return frozenset({*range(own + first + 1, own + end + 1), *({own} if t.sends_main(member) else ())})

    def chunks_of(self, attempt: int) -> int:
        return self.prompts[min(attempt, len(self.prompts)) - 1] if self.prompts else self.chunks

    def tokens_of(self, attempt: int) -> int:
        """Tokens of its prompt: the last chunk is one short of full."""
        return self.chunks_of(attempt) * CHUNK_TOKENS - 1

    def request_of(self, attempt: int) -> str:
        return self.requests[min(attempt, len(self.requests)) - 1]

    @classmethod
    def from_cfg(cls, config: Path) -> Bounds:
        """The bounds that a .cfg gives to System. Raises SpecError for a constant that is none of System's."""
        text = re.sub(r"\\\*.*", "", config.read_text())
        out: dict[str, object] = {}
        for name, written in re.findall(r"^\s*(\w+)[ \t]*=[ \t]*(.+?)[ \t]*$", text, re.MULTILINE):
            value = parse(written)
            if name in _SETS:
                if value != frozenset(range(1, len(value) + 1)):
                    raise SpecError(f"{config.name}: {name} = {show(value)}: a World counts from 1 without gaps, write 1..n")
                out[_SETS[name]] = len(value)
            elif name in _RANKS:
                if value != frozenset(range(len(value))):
                    raise SpecError(f"{config.name}: {name} = {show(value)}: ranks count from 0 without gaps, write 0..n-1")
                out[_RANKS[name]] = len(value)
            elif name == "Shared":
                out["shared"] = value
            elif name in _FLAGS:
                out[_FLAGS[name]] = value == TRUE
            elif name in _NAMES:
                out[_NAMES[name]] = value
            else:
                raise SpecError(f"{config.name}: {name} is no constant of System")
        if re.search(r"^\s*ChunksOf\s*<-\s*LongThenShort", text, re.MULTILINE):
            out["prompts"] = (out.get("chunks", 1), 1)
        if found := re.search(r"^ACTION_CONSTRAINT\s+(\w+)", text, re.MULTILINE):
            out["order"] = found[1]
        return cls(**out)  # type: ignore[arg-type]  # the names are those of the fields

    def cfg_text(self) -> str:
        """A .cfg for TLC with these bounds: no VIEW, so that `ev` tells a dumped state's steps apart."""
        if self.prompts:
            raise SpecError("prompts of several lengths have no .cfg: TLC would need another ChunksOf")
        sets = {name: frozenset(range(1, getattr(self, field) + 1)) for name, field in _SETS.items()}
        constants = {name: show(value) for name, value in sets.items()} | {"Shared": show(self.shared)}
        constants |= {name: str(getattr(self, field)) for name, field in _NAMES.items()}
        constants |= {name: show(frozenset(range(getattr(self, field)))) for name, field in _RANKS.items()}
        constants |= {name: str(getattr(self, field)).upper() for name, field in _FLAGS.items()}
        lines = [f"    {name} = {value}" for name, value in constants.items()]
        order = [f"ACTION_CONSTRAINT {self.order}"] if self.order else []
        return "\n".join(["SPECIFICATION Spec", "CONSTANTS", *lines, "    ChunksOf <- AllChunks", *order,
                          "INVARIANTS " + " ".join(INVARIANTS), ""])  # fmt: skip
