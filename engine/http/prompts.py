"""From the prompts of a body to token ids that the model knows, the same on Prefill and Decode.

Rule: what does not fit the model or the memory that was set aside is refused (400) with the number, the limit and the way out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.engine.http.bodies import Prompt, Text
from tidegate.engine.http.errors import Refusal

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """max_prompt: tokens of the longest prompt; vocab_size: token ids lie below it; new_tokens: the most that is generated."""

    max_prompt: int
    vocab_size: int
    new_tokens: int
    text: Text

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        tokens = tuple(self.text.encode(prompt) if isinstance(prompt, str) else prompt)
        if not 0 < len(tokens) <= self.max_prompt:
            raise Refusal(400, f"a prompt of {len(tokens)} tokens: memory is set aside for 1 to {self.max_prompt}, send fewer")
        if (worst := max(tokens)) >= self.vocab_size:
            raise Refusal(400, f"token {worst} is outside the vocabulary of {self.vocab_size}")
        return tokens

    def asked(self, max_tokens: int | None) -> int:
        """Tokens to generate."""
        if max_tokens is not None and max_tokens > self.new_tokens:
            raise Refusal(400, f"max_tokens is {max_tokens}: memory is set aside for {self.new_tokens}, ask for fewer")
        return max_tokens or self.new_tokens
