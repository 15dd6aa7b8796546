"""Gives every TLA+ identifier of a module a Python name.

Rules: a name stays as it is unless Python, the run-time library or the generated file's own names claim it; then it gets
underscores until it is free; two identifiers never share a name; the same source gives the same names.
"""

from __future__ import annotations

import builtins
import keyword
import re

from tidegate.protocol import _runtime
from tidegate.spec.infer import Inference, field_pairs, record_set
from tidegate.spec.sany import Module
from tidegate.spec.types import Key

TYPES = ("bool", "int", "str", "frozenset", "tuple", "Any", "Map", "Set", "msgspec")  # a field of this name would hide the type
OWN = ("RECORDS", "CONSTANTS", "AnyEvent", "Any", "TypeAlias", "Set", "msgspec", "annotations", "range", "cache")
RESERVED = frozenset(
    (*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *(n for n in vars(_runtime) if not n.startswith("__")), *OWN)
)


def identifiers(module: Module) -> list[str]:
    """Every word of the source, in order of first appearance: more than the identifiers, never fewer."""
    return list(dict.fromkeys(re.findall(r"[A-Za-z_0-9]*[A-Za-z_][A-Za-z_0-9]*", module.source)))


def camel(fields: list[str]) -> str:
    return "".join(part[:1].upper() + part[1:] for f in fields for part in f.split("_"))


class Names:
    """python: TLA+ identifier -> Python name.  function: definition -> function name.  field: record field -> attribute
    (only keywords and type names are changed: an attribute may be called `open`).  records: key -> class name."""

    def __init__(self, module: Module, inference: Inference) -> None:
        words = identifiers(module)
        self.taken = set(RESERVED) | set(words)
        self.python: dict[str, str] = {}
        for word in words:
            self.python[word] = self.fresh(word) if word in RESERVED else word
        self.function = {d.name: self.python.get(d.name, d.name) for d in module.defs}
        fields = dict.fromkeys(f for info in inference.records.values() for f in info.fields)
        self.field = {f: self.fresh(f) if keyword.iskeyword(f) or f in TYPES else f for f in fields}
        self.records: dict[Key, str] = {}
        self._name_records(module, inference)

    def fresh(self, name: str) -> str:
        """A name that nothing else has: the name itself, or with underscores behind it."""
        while name in self.taken or not name.isidentifier() or keyword.iskeyword(name):
            name += "_"
        self.taken.add(name)
        return name

    def _name_records(self, module: Module, inference: Inference) -> None:
        """A definition that is one record set gives its (singular) name; event records are Event + their fields."""
        for d in module.defs:
            found = record_set(d.body) if not d.params else None
            key = tuple(sorted(name for name, _ in field_pairs(found))) if found is not None else ()
            if found is None or key in self.records or d.name == "Events":
                continue
            name = self.function[d.name]
            if name.endswith("s") and len(name) > 1:
                self.records[key] = self.fresh(name[:-1])
            else:  # the class takes the name, the set the plural
                self.records[key] = name
                self.function[d.name] = self.fresh(name + "s")
        events = (
            {m.key for m in (inference.event.args or (inference.event,))} if inference.event.kind in ("rec", "union") else set()
        )
        for key, info in inference.records.items():
            if key not in self.records:
                rest = [f for f in info.fields if f != "op"]
                self.records[key] = self.fresh(("Event" if key in events else "Record") + camel(rest))
