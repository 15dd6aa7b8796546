"""Tells one request of a recorded run as a sequence diagram.

Rules: rows are the machine events that concern the request, in the merged order; physical lines are bars between their begin and their end;
slots show every computation, other requests' too, since sharing is what they are about; a message comes from the last line that
may have sent it, and one whose delivery is not recorded ends in the network (it was lost, or too late).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidegate.spec.diagram import NETWORK, Arrow, Band, Bar, Diagram, Lifeline, Row
from tidegate.spec.errors import SpecError
from tidegate.spec.trace_files import read_directory
from tidegate.spec.trace_lines import Line, Physical
from tidegate.spec.trace_names import Names, read_names
from tidegate.spec.trace_order import Key, key_of, merge, tag_of

__all__ = ["requests", "tell_run"]

Step = tuple[int, int, int, int]
LEGEND = "1·2·3 is run 1, chunk 2, layer 3; runs are numbered in the order of their START"
SIDE = {"load": "pool", "save": "pool"}
PHRASES = {
    "Admit": "attempt {attempt}", "Registered": "attempt {attempt}'s destination",
    "Schedule": "inference of attempt {attempt} begins", "Finish": "inference of attempt {attempt} ends",
    "Abort": "attempt {attempt} is given up", "Claim": "run {run} takes the slot of its next step",
    "Join": "another rank joins run {run}", "Stop": "another rank gives run {run} up",
    "Write": "run {run} has computed {step}", "Miss": "run {run}: what it must load is gone",
    "GiveWay": "run {run} leaves its own slots to others, until it goes on", "LayerDone": "attention of {step} ends",
    "SaveEnd": "save of {step} ends", "LoadEnd": "load of {step} ends", "Landed": "the failed read of {step} stops",
    "ReadEnd": "read of {step}: {how}", "Revoke": "the lease of {step} is over", "ResendReady": "{step}, again",
    "ResendReport": "{step}, again", "Evict": "chunk {chunk} leaves the pool", "Retire": "attempt {attempt} is over for good",
    "Heed": "another rank hears that run {run} is retired", "Forget": "run {run} is forgotten",
    "ResendFailed": "run {run} has failed, again",
    "Over": "the process has ended", "PrefillGone": "a Prefill has gone", "PeerGone": "a Decode has gone",
    "PeerFenced": "no copy of it can run any more", "PeerLost": "what was held for it is given up",
}  # fmt: skip


def requests(names: Names) -> dict[str, list[int]]:
    """Request id -> nonces of its attempts, as far as a START named them."""
    out: dict[str, list[int]] = {}
    for start in names.started.values():
        attempts = out.setdefault(start.request, [])
        if start.attempt not in attempts:
            attempts.append(start.attempt)
    return out


def tell_run(folder: Path, request: str = "", *, chunks: Collection[int] = (), layers: Collection[int] = ()) -> Diagram:
    """The diagram of one request.

    request: its id, or the nonce of one attempt; the run's first if empty.  chunks, layers: only these (all if empty).
    Raises Unreadable or TraceRefused for a folder that is no trace, SpecError for a request that it does not hold.
    """
    files = read_directory(folder)
    lines = merge(files)
    names = read_names(files, lines)
    known = requests(names)
    if not known:
        raise SpecError(f"{folder}: no START was delivered, so there is no request to draw")
    request = request or next(iter(known))
    attempts = known.get(request) or [nonce for nonce in names.attempts if str(nonce) == request]
    if not attempts:
        raise SpecError(f"{folder} holds no request {request!r}: there are {', '.join(sorted(known)[:20])}")
    return _Telling(names, attempts, set(chunks), set(layers), f"{folder.name}: request {request}").tell(lines)


class _Telling:
    """One request's diagram while it grows."""

    def __init__(self, names: Names, attempts: list[int], chunks: set[int], layers: set[int], title: str) -> None:
        self.names, self.attempts, self.chunks, self.layers = names, set(attempts), chunks, layers
        self.runs = {run for run, start in names.started.items() if start.attempt in self.attempts}
        self.out = Diagram(title, [], legend=LEGEND, good=True)
        self.written: dict[tuple[int, int], int] = {}  # run, member -> its Writes so far
        self.sent: dict[Key, tuple[int, str, bool]] = {}  # message -> row, process, certain
        self.arrows: dict[Key, Arrow] = {}
        self.slots: set[str] = set()

    def tell(self, lines: list[Line]) -> Diagram:
        for line in lines:
            if line.physical:
                self._physical(line, line.physical)
            elif self._concerned(line):
                self._event(line)
        for key, (row, who, certain) in self.sent.items():
            if certain and key not in self.arrows:
                self._arrow(key, row, who, None)
        self.out.lines = self._lifelines()
        return self.out

    # ---- which lines -----------------------------------------------------------------------------------------------------

    def _step_of(self, line: Line) -> Step | None:
        """The step that a line is about."""
        a = line.arguments
        about = getattr(a.get("message"), "transfer", None)
        if about is not None:
            return about.run, about.chunk, about.layer, about.member
        if "transfer" in a:
            return tuple(a["transfer"])
        if line.op == "Write":
            return self._written(line, self.written.get((a["run"], a["member"]), 0))
        return None

    def _concerned(self, line: Line) -> bool:
        a, message = line.arguments, line.arguments.get("message")
        step = self._step_of(line)
        if line.op == "Write":
            self.written[a["run"], a["member"]] = self.written.get((a["run"], a["member"]), 0) + 1
        run = step[0] if step else a.get("run", getattr(message, "run", a.get("object", (None,))[0]))
        attempt = a.get("attempt", getattr(message, "attempt", None))
        if run not in self.runs and attempt not in self.attempts:
            return False
        shown = step is None or ((not self.chunks or step[1] in self.chunks) and (not self.layers or step[2] in self.layers))
        return shown and not (line.op == "Claim" and (self.chunks or self.layers))

    # ---- rows and messages -------------------------------------------------------------------------------------------------

    def _event(self, line: Line) -> None:
        a, who, row = line.arguments, _process(line), len(self.out.rows)
        step = self._before_write(line)
        said = {"run": self.names.runs.get(a.get("run", 0), "?"), "step": _short(self.names, step), "how": a.get("how", ""),
                "chunk": a.get("object", (0, 0))[1], "attempt": self.names.attempts.get(a.get("attempt", 0), "?")}  # fmt: skip
        message = a.get("message")
        text = _message(self.names, key_of(message)) if message is not None else PHRASES.get(line.op, "").format_map(said)
        failed = a.get("ok") is False or a.get("how") in ("quiet", "unknown") or line.op in ("Abort", "Revoke", "Miss", "Evict")
        text += ": failed" if a.get("ok") is False else ""
        self.out.rows.append(Row(line.op, text, who, str(row + 1), f"{line.where}: {line}", failed))
        if message is not None:
            self._delivered(key_of(message), row, who)
        for key, certain in _sends(line, step):
            if key not in self.sent or key in self.arrows or line.op != "Deliver":  # an answer on its way is not sent twice
                self.sent[key] = (row, who, certain)
                self.arrows.pop(key, None)

    def _before_write(self, line: Line) -> Step | None:
        if line.op == "Write":  # it was counted when the line was looked at
            return self._written(line, self.written[line.arguments["run"], line.arguments["member"]] - 1)
        return self._step_of(line)

    def _written(self, line: Line, before: int) -> Step:
        """What a Write has written, `before` others of its run having come first."""
        chunk, layer = divmod(before, self.names.plan.layers)
        return line.arguments["run"], chunk + 1, layer + 1, line.arguments["member"]

    def _delivered(self, key: Key, row: int, who: str) -> None:
        earlier = self.arrows.get(key)
        if earlier is not None and earlier.got is not None:
            self.out.arrows.append(Arrow(earlier.label, earlier.source, who, earlier.got, row, earlier.colour, copy=True))
            self.arrows[key] = self.out.arrows[-1]
        elif key in self.sent:
            self._arrow(key, self.sent[key][0], self.sent[key][1], row, who)

    def _arrow(self, key: Key, row: int, source: str, got: int | None, target: str = "") -> None:
        colour = _colour(self.names, key[1], key[3]) if len(key) > 3 else ""
        self.arrows[key] = Arrow(_message(self.names, key), source, target or NETWORK, row, got, colour)
        self.out.arrows.append(self.arrows[key])

    # ---- bytes -------------------------------------------------------------------------------------------------------------

    def _physical(self, line: Line, p: Physical) -> None:
        what, _, when = line.kind.partition("_")
        now = len(self.out.rows) - 0.5
        if line.kind == "write_begin" and p.run in self.names.runs:
            self.slots.add(_slot(line, p))
            self._contents(line, p, max(now, 0))
        if p.run not in self.runs or (self.chunks and p.chunk not in self.chunks) or (self.layers and p.layer not in self.layers):
            return
        side, label = SIDE.get(what, _process(line)), f"{what} {_short(self.names, (p.run, p.chunk, p.layer, p.member))}"
        if what == "load":
            label += f" of chunk {p.pool_chunk}"
        if when == "begin":
            self.out.bars.append(Bar(side, label, _colour(self.names, p.run, p.layer), max(now, 0)))
            return
        for bar in self.out.bars:
            if bar.line == side and bar.label == label and bar.end is None:
                bar.end, bar.bad = max(now, 0), p.ok is False

    def _contents(self, line: Line, p: Physical, now: float) -> None:
        slot = _slot(line, p)
        for band in self.out.bands:
            if band.line == slot and band.end is None:
                band.end = now
        text = f"run {self.names.runs[p.run]} layer {p.layer}\nchunk {p.chunk}, epoch {p.epoch}"
        self.out.bands = [b for b in self.out.bands if b.line != slot or b.end is None or b.end > b.begin]
        self.out.bands.append(Band(slot, text, _colour(self.names, p.run, p.layer), now))

    def _lifelines(self) -> list[Lifeline]:
        used = {row.line for row in self.out.rows} | {bar.line for bar in self.out.bars}
        return [
            *(Lifeline(key, _titled(key)) for key in sorted(used) if key.startswith("decode")),
            Lifeline(NETWORK, "network", "network"),
            *(Lifeline(key, _titled(key)) for key in sorted(used) if key.startswith("prefill")),
            *(Lifeline(slot, slot, "memory") for slot in sorted(self.slots)),
            *([Lifeline("pool", "pool")] if "pool" in used else []),
        ]


