"""The two ways to break the protocol.

Rules: an illegal event leaves the state of the session as it was; the error says which machine, in which state, refused
which event, and what happened just before (the story), so that a log line is enough to replay it.
"""

from __future__ import annotations

__all__ = ["LocalProtocolError", "ProtocolError", "RemoteProtocolError"]


LONGEST = 1000


class ProtocolError(Exception):
    """An event that a machine or a message rule refuses.

    machine: name of the machine, or of the session; state: what it was in; event: what was asked of it; story: the latest
    events of the session, oldest first; rule: why it is refused, in words.
    """

    def __init__(self, rule: str, *, machine: str, state: object, event: object, story: tuple[str, ...] = ()) -> None:
        self.rule, self.machine, self.state, self.event, self.story = rule, machine, state, event, story
        lines = [f"{machine}: {_short(event)} is refused: {rule}", f"  state: {_short(state)}"]
        if story:
            lines.append("  before this: " + "; ".join(story))
        super().__init__("\n".join(lines))


def _short(value: object) -> str:
    """A peer decides how long it is, and whoever reads the log how much of it there is room for."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


class LocalProtocolError(ProtocolError):
    """We broke a rule: the caller asked for something that its own session does not allow now."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule: drop the message, count it, go on; it must never open a gate or end a thread."""
