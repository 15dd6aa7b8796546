"""The demo's settings as plain data, with changes."""

from __future__ import annotations

import copy
from typing import Any

from tidegate.engine.run_options import DEFAULTS

EXTRA = "kv_connector_extra_config"


def raw(**changes: Any) -> dict[str, Any]:
    """DEFAULTS with changes: dotted paths as `"prefill.block_size"`; a connector's by `store.KEY`, `source.KEY`,
    `target.KEY`; Decode's speculation by `mtp.KEY`.
    """
    out = copy.deepcopy(DEFAULTS)
    connectors = out["prefill"]["kv_transfer_config"][EXTRA]["connectors"]
    homes = {
        "store": connectors[1][EXTRA], "source": connectors[0][EXTRA], "target": out["decode"]["kv_transfer_config"][EXTRA],
        "sparse": out["decode"]["additional_config"]["sparse_kv_offload_config"],
        "p": out["prefill"]["kv_transfer_config"], "d": out["decode"]["kv_transfer_config"], "top": out, "mtp": {},
    }  # fmt: skip
    for path, value in changes.items():
        home, key = path.split("__")
        where = homes.get(home, out.get(home))
        if value is ...:
            del where[key]
        else:
            where[key] = value
    if homes["mtp"]:
        out["decode"]["speculative_config"] = homes["mtp"]
    return out
