"""The one error that a user's settings, files and machine can cause.

Rule: it is raised before anything is allocated or started; its text is one line: the value, the rule, the way out.
"""

from __future__ import annotations

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line for the user."""
