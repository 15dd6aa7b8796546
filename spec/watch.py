"""Which properties, and which of their weaker forms, a changed system model breaks: all of them, from one run of TLC.

Rules: TLC does not stop at the first violation, for the properties are asked by a module that only takes notes; each says once that
it breaks, somewhere in all that the model reaches; a property [][A]_v is asked as A at every step.  So a weaker form lets a bug
pass exactly if it takes no note, and a property alone catches it if no other one takes a note.  Properties that rest on fairness
cannot be asked so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidegate.spec.variant import Configuration
from tidegate.spec.weaken import Property, Weakening

__all__ = ["broken", "notes"]

HEAD = """
Notes == INSTANCE TLC
Breaks(i) == IF Notes!TLCGet(i) = 0 THEN Notes!TLCSet(i, 1) /\\ Notes!PrintT(<<"breaks", i, Notes!TLCGet("level")>>) ELSE TRUE
"""
SAID = re.compile(r'<<"breaks", (\d+), (\d+)>>')
Form = tuple[Property, Weakening | None]


def _forms(properties: Sequence[Property]) -> list[Form]:
    """Each property, and each weaker form that still says something."""
    return [(p, w) for p in properties if not p.temporal for w in (None, *p.weakenings[1:])]


def notes(module_text: str, properties: Sequence[Property]) -> str:
    """The text of the main module with the notes added at its end: Watched (a state predicate), WatchedStep (an action)."""
    forms = _forms(properties)
    lines, asked = [HEAD], {"Watched": ["TRUE"], "WatchedStep": ["TRUE"]}
    for i, (p, w) in enumerate(forms, 1):
        lines += [f"Form{i} ==", p.written(w, step=True), ""]
        asked["WatchedStep" if p.step else "Watched"].append(f"IF Form{i} THEN TRUE ELSE Breaks({i})")
    for name, parts in asked.items():
        lines += [f"{name} ==", *(f"    /\\ {part}" for part in parts)]
    lines.append(f"ASSUME \\A i \\in 1..{len(forms)} : Notes!TLCSet(i, 0)")
    end = list(re.finditer(r"^====+\s*$", module_text, re.MULTILINE))[-1].start()
    return module_text[:end] + "\n".join(lines) + "\n" + module_text[end:]


def broken(model: Configuration, changed: Mapping[str, str], properties: Sequence[Property]) -> dict[str, int]:
    """The properties (`P`) and weaker forms (`P#2`) of a configuration that a change breaks: name -> states of the shortest run.

    changed: modules, name -> source; properties: those to ask, the configuration's own.  Raises SpecError if TLC cannot judge.
    """
    main = model.module.stem
    text = notes(changed.get(main) or model.module.read_text(), properties)
    config = model.without(model.properties) + "\nINVARIANT Watched\nACTION_CONSTRAINT WatchedStep\n"
    result = model.run({**changed, main: text}, text=config)
    said = {int(i): int(level) + 1 for i, level in SAID.findall(result.printed)}
    return {w.name if w else p.name: said[i] for i, (p, w) in enumerate(_forms(properties), 1) if i in said}
