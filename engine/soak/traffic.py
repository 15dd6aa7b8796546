"""The clients of a soak: random prompts that share beginnings, sent side by side, some given up; and what became of each.

Rules: what is asked is drawn from the seed; an answer is believed only if it is one (200 with as many choices and tokens as were asked
for, or an error body of ours); nobody waits longer than `limit`, and who waited so long is told apart from who was refused.
"""

from __future__ import annotations

import asyncio
import random

import httpx
import msgspec

from tidegate.engine.http.bodies import Completion, CompletionRequest
from tidegate.engine.http.errors import ErrorBody
from tidegate.engine.soak.kinds import Sizes

__all__ = ["HUNG", "LEFT", "Answer", "Question", "Texts", "ask"]

HUNG, LEFT = -1, -2
"""Instead of an HTTP status: nobody answered within the limit; the client left before."""
VOCABULARY = 256
Prompt = tuple[int, ...]


class Question(msgspec.Struct, frozen=True):
    """patience: seconds after which the client leaves, 0: never; delay: seconds after the round's begin at which it is sent."""

    name: str
    prompts: tuple[Prompt, ...]
    new_tokens: int
    delay: float = 0.0
    patience: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """What became of a question.  status: HTTP, 0: the connection broke, HUNG, LEFT; request: its id among the servers."""

    question: Question
    status: int
    tokens: tuple[tuple[int, ...], ...] = ()
    reason: str = ""
    request: str = ""
    clear: bool = True


class Texts:
    """Draws prompts: anew, as the beginning of a text that others begin with too, or one that was there already."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        self._draw, self._sizes = random.Random(f"{seed}/texts"), sizes
        self._bases = [self._tokens(sizes.max_prompt) for _ in range(4)]
        self._asked: list[Prompt] = []

    def _tokens(self, count: int) -> Prompt:
        return tuple(self._draw.randrange(VOCABULARY) for _ in range(count))

    def prompt(self) -> Prompt:
        draw, longest, block = self._draw, self._sizes.max_prompt, self._sizes.block_size
        if self._asked and draw.random() < 0.3:
            return draw.choice(self._asked)
        base = draw.choice(self._bases)
        length = draw.choice((1, block, block + 1, longest, *(draw.randint(1, longest) for _ in range(6))))
        same = draw.randint(0, length)
        made = base[:same] + self._tokens(length - same)
        self._asked = [*self._asked[-40:], made]
        return made

    def questions(self, number: int, *, count: int, spread: float, leave: float) -> list[Question]:
        """Of round `number`; spread: seconds over which they come; leave: the share of clients that have little patience."""
        draw = self._draw
        return [
            Question(
                f"soak.{number}.{one}", tuple(self.prompt() for _ in range(draw.choice((1, 1, 1, 1, 2, 3)))),
                draw.randint(1, self._sizes.new_tokens), draw.uniform(0, spread),
                draw.uniform(0.01, 1.0) if draw.random() < leave else 0.0,
            )
            for one in range(count)
        ]  # fmt: skip


async def ask(client: httpx.AsyncClient, question: Question, limit: float, *, after: asyncio.Task[None] | None = None) -> Answer:
    """Send it, and wait for what becomes of it.  after: not before this is done."""
    if after is not None:
        await asyncio.wait([after])
    await asyncio.sleep(question.delay)
    try:
        async with asyncio.timeout(question.patience or limit):
            return await _ask(client, question)
    except TimeoutError:
        if question.patience:
            return Answer(question, LEFT, reason=f"the client left after {question.patience:.2f} s")
        return Answer(question, HUNG, reason=f"no answer for {limit:g} s")
    except httpx.TransportError as error:
        return Answer(question, 0, reason=f"{type(error).__name__} {error}".rstrip())


async def _ask(client: httpx.AsyncClient, question: Question) -> Answer:
    prompt = list(map(list, question.prompts)) if len(question.prompts) > 1 else list(question.prompts[0])
    body = msgspec.json.encode(CompletionRequest(prompt=prompt, max_tokens=question.new_tokens))  # type: ignore[arg-type]
    headers = {"Content-Type": "application/json", "X-Request-Id": question.name}
    response = await client.post("/v1/completions", content=body, headers=headers)
    if response.status_code != 200:
        return _refused(question, response)
    try:
        answer = msgspec.json.decode(response.content, type=Completion)
    except msgspec.MsgspecError as error:
        return Answer(question, 200, reason=f"200 with no completion: {error}", clear=False)
    tokens = tuple(tuple(choice.token_ids) for choice in answer.choices)
    lengths, due = [len(one) for one in tokens], [question.new_tokens] * len(question.prompts)
    reason = "" if lengths == due else f"200 with choices of {lengths} tokens, asked were {due}"
    return Answer(question, 200, tokens, reason, answer.id, lengths == due)


def _refused(question: Question, response: httpx.Response) -> Answer:
    try:
        error = msgspec.json.decode(response.content, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Answer(question, response.status_code, reason=f"no error body of ours: {response.content[:200]!r}", clear=False)
    clear = bool(error.message) and error.code == response.status_code
    return Answer(question, response.status_code, reason=error.message, request=error.request_id, clear=clear)
