"""The museum for a reader: docs/museum.md, with the shortest behaviour of each exhibit drawn.

Rules: TLC's counterexample is kept in compact form beside the exhibit (tla/museum/traces/NAME.json: the first state, then what
changed), with the sha256 of all that it depends on, comments apart; page and pictures are made from that without TLC, so they are
compared byte for byte in no time; a trace whose exhibit or model has changed is stale, and `tidegate draw museum` asks TLC anew.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tidegate.spec.counterexample import Shown, explain
from tidegate.spec.culprit import Culprit, culprits
from tidegate.spec.diagram_svg import svg
from tidegate.spec.errors import SpecError
from tidegate.spec.mistake import Mistake, find_mistake
from tidegate.spec.mistake_text import instead
from tidegate.spec.museum import Exhibit, exhibits, found, modules, plant_all
from tidegate.spec.museum_entry import Behaviour, entry
from tidegate.spec.museum_judge import Setting, setting
from tidegate.spec.paths import root
from tidegate.spec.story_columns import beside
from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import parse, show
from tidegate.spec.vocabulary import Vocabulary

__all__ = ["look", "outputs", "shown", "stale"]

HEAD = "<!-- Generated from tla/museum by `tidegate draw`; do not edit. -->\n"


def _traces() -> Path:
    return root() / "tla" / "museum" / "traces"


def _key(exhibit: Exhibit, place: Setting) -> str:
    """What a trace depends on: the fault, its configuration, and the model but for its comments."""
    text = "".join(path.read_text() for _, path in sorted(modules().items()))
    text = re.sub(r"\\\*[^\n]*|\(\*.*?\*\)", "", text, flags=re.DOTALL)
    changes = json.dumps([[c.old, c.new, c.module] for c in exhibit.changes])
    whole = "\n".join(["".join(text.split()), changes, "".join(place.text.split())])
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


# ---- traces --------------------------------------------------------------------------------------------------------------


def _stored(result: Result, who: list[Culprit], mistake: Mistake, key: str) -> dict[str, Any]:
    states: list[dict[str, str]] = []
    before: dict[str, str] = {}
    for one in result.trace:
        now = {name: show(value) for name, value in sorted(one.variables.items())}
        states.append({name: text for name, text in now.items() if before.get(name) != text})
        before = now
    said = [{"sets": list(c.sets), "values": [show(v) for v in c.values]} for c in who]
    right = None
    if mistake.right is not None:
        wrong = result.trace[mistake.step].variables
        right = {name: show(value) for name, value in sorted(mistake.right.items()) if value != wrong[name]}
    made = {"step": mistake.step, "right": right, "owed": [show(event) for event in mistake.owed]}
    return {"source": key, "violated": result.violated, "loop": result.loop, "culprits": said, "mistake": made, "states": states}


def _restored(data: dict[str, Any]) -> tuple[Result, list[Culprit], Mistake]:
    variables: dict[str, Any] = {}
    trace = []
    for number, changed in enumerate(data["states"], 1):
        variables = variables | {name: parse(text) for name, text in changed.items()}
        trace.append(TraceState(number, "Next", variables))
    who = [Culprit(tuple(c["sets"]), tuple(parse(v) for v in c["values"])) for c in data["culprits"]]
    made = data["mistake"]
    right = None
    if made["right"] is not None:
        right = trace[made["step"]].variables | {name: parse(text) for name, text in made["right"].items()}
    mistake = Mistake(made["step"], right, [parse(text) for text in made["owed"]])
    return Result(12, "violated", data["violated"], trace, data["loop"]), who, mistake


def _drawable(names: list[str] | None = None) -> list[Exhibit]:
    return [e for e in exhibits(names or ()) if not e.probe]


def stale() -> list[Path]:
    """The traces that are missing, left over, or of another fault or model than the present one."""
    out = []
    known = {_traces() / f"{e.name}.json": e for e in _drawable()}
    for path, exhibit in known.items():
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("source") != _key(exhibit, setting(exhibit)) or "mistake" not in kept:
            out.append(path)
    return [*out, *(path for path in sorted(_traces().glob("*.json")) if path not in known)]


def look(names: list[str] | None = None, *, on_done: Callable[[str], None] = lambda text: None, jobs: int = 2) -> list[str]:
    """Have TLC find the behaviour of each exhibit (those named; all that are stale if none is) and keep it.

    on_done: told each one's outcome.  What cannot be found is returned, in words.
    """
    old = {path.stem for path in stale()}
    wanted = [e for e in _drawable(names) if names or e.name in old]
    for path in _traces().glob("*.json"):
        if path.stem not in {e.name for e in _drawable()}:
            path.unlink()
    _traces().mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        return [text for text in pool.map(lambda e: _look(e, on_done), wanted) if text]


def _look(exhibit: Exhibit, on_done: Callable[[str], None]) -> str:
    try:
        place = setting(exhibit)
        result = place.run(exhibit.changes)
        if result.violated != exhibit.property or not result.trace:
            return f"{exhibit.name}: TLC names {result.violated or 'nothing'}, not {exhibit.property}"
        changed = plant_all(exhibit.changes)
        words = Vocabulary(place.model.module, changed)
        who = culprits(place.model.module, place.text, words, exhibit.property, result.trace, changed)
        mistake = find_mistake(place.model.module, place.text, result, changed)
    except SpecError as error:
        return f"{exhibit.name}: {error}"
    data = _stored(result, who, mistake, _key(exhibit, place))
    (_traces() / f"{exhibit.name}.json").write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n")
    on_done(f"{exhibit.name}: {len(result.trace) - 1} steps")
    return ""


# ---- the page ------------------------------------------------------------------------------------------------------------


def shown(exhibit: Exhibit) -> Shown | None:
    """The kept behaviour of an exhibit, mistake and harm marked; None if there is none."""
    kept = _behaviour(exhibit)
    return kept.shown if kept else None


def _behaviour(exhibit: Exhibit) -> Behaviour | None:
    path = _traces() / f"{exhibit.name}.json"
    if exhibit.probe or not path.exists():
        return None
    result, who, mistake = _restored(json.loads(path.read_text()))
    place, changed = setting(exhibit), plant_all(exhibit.changes)
    out = explain(result, place.model.module, place.text, title=exhibit.title, changed=changed, found=who,
                  rule=exhibit.rule, columns=exhibit.show)  # fmt: skip
    said = instead(mistake, result.trace, Vocabulary(place.model.module, changed))
    shows = beside(mistake.right, result.trace[mistake.step].variables, exhibit.show) if mistake.right else []
    if out.diagram and (mistake.step or result.loop == 0):
        out.diagram.mistake = mistake.step - 1 if mistake.step else len(out.diagram.rows)
        out.diagram.note = f"ours: {'; '.join(shows)}" if shows else said[0] if said else "a step that must come at last does not come"
    return Behaviour(out, mistake.step, said, shows)


def outputs() -> dict[Path, str]:
    """docs/museum.md and its pictures, from the exhibits and the kept traces."""
    docs, came, out = root() / "docs", found(), dict[Path, str]()
    parts = [HEAD + (root() / "tla" / "museum" / "guide.md").read_text()]
    for exhibit in exhibits():
        behaviour = _behaviour(exhibit)
        parts.append(entry(exhibit, behaviour, came.get(exhibit.name)))
        if behaviour and behaviour.shown.diagram:
            source = json.loads((_traces() / f"{exhibit.name}.json").read_text())["source"]
            head = f"<!-- Generated by `tidegate draw` from tla/museum/traces/{exhibit.name}.json, source {source}; do not edit. -->\n"
            out[docs / "museum" / f"{exhibit.name}.svg"] = head + svg(behaviour.shown.diagram)
    return {docs / "museum.md": "\n".join(parts), **out}
