"""`tidegate soak`, and that it finds: a bug planted in a worker is seen in the answers, or in what is still held.

The minute of `make test`, and the ten of `make test-long`, are a part of `tests/run_parts.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from gate_tools import mutants
from pair_tools import MODEL, TEXT, mutated, slow
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.cli.trace import told as judged
from tidegate.engine.config import ConfigError, FaultSpec, Request, RunConfig
from tidegate.engine.pair import run_pair
from tidegate.engine.report import compare
from tidegate.engine.soak import processes
from tidegate.engine.soak.judge import Judge
from tidegate.engine.soak.kinds import KINDS, Sizes, chosen, draw_life
from tidegate.engine.soak.rest import grown, unrest
from tidegate.engine.soak.run import soak
from tidegate.engine.soak.strangers import Strangers
from tidegate.engine.soak.traffic import HUNG, LEFT, Answer, Question, Texts
from tidegate.engine.worker_io import Line

LEAK = """
from tidegate.engine.blocks import BlockAllocator
give_back = BlockAllocator.give_back
lost = []
def keeps(self, owner):
    give_back(self, owner)
    if not lost:
        lost.append(self._free.pop())
BlockAllocator.give_back = keeps
from tidegate.engine.decode_worker import main
main()
"""
"""Of the first request that ends, one block stays behind."""


CARELESS = """
import msgspec
from tidegate.engine import control
control.parse_hello = lambda data: msgspec.json.decode(data, type=control.Hello)
from tidegate.engine.decode_worker import main
main()
"""
"""A HELLO that is none is nobody's fault."""


BELIEVING = """
from tidegate.engine import decode_meeting
fetch_memory = decode_meeting.fetch_memory
class Any(int):
    def __ne__(self, other):
        return False
def believed(address):
    memory = fetch_memory(address)
    memory.life = Any(memory.life)
    return memory
decode_meeting.fetch_memory = believed
from tidegate.engine.decode_worker import main
main()
"""
"""Whoever names where a Prefill serves its memory is one."""


GULLIBLE = """
from tidegate.engine.decode_peers import Peers
speaker = Peers.speaker
def anyone(self, address):
    return self._at.get(address) or next(iter(self.lives.values()))
Peers.speaker = anyone
from tidegate.engine.decode_worker import main
main()
"""
"""Who has not introduced himself is taken for the first who has."""


def with_slots(shared: int) -> int:
    """A seed whose servers have so many shared buffers."""
    return next(seed for seed in range(1000) if draw_life(seed, 1, (), Sizes()).config.shared_buffers == shared)


def planted(role: str, code: str) -> dict[str, Sequence[str]]:
    return {role: [sys.executable, "-c", code]}


def test_a_gate_that_does_not_wait_is_found_in_the_answers() -> None:
    one = mutants()["PhysicalBuffer.CanRelease#5"]
    argv = {"prefill": mutated("prefill", one.module.__name__.rsplit(".", 1)[1], one.python())}
    out = soak(5, ("slow",), with_slots(1), argv=argv, rounds=6, first=1)
    assert any("WRONG ANSWER" in text for text in out.found), out


def test_a_block_that_is_not_given_back_is_found_at_rest() -> None:
    seed = next(seed for seed in range(1000) if draw_life(seed, 0, (), Sizes()).config.concurrency > 1)
    out = soak(5, (), seed, argv=planted("decode", LEAK), rounds=1, patience=5)
    assert any("1 of" in text and "blocks are taken" in text for text in out.found), out
    assert out.equal == out.asked


def test_a_worker_that_dies_is_named() -> None:
    out = soak(5, (), 1, argv=planted("prefill", "import sys; sys.stdin.readline(); sys.exit('no such device')"), rounds=1)
    assert out.found == ["the prefill ended by itself with code 1"]
    assert out.said["prefill"] == ["no such device"]


def test_a_server_that_takes_a_strangers_word_badly_is_found() -> None:
    out = soak(5, ("strangers",), 2, argv=planted("decode", CARELESS), rounds=6, first=1)
    assert any(text.startswith("the decode failed: decode: ") for text in out.found), out


