"""Errors of the toolchain. Rule: each message names the place or value, the rule it breaks, and the way out."""

from __future__ import annotations


class SpecError(Exception):
    """Something a person has to mend: a module, a configuration, the installation."""


class Refused(SpecError):
    """A TLA+ construct outside the translated subset; the message starts with file:line:column."""


class ToolMissing(SpecError):
    """No usable Java or tla2tools.jar."""
