"""A list of prompts over several Decodes: which of them each is asked for, and the one answer that theirs make.

Rules: every prompt is in exactly one share, by its index in the client's list, which it keeps everywhere; no share is empty; shares
have as many prompts each, one more or less, and are about as long; what answers a share answers exactly its prompts, or all fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from tidegate.engine.http.bodies import Completion, Prompt, Usage
from tidegate.engine.http.errors import Refusal

__all__ = ["all_or_none", "merged", "parsed", "shares"]

T = TypeVar("T")


def shares(prompts: Sequence[Prompt], count: int) -> list[list[int]]:
    """At most `count` shares, at least one: ascending indices of `prompts`, of which there is at least one."""
    count = max(1, min(count, len(prompts)))
    out: list[list[int]] = [[] for _ in range(count)]
    for rank, index in enumerate(sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))):
        turn, place = divmod(rank, count)
        out[count - 1 - place if turn % 2 else place].append(index)  # back and forth: who got a longer one gets a shorter one next
    return [sorted(share) for share in out]


async def all_or_none(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of `work` returns; when one raises, or the caller is cancelled, the others are cancelled, and have ended."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def parsed(content: bytes, share: Sequence[int], name: str) -> Completion:
    """Decode's answer to the prompts `share` of request `name`; Refusal (502) if it answers others, or is none."""
    try:
        answer = msgspec.json.decode(content, type=Completion)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refusal(502, f"Decode answered with no completion: {error}", name) from None
    if (answered := [choice.index for choice in answer.choices]) != list(share):
        raise Refusal(502, f"Decode answered prompts {answered}, asked were {[*share]}", name)
    return answer


def merged(answers: Sequence[Completion]) -> Completion:
    """One answer of those to all shares: the choices in the order of the client's prompts."""
    choices = sorted((choice for one in answers for choice in one.choices), key=lambda choice: choice.index)
    asked, made = (sum(getattr(one.usage, name) for one in answers) for name in ("prompt_tokens", "completion_tokens"))
    return msgspec.structs.replace(
        answers[0], created=max(one.created for one in answers), choices=choices, usage=Usage(asked, made, asked + made)
    )
