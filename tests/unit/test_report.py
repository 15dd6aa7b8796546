"""The last lines of a report: failed, unequal and equal are told apart."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.model import reference_generate
from tidegate.engine.pair import PairResult
from tidegate.engine.report import Comparison, compare, tables, verdict
from tidegate.engine.worker_io import Line

GOOD = Comparison("good", 3, False, [1], True, True, "")
WRONG = Comparison("wrong", 3, False, [1], True, False, "largest logit difference 1")
LATE = Comparison("late", 3, True, [], False, False, "not complete after 120 s; raise --deadline (deadline_seconds)")
CASES: list[tuple[list[Comparison], str]] = [
    ([GOOD, GOOD], "all tokens and logits are bit-equal"),
    ([GOOD, WRONG], "NOT EQUAL: wrong"),
    ([GOOD, LATE], f"1 of 2 requests failed: {LATE.reason}\nall tokens and logits of the others are bit-equal"),
    ([LATE, LATE], f"2 of 2 requests failed: {LATE.reason}"),
    ([LATE, WRONG], f"1 of 2 requests failed: {LATE.reason}\nNOT EQUAL: wrong"),
]


@pytest.mark.parametrize(("compared", "said"), CASES)
def test_the_last_line_tells_failed_from_unequal(compared: list[Comparison], said: str) -> None:
    assert verdict(compared) == said


@pytest.mark.parametrize(("tokens", "logits"), [(True, True), (True, False), (False, True)])
def test_tokens_and_logits_are_each_compared(tokens: bool, logits: bool) -> None:
    config = RunConfig(requests=(Request("one", (1, 2)),), new_tokens=2, concurrency=1).checked()
    due, of_due = reference_generate(config.load_model(), (1, 2), config.chunk, 2)
    got = of_due.float().numpy().tobytes()
    other = got[:-1] + bytes([got[-1] ^ 1])
    line = Line("result", ok=True, tokens=due if tokens else [due[0], due[1] ^ 1], logits=got if logits else other)
    (found,) = compare(config, PairResult(results={0: line}))
    assert (found.tokens_equal, found.logits_equal, found.equal) == (tokens, logits, tokens and logits)


class Figures(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return 1.0


def test_a_request_that_failed_is_not_compared() -> None:
    config = RunConfig(requests=(Request("late", (1, 2)),), concurrency=1).checked()
    figures: Any = {"prefill": Figures(), "decode": Figures()}
    result = PairResult(results={0: Line("result", ok=False, text=LATE.reason)}, stats=figures)
    compared = compare(config, result)
    assert (compared[0].failed, compared[0].equal) == (True, False)
    console = Console(width=200, file=io.StringIO())
    console.print(tables(config, result, compared)[0])
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("not compared") == 2
    assert "False" not in said
