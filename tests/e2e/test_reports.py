"""What users of other systems reported, tried on real servers: ids that are not their client's alone, clients that all leave at once, a
pause longer than any connection is kept.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
from pair_tools import TEXT, config
from serving_tools import JSON, Serving, serving

from tidegate.engine.http.server import KEEP_SECONDS
from tidegate.engine.model import reference_generate

PROMPTS = [list(TEXT[start : start + 90 + 20 * start]) for start in range(6)]
NEW = 4


def expected(server: Serving) -> list[list[int]]:
    c = server.config
    model = c.load_model()
    return [reference_generate(model, tuple(prompt), c.chunk, NEW)[0] for prompt in PROMPTS]


def leave(server: Serving, prompt: list[int], patience: float) -> bool:
    """Did the client leave before it was answered?"""
    try:
        httpx.post(server.url["proxy"] + "/v1/completions", content=msgspec.json.encode({"prompt": prompt, "max_tokens": NEW}),
                   headers=JSON, timeout=httpx.Timeout(60, read=patience), trust_env=False)  # fmt: skip
    except httpx.ReadTimeout:
        return True
    return False


def test_reports_of_others() -> None:
    """One id for all (a leak of Prefill's KV elsewhere, its cleaning having gone by the client's id); all clients leave at once, those
    that are served, those whose prompt has gone to Prefill and those that wait for memory (blocks that stay till a timeout, or for ever);
    nothing happens for longer than a connection is kept (every request after it fails).
    """
    c = config(concurrency=2, max_prompt=200, decode_faults=())
    with serving(c) as server:
        due = expected(server)
        with ThreadPoolExecutor(len(PROMPTS)) as many:
            same = list(many.map(lambda prompt: server.post({"X-Request-Id": "one"}, prompt=prompt, max_tokens=NEW), PROMPTS))
        assert [answer.status_code for answer in same] == [200] * len(PROMPTS)
        assert [answer.json()["choices"][0]["token_ids"] for answer in same] == due
        with ThreadPoolExecutor(len(PROMPTS)) as many:
            assert any(many.map(lambda number: leave(server, PROMPTS[number], 0.01 + 0.05 * number), range(len(PROMPTS))))
        threading.Event().wait(KEEP_SECONDS + 1)
        after = [server.post(prompt=prompt, max_tokens=NEW) for prompt in PROMPTS[:2]]
        assert [answer.json()["choices"][0]["token_ids"] for answer in after] == due[:2]
        stats = server.stop()
    assert stats["decode"]["blocks_free"] == stats["decode"]["blocks"]
    assert stats["prefill"]["blocks_free"] == stats["prefill"]["blocks"]
    assert stats["prefill"]["slots_free"] == stats["prefill"]["slots"]
