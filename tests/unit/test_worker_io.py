"""A worker whose parent has gone removes the run's scratch folder, whoever of its threads notices first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.engine.worker_io import ORPHANED

WORKER = """
import shutil, sys, threading
from tidegate.engine import worker_io

removing, real = threading.Event(), shutil.rmtree

def slowly(*args, **kwargs):
    removing.set()
    threading.Event().wait(0.5)
    real(*args, **kwargs)

worker_io.shutil.rmtree = slowly
parent = worker_io.Parent()
parent.watch(lambda: None, sys.argv[1], server=None)
parent.say("ready")
{then}
"""
UNTIL_IT_BREAKS = """
while True:
    try:
        parent.say("progress")
    except OSError:
        parent.fail("gone")
"""
ENDS = {
    # the main thread fails while the watcher is in the middle of the removal
    "fails during the removal": ("removing.wait(); parent.fail('broken pipe')", True),
    # the main thread meets the broken pipe before the watcher sees the end of standard input
    "meets the broken pipe first": (UNTIL_IT_BREAKS, False),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_scratch_folder_goes_in_whatever_order_the_end_is_noticed(name: str, tmp_path: Path) -> None:
    then, close_input = ENDS[name]
    scratch = tmp_path / "scratch"
    (scratch / "pool").mkdir(parents=True)
    (scratch / "pool" / "object.part").touch()
    process = subprocess.Popen([sys.executable, "-c", WORKER.replace("{then}", then), str(scratch)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    if close_input:
        process.stdin.close()
    assert process.wait(30) == ORPHANED
    if not close_input:
        process.stdin.close()
    assert os.listdir(tmp_path) == []


def test_a_failure_while_the_parent_lives_is_told_and_leaves_the_folder_to_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen([sys.executable, "-c", WORKER.replace("{then}", "parent.fail('no room')"), str(scratch)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.wait(30) not in (0, ORPHANED)
    assert "no room" in said
    assert scratch.is_dir()
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()
