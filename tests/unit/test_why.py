"""`tidegate why` over real servers whose owners say what the test wants: the exit code is that of the worst of them, and who
cannot be read is not taken for one that waits for nothing."""

from __future__ import annotations

import re

import pytest
from rendezvous_tools import FEW, LIMITS
from typer.testing import CliRunner

from tidegate.engine.cli import app
from tidegate.engine.http.decode_server import DecodeServer
from tidegate.engine.http.prefill_server import PrefillServer
from tidegate.engine.http.proxy import Proxy, ProxyConfig
from tidegate.engine.waiting import LIMIT, Status, Wait


def status(role: str, seconds: float) -> Status:
    return Status(role, 7, "1", LIMIT, (Wait("gate", f"the step of {role}", "its slot", seconds),))


@pytest.mark.parametrize(("prefill", "decode", "code"), [(1.0, 2.0, 0), (LIMIT + 1, 2.0, 1), (1.0, LIMIT + 1, 1)])
def test_whoever_waits_too_long_is_found_whomever_is_asked_after_it(prefill: float, decode: float, code: int) -> None:
    one = PrefillServer(port=0, limits=LIMITS, submit=lambda call: None, cancel=lambda call: None, probe=lambda tell: tell({}),
                        measure=lambda tell: tell([]), inquire=lambda tell: tell(status("prefill", prefill)))  # fmt: skip
    other = DecodeServer(port=0, limits=LIMITS, retries=FEW, submit=lambda ask: None, cancel=lambda ask: None, probe=lambda tell: tell({}),
                         measure=lambda tell: tell([]), inquire=lambda tell: tell(status("decode", decode)))  # fmt: skip
    one.server.start()
    other.server.start()
    proxy = Proxy(ProxyConfig(prefillers=(one.server.url,), decoders=(other.server.url,)))
    proxy.start()
    told = CliRunner().invoke(app, ["why", proxy.server.url])
    for server in (proxy, one.server, other.server):
        server.stop()
    assert told.exit_code == code, told.output
    assert re.findall(r"^  (.) the step of (\w+) has waited", told.output, re.MULTILINE) == [
        ("!" if seconds > LIMIT else " ", role) for role, seconds in (("prefill", prefill), ("decode", decode))
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_cannot_be_read_is_named_and_is_no_good_news(known: bool) -> None:
    """It is one that a proxy asks, or the only one."""
    nobody = "http://127.0.0.1:1"
    proxy = Proxy(ProxyConfig(prefillers=(nobody,)))
    proxy.start()
    told = CliRunner().invoke(app, ["why", proxy.server.url if known else nobody])
    proxy.stop()
    assert told.exit_code == (1 if known else 2), told.output
    assert f"of {1 + known} servers 1 could not be read: {nobody}" in told.output
    assert ("nothing waits" in told.output) == known