def visits(role: str, code: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is found where strangers of that kind alone come, round after round."""
    monkeypatch.setattr(Strangers, "kinds", property(lambda self: [getattr(self, kind)]))
    return soak(5, ("strangers",), 2, argv=planted(role, code), rounds=6, first=1).found


LONG = pytest.mark.skipif(not os.environ.get("TIDEGATE_LONG"), reason="the short run shows one that is found")


@LONG
def test_an_invented_life_that_is_believed_is_found_in_what_decode_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("prefills are met" in text for text in visits("decode", BELIEVING, "_inventing", monkeypatch))


@LONG
def test_a_stranger_who_is_taken_for_a_prefill_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visits("decode", GULLIBLE, "_knowing", monkeypatch) != []


def test_servers_that_are_well_have_nothing_to_be_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor in what was recorded; planted: other bytes in a slot than were read of it."""
    told: list[str] = []
    out = soak(5, ("dup", "loss", "wire", "abort", "evict", "strangers"), 1, rounds=2, first=1, told=told.append, traces=tmp_path)
    assert (out.found, out.equal + out.left, out.rounds) == ([], out.asked, 2)
    assert out.logits_equal >= out.equal > 0
    assert len(told) == 3
    shutil.copytree(life := tmp_path / "life-1", other := tmp_path / "other")
    lines = (prefill := other / "prefill-0.jsonl").read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if '"write_end"' in line)
    prefill.write_text("".join([*lines[:first], re.sub('"tag":"[^"]*"', '"tag":"0000000000000000"', lines[first]), *lines[first + 1 :]]))
    assert judged([life, other]) == 1
    assert re.findall(r"(life-1|other): (accepted|REFUSED)", capsys.readouterr().out) == [("life-1", "accepted"), ("other", "REFUSED")]


# ---- a broken connection ------------------------------------------------------------------------------------------


def test_a_control_connection_that_is_cut_costs_nobody_anything() -> None:
    """A reconnecting DEALER without an address of its own is a stranger: its READYs are dropped, and its gates stay shut."""
    c = RunConfig(
        requests=(Request("first", tuple(TEXT[:150])), Request("second", tuple(TEXT[11:150]))), chunk=50, hot_buffer=16, block_size=16,
        new_tokens=4, resend_seconds=0.1, shared_buffers=2, independent_layers=(-1,), deadline_seconds=30.0, model=MODEL,
        decode_faults=(slow("read", 0.1, chunk=2),),
    ).checked()  # fmt: skip
    pids: dict[str, int] = {}
    ports: dict[str, int] = {}
    cuts = []

    def on_line(role: str, line: Line) -> None:
        if line.kind == "ready":
            ports[role] = line.port
        if "chunk 1 of" in line.text:
            cuts.append(processes.cut(pids["decode"], ports["decode"]))

    result = run_pair(c, timeout=60, on_line=on_line, on_started=pids.update)
    assert cuts == [1, 1]
    assert all(one.equal for one in compare(c, result)), result.results


# ---- its parts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(draw_life(1, 0, (), Sizes()).config)


def asked(status: int, tokens: Sequence[int] = (), *, clear: bool = True) -> Answer:
    return Answer(Question("q", ((1, 2, 3),), 3), status, (tuple(tokens),), "why", "cmpl-q", clear)


