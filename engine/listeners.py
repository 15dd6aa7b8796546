"""Who listens at a port of this host: a server names its port in a request, and whoever sent that may have named a port of his own.

Rules: a port is one's own if somebody listens there, and all that could get the connection were opened by this user, as the system's own
tables say; where nobody listens yet, anybody may in a moment, so that is not one's own either; it is asked before a connection is made.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["why_foreign"]

LISTEN = "0A"
TABLES = ("tcp", "tcp6")
NET = Path("/proc/self/net")


def why_foreign(host: str, port: int, *, net: Path = NET) -> str:
    """Why no connection to `host` (an IP address) and `port` is to be made; "" if this user, and nobody else, listens there."""
    users = set(_users(ipaddress.ip_address(host), port, net))
    if not users:
        seen = (net / TABLES[0]).exists()
        return "nobody listens there" if seen else f"who listens there cannot be seen without {net / TABLES[0]}: mount /proc"
    others = sorted(users - {os.geteuid()})
    return f"user {others[0]} listens there, this server is user {os.geteuid()}'s" if others else ""


def _users(host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, net: Path) -> Iterator[int]:
    """Of each socket that a connection to that address may come to."""
    for table in TABLES:
        try:
            lines = (net / table).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for fields in map(str.split, lines):
            address, _, number = fields[1].partition(":")
            if fields[3] == LISTEN and int(number, 16) == port:
                at = _address(address)
                if at == host or (at.is_unspecified and (at.version == 6 or host.version == 4)):
                    yield int(fields[7])


def _address(words: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As the tables write it: words of 32 bits, each in this machine's order of bytes."""
    size = 8
    raw = b"".join(int(words[at : at + size], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), size))
    found = ipaddress.ip_address(raw)
    return getattr(found, "ipv4_mapped", None) or found
