"""The embedding API in two processes: examples/embed_prefill.py, as it is and with a row computed wrongly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidegate.spec.trace import check

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "embed_prefill.py"


def test_the_example_runs_is_right_and_is_short(tmp_path: Path) -> None:
    trace = tmp_path / "new" / "trace"
    done = subprocess.run([sys.executable, str(EXAMPLE), str(trace)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("every row of every layer is right") == 3
    assert check(trace).attempts == 3
    assert len(EXAMPLE.read_text().splitlines()) < 80


WRONG = """
import sys
sys.path.insert(0, sys.argv[1])
import embed_prefill
right = embed_prefill.pattern
def wrong(layer, first, end, width):
    rows = right(layer, first, end, width).clone()
    if first == 96 and layer == 4 and width == 24:
        rows[7, 3] ^= 1
    return rows
embed_prefill.pattern = wrong
embed_prefill.torch = type("torch", (), {"equal": lambda one, two: True})  # its own "attention" looks away
embed_prefill.tokens_of = lambda *arguments: None
sys.exit(embed_prefill.main())
"""


def test_one_wrong_element_is_found_by_decode() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRONG, str(EXAMPLE.parent)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "long: the main rows of layer 4 are wrong" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("is right") == 2
