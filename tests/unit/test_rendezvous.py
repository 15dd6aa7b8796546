"""Proxy, Decode's and Prefill's servers, over real sockets, with owners that do what the test says: routing, retries, failures."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable

import httpx
import msgspec
import pytest
from rendezvous_tools import Bench, error, post

from tidegate.engine.fault_spec import FaultSpec
from tidegate.engine.http import decode_server
from tidegate.engine.http.client import Asked, Client, Told
from tidegate.engine.http.decode_server import Answered, Ask, DecodeServer
from tidegate.engine.http.prefill_server import Call, Done
from tidegate.engine.http.proxy import Proxy
from tidegate.engine.http.server import Refused


def test_prompts_of_a_list_are_answered_in_order_whoever_is_first(bench: Callable[..., Bench]) -> None:
    b = bench()
    held: list[Call] = []

    def backwards(call: Call) -> None:
        held.append(call)
        if len(held) == 3:
            for one in reversed(held):
                b.serve(one)

    b.prefills[0].on_call = backwards
    answer = post(b.proxy().server.url, prompt=["abcd", [1, 2, 3, 4], "wxyz"], max_tokens=2, headers={"X-Request-Id": "mine"})
    assert answer.status_code == 200
    found = [(c["index"], c["token_ids"], c["text"]) for c in answer.json()["choices"]]
    assert found == [(0, [97, 98], "ab"), (1, [1, 2], "\1\2"), (2, [119, 120], "wx")]
    assert answer.json()["usage"] == {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18}
    assert answer.headers["x-request-id"].startswith("mine-")
    assert answer.json()["id"] == f"cmpl-{answer.headers['x-request-id']}"


def test_a_client_may_use_an_id_twice_at_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    url, told = b.proxy().server.url, queue.Queue[Told]()
    both = threading.Barrier(2)

    def serve(call: Call) -> None:
        threading.Thread(target=lambda: (both.wait(10), b.serve(call))).start()

    b.prefills[0].on_call = serve
    threads = [threading.Thread(target=lambda p=p: told.put(post(url, prompt=p, max_tokens=1, headers={"X-Request-Id": "x"}).json()))
               for p in ("a", "b")]  # fmt: skip
    for thread in threads:
        thread.start()
    answers = [told.get(timeout=20)["choices"][0]["text"] for _ in threads]  # type: ignore[index]
    assert sorted(answers) == ["a", "b"]
    for thread in threads:
        thread.join()


def test_one_announcement_is_one_prefill_however_often_it_comes(bench: Callable[..., Bench]) -> None:
    b = bench()
    proxy = b.proxy()
    b.decode.on_ask = lambda ask: (b.wanted.__setitem__(ask.request, ask), b.decode.admit(ask, copies=3))[1]
    first, release = threading.Event(), threading.Event()
    b.prefills[0].on_call = lambda call: (first.set(), threading.Thread(target=lambda: (release.wait(10), b.serve(call))).start())[1]
    done: queue.Queue[httpx.Response] = queue.Queue()
    client = threading.Thread(target=lambda: done.put(post(proxy.server.url, prompt="abc", max_tokens=1)))
    client.start()
    assert first.wait(10)
    while proxy.repeated < 2:  # the copies arrive; the test's own limit ends it if they do not
        threading.Event().wait(0.01)
    changed = msgspec.to_builtins(b.decode.params(b.decode.asks.get(), attempt=100, remote_port=10))
    assert "other contents" in error(post(proxy.server.url, "/v1/metaserver", **changed))
    release.set()
    assert done.get(timeout=20).status_code == 200
    client.join()
    assert (b.prefills[0].calls.qsize(), proxy.dispatched) == (1, 1)


@pytest.mark.parametrize(("mode", "calls"), [("double", 2), ("ok", 1)])
def test_a_doubled_or_late_start_is_one_answer(mode: str, calls: int, bench: Callable[..., Bench]) -> None:
    b, hit = bench(), queue.Queue[str]()
    proxy = b.proxy(faults=(FaultSpec(where="send", what="START", mode=mode, delay=0.05),))  # type: ignore[arg-type]
    proxy.on_fault = hit.put
    answer = post(proxy.server.url, prompt="abc", max_tokens=1)
    assert [c["text"] for c in answer.json()["choices"]] == ["a"]
    for _ in range(calls):  # the second copy may come after the answer
        b.prefills[0].calls.get(timeout=20)
    assert (b.prefills[0].calls.qsize(), hit.qsize(), proxy.stats()["injected"]) == (0, 1, 1)


def unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_without_a_prefill_the_client_hears_503_and_why(bench: Callable[..., Bench]) -> None:
    b = bench()
    proxy = b.proxy(prefillers=(f"http://127.0.0.1:{unused_port()}",))
    answer = post(proxy.server.url, prompt="abc")
    assert answer.status_code == 503
    assert error(answer).startswith("no Prefill served the request in 3 tries; the last: http://127.0.0.1:")
    assert (b.decode.asks.qsize(), proxy.stats()["asked_in_vain"]) == (1, 3)
    assert answer.json()["error"]["request_id"].startswith("cmpl-r-")
    assert httpx.get(proxy.server.url + "/health", trust_env=False).status_code == 503
    assert b.decode.cancelled.qsize() == 1, "Decode hears that nobody waits"


def test_without_a_decode_the_client_hears_503_and_why(bench: Callable[..., Bench]) -> None:
    answer = post(bench().proxy(decoders=(f"http://127.0.0.1:{unused_port()}",)).server.url, prompt="abc")
    assert answer.status_code == 503
    assert "no Decode served the request in 3 tries" in error(answer)


def test_another_prefill_is_asked_when_one_is_busy_or_gone(bench: Callable[..., Bench]) -> None:
    b = bench(prefills=2)
    b.prefills[0].on_call = lambda call: call.answer.give(Refused(503, "not now", again=True))
    urls = (f"http://127.0.0.1:{unused_port()}", *(prefill.http.server.url for prefill in b.prefills))
    proxy = b.proxy(prefillers=urls)
    assert post(proxy.server.url, prompt="abc").status_code == 200
    assert (b.prefills[0].calls.qsize(), b.prefills[1].calls.qsize()) == (1, 1)
    assert proxy.stats()["asked_in_vain"] == 2
    health = httpx.get(proxy.server.url + "/health", trust_env=False)
    assert health.status_code == 200
    assert list(health.json()["prefill"].values()) == [False, True, True]


def test_a_run_that_failed_is_no_reason_to_give_up_while_decode_has_not(bench: Callable[..., Bench]) -> None:
    """A second run of an attempt is refused by Decode; the first one serves it."""
    b = bench()

    def twice(call: Call) -> None:
        if b.prefills[0].calls.qsize() == 1:
            ask = b.wanted[call.start.request]
            threading.Timer(0.2, lambda: ask.answer.give(Answered([1, 2, 3, 4]))).start()
        else:
            call.answer.give(Refused(409, "run 2 failed: attempt 100 is bound to run 1"))

    b.prefills[0].on_call = twice
    proxy = b.proxy(faults=(FaultSpec(where="send", what="START", mode="double"),))
    assert post(proxy.server.url, prompt="abc").json()["choices"][0]["token_ids"] == [1, 2, 3, 4]


def test_a_failed_prompt_fails_the_request_and_its_siblings_are_cancelled(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.decode.on_ask = lambda ask: ask.answer.give(Refused(504, "not complete after 9 s")) if ask.prompt == (98,) else None
    answer = post(b.proxy().server.url, prompt=["a", "b", "c"])
    assert (answer.status_code, error(answer)) == (504, "not complete after 9 s")
    assert answer.json()["error"]["type"] == "timeout_error"
    assert answer.json()["error"]["request_id"].endswith("-1")
    assert {b.decode.cancelled.get(timeout=10).prompt for _ in range(3)} == {(97,), (98,), (99,)}


def test_a_client_that_leaves_is_noticed_by_everybody(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.prefills[0].on_call = lambda call: None
    proxy, told = b.proxy(), queue.Queue[Told]()
    client = Client(proxy.server.url, [Asked("a", (1, 2), 4)], told.put)
    call = b.prefills[0].calls.get(timeout=10)
    client.close()
    assert b.decode.cancelled.get(timeout=10).prompt == (1, 2)
    assert b.prefills[0].cancelled.get(timeout=10) is call
    assert told.empty()
    while proxy.entries:
        threading.Event().wait(0.01)
    assert proxy.server.counts[499] == 1


def test_strangers_at_the_metaserver_and_at_prefill(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.prefills[0].on_call = lambda call: None
    proxy = b.proxy()
    client = Client(proxy.server.url, [Asked("a", (1, 2), 4)], lambda told: None)
    call = b.prefills[0].calls.get(timeout=10)
    ask = b.decode.asks.get(timeout=10)
    for name in ("cmpl-nobody-0", ask.request[:-1] + "1", ask.request[:-2], "x"):
        answer = post(proxy.server.url, "/v1/metaserver", **msgspec.to_builtins(b.decode.params(ask, request_id=name)))
        assert (answer.status_code, error(answer)) == (404, "no such request is under way here")
    params = msgspec.to_builtins(b.decode.params(ask))
    prefill = b.prefills[0].http.server.url
    for prompt, changes, why in (
        ([1, 3], {}, "not the prompt that Decode admitted"), ([[1, 2], [1, 2]], {}, "2 prompts"),
        ([1, 2], {"max_tokens": 2}, "Prefill is asked for 1"), ([1, 999], {}, "outside the vocabulary"),
    ):  # fmt: skip
        answer = post(prefill, **({"prompt": prompt, "max_tokens": 1, "kv_transfer_params": params} | changes))
        assert answer.status_code == 400
        assert why in error(answer)
    params = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": "http://127.0.0.1:9/"}
    for headers in ({}, {"X-Request-Id": "a b"}, {"X-Request-Id": "a" * 101}):
        answer = post(b.decode.http.server.url, prompt="a", kv_transfer_params=params, headers=headers)
        assert (answer.status_code, "through the proxy" in error(answer)) == (400, True)
    b.serve(call)
    client.close()


def test_an_attempt_can_be_announced_so_often(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.prefills[0].on_call = lambda call: call.answer.give(Refused(409, "over"))
    proxy = b.proxy()
    client = Client(proxy.server.url, [Asked("a", (1, 2), 4)], lambda told: None)
    ask = b.decode.asks.get(timeout=10)
    b.prefills[0].calls.get(timeout=10)
    answers = [post(proxy.server.url, "/v1/metaserver", **msgspec.to_builtins(b.decode.params(ask))) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 409]
    assert "3 attempts" in error(answers[-1])
    client.close()


def test_a_new_attempt_ends_the_search_for_a_prefill_of_the_one_before(bench: Callable[..., Bench]) -> None:
    """The first is refused everywhere and would be asked again; Decode has a new attempt meanwhile, which is served."""
    b = bench()
    b.prefills[0].on_call = lambda call: call.answer.give(Refused(503, "not now", again=True) if call.start.attempt == 100 else Done(1))
    proxy = b.proxy(max_retries=20, retry_delay=0.2)
    lost: queue.Queue[Refused] = queue.Queue()
    b.decode.on_ask = lambda ask: b.decode.http.announce(ask.metaserver, b.decode.params(ask), lost.put)
    client = Client(proxy.server.url, [Asked("a", (1, 2), 4)], lambda told: None)
    ask = b.decode.asks.get(timeout=10)
    assert b.prefills[0].calls.get(timeout=10).start.attempt == 100
    second = post(proxy.server.url, "/v1/metaserver", **msgspec.to_builtins(b.decode.params(ask)))
    assert (second.status_code, second.json()["attempt"]) == (200, 101)
    assert "the request, or this attempt, is over" in lost.get(timeout=10).reason
    client.close()


# ---- planted bugs: each is noticed by whoever hears the answer -----------------------------------------------------------


def told_of(proxy: Proxy) -> Told:
    told: queue.Queue[Told] = queue.Queue()
    client = Client(proxy.server.url, [Asked("a", (1, 2), 4)], told.put)
    try:
        return told.get(timeout=20)
    finally:
        client.close()


def test_planted_a_failed_request_is_answered_200(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    async def lenient(self: DecodeServer, one: Ask) -> list[int]:
        answer = await one.answer.wait()
        return answer.tokens if isinstance(answer, Answered) else []

    monkeypatch.setattr(DecodeServer, "_one", lenient)
    b = bench()
    b.decode.on_ask = lambda ask: ask.answer.give(Refused(500, "reading failed"))
    told = told_of(b.proxy())
    assert (told.status, told.reason) == (502, "200 with choices of [0] tokens, asked was one of 4")


def test_planted_a_prompt_is_sent_twice_as_two_answers(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    real = decode_server.prompts_of
    monkeypatch.setattr(decode_server, "prompts_of", lambda body: real(body) * 2)
    b.decode.on_ask = lambda ask: ask.answer.give(Answered([1, 2, 3, 4]))
    answer = post(b.proxy().server.url, prompt="abc")
    assert (answer.status_code, error(answer)) == (502, "Decode answered prompts [0, 1], asked were [0]")


def test_planted_the_wrong_prompt_of_a_list_is_prefilled(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    real = Proxy._find
    monkeypatch.setattr(Proxy, "_find", lambda self, request_id: (real(self, request_id)[0], 0))
    answer = post(b.proxy().server.url, prompt=["abc", "abd"])
    assert answer.status_code == 502
    assert "are not the prompt that Decode admitted" in error(answer)
