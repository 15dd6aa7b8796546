"""The word of a deployment: where it may stand, who is heard with it and who is not without; over real sockets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from decode_tools import KINDS, Prefill, both, layout_of
from rendezvous_tools import Bench, error, post
from zmq.utils.monitor import recv_monitor_message

from tidegate.engine import token
from tidegate.engine.errors import ConfigError
from tidegate.engine.http.bodies import Instance
from tidegate.engine.http.server import HttpServer
from tidegate.engine.standing import Joined
from tidegate.engine.token import bearer, configured_token

OURS, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TIDEGATE_TOKEN", OURS)
    return OURS


# ---- where it stands ----------------------------------------------------------------------------------------------------


def test_it_is_read_from_a_private_file_or_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(OURS + "\n")
    file.chmod(0o600)
    assert configured_token({"TIDEGATE_TOKEN_FILE": str(file)}) == configured_token({"TIDEGATE_TOKEN": OURS}) == OURS
    assert configured_token({}) == ""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(OURS)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}: others could read or change it; .* mode 0600"):
        configured_token({"TIDEGATE_TOKEN_FILE": str(file)})


@pytest.mark.parametrize(("environment", "why"), [
    ({"TIDEGATE_TOKEN": "short"}, "of TIDEGATE_TOKEN has 5 characters: give 16 to 255"), ({"TIDEGATE_TOKEN": ""}, "has 0 characters"),
    ({"TIDEGATE_TOKEN": "a" * 256}, "has 256 characters"), ({"TIDEGATE_TOKEN": "é" * 20}, "ASCII"),
    ({"TIDEGATE_TOKEN": "a b" * 9}, "spaces"),
    ({"TIDEGATE_TOKEN": OURS, "TIDEGATE_TOKEN_FILE": "/x"}, "both set"), ({"TIDEGATE_TOKEN_FILE": "/nowhere"}, "No such file"),
    ({"TIDEGATE_TOKEN_FILE": ""}, "Is a directory"), ({"TIDEGATE_TOKEN_FILE": "/dev/null"}, "which is no file"),
])  # fmt: skip
def test_what_is_no_token_is_said_and_never_taken_for_none(environment: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as found:
        configured_token(environment)
    assert OURS not in str(found.value)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(OURS)
    file.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ConfigError, match="must be of user 4242"):
        configured_token({"TIDEGATE_TOKEN_FILE": str(file)})


# ---- HTTP ---------------------------------------------------------------------------------------------------------------


def inner_doors(b: Bench, proxy: str) -> list[tuple[str, str, str]]:
    """(server, method, path) of each way by which only our own servers come."""
    return [(proxy, "POST", "/v1/instances"), (proxy, "DELETE", "/v1/instances"), (proxy, "POST", "/v1/metaserver"),
            (b.decode.http.server.url, "POST", "/v1/completions"), (b.prefills[0].http.server.url, "POST", "/v1/completions")]  # fmt: skip


def heard_without(b: Bench, proxy: str) -> list[str]:
    """The doors at which somebody is heard who shows no token, or another one."""
    found = []
    for headers in ({}, bearer(OTHER), {"Authorization": OURS}, {"Authorization": "Basic " + OURS}):
        for url, method, path in inner_doors(b, proxy):
            answer = httpx.request(method, url + path, content=b"{}", headers={"Content-Type": "application/json"} | headers,
                                   trust_env=False, timeout=20)  # fmt: skip
            if answer.status_code != 401 or "has not shown their token" not in error(answer):
                found.append(f"{method} {path} {headers}: {answer.status_code}")
    return found


def test_servers_hear_each_other_and_clients_and_nobody_else(ours: str, bench: Callable[..., Bench]) -> None:
    b = bench()
    proxy = b.proxy()
    assert post(proxy.server.url, prompt="abc").status_code == 200, "a client needs no token; the servers have shown theirs to each other"
    assert heard_without(b, proxy.server.url) == []
    for url, method, path in inner_doors(b, proxy.server.url):
        answer = httpx.request(method, url + path, content=b"{}", headers={"Content-Type": "application/json"} | bearer(OURS),
                               trust_env=False, timeout=20)  # fmt: skip
        assert answer.status_code == 400, "heard, and it was no request"
    for url in (proxy.server.url, b.decode.http.server.url):
        assert httpx.get(url + "/metrics", trust_env=False).status_code == 200


def test_planted_a_server_that_asks_for_no_token_is_found(ours: str, bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpServer, "_admit", lambda self, request: None)
    b = bench()
    assert len(heard_without(b, b.proxy().server.url)) == 20


def test_servers_with_different_tokens_say_so_to_the_client_and_to_their_log(
    ours: str, bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench()
    monkeypatch.setenv("TIDEGATE_TOKEN", OTHER)
    proxy = b.proxy(max_retries=0)
    answer = post(proxy.server.url, prompt="abc")
    assert (answer.status_code, "does not hear this proxy" in error(answer)) == (502, True)
    monkeypatch.setenv("TIDEGATE_TOKEN", OURS)
    joined = Joined(proxy.server.url, Instance("prefill", "http://127.0.0.1:1"), every=0.01)
    while not any("has not shown their token" in record.getMessage() for record in caplog.records):
        assert joined._thread.is_alive()
    joined.leave()
    assert len(proxy.prefillers.urls) == 1
    assert not any(word in caplog.text for word in (OURS, OTHER))


# ---- the control port -----------------------------------------------------------------------------------------------------


def met(port: int, credentials: Callable[[Any], None]) -> bool:
    """Does the control port connect to who shows that?"""
    context = zmq.Context[zmq.Socket[bytes]]()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    credentials(socket)
    monitor = socket.get_monitor_socket()
    socket.connect(f"tcp://127.0.0.1:{port}")
    try:
        while monitor.poll(20_000):
            event = recv_monitor_message(monitor)["event"]
            if event in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_AUTH):
                return bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        raise AssertionError("nothing came of it")
    finally:
        socket.disable_monitor()
        context.destroy(linger=0)


CREDENTIALS: dict[str, Callable[[Any], None]] = {
    "none": lambda socket: None, "another": lambda socket: token.present(socket, OTHER),
    "a longer one": lambda socket: token.present(socket, OURS + "0"),
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_who_does_not_show_the_token_never_says_a_frame(ours: str, name: str) -> None:
    layout = layout_of({0: KINDS, 1: KINDS})
    with both(layout) as (engine, prefill, crashed):
        assert prefill.welcome.refused == "", "who shows it is welcome"
        assert not met(engine.port, CREDENTIALS[name])
        assert met(engine.port, lambda socket: token.present(socket, OURS))
        second = Prefill(engine.port, layout)
        assert (second.welcome.refused, len(engine.core.peers.lives)) == ("", 2)
        second.close()
        assert engine.owner.refused == 0
        assert not crashed.is_set()


def test_without_a_token_everybody_is_met() -> None:
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, _, _):
        assert met(engine.port, CREDENTIALS["none"])


def test_planted_a_port_that_takes_any_token_is_found(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token.secrets, "compare_digest", lambda one, other: True)
    with both(layout_of({0: KINDS, 1: KINDS})) as (engine, _, _):
        assert met(engine.port, CREDENTIALS["another"])


def test_it_is_shown_in_no_answer(ours: str, bench: Callable[..., Bench]) -> None:
    b = bench()
    proxy = b.proxy()
    answers = [httpx.get(proxy.server.url + path, trust_env=False).text for path in ("/status", "/metrics", "/health")]
    answers.append(msgspec.json.encode(post(proxy.server.url, prompt="abc").json()).decode())
    assert not any(OURS in answer for answer in answers)