def _sends(line: Line, step: Step | None) -> list[tuple[Key, bool]]:
    """The messages that a line may send, and whether it certainly does (docs/trace.md, Order)."""
    a, op = line.arguments, line.op
    if op in ("Registered", "Abort", "Retire"):
        return [(("START" if op == "Registered" else op.upper(), a["attempt"]), True)]
    if op == "ResendFailed":
        return [(("RUN_FAILED", a["run"], 0), True)]
    if op in ("Write", "ResendReady") and step:
        return [(("READY", *step), True)]
    if op in ("ReadEnd", "ResendReport") and step:
        how = a.get("how")
        tags = [] if how == "ok" else ["READ_FAILED"]
        tags += ["READ_DONE"] if how in ("ok", None) else []
        return [((tag, *step), how is not None) for tag in tags]
    if op in ("Miss", "Revoke") or (op == "LoadEnd" and not a["ok"]):
        run, member = (a["run"], a["member"]) if op == "Miss" else (a["transfer"][0], a["transfer"][3])
        return [(("RUN_FAILED", run, member), False)]
    if op == "Deliver" and tag_of(a["message"]) == "RETIRE":
        return [(("RETIRED", a["message"].attempt), True)]
    if op == "Deliver" and step:
        tag = tag_of(a["message"])
        answers = {"READ_DONE": ("COMMITTED", "REVOKED"), "READ_FAILED": ("REVOKED",), "READY": ("READ_FAILED", "READ_DONE")}
        return [((answer, *step), False) for answer in answers.get(tag, ())]
    return []


def _process(line: Line) -> str:
    return Path(line.where.rpartition(":")[0]).stem


def _titled(process: str) -> str:
    role, _, rank = process.partition("-")
    return f"{role.capitalize()} {rank}".strip()


def _short(names: Names, step: Step | None) -> str:
    if step is None:
        return ""
    return f"{names.runs.get(step[0], '?')}·{step[1]}·{step[2]}{f' of rank {step[3]}' if step[3] else ''}"


def _slot(line: Line, p: Physical) -> str:
    """Each Prefill has its own."""
    return f"slot {p.slot}{f' of rank {p.member}' if p.member else ''}{f' of {line.life}' if '.' in line.life else ''}"


def _message(names: Names, key: Key) -> str:
    if len(key) > 3:
        return f"{key[0]} {_short(names, key[1:5])}"
    number = (names.runs if key[0] == "RUN_FAILED" else names.attempts).get(key[1], "?")
    return f"{key[0]} {'run' if key[0] == 'RUN_FAILED' else 'attempt'} {number}"


def _colour(names: Names, run: int, layer: int) -> str:
    return f"run {names.runs.get(run, '?')} layer {layer}"
