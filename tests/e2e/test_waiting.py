"""A Decode that stops in the middle of a read: Prefill waits and says so, or revokes and goes on; the late copy does no harm."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from pair_tools import config, run, slow
from serving_tools import Serving, serving
from test_serving import LONGEST, error, right, small, tokens
from typer.testing import CliRunner, Result

from tidegate.engine.cli import app
from tidegate.engine.config import FaultSpec
from tidegate.engine.waiting import Status, Wait
from tidegate.spec.paths import root
from tidegate.spec.trace import check

LAYER = 2
SLOW = slow("read", 5.0, layer=LAYER, chunk=1, nth=1)  # goes on while the process is stopped


def status(s: Serving, role: str) -> Status:
    return msgspec.json.decode(httpx.get(f"{s.url[role]}/status", timeout=60, trust_env=False).content, type=Status)


def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not good():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def stopped_in_a_read(s: Serving, answers: list[httpx.Response]) -> Iterator[Wait]:
    """Decode stands still between the beginning of its copy of a layer and the copy; what Prefill says of the slot; goes on at the end."""
    client = threading.Thread(target=lambda: answers.append(s.post(prompt=list(LONGEST))))
    client.start()
    found: list[Wait] = []
    until(lambda: bool(found.extend(w for w in status(s, "decode").waits if w.kind == "copy" and f"layer {LAYER} " in w.transfer) or found))
    decode = s.run.workers["decode"].process.pid
    os.kill(decode, signal.SIGSTOP)
    try:
        assert any(w.transfer == found[0].transfer for w in status(s, "prefill").waits), "the read ended before Decode was stopped"
        yield found[0]
    finally:
        os.kill(decode, signal.SIGCONT)
    client.join()


def said(s: Serving, kind: str) -> list[str]:
    """The lines of Prefill, of that kind, so far."""
    lines = [s.prefill_lines.get_nowait()[1] for _ in range(s.prefill_lines.qsize())]
    return [line.text for line in lines if line is not None and line.kind == kind]


def why(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["why", *arguments])


def test_in_seed_mode_prefill_waits_and_says_for_what_and_goes_on_when_decode_does() -> None:
    c, answers = small(wait_limit_seconds=0.5, resend_seconds=0.05, decode_faults=(SLOW,)), list[httpx.Response]()
    with serving(c) as s:
        assert why(s.url["proxy"]).exit_code == 0
        with stopped_in_a_read(s, answers) as read:
            until(lambda: s.health("prefill")["code"] == 503)
            health = s.health("prefill")
            wait = next(w for w in status(s, "prefill").waits if w.transfer == read.transfer and w.kind == "read")
            name = re.escape(f"slot {wait.slot} (lane 1, epoch {wait.epoch}) has waited ") + r"[\d.]+ s for the answer of Decode at 127"
            assert (health["status"], read.slot, read.epoch) == ("waiting", wait.slot, wait.epoch)
            assert re.match(r"slot \d+ \(lane 1, epoch \d+\) has waited ", health["reason"])
            text = httpx.get(f"{s.url['prefill']}/metrics", trust_env=False, timeout=60).text
            assert re.search(r'^tidegate_waits\{kind="read"\} [1-9]', text, re.MULTILINE)
            assert re.search(r"^tidegate_waits_past_limit [1-9]", text, re.MULTILINE)

            told = why(s.url["proxy"])
            assert told.exit_code == 1
            assert re.search(name + rf".* to READY of {wait.transfer}, for cmpl-r-.*PhysicalBuffer.CanRelease: transfers = {{}} is false",
                             told.output), told.output  # fmt: skip
            assert f"{s.url['decode']}: does not answer (stopped, or hanging)" in told.output
            assert re.search(r"^proxy at .*: 1 waits", told.output, re.MULTILINE)
            file, line = wait.at.split(":")
            assert (root() / file).read_text().splitlines()[int(line) - 1].startswith("CanRelease(s) ==")

            warned: list[str] = []
            until(lambda: bool(warned.extend(t for t in said(s, "waits") if re.match(name, t)) or len(warned) > 2))
            ages = [float(re.findall(r"has waited ([\d.]+) s", text)[0]) for text in warned]
            assert all(later >= 1.9 * earlier for earlier, later in itertools.pairwise(ages)), "once, and then ever more rarely"
            assert not answers
        assert tokens(answers[0]) == right(c, LONGEST)
        until(lambda: s.health("prefill")["code"] == 200)
        assert any(text.startswith("goes on again: slot") for text in said(s, "waits"))
        assert why(s.url["prefill"]).exit_code == 0
        s.stop()


def test_with_read_lease_prefill_revokes_and_says_so_and_the_late_copy_is_not_believed() -> None:
    c, answers = small(read_lease=3.0, resend_seconds=0.05, decode_faults=(SLOW,)), list[httpx.Response]()
    with serving(c) as s:
        with stopped_in_a_read(s, answers) as read:
            lines: list[str] = []
            until(lambda: bool(lines.extend(said(s, "progress")) or any("its slot goes on" in line for line in lines)))
            revoked = rf"Decode at 127.0.0.1:\d+ did not answer READY of {read.transfer} within its lease of 3 s; revoked"
            assert any(re.match(revoked, line) for line in lines), lines
            until(lambda: not [w for w in status(s, "prefill").waits if w.kind in ("read", "gate")])
            assert s.health("prefill")["code"] == 200
        assert answers[0].status_code == 500
        assert re.search("Prefill revoked|failed: .*its read lease ran out", error(answers[0]))
        assert tokens(s.post(prompt=list(LONGEST))) == right(c, LONGEST), "the next request is not concerned"
        assert s.stop()["decode"]["blocks_free"] == c.decode_blocks


def test_a_read_is_tried_again_as_often_as_is_allowed_and_no_more(tmp_path: Path) -> None:
    failing = FaultSpec(where="read", mode="quiet", layer=3, chunk=2, nth=1)
    c = config(read_retries=1, decode_faults=(failing, FaultSpec(where="read", mode="quiet", layer=5, chunk=3)), trace=str(tmp_path))
    result, compared = run(c)
    assert result.stats["decode"]["reads_retried"] == 3
    assert [one.failed for one in compared] == [True, True]
    assert "layer 5" in compared[0].reason
    check(tmp_path)


@pytest.mark.parametrize("mode", ["quiet", "unknown"])
def test_one_that_fails_once_is_made_good_where_nothing_of_it_lands_any_more(mode: str) -> None:
    c = config(read_retries=2, decode_faults=(FaultSpec(where="read", mode=mode, layer=3, chunk=2, nth=1),))  # type: ignore[arg-type]
    result, compared = run(c)
    assert result.stats["decode"]["reads_retried"] == (mode == "quiet")
    assert [one.equal for one in compared] == [mode == "quiet", True], "an error is no proof that the copy has stopped"
