"""Evaluates the corpus with TLC (all modules in one JVM) and with generated Python."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from types import ModuleType

from tidegate.spec import gen, tlc
from tidegate.spec.emit import Emitter
from tidegate.spec.sany import Module, load
from tidegate.spec.values import Value, canon, parse_all, to_python

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").glob("*.tla"))
CONSTANTS = {"Names": {"lambda": "{1, 2, 3}", "Map": "1", "def": "10"}}  # module -> constant -> TLA+ value


def values_of(module: Module) -> list[str]:
    """The definitions that are values: those without parameters."""
    return [d.name for d in module.defs if not d.params]


def tlc_values(modules: list[Module]) -> dict[tuple[str, str], Value]:
    """(module, definition) -> value, by one run of TLC."""
    lines = ["---- MODULE Corpus ----", "EXTENDS TLC"]
    for m in modules:
        given = ", ".join(f"{name} <- {value}" for name, value in CONSTANTS.get(m.name, {}).items())
        lines.append(f"M_{m.name} == INSTANCE {m.name}" + (f" WITH {given}" if given else ""))
        lines += [f'ASSUME PrintT(<<"{m.name}", "{name}", M_{m.name}!{name}>>)' for name in values_of(m)]
    with tempfile.TemporaryDirectory() as folder:
        path, config = Path(folder) / "Corpus.tla", Path(folder) / "Corpus.cfg"
        path.write_text("\n".join([*lines, "===="]))
        config.write_text("")
        result = tlc.run_tlc(path, config, library=[HERE / "corpus"], jvm=tlc.LIGHT)
    out = {}
    for row in parse_all(result.printed):
        fields = dict(row[1])
        out[fields[1], fields[2]] = fields[3]
    return out


def generated(module: Module) -> ModuleType:
    """The module translated by the Emitter as it is now, perhaps with a planted bug."""
    return gen.load_source(module.name, Emitter(module).module_text(f"{module.name}.tla"))


def python_value(python: ModuleType, emitter_name: str, module: Module) -> Value:
    """A definition's value in canonical form."""
    function = getattr(python, emitter_name)
    given = {k: parse_all(v)[0] for k, v in CONSTANTS.get(module.name, {}).items()}
    keywords = {p: to_python(given[p.rstrip("_")], python) for p in inspect.signature(function).parameters}
    return canon(function(**keywords))


def python_values(module: Module) -> dict[tuple[str, str], Value]:
    """(module, definition) -> value, by generated Python; an exception counts as the value that it names."""
    emitter = Emitter(module)
    try:
        python = gen.load_source(module.name, emitter.module_text(f"{module.name}.tla"))
    except Exception as error:  # a planted bug may make no Python at all
        return {(module.name, name): repr(error) for name in values_of(module)}
    out: dict[tuple[str, str], Value] = {}
    for name in values_of(module):
        try:
            out[module.name, name] = python_value(python, emitter.names.function[name], module)
        except Exception as error:
            out[module.name, name] = repr(error)
    return out


def load_corpus() -> list[Module]:
    return [load(path) for path in CORPUS]
