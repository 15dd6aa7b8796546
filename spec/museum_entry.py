"""One entry of docs/museum.md, in Markdown.

Rules: numbers of steps are computed, never typed: a text of an exhibit names an action in braces, and gets its number; mistake and
harm are told apart; what an entry says of the sessions is what `tidegate check --museum` found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidegate.spec.counterexample import Shown
from tidegate.spec.errors import SpecError
from tidegate.spec.museum import Exhibit, Found
from tidegate.spec.museum_diff import guard_diff

__all__ = ["Behaviour", "entry", "numbered", "plainly"]

BRACED = re.compile(r"\{([A-Za-z_][\w ·]*)\}")
REST = (
    "What comes after the mistake is as it should be: that something never comes can be seen only when everything else has been done."
)
REFUSED = re.compile(r"refused at step (\d+): ")
PLAIN = (
    ("^hang: ", "it hangs: "),
    ("^leak: at rest ", "something is left over: in the end "),
    (r"TransferId\(run=(\d+), chunk=(\d+), layer=(\d+), member=\d+\)", r"run \1 chunk \2 layer \3"),
    (r"State\(phase='(\w+)'\)", r"\1"),
    (r": State\(.*", ""),
    (r"(?:in|READY) \(?\((\d+), (\d+), (\d+), 0\)(?:, \d, \d, \w+\))? is", r"in READY \1·\2·\3 is"),
    (r"in READY (\S+) is in flight", r"READY \1 is said again and again"),
    (r"with \(0, 0, 0\) where", "with nothing where"),
    (r"object \((\d+), (\d+)\)", r"object \1·\2"),
    (r"in (\w+)\(.*?: (KeyError) .*", r"in \1 with a \2"),
)


@dataclass(frozen=True)
class Behaviour:
    """shown: what TLC found; mistake: the step, or 0; instead: what our model does there, in clauses; shows: what the picture's
    columns would say of it, where they say something else."""

    shown: Shown
    mistake: int
    instead: list[str]
    shows: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[str]:
        """Each step in words, the first at 0."""
        return [step.label for step in self.shown.steps[1:]]


def entry(exhibit: Exhibit, behaviour: Behaviour | None, came: Found | None) -> str:
    """The exhibit's section. Raises SpecError for a text that names an action which the behaviour has not."""
    flat = {name: numbered(" ".join(getattr(exhibit, name).split()), behaviour) for name in ("saw", "how", "stands", "means", "prevents")}
    basis = "" if exhibit.basis == "reported" else " (read in code, never confirmed)"
    lines = [
        f"## {exhibit.title}", "",
        f"`{exhibit.name}` · {', '.join(map(_reference, exhibit.references))}{basis} · [how to read this](#how-to-read-an-entry)", "",
        f"**What users saw.** {flat['saw']}", "", f"**What went wrong there.** {flat['how']}", "",
        f"**The same here.** {flat['stands']}", "", *(_found(exhibit, behaviour) if behaviour else _asked(exhibit)),
        f"**The guard that prevents it** is `{exhibit.guard}`. {flat['means']}", "", "```diff", *guard_diff(exhibit), "```", "",
        flat["prevents"], "",
    ]  # fmt: skip
    return "\n".join([*lines, *_sessions(exhibit, behaviour, came)])


def numbered(text: str, behaviour: Behaviour | None) -> str:
    """{mistake}, {harm} and {Action} become the number of the step, of an action the first one that begins so."""

    def number(found: re.Match[str]) -> str:
        steps = behaviour.steps if behaviour else []
        known = {"mistake": behaviour.mistake if behaviour else 0, "harm": len(steps)}
        at = known[found[1]] if found[1] in known else next((n for n, step in enumerate(steps, 1) if step.startswith(found[1])), 0)
        if not at:
            raise SpecError(f"{found[0]} is no step of this behaviour: {'; '.join(steps)}")
        return f"step {at}"

    return BRACED.sub(number, text)


def _found(exhibit: Exhibit, behaviour: Behaviour) -> list[str]:
    """Mistake, harm, picture."""
    planted, said = " ".join(exhibit.planted.split()), behaviour.instead
    steps = behaviour.steps
    if behaviour.mistake:
        mistake = f"**The mistake is made at step {behaviour.mistake}** ({steps[behaviour.mistake - 1]}). {planted}"
        right = f" {_capital('; '.join(said[:3]))}." if said else ""
        right += f" In the picture ours would be: {'; '.join(behaviour.shows)}." if behaviour.shows else ""
    else:
        mistake = f"**The mistake is that a step is missing** where the picture ends. {planted}"
        right = f" {_capital('; '.join(said))}." if said else " Each step that is there, our model can take too."
    if behaviour.shown.ending:
        harm = f"**The harm is that it stays so.** {behaviour.shown.sentence}"
        if 0 < behaviour.mistake < len(steps):
            harm += f" {REST}"
    else:
        when = "in the same step" if behaviour.mistake == len(steps) else f"at step {len(steps)}"
        harm = f"**The harm is done {when}** ({steps[-1]}). It {behaviour.shown.sentence[behaviour.shown.sentence.index('breaks ') :]}"
    return [
        mistake + right, "", harm, "",
        f"![{exhibit.title}: {len(steps)} steps](museum/{exhibit.name}.svg)", "",
    ]  # fmt: skip


def _asked(exhibit: Exhibit) -> list[str]:
    """Mistake, harm, bytes: of what the model does not have."""
    return [
        f"**The mistake.** {' '.join(exhibit.planted.split())}", "",
        f"**The harm.** It breaks {exhibit.property}, the rule that {exhibit.rule}.", "",
        "```text", exhibit.drawing.strip("\n"), "```", "",
    ]  # fmt: skip


def _sessions(exhibit: Exhibit, behaviour: Behaviour | None, came: Found | None) -> list[str]:
    head = "**In our real code.**"
    if exhibit.unreplayed:
        return [f"{head} {exhibit.unreplayed}", ""]
    if came is None:
        return []
    hurt = f" {exhibit.hurt}" if exhibit.hurt else ""
    if behaviour is None:
        did = f"We put this mistake into our code, and the probe said: {plainly(came.harm)}.{hurt} Without it {exhibit.ours}"
        return [f"{head} {did}", ""]
    did = f"We put this mistake into the sessions and drove them through the same steps. What came of it: {plainly(came.harm)}.{hurt}"
    if found := REFUSED.match(came.ours):
        step = int(found[1])
        without = f"Without it they do not take step {step} ({behaviour.steps[step - 1]}): {exhibit.ours}"
    else:
        without = f"Without it they take the same steps and come to no harm: {exhibit.ours}"
    return [f"{head} {did} {without}", ""]


def plainly(text: str) -> str:
    """What the check of the sessions said, without Python."""
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text)
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _reference(text: str) -> str:
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", text)
    return f"[{text}](https://github.com/{found[1]}/issues/{found[2]})" if found else text
