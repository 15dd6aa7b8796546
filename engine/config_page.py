"""docs/configuration.md, from the keys, rules and options themselves.

Rule: nothing about a key, an option or a refusal is written by hand: what the parser enforces is what the page says.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable

import msgspec
from typer.models import OptionInfo

from tidegate.engine.cli.run import command
from tidegate.engine.keys import Rule, documented
from tidegate.engine.refusals import MODEL_RULES, SETTINGS_RULES
from tidegate.engine.run_options import DEFAULTS, OPTIONS
from tidegate.engine.settings import (
    AdditionalConfig,
    Connector,
    Instance,
    MultiExtra,
    RemoteExtra,
    SparseConfig,
    SpeculativeConfig,
    StoreExtra,
)

__all__ = ["page"]

INTRO = """\
# Configuration

`tidegate run --config FILE` reads one JSON object: `prefill` and `decode`, an instance each, and `check_mode` (true allows dtypes
that are for checks of arithmetic only). Without a file, `run` uses the demo's configuration, which `tidegate config --example`
prints; an option of `run` wins over the file. Names, shapes and defaults are those of vllm-ascend wherever it has the option; the
last column says where it differs: another default or name there, `-` for a key that only Tidegate has.

Everything is checked before memory is allocated or a process started. A value that is refused ends the command with one line,
which names the key, the option if one was typed, the value, the rule and the way out, and with exit code 2. A key that nobody knows
is refused with the nearest one that is known. What is no value at all for an option (`--chunk many`), and an option that there is
not, is refused by the parser of the command line, in its own form and with the same exit code.

This page is written by `tidegate config --write`, from the code.
"""
SECTIONS: tuple[tuple[str, str, type[msgspec.Struct]], ...] = (
    ("An instance: `prefill`, `decode`", "What a vLLM server takes on its command line.", Instance),
    ("`speculative_config`", "Several tokens of a request in one forward; the answers are the same, to the bit.", SpeculativeConfig),
    ("`kv_transfer_config`", "And, with the same keys, each entry of MultiConnector's `connectors`. Prefill needs AscendStoreConnector "
     "and SfaRemoteD2HConnector in a MultiConnector, in any order; Decode needs SfaRemoteD2HConnector.", Connector),
    ("MultiConnector: `kv_connector_extra_config`", "", MultiExtra),
    ("AscendStoreConnector: `kv_connector_extra_config`", "Prefill's layer buffers and host KV pool. `local` is the embedded stand-in "
     "for Memcache: the same meaning, for processes of one host.", StoreExtra),
    ("SfaRemoteD2HConnector: `kv_connector_extra_config`", "Decode's reads of Prefill's buffers; both sides.", RemoteExtra),
    ("`additional_config`", "", AdditionalConfig),
    ("`additional_config.sparse_kv_offload_config`", "Decode's host pool and hot buffers.", SparseConfig),
)  # fmt: skip
BUFFERS = """\
## How many layer buffers there are

Layers are counted from the caches that Prefill registers: N of them, I independent. Those of one cache layout share min(B, how many
they are) buffers, round robin, B being `layerwise_num_shared_buffers`; so a model whose layers are all alike has I + min(B, N - I)
buffers. Layers are numbered from 0, MTP layers after the last base layer; -1 is the last one.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRO]
    for title, text, kind in SECTIONS:
        parts.append(f"## {title}\n" + (f"\n{text}\n" if text else ""))
        parts.append(_table(("key", "default", "rule", "upstream"), (
            (f"`{name}`", _shown(default), key.rule, key.upstream or "the same") for name, default, key in documented(kind))))  # fmt: skip
    parts.append(BUFFERS)
    parts.append("## Options of `tidegate run` that set a key\n")
    parts.append(_table(("option", "key"), ((f"`{name}`", f"`{option.key}`") for name, option in OPTIONS.items())))
    parts.append("## Options of `tidegate run` without a key\n")
    parts.append(_table(("option", "default", "meaning"), keyless()))
    parts.append("## Refused by name\n\nThe boundaries of the design, and settings that contradict each other:\n")
    parts.append("".join(f"* {rule.about}\n" for rule in _all_rules()))
    parts.append("## The demo's configuration\n\n```json\n" + json.dumps(DEFAULTS, indent=1) + "\n```\n")
    return "\n".join(parts)


def keyless() -> Iterable[tuple[str, str, str]]:
    """(option, default, meaning) of those that no key stands for, from the command itself."""
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        option = f"--{name.replace('_', '-')}"
        if option not in OPTIONS:
            (said,) = (one for one in parameter.annotation.__metadata__ if isinstance(one, OptionInfo))
            yield f"`{option}`", _shown(parameter.default), said.help or ""


def _all_rules() -> Iterable[Rule[object]]:
    return (*SETTINGS_RULES, *MODEL_RULES)  # type: ignore[arg-type]


def _shown(default: object) -> str:
    if default is None or default == "":
        return "left out"
    if isinstance(default, dict | msgspec.Struct):
        return "empty"
    return f"`{json.dumps(default)}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
