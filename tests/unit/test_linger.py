"""A context can be ended though a peer left, with what was said to it unread, at the moment when the socket was closed."""

from __future__ import annotations

import threading

import pytest
import zmq

from tidegate.engine import control, hands, multipart

ENDLESS = 3.0
"""Seconds after which nobody believes that the context will end."""


def hangs() -> bool:
    """Does the end of Decode's context wait for ever for a Prefill that has just gone?"""
    own: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, port = control.bind(own, 0)
    dealer = control.connect(theirs, port)
    dealer.send(b"I am here")
    address, _ = multipart.receive(router, wait=True)
    for _ in range(50):
        multipart.send(router, [address, bytes(100_000)])
    dealer.close(linger=0)
    router.close(linger=multipart.LINGER)  # what was left to the last moment is told here too
    end = threading.Thread(target=own.term, daemon=True)
    end.start()
    end.join(ENDLESS)
    theirs.term()
    return end.is_alive()


def test_a_context_ends_whoever_has_just_left() -> None:
    assert not any(hangs() for _ in range(50))


def lingers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each kind of socket has been told when it is made, before it has a connection."""
    monkeypatch.setenv("TIDEGATE_TOKEN", "a-token-of-some-length")
    with zmq.Context() as context:
        guards: list[control.Guard] = []
        router, port = control.bind(context, 0, guards)
        made = [router, control.connect(context, port), hands.private_socket(context)[0], *(socket for socket, _ in guards)]
        found = [int(socket.getsockopt(zmq.LINGER)) for socket in made]
        for socket in made:
            socket.close(linger=0)
    return found


def test_every_way_to_a_socket_says_how_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lingers(monkeypatch) == [multipart.LINGER] * 4


def test_planted_a_socket_that_is_told_only_when_it_is_closed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it may hang then is a race, which some machines lose once in twenty times and others never."""
    monkeypatch.setattr(control, "new_socket", lambda context, kind: context.socket(kind))
    assert multipart.LINGER not in lingers(monkeypatch)[:2]
