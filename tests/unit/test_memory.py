"""What a run is said to need is what its workers allocate, and more than there is is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.engine.config import Request, RunConfig
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.errors import ConfigError
from tidegate.engine.memory import available, needed, refuse_memory
from tidegate.engine.paged_rows import RowKind
from tidegate.engine.prefill_copies import extent_layout
from tidegate.engine.slot_layout import plan_layout


def config(lic8: bool = False) -> RunConfig:
    requests = (Request("a", (1,) * 300), Request("b", (1,) * 20))
    return RunConfig(requests=requests, concurrency=2, block_size=64, chunk=100, lic8=lic8).checked()


@pytest.mark.parametrize("lic8", [False, True])
def test_what_is_needed_is_what_the_workers_allocate(lic8: bool) -> None:
    c = config(lic8)
    model, plan, parts, index = c.model_config(), c.plan(), needed(c), "int8" if lic8 else "bfloat16"
    widths = {"main": model.main_width, "index": model.index_width} | ({"scale": 1} if lic8 else {})
    layout = plan_layout(
        [plan.slot_of(layer) for layer in range(1, plan.layers + 1)], widths, model.dtype, blocks=c.prefill_blocks,
        block_size=c.block_size, dtypes={"index": index, "scale": "float16"},
    )  # fmt: skip
    assert parts["layer buffers"] == layout.size
    assert len(c.caches()) == len(widths) * model.cache_layers
    assert {(spec.kind, spec.dtype) for spec in c.caches().values()} >= {("main", "bfloat16"), ("indexer", index)}
    assert parts["Prefill's host pool"] == c.pool_objects * extent_layout(layout).size
    kinds = [RowKind("main", model.dtype, model.main_width), RowKind("index", index, model.index_width)]
    kinds += [RowKind("scale", "float16", 1)] if lic8 else []
    decode = DecodeMemory(kinds, layers=model.cache_layers, blocks=c.decode_blocks, block_size=c.block_size, rows=c.concurrency,
                          hot=c.hot_buffer)  # fmt: skip
    assert parts["Decode's host pool"] == sum(pages.memory.nbytes for pages in decode.pages.values())
    assert parts["hot buffers"] == decode.hot.nbytes


def test_more_than_there_is_is_refused_with_the_parts_of_the_sum(tmp_path: Path) -> None:
    need = sum(needed(config()).values())
    refuse_memory(config(), need)
    with pytest.raises(ConfigError, match=r"^2 requests at once of up to 300 tokens need .* GiB of memory \(layer buffers .*, hot buffers"):
        refuse_memory(config(), need - 1)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    3 kB\n")
    assert available(tmp_path / "meminfo") == 3072
    assert available() > 0


def glm() -> dict[str, int | float | str | bool]:
    """78 layers and an MTP layer, of which every fourth has an indexer, as published."""
    types = ["full", *(["full"] + ["shared"] * 3) * 19, "full"]
    sizes = {"num_hidden_layers": 78, "num_nextn_predict_layers": 1}
    return {"model_type": "glm_moe_dsa", **sizes, "indexer_types": types}  # type: ignore[dict-item]


def test_layers_that_share_an_indexer_get_no_cache_for_one() -> None:
    c = RunConfig(requests=(Request("a", (1,) * 300),), block_size=64, model=glm())
    caches, plan = c.caches(), c.layer_plan()
    assert [sum(spec.kind == kind for spec in caches.values()) for kind in ("main", "indexer")] == [79, 22]
    assert [layer.number for layer in plan.layers if layer.indexer] == [0, *range(1, 78, 4), 78]
    assert [(layer.number, layer.main, layer.indexer) for layer in plan.layers][1:3] == [
        (1, "model.layers.1.self_attn.attn", "model.layers.1.self_attn.indexer.k_cache"),
        (2, "model.layers.2.self_attn.attn", ""),
    ]
    layout, (main, index) = c.checked().slot_layout(), c.row_kinds()
    assert [[area.name for area in layout.areas_of(slot, layer)] for layer, slot in enumerate(layout.slot_of_layer)][:3] == [
        ["main", "index"], ["main", "index"], ["main"],
    ]  # fmt: skip
    assert main.layers is None
    assert index.layers == (0, *range(1, 78, 4), 78)
    rows, size = extent_layout(layout).layers, c.block_size
    assert sum(map(len, rows)) == 79 + 22
    decode = DecodeMemory([main, index], layers=79, blocks=2, block_size=size, rows=1, hot=64)
    assert decode.pages["index"].memory.shape[0] == 22
    assert needed(c)["Decode's host pool"] == c.decode_blocks * sum(pages.memory.nbytes for pages in decode.pages.values()) // 2
