"""Reads what TLC prints with `-tool`.

Rules: only the numbered messages are read, never the text around them; a violation is a result, anything else that stopped
TLC is an error; values become the canonical form of `values`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidegate.spec.values import Value, parse_state

MESSAGE = re.compile(r"@!@!@STARTMSG (\d+):(\d+) @!@!@\n(.*?)\n?@!@!@ENDMSG \1 @!@!@", re.DOTALL)
NOISE = re.compile(r"^(?:Parsing file|Semantic processing of module) .*\n?", re.MULTILINE)
STATE = re.compile(r"(\d+): (.*?)(?:\n(.*))?$", re.DOTALL)
VERDICTS = {0: "pass", 11: "deadlock", 12: "violated", 13: "violated"}
NAMED = (
    re.compile(r"Invariant (\S+) is violated"),
    re.compile(r"Action property (\S+) is violated"),
    re.compile(r"Temporal properties? were violated"),
    re.compile(r"property (\S+) (?:is|was) violated", re.IGNORECASE),
)


@dataclass
class TraceState:
    """One state of a counterexample: its number, the action that led to it, and the variables' values."""

    number: int
    action: str
    variables: dict[str, Value]


@dataclass
class Result:
    """code: TLC's exit code.  verdict: pass, deadlock, violated.  violated: the property's name (`<temporal>` where TLC
    names none).  trace: the counterexample; loop: number of the state it goes back to (0: it ends in stuttering, None: it
    just ends).  generated, distinct, depth: TLC's counts.  error: what TLC said where it could not judge the model.
    printed: text that the module printed."""

    code: int
    verdict: str
    violated: str | None = None
    trace: list[TraceState] = field(default_factory=list)
    loop: int | None = None
    generated: int = 0
    distinct: int = 0
    depth: int = 0
    error: str | None = None
    printed: str = ""


def parse(code: int, text: str) -> Result:
    """A run's exit code and whole output -> Result."""
    out = Result(code, VERDICTS.get(code, "error"), printed=NOISE.sub("", MESSAGE.sub("", text)).strip())
    errors: list[str] = []
    for number, kind, body in MESSAGE.findall(text):
        _message(out, errors, int(number), int(kind), body)
    if out.verdict == "violated" and out.violated is None:
        out.violated = "<temporal>"
    if out.verdict == "error":
        out.error = "\n".join(errors) or out.printed[-3000:] or "it said nothing"
    return out


def _message(out: Result, errors: list[str], number: int, kind: int, body: str) -> None:
    if number in (2217, 2216):
        if found := STATE.match(body):
            out.trace.append(TraceState(int(found[1]), _action(found[2]), parse_state(found[3] or "")))
    elif number == 2218:
        out.loop = 0
    elif number == 2122:
        if found := re.match(r"(\d+): Back to state", body):
            out.loop = int(found[1])
    elif number == 2199:
        if found := re.match(r"(\d+) states generated.*?(\d+) distinct states found", body):
            out.generated, out.distinct = int(found[1]), int(found[2])
    elif number == 2194:
        if found := re.search(r"depth of the complete state graph search is (\d+)", body):
            out.depth = int(found[1])
    elif kind == 1:
        errors.append(body)
        for pattern in NAMED:
            if found := pattern.search(body):
                out.violated = found[1] if pattern.groups else "<temporal>"
                break


def _action(text: str) -> str:
    """`<Next line 5, col 3 to ...>` -> Next; `<Initial predicate>` -> Initial predicate."""
    return re.sub(r" line \d+.*", "", text.strip().strip("<>"))
