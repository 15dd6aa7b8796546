"""Finds TLA+ comments in source text. Rule: a comment belongs to what follows it directly, without a blank line between."""

from __future__ import annotations

import re
from collections.abc import Sequence

LINE = re.compile(r"\s*\\\*\s?(.*?)\s*$")
BOX = re.compile(r"\s*\(\*\s?(.*?)\s*\*\)\s*$")


def _text(line: str) -> str | None:
    """The text of a line that holds one comment and nothing else; None for any other line."""
    found = LINE.match(line) or BOX.match(line)
    return None if found is None else "" if re.fullmatch(r"[*\-=~]*", found[1]) else found[1]


def above(lines: Sequence[str], line: int) -> str:
    """The comment lines directly above a line (counted from 1)."""
    out: list[str] = []
    i = line - 2
    while i >= 0 and (text := _text(lines[i])) is not None:
        out.insert(0, text)
        i -= 1
    return "\n".join(out).strip("\n")


def header(lines: Sequence[str]) -> str:
    """The comment that follows the MODULE line: boxed lines, \\* lines, or one (* ... *) over several lines."""
    out: list[str] = []
    i = next((n for n, line in enumerate(lines, 1) if re.match(r"-{4,}\s*MODULE\b", line)), len(lines))
    while i < len(lines) and not lines[i].strip():
        i += 1
    if i < len(lines) and lines[i].lstrip().startswith("(*") and "*)" not in lines[i]:
        while i < len(lines):
            out.append(lines[i].strip().removeprefix("(*").removesuffix("*)").strip())
            if "*)" in lines[i]:
                break
            i += 1
    else:
        while i < len(lines) and (text := _text(lines[i])) is not None:
            out.append(text)
            i += 1
    return "\n".join(out).strip("\n")
