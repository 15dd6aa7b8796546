"""One exhibit of the museum, judged: TLC must name its property, and the sessions must come to harm.

Rules: an exhibit is judged in its configuration, all of whose properties are asked except those that it sets aside; TLC's
counterexample is replayed through the sessions with the same fault (machines regenerated, session source changed) and, as a
control, through the sessions as they are, which must refuse it or come to no harm; the configuration must pass without the
fault wherever it differs from a committed one.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.prefill import PrefillSession
from tidegate.spec import gen
from tidegate.spec.bounds import Bounds
from tidegate.spec.emit import snake
from tidegate.spec.errors import SpecError
from tidegate.spec.museum import Change, Exhibit, Found, modules, plant_all
from tidegate.spec.museum_probe import ELSE, probe
from tidegate.spec.paths import root
from tidegate.spec.schedule import Replay, labels_of, replay, say_label
from tidegate.spec.tlc_output import Result
from tidegate.spec.variant import PROPERTIES, Configuration, configurations

__all__ = ["Judged", "Setting", "judge", "sessions"]

BASES = ("protocol/session.py", "protocol/prefill_moves.py", "protocol/forgetting.py", "protocol/returning.py")
"""What the sessions are derived from, in that order: made anew with them, whichever of all these is changed."""
SESSIONS = {"protocol/prefill.py": "PrefillSession", "protocol/decode.py": "DecodeSession"}

_patching = threading.RLock()  # a machine module is one for the whole process


@dataclass(frozen=True)
class Setting:
    """An exhibit's configuration: the committed one that it names, with what it changes in it."""

    exhibit: Exhibit
    model: Configuration

    @cached_property
    def text(self) -> str:
        """The .cfg. Raises SpecError for a constant that the committed one does not give."""
        e, text = self.exhibit, self.model.text
        for name, value in e.constants.items():
            text, times = re.subn(rf"^(\s*{name})\s*(=|<-).*$", rf"\1 \2 {value}", text, flags=re.MULTILINE)
            if times != 1:
                raise SpecError(f"{e.name}: {self.model.config.name} gives no {name} to change")
        if e.specification:
            text = re.sub(r"^SPECIFICATION .*$", f"SPECIFICATION {e.specification}", text, flags=re.MULTILINE)
        kept = [e.property] if self.model.live else [name for name in self.model.properties if name not in e.aside]
        if self.model.live:
            return PROPERTIES.sub("", text) + f"PROPERTY {e.property}\n"
        return PROPERTIES.sub(lambda hit: _line(hit[1], [name for name in hit[2].split() if name in kept]), text)

    @property
    def bounds(self) -> Bounds:
        with tempfile.TemporaryDirectory(prefix="tidegate-museum-") as place:
            path = Path(place) / self.model.config.name
            path.write_text(self.text)
            return Bounds.from_cfg(path)

    @property
    def unproved(self) -> bool:
        """Is it unknown whether it passes without the fault?  A committed one does, and so does one with fewer faults in it: its
        behaviours are some of those (but for the deadline, whose fairness needs an abort to be left)."""
        e, m = self.exhibit, self.model
        fewer = all(name.startswith("Max") and int(value) <= self._given(name) for name, value in e.constants.items())
        same = not e.specification and e.property in m.properties
        return not (fewer and same and ("MaxAbort" not in e.constants or "DeadlineSpec" not in m.text))

    def _given(self, name: str) -> int:
        found = re.search(rf"^\s*{name}\s*=\s*(\d+)", self.model.text, re.MULTILINE)
        return int(found[1]) if found else -1

    def run(self, changes: Sequence[Change]) -> Result:
        """TLC's result with these changes planted."""
        result = self.model.run(plant_all(changes), text=self.text)
        if result.violated and self.model.live:  # one property is asked, and TLC does not name it
            result.violated = self.exhibit.property
        return result


@dataclass
class Judged:
    """found: what came of the exhibit; wrong: why it is no exhibit, or nothing."""

    exhibit: Exhibit
    found: Found | None
    wrong: str = ""


def setting(exhibit: Exhibit) -> Setting:
    models = configurations([exhibit.configuration])
    if not models:
        raise SpecError(f"{exhibit.name}: {exhibit.configuration} is no configuration of the manifest that passes")
    return Setting(exhibit, models[0])


