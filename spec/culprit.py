"""For whom a property does not hold, and that in one sentence.

Rules: TLC judges, in the very state (or step) that the counterexample ends with: of `\\A x \\in S : P` it is asked for the x of S
for which P is false; a property of another shape has no culprit, and the sentence names the step alone.  What the property says
is the comment above it in the TLA+ source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.spec import tlc
from tidegate.spec.errors import SpecError
from tidegate.spec.explain import message_text, value_text
from tidegate.spec.scratch import scratch
from tidegate.spec.tlc_output import Result, TraceState
from tidegate.spec.values import Value, parse, show
from tidegate.spec.vocabulary import Vocabulary, items, record

__all__ = ["Culprit", "culprits", "sentence"]

SECTIONS = re.compile(
    r"^(SPECIFICATION|INIT|NEXT|INVARIANTS?|PROPERT(?:Y|IES)|VIEW|SYMMETRY|CONSTRAINTS?|ACTION_CONSTRAINTS?)\b.*$", re.MULTILINE
)
SAID = re.compile(r'<<"CULPRITS",\s*(\d+),\s*"((?:[^"\\]|\\.)*)">>', re.DOTALL)
NAMES = ("Prefill", "Decode", "TLC")  # words that begin with a capital wherever they stand
BOUND = re.compile(r"(?:^|,)\s*((?:\w+\s*,\s*)*\w+)\s*\\in\s*")  # of `a \in S, b, c \in T`: a; b, c


@dataclass(frozen=True)
class Culprit:
    """One assignment for which the property is false.  sets: where each of its values comes from, as the property writes it."""

    sets: tuple[str, ...]
    values: tuple[Value, ...]

    def text(self, words: Vocabulary) -> str:
        """In words: the save of run 1 chunk 1 layer 2; attempt 1 and attempt 2."""
        told = (_named(words, where, value) for where, value in zip(self.sets, self.values, strict=True))
        return " and ".join(text for text in told if text)


@dataclass(frozen=True)
class Claim:
    """One `\\A names \\in sets : body` of a property; body in its columns, from `line` on."""

    names: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    body: str = ""


def _named(words: Vocabulary, where: str, value: Value) -> str:
    fields = record(value)
    if where == "net":
        return f"the message {message_text(value)}"
    if fields and "transfer" in fields:
        attempt = f" for attempt {value_text(fields['attempt'])}" if "attempt" in fields else ""
        what = {"attend": "attention", "stray": "unfinished read"}.get(str(fields.get("op")), value_text(fields.get("op", "copy")))
        return f"the {what} of {words.named(words.transfer, fields['transfer'])}{attempt}"
    text = words.named(words.words(where), value)
    if where == "Transfers":
        return f"the transfer of {text}"
    return f"the pool object of {text}" if where == "DOMAIN pool" else text


# ---- the question to TLC -------------------------------------------------------------------------------------------------


def culprits(
    module: Path, config: str, words: Vocabulary, name: str, trace: Sequence[TraceState], changed: Mapping[str, str] | None = None
) -> list[Culprit]:
    """For whom the property `name` is false at the end of `trace`; empty if that cannot be said.

    module, config (the .cfg's text), changed: of the run that gave the trace.
    """
    claims = list(_claims(words, name))
    if not claims or not trace:
        return []
    with scratch(module, changed or {}) as place:
        asks = place.module.parent / "Culprits.tla"
        asks.write_text(_question(module.stem, claims, trace))
        constants = SECTIONS.sub("", config)
        (cfg := asks.with_suffix(".cfg")).write_text(f"{constants}\nINIT CulpritInit\nNEXT CulpritNext\n")
        try:
            result = tlc.run_tlc(asks, cfg, library=place.library, jvm=tlc.LIGHT, seconds=60)
        except SpecError:  # a form of property that this cannot ask about
            return []
    out = []
    for number, text in SAID.findall(result.printed):
        claim = claims[int(number)]
        for value in sorted(parse(re.sub(r"\n\s*", " ", text).replace('\\"', '"')), key=show):
            out.append(Culprit(tuple(claim.sets), tuple(items(value) or [value]) if len(claim.sets) > 1 else (value,)))
    return out


def _question(module: str, claims: list[Claim], trace: Sequence[TraceState]) -> str:
    """A module whose only behaviour is the end of the trace, and which prints the culprits there."""
    step = any("'" in claim.body for claim in claims)
    first, last = trace[-2 if step and len(trace) > 1 else -1].variables, trace[-1].variables
    asked = [f'/\\ PrintT(<<"CULPRITS", {i}, ToString(Culprit{i})>>)' for i in range(len(claims))]
    begin = [f"/\\ {name} = {show(value)}" for name, value in first.items()] + ([] if step else asked)
    then = [f"/\\ {name}' = {show(value)}" for name, value in last.items()] + (asked if step else [])
    out = ["---- MODULE Culprits ----", f"EXTENDS {module}, TLC"]
    for i, claim in enumerate(claims):
        sets = " \\X ".join(f"({s})" for s in claim.sets)
        names = claim.names[0] if len(claim.names) == 1 else f"<<{', '.join(claim.names)}>>"
        out += [f"Culprit{i} == {{{names} \\in {sets} : ~(", claim.body, ")}"]
    out += ["CulpritInit ==", *(f"    {line}" for line in begin), "CulpritNext =="]
    return "\n".join([*out, *(f"    {line}" for line in ([] if step else ["/\\ FALSE"]) + then), "====", ""])


def _claims(words: Vocabulary, name: str) -> Iterator[Claim]:
    """The quantified parts of a property: of its conjuncts, of what follows `Rests =>`, inside [][...]_vars."""
    if name not in words.definitions:
        return
    text = words.definitions[name].text
    head = text.index("==") + 2
    body = " " * head + text[head:]  # in its columns, which tell TLA+ where a list ends
    body = re.sub(r"\\\*.*", "", body)
    if found := re.match(r"\s*\[\]\s*\[", body):
        body = _blank(found[0]) + body[found.end() : body.rindex("]_")]
    if found := re.match(r"\s*\w+\s*=>", body):
        body = _blank(found[0]) + body[found.end() :]
    for part in _conjuncts(body):
        if claim := _claim(part):
            yield claim


def _blank(text: str) -> str:
    """As much room, in the same lines and columns."""
    return re.sub(r"[^\n]", " ", text)


def _conjuncts(body: str) -> Iterator[str]:
    found = re.match(r"\s*/\\", body)
    if not found:
        yield body
        return
    line = body[: found.end()].count("\n")
    column = len(body[: found.end()].split("\n")[-1]) - 2
    part: list[str] = []
    for text in body.split("\n")[line:]:
        if text[column : column + 2] == "/\\" and not text[:column].strip():
            if part:
                yield "\n".join(part)
            part = [text[:column] + "  " + text[column + 2 :]]
        else:
            part.append(text)
    yield "\n".join(part)


def _claim(part: str) -> Claim | None:
    found = re.match(r"\s*\\A\s+", part)
    if not found:
        return None
    end = _colon(part, found.end())
    bounds = part[found.end() : end]
    names: list[str] = []
    sets: list[str] = []
    places = list(BOUND.finditer(bounds))
    for here, after in zip(places, [*places[1:], None], strict=True):
        where = bounds[here.end() : after.start() if after else None].strip().rstrip(",").strip()
        for name in re.split(r"\s*,\s*", here[1]):
            names.append(name)
            sets.append(where)
    lines = part[: end + 1].split("\n")
    body = " " * len(lines[-1]) + part[end + 1 :]
    if "~>" in body:
        body = "(" + body.replace("~>", ") => (") + ")"
    return Claim(names, sets, body) if names else None


def _colon(text: str, start: int) -> int:
    """The `:` that ends the bounds of a quantifier."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if text[i] == ":" and depth == 0:
            return i
    return len(text) - 1


# ---- the sentence --------------------------------------------------------------------------------------------------------


def sentence(
    name: str, result: Result, found: Sequence[Culprit], words: Vocabulary, step: str, *, wanted: bool = False, rule: str = ""
) -> str:
    """What went wrong, in one sentence.  step: the last one in words; wanted: it is a witness, so it went right; rule: what the
    property says, or the part of it that matters, if not its comment."""
    who = " and ".join(dict.fromkeys(one.text(words) for one in found[:3])) + (", ..." if len(found) > 3 else "")
    whom = f" for {who}" if who else ""
    says = (rule or words.comment(name)).rstrip(".")
    if says and says.split()[0] not in NAMES:
        says = says[:1].lower() + says[1:]
    because = f", the rule that {says}." if says else "."
    last = len(result.trace) - 1
    if result.loop is not None:
        back = f"after step {last} it can go back to where it was after step {result.loop - 1}, and on like that for ever"
        ever = f"after step {last} nothing happens any more" if result.loop == 0 else back
        return f"{name} fails{whom}, for {ever}{because.replace(', the rule that ', ', but it should be that ', 1)}"
    if wanted:
        return f"Step {last}, {step}, reaches what {name} denies{whom}{because.replace(', the rule that ', ': ', 1)}"
    return f"Step {last}, {step}, breaks {name}{whom}{because}"
