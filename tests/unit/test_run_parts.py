"""The runner of the parts: what hangs is killed and has failed; what ends is counted by its last line."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "run_parts.py"
SPEC = importlib.util.spec_from_file_location("run_parts", FILE)
run_parts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_parts)


def python(text):
    return [sys.executable, "-c", text]


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_part_that_hangs_is_killed_with_its_children_and_has_failed(capfd):
    child = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    assert run_parts.run([python(child)], dict(os.environ), 2) == (0, 1)
    pid, said = capfd.readouterr().out.split(maxsplit=1)
    assert "printed nothing for 2 s: killed" in said
    deadline = time.monotonic() + 30
    while lives(pid):
        assert time.monotonic() < deadline, "the sleep is still there"
        time.sleep(0.05)


def test_dots_without_an_end_of_line_are_no_silence(capfd):
    assert run_parts.run(
        [python("import time\nfor _ in range(8): print('.', end='', flush=True); time.sleep(1)")], dict(os.environ), 6
    ) == (1, 0)


def test_the_last_line_of_pytest_is_counted(capfd):
    says = ["-c", "print('.' * 20_000); print('3 failed, 12 passed in 1.0s\\n'); raise SystemExit(1)", "pytest"]
    assert run_parts.run([[sys.executable, *says]], dict(os.environ), 60) == (12, 3)
    assert run_parts.run([[sys.executable, "-c", "raise SystemExit(5)", "pytest"]], dict(os.environ), 60) == (0, 1)


def test_a_runner_that_is_ended_ends_its_part(tmp_path):
    """As `make` does when its time is over."""
    started = tmp_path / "pid"
    new = f"{started}.new"
    part = f"import os, time; open({new!r}, 'w').write(str(os.getpid())); os.rename({new!r}, {str(started)!r}); time.sleep(600)"
    runner = (
        f"import sys; sys.path.insert(0, {str(FILE.parent)!r}); import run_parts\n"
        f"run_parts.parts = lambda long, traces: {{'waits': [[sys.executable, '-c', {part!r}]]}}\n"
        "sys.argv = ['run_parts.py']; raise SystemExit(run_parts.main())"
    )
    process = subprocess.Popen(python(runner), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline, "the part did not start"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert not lives(started.read_text())