def test_what_an_answer_may_be(judge: Judge) -> None:
    due = judge._due((1, 2, 3))
    right = asked(200, due[0][:3])
    logits = Line("debug", ok=True, logits=due[1][: 3 * len(due[1]) // len(due[0])])
    other = msgspec.structs.replace(logits, logits=logits.logits[:-1] + bytes([logits.logits[-1] ^ 1]))
    assert judge.wrong(right, {"cmpl-q-0": logits}, excused=False) == ""
    assert "WRONG ANSWER" in judge.wrong(right, {"cmpl-q-0": other}, excused=True)
    assert "WRONG ANSWER" in judge.wrong(asked(200, (due[0][0] ^ 1, *due[0][1:3])), {}, excused=True)
    assert judge.wrong(asked(200, clear=False), {}, excused=True)
    assert "no fault was there" in judge.wrong(asked(500), {}, excused=False)
    assert judge.wrong(asked(500), {}, excused=True) == ""
    assert judge.wrong(asked(500, clear=False), {}, excused=True)
    assert judge.wrong(asked(HUNG), {}, excused=True)
    assert judge.wrong(asked(LEFT), {}, excused=False) == ""
    assert (judge.counts, judge.logits_equal) == ((1, 1, 1), 1)


FREE = {"physical_buffer free": 3.0, "prefill_run done": 9.0, "transfer done": 4.0, "prefill_calls": 0.0, "blocks": 8.0, "blocks_free": 8.0}


@pytest.mark.parametrize(("change", "said"), [
    ({}, []), ({"transfer held": 2.0}, ["prefill: 2 transfer in phase held"]), ({"prefill_run running": 0.0}, []),
    ({"physical_buffer draining": 1.0}, ["prefill: 1 physical_buffer in phase draining"]),
    ({"prefill_calls": 1.0}, ["prefill: 1 prefill_calls"]), ({"blocks_free": 7.0}, ["prefill: 1 of 8 blocks are taken"]),
])  # fmt: skip
def test_what_is_not_at_rest(change: dict[str, float], said: list[str]) -> None:
    assert unrest("prefill", FREE | change) == said


def test_a_prefill_that_nobody_has_is_not_at_rest() -> None:
    figures = {"prompts_waiting": 0.0, "blocks": 8.0, "blocks_free": 8.0, "hot_rows": 4.0, "hot_rows_free": 4.0}
    assert unrest("decode", figures | {"prefills": 2.0}, prefills=2) == unrest("decode", figures | {"prefills": 2.0}) == []
    assert unrest("decode", figures | {"prefills": 2.0}, prefills=1) == ["decode: 2 prefills are met, and there are 1"]


def test_what_has_grown() -> None:
    before = processes.Holding({"pipe:": 2}, 3, 10, 1)
    assert grown("decode", before, processes.Holding({"pipe:": 6}, 100, 20, 1)) == []
    found = grown("decode", before, processes.Holding({"pipe:": 7, "socket:": 5}, 161, 27, 2, 65 << 20))
    assert [text.split(": ", 1)[1] for text in found] == [
        "7 descriptors of pipe:, first 2", "5 descriptors of socket:, first 0", "27 threads, first 10", "161 connections",
        "65 MiB of memory, first 0", "2 pieces of shared memory, first 1",
    ]  # fmt: skip


def test_who_outlives_the_others_is_named_and_who_has_ended_is_not_waited_for() -> None:
    gone, stays = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "600"])
    zombie = subprocess.Popen(["true"])
    gone.wait()
    assert processes.outliving([stays.pid, gone.pid, zombie.pid], 1.0) == [stays.pid]
    stays.kill()
    assert processes.outliving([stays.pid, zombie.pid], 600.0) == []
    assert stays.wait(), zombie.wait()


def test_a_seed_is_a_soak() -> None:
    drawn = [[draw_life(seed, number, tuple(KINDS), Sizes()) for number in range(20)] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert not drawn[0][0].faults
    assert {name for life in drawn[0] for name in life.faults} == {name for name, kind in KINDS.items() if not kind.deed} - {"abort"}
    texts = [Texts(seed, Sizes()).questions(1, count=9, spread=1.0, leave=0.5) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_a_chance_is_decided_by_count_and_seed() -> None:
    spec = FaultSpec("read", chance=0.25, seed=3)
    hits = [n for n in range(1, 2001) if spec.hits(n)]
    assert hits == [n for n in range(1, 2001) if spec.hits(n)]
    assert 400 < len(hits) < 600
    assert [n for n in range(1, 6) if FaultSpec("read", nth=4).hits(n)] == [4]
    assert all(FaultSpec("read").hits(n) for n in range(1, 6))


def test_faults_by_name() -> None:
    assert (chosen("all"), chosen("none"), chosen("kill, loss")) == (tuple(KINDS), (), ("loss", "kill"))
    with pytest.raises(ConfigError, match="no fault is named tea: choose from loss"):
        chosen("kill,tea")


@pytest.mark.parametrize(("options", "said"), [
    (["--faults", "tea"], "no fault is named tea"), (["--minutes", "0"], "--minutes is 0.0: more than 0"),
    (["--minutes", "nan"], "--minutes is nan: more than 0, and finite"), (["--minutes", "inf"], "inf: more than 0, and finite"),
])  # fmt: skip
def test_what_cannot_be_soaked(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["soak", *options])
    assert (done.exit_code, said in done.output) == (2, True)


def test_a_soak_that_compared_nothing_has_not_passed() -> None:
    result = CliRunner().invoke(app, ["soak", "--minutes", "1e-9"])
    assert (result.exit_code, "no answer was compared" in result.output) == (1, True)


def test_the_list_of_faults() -> None:
    said = CliRunner().invoke(app, ["soak", "--list"]).output.splitlines()
    assert [line.split()[0] for line in said] == list(KINDS)
