"""Python text under construction, and how TLA+ operators map to Python's.

Rule: an operand is put in parentheses by comparing precedences, never by looking at its text.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.spec.infer import Scope
from tidegate.spec.sany import Node

# Python's precedences, loosest first
LAMBDA, IF, OR, AND, NOT, COMPARE, UNION, INTERSECT, SUM, PRODUCT, NEGATE, ATOM = range(12)
STANDARD = ("Naturals", "Integers", "Sequences", "FiniteSets", "TLC")
MAX_INT = 2**31 - 1

# operator -> Python's, and the precedences of result, left and right operand
BINARY = {
    "=": ("==", COMPARE, UNION, UNION),
    "/=": ("!=", COMPARE, UNION, UNION),
    "\\equiv": ("==", COMPARE, UNION, UNION),
    "<": ("<", COMPARE, UNION, UNION),
    ">": (">", COMPARE, UNION, UNION),
    "\\leq": ("<=", COMPARE, UNION, UNION),
    "\\geq": (">=", COMPARE, UNION, UNION),
    "\\subseteq": ("<=", COMPARE, UNION, UNION),
    "\\in": ("in", COMPARE, UNION, UNION),
    "\\notin": ("not in", COMPARE, UNION, UNION),
    "\\land": ("and", AND, AND, AND),
    "\\lor": ("or", OR, OR, OR),
    "\\union": ("|", UNION, UNION, INTERSECT),
    "\\intersect": ("&", INTERSECT, INTERSECT, SUM),
    "\\": ("-", SUM, SUM, PRODUCT),
    "+": ("+", SUM, SUM, PRODUCT),
    "-": ("-", SUM, SUM, PRODUCT),
    "*": ("*", PRODUCT, PRODUCT, NEGATE),
}
CALLS = {
    "\\div": "quotient", "%": "modulo", "..": "interval", "Cardinality": "len", "Len": "len", "Head": "head", "Tail": "tail",
    "SUBSET": "Powerset", "UNION": "union", "DOMAIN": "domain", "$SetOfFcns": "Functions",
}  # fmt: skip
NAMES = {"TRUE": "True", "FALSE": "False", "BOOLEAN": "BOOLEAN", "Nat": "NAT", "Int": "INT"}
SPELLED = {  # SANY's name -> as it is written
    "$UnboundedForall": "the unbounded \\A", "$UnboundedExists": "the unbounded \\E",
    "$UnboundedChoose": "the unbounded CHOOSE",
    "$RecursiveFcnSpec": "a recursive function", "$SetEnumerate": "{...}", "/=": "#",
    "OpArgNode": "an operator as argument", "DecimalNode": "a decimal number",
}  # fmt: skip
QUANTIFIERS = {"$BoundedForall": "all", "$BoundedExists": "any"}
TOTAL = frozenset((*QUANTIFIERS, "$SetOfAll", "$SubsetOf", "$ConjList", "$DisjList", "=>", "\\lnot", "$IfThenElse",
                   "$SetEnumerate", "$RcdConstructor", "$SetOfRcds", "$Tuple", "..", "Cardinality", "SUBSET",
                   *NAMES, *BINARY))  # fmt: skip


@dataclass(frozen=True)
class Code:
    """Python text and its loosest operator."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text, in parentheses where it binds looser than `level`."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass(frozen=True)
class Env:
    """types and Python texts of the names in scope (locals: LET definitions by uid); at: what @ stands for."""

    types: Scope
    names: dict[str, str]
    locals: dict[str, str]
    at: tuple[str, ...] = ()
    depth: int = 0


def is_other(arm: Node) -> bool:
    """Whether a CASE arm is OTHER."""
    return arm.args[0].kind == "other" and arm.args[0].op == "$Other"


def atom(text: str) -> str:
    """Python text as it can stand before a dot or an operator."""
    return text if text.replace(".", "").isidentifier() else f"({text})"
