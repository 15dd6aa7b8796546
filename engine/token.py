"""The word by which the servers of one deployment know each other, where its owner gives them one; without it, everybody on this host is
heard.

Rules: it comes from a file that its owner alone may read, or from the environment, which the system shows to this user alone, and never
from an argument, which it shows to all; it is compared without telling by the time how much of a guess was right; it is never in a log.
The same word is asked for at every way by which only our own servers come: by HTTP as `Authorization: Bearer`, at the control port
before a connection is made (ZeroMQ's PLAIN), so a stranger there never gets to say a frame.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import zmq

from tidegate.engine.errors import ConfigError
from tidegate.engine.multipart import new_socket

__all__ = ["LEAST", "bearer", "configured_token", "guard", "is_bearer", "present"]

FILE, WORD = "TIDEGATE_TOKEN_FILE", "TIDEGATE_TOKEN"
LEAST, LONGEST = 16, 255
"""Characters: fewer are guessed, and no more fit where ZeroMQ carries them."""
ZAP = "inproc://zeromq.zap.01"
DOMAIN = b"tidegate"


def configured_token(environment: Mapping[str, str] = os.environ) -> str:
    """The token that TIDEGATE_TOKEN_FILE names or TIDEGATE_TOKEN holds; "" if neither is there. ConfigError for one that is no good."""
    path, token = environment.get(FILE), environment.get(WORD)
    if path is None and token is None:
        return ""
    if path is not None and token is not None:
        raise ConfigError(f"{FILE} and {WORD} are both set: give one of them")
    found = _read(Path(path)) if path is not None else str(token)
    if not LEAST <= len(found) <= LONGEST or not found.isascii() or not found.isprintable() or " " in found:
        raise ConfigError(f"the token of {WORD if path is None else FILE} has {len(found)} characters: give {LEAST} to {LONGEST}, ASCII, "
                          "without spaces (`openssl rand -hex 32` makes a good one), or leave it out")  # fmt: skip
    return found


def _read(path: Path) -> str:
    """The first line of a file that nobody else may read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{FILE} is {path}, which is no file: give one with the token in it")
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise ConfigError(f"{FILE} is {path}, of user {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}: others could read "
                                  f"or change it; it must be of user {os.geteuid()} and mode 0600")  # fmt: skip
            return file.read(4096).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"{FILE} is {path}: {error.strerror}; give a file with the token in it") from None


# ---- HTTP ---------------------------------------------------------------------------------------------------------------


def bearer(token: str) -> dict[str, str]:
    """Headers for asking another server of this deployment."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def is_bearer(header: str, token: str) -> bool:
    """Does a request with this Authorization come from one of us?  Everybody is, where there is no token."""
    return not token or secrets.compare_digest(header.encode(), f"Bearer {token}".encode())


# ---- the control port -------------------------------------------------------------------------------------------------


def present(socket: zmq.Socket[bytes], token: str) -> None:
    """`socket` shows the token where it connects; before it does."""
    if token:
        socket.plain_username, socket.plain_password = DOMAIN, token.encode()


def guard(
    context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], token: str
) -> tuple[zmq.Socket[bytes], Callable[[list[bytes]], None]] | None:
    """Have `socket`, which is to be bound, connect to nobody without the token.

    The system asks by another socket, and waits for its answer: whoever owns `socket` must own that one too, and give what comes by it to
    the function.  None, and nothing done, without a token.  One in each context.
    """
    if not token:
        return None
    socket.plain_server, socket.zap_domain = True, DOMAIN
    asked = new_socket(context, zmq.REP)
    asked.bind(ZAP)
    return asked, partial(_answer, asked, token.encode())


def _answer(asked: zmq.Socket[bytes], token: bytes, frames: list[bytes]) -> None:
    """ZAP 1.0: version, request, domain, address, identity, mechanism, credentials.  Asked by the library alone, not by a peer."""
    good = len(frames) == 8 and frames[5] == b"PLAIN" and secrets.compare_digest(frames[7], token)
    code, text = (b"200", b"OK") if good else (b"400", b"no token, or another one")
    asked.send_multipart([b"1.0", frames[1] if len(frames) > 1 else b"", code, text, b"", b""])
