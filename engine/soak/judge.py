"""Is an answer right?  Compared, bit by bit, with the run that keeps everything resident, made here, once for each prompt.

Rules: tokens are those that the client got, logits those that Decode made them of; an error is right only where a fault may have cost
the answer, and only if it is clear; that nobody answered is never right.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tidegate.engine.config import RunConfig
from tidegate.engine.model import reference_generate
from tidegate.engine.soak.traffic import HUNG, LEFT, Answer, Prompt
from tidegate.engine.worker_io import Line

__all__ = ["Judge"]


class Judge:
    """compared: answers that were equal, in tokens and, where Decode lived to tell, in logits; errors: reason -> how often it was right."""

    def __init__(self, config: RunConfig) -> None:
        torch.set_num_threads(1)
        self._model, self._chunk, self._new = config.load_model(), config.chunk, config.new_tokens
        self._known: dict[Prompt, tuple[tuple[int, ...], bytes]] = {}
        self.equal = self.logits_equal = self.failed = self.left = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Answers so far: equal, failed with a reason, left by their client."""
        return self.equal, self.failed, self.left

    def wrong(self, answer: Answer, told: Mapping[str, Line], *, excused: bool) -> str:
        """What is wrong with it; "" if nothing is.  told: debug lines of Decode, by the request that they are about."""
        name = f"{answer.question.name} ({answer.request or 'no id'}; prompts of {', '.join(str(len(p)) for p in answer.question.prompts)})"
        if answer.status == LEFT:
            self.left += 1
            return ""
        if answer.status == HUNG or not answer.clear:
            return f"{name}: {answer.reason}"
        if answer.status != 200:
            if not excused:
                return f"{name}: {answer.status} {answer.reason}, and no fault was there that may cost an answer"
            self.failed += 1
            return ""
        for index, prompt in enumerate(answer.question.prompts):
            if why := self._unequal(prompt, answer.tokens[index], told.get(f"{answer.request}-{index}")):
                return f"{name}: WRONG ANSWER to prompt {index}: {why}"
        self.equal += 1
        return ""

    def _unequal(self, prompt: Prompt, tokens: tuple[int, ...], line: Line | None) -> str:
        due, logits = self._due(prompt)
        if tokens != due[: len(tokens)]:
            return f"tokens {list(tokens)}, due are {list(due[: len(tokens)])}"
        if line is not None and line.ok:
            if line.logits != logits[: len(line.logits)]:
                return f"the tokens {list(tokens)} are right, and their logits are not"
            self.logits_equal += 1
        return ""

    def _due(self, prompt: Prompt) -> tuple[tuple[int, ...], bytes]:
        if prompt not in self._known:
            tokens, logits = reference_generate(self._model, prompt, self._chunk, self._new)
            self._known[prompt] = tuple(tokens), logits.float().numpy().tobytes()
        return self._known[prompt]
