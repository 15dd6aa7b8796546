"""Whose a port is, as the system says."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tidegate.engine.listeners import why_foreign


@pytest.mark.parametrize(("listens", "asked"), [
    ("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"), ("127.0.0.3", "127.0.0.3"),
])  # fmt: skip
def test_ones_own_port_is_found_at_every_address_that_leads_to_it(listens: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    if family == socket.AF_INET6 and not Path("/proc/self/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as server:
        port = server.getsockname()[1]
        assert why_foreign(asked, port) == ""
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert why_foreign(asked, port) == f"user {os.getuid()} listens there, this server is user 4242's"


def test_a_port_where_nobody_listens_or_only_at_another_address_is_not_ones_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert why_foreign("127.0.0.2", port) == why_foreign("::1", port) == "nobody listens there"
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert why_foreign("127.0.0.1", client.getsockname()[1]) == "nobody listens there", "a connection is no listener"
    assert why_foreign("127.0.0.1", port) == "nobody listens there"


def test_where_the_system_shows_no_tables_nothing_is_said_of_who_listens(tmp_path: Path) -> None:
    assert why_foreign("127.0.0.1", 80, net=tmp_path) == f"who listens there cannot be seen without {tmp_path}/tcp: mount /proc"
    (tmp_path / "tcp").write_text("  sl  local_address rem_address   st\n")
    assert why_foreign("127.0.0.1", 80, net=tmp_path) == "nobody listens there"


def test_two_listeners_of_one_port_are_both_looked_at(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   {}: {}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {:5d}        0 1{} 1 0 100 0 0 10 0\n"
    (tmp_path / "tcp").write_text(head + row.format(0, "0100007F", os.geteuid(), 0) + row.format(1, "00000000", 4242, 1))
    assert why_foreign("127.0.0.1", 0x1F90, net=tmp_path).startswith("user 4242 listens there")