def judge(exhibit: Exhibit, *, control: bool = False) -> Judged:
    """Plant it, let TLC look, replay what TLC found. control: also see that its own configuration passes without the fault."""
    if exhibit.probe:
        return _probed(exhibit)
    try:
        place = setting(exhibit)
        if control and place.unproved and (plain := place.run([])).verdict != "pass":
            return Judged(exhibit, None, f"{plain.violated} breaks there without the fault")
        result = place.run(exhibit.changes)
        if result.violated != exhibit.property:
            return Judged(exhibit, None, f"TLC names {result.violated or 'nothing'}, not {exhibit.property}")
        labels = labels_of(result)
        said = [say_label(label) for label in labels]
        found = Found(name=exhibit.name, property=exhibit.property, steps=len(labels), states=result.distinct, labels=said)
        if exhibit.unreplayed:
            return Judged(exhibit, found)
        with _patching:
            ours = replay(place.bounds, labels)
            with sessions(exhibit) as (prefill, decode):
                theirs = replay(place.bounds, labels, prefill=prefill, decode=decode)
    except SpecError as error:
        return Judged(exhibit, None, str(error))
    found = Found(name=found.name, property=found.property, steps=found.steps, states=found.states, labels=said,
                  harm=_say(theirs), ours=_say(ours))  # fmt: skip
    if ours.wrong:
        return Judged(exhibit, found, f"the sessions as they are come to harm: {ours.wrong[0]}")
    return Judged(exhibit, found, "" if theirs.wrong else f"the replay does no harm: {_say(theirs)}")


def _probed(exhibit: Exhibit) -> Judged:
    if plain := probe(exhibit, plain=True):
        return Judged(exhibit, None, f"{exhibit.probe} fails without the fault: {plain}")
    try:
        harm = probe(exhibit)
    except SpecError as error:
        return Judged(exhibit, None, str(error))
    if not harm or harm.startswith(ELSE):
        return Judged(exhibit, None, harm or f"{exhibit.probe} does not see the fault")
    return Judged(exhibit, Found(name=exhibit.name, property=exhibit.property, harm=harm, ours=_say(Replay())))


@contextmanager
def sessions(exhibit: Exhibit) -> Iterator[tuple[type[PrefillSession], type[DecodeSession]]]:
    """For the time of the block, the two session classes with the exhibit's fault; the machines are changed for everyone."""
    texts = plant_all(exhibit.changes)
    with ExitStack() as stack:
        for name in texts:
            if "machines" in modules()[name].parts:
                module = importlib.import_module(f"tidegate.protocol.machines.{snake(name)}")
                stack.enter_context(gen.installed(module, gen.compile_text(name, texts[name])))
        yield _classes(exhibit, plant_all(exhibit.code))


def _classes(exhibit: Exhibit, code: Mapping[str, str]) -> tuple[type[PrefillSession], type[DecodeSession]]:
    """Both session classes, made of these sources (file -> text): a changed part stands in for its own while they are made."""
    if strange := [file for file in code if not file.startswith("protocol/")]:
        raise SpecError(f"{exhibit.name} changes {strange[0]}: only the sessions, in protocol/, can be replayed")
    made: dict[str, type] = {"PrefillSession": PrefillSession, "DecodeSession": DecodeSession}
    with patch.dict(sys.modules):
        below = (*(file for file in code if file not in SESSIONS and file not in BASES), *BASES)
        for file in (*below, *SESSIONS) if code else ():
            name = "tidegate." + file.removesuffix(".py").replace("/", ".")
            sys.modules[name] = module = gen.load_source(name, code.get(file) or (root() / file).read_text())
            if file in SESSIONS:
                made[SESSIONS[file]] = getattr(module, SESSIONS[file])
    return made["PrefillSession"], made["DecodeSession"]


def _line(keyword: str, names: Sequence[str]) -> str:
    return f"{keyword} {' '.join(names)}" if names else ""


def _say(outcome: Replay) -> str:
    if outcome.wrong:
        return outcome.wrong[0]
    return f"refused at step {outcome.refused_at}: {outcome.refusal}" if outcome.refused_at else "no harm"
