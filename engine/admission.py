"""Prompts on Decode between the HTTP server and the engine: those that wait for memory, and those that have it.

Rules: the engine admits a prompt when host and device memory for all its tokens is reserved, in order of arrival; only then, and only
when its destination is registered, does the metaserver hear of it; it is answered once, and its debug line said before; a prompt whose
Prefill has gone is asked for once more, as a new attempt, for nothing of it has been answered yet; whoever gives it up (its client, its
deadline, a Prefill that cannot be had) goes through the engine's abort.  Owner's thread only, but for what the decoding thread is given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from tidegate.engine.control import public_name
from tidegate.engine.decode_told import Wanted
from tidegate.engine.http.asking import Retries
from tidegate.engine.http.bodies import PrefillParams, prompt_digest
from tidegate.engine.http.decode_server import Answered, Ask, DecodeServer
from tidegate.engine.http.metrics import Sample
from tidegate.engine.http.server import LOOPBACK, Refused
from tidegate.engine.measuring import decode_samples
from tidegate.engine.model import Speculating
from tidegate.engine.recorder import content_tag
from tidegate.engine.waiting import Status
from tidegate.protocol.messages import Start

if TYPE_CHECKING:
    from tidegate.engine.decode_worker import DecodeWorker

__all__ = ["Active", "Admission"]

GONE = Refused(499, "the client has gone")
STOPPING = Refused(503, "this Decode is stopping", again=True)


class Active:
    """One attempt.  since: when it got its memory, and its deadline began to run; None: it waits for it; why: how it is to be answered
    if it fails; stop: it shall make no further token; first: is it the first attempt at this prompt, but for one that was dropped?
    dropped: did an earlier one give up its blocks to others?
    """

    def __init__(self, ask: Ask, attempt: int, *, first: bool = True, dropped: bool = False) -> None:
        self.ask, self.attempt, self.first, self.dropped = ask, attempt, first, dropped
        self.since: float | None = None
        self.tokens: list[int] = []
        self.logits: list[torch.Tensor] = []
        last = len(ask.prompt) - 1  # the first forward runs the last token of the prompt again
        self.decoding = Speculating(attempt, ask.prompt[last], last, last + ask.new_tokens)
        self.tags: dict[str, str] = {}
        self.why: Refused | None = None
        self.stop = False

    @property
    def done(self) -> bool:
        """Has it all its tokens, or no use for more?"""
        return self.stop or len(self.tokens) == self.ask.new_tokens


class Admission:
    """The engine's listener.  active: attempt -> its ask, until it is answered; http: where prompts come from."""

    def __init__(self, worker: DecodeWorker) -> None:
        self._worker, self._engine, self._core, self._say = worker, worker.engine, worker.engine.core, worker.parent.say
        self.active: dict[int, Active] = {}
        self._config = c = worker.config
        self.http = DecodeServer(
            port=c.decode_port, limits=c.limits(c.new_tokens),
            retries=Retries(c.max_retries, c.retry_delay), submit=self._posted(self._add), cancel=self._posted(self._cancel),
            probe=lambda tell: worker.engine.owner.post(lambda: tell(self._figures())),
            measure=lambda tell: worker.engine.owner.post(lambda: tell(self._measured())),
            inquire=lambda tell: worker.engine.owner.post(lambda: tell(self._status())),
        )  # fmt: skip

    def _posted(self, do: Callable[[Ask], None]) -> Callable[[Ask], None]:
        return lambda ask: self._engine.owner.post(partial(do, ask))

    @property
    def waiting(self) -> int:
        """Prompts that have no memory yet."""
        return sum(one.since is None for one in self.active.values())

    def _figures(self) -> dict[str, float | str]:
        return {"active": len(self.active) - self.waiting, "waiting": self.waiting, "reason": self._core.watch.reason()}

    def _status(self) -> Status:
        watch = self._core.watch
        return Status("decode", os.getpid(), public_name(self._engine.incarnation), watch.limit, watch.waits())

    def _measured(self) -> list[Sample]:
        worker = self._worker
        return decode_samples(self._core, self._engine.owner, waiting=self.waiting, drafted=worker.drafted, accepted=worker.accepted,
                              dropped=worker.turns.dropped)  # fmt: skip

    # ---- in -------------------------------------------------------------------------------------------------------

    def _add(self, ask: Ask) -> None:
        if self.waiting >= self._config.max_waiting:
            why = f"{self._config.max_waiting} prompts wait already: try again later"
            self._answer_failed(Active(ask, 0), Refused(503, why, again=True))
            return
        attempt = self._attempt(ask)
        self._core.admit()
        if self._core.memory.waits(attempt):
            self._say("taken", request=ask.request)

    def _attempt(self, ask: Ask, *, first: bool = True, dropped: bool = False) -> int:
        attempt = self._core.new_attempt(Wanted(ask.request, ask.prompt, ask.new_tokens))
        self.active[attempt] = Active(ask, attempt, first=first, dropped=dropped)
        return attempt

    def admitted(self, attempt: int) -> None:
        self.active[attempt].since = time.monotonic()

    def announce(self, start: Start, copies: int) -> None:
        """START goes by way of the metaserver, where a Prefill is found."""
        params = PrefillParams(
            request_id=start.request, do_remote_prefill=False, do_remote_decode=True,
            remote_engine_id=f"decode-{start.incarnation:x}", remote_host=LOOPBACK, remote_port=self._engine.port,
            remote_tp_size=self._config.d_tp, remote_cached_tokens=0, attempt=start.attempt, incarnation=start.incarnation,
            prompt_digest=prompt_digest(start.prompt),
        )  # fmt: skip
        failed = partial(self._unannounced, start.attempt)
        url = self.active[start.attempt].ask.metaserver
        self.http.announce(url, params, lambda why: self._engine.owner.post(partial(failed, why)), copies)
        if copies != 1:
            self._say("taken", request=start.request)

    def completed(self, attempt: int) -> None:
        """Every row is here; note what they are, before decode adds any."""
        if not self._config.tags:
            return
        one, memory, chunk = self.active[attempt], self._core.memory, self._config.chunk
        blocks, tokens = memory.owned[attempt].blocks, len(one.ask.prompt)
        for layer in range(memory.layers):
            kinds = [memory.pages[name].tokens(layer, blocks, tokens) for name in memory.kinds_of(layer)]
            for first in range(0, tokens, chunk):
                one.tags[f"{first // chunk + 1}/{layer + 1}"] = content_tag(*(rows[first : first + chunk] for rows in kinds))

    # ---- out ------------------------------------------------------------------------------------------------------

    def finished(self, one: Active) -> None:
        """Inference is over."""
        self._core.finish(one.attempt)
        if one.stop:
            self._answer_failed(one, GONE)
            return
        del self.active[one.attempt]
        logits = torch.stack(one.logits).float().numpy().tobytes()
        self._say("debug", request=one.ask.request, attempt=one.attempt, ok=True, tokens=one.tokens, logits=logits, tags=one.tags)
        one.ask.answer.give(Answered(one.tokens))

    def drop(self, one: Active) -> None:
        """Its memory goes to others; what it has made is forgotten, and its prompt asked for again, behind all that wait."""
        if one.stop:  # it has no use for more
            self.finished(one)
            return
        self._core.finish(one.attempt)
        del self.active[one.attempt]
        self._attempt(one.ask, first=one.first, dropped=True)

    def failed(self, attempt: int, reason: str) -> None:
        one = self.active[attempt]
        if one.first and one.why is None and attempt in self._core.partings.deserted:
            del self.active[attempt]
            self._attempt(one.ask, first=False, dropped=one.dropped)
        else:
            self._answer_failed(one, one.why or Refused(500, reason))

    def tick(self, now: float) -> None:
        """Give up what has waited for its bytes too long."""
        deadline = self._config.deadline_seconds
        for one in list(self.active.values()):
            if one.since is not None and now - one.since > deadline:
                self._give_up(one, Refused(504, f"not complete after {deadline:g} s; raise --deadline (deadline_seconds)"))

    def close(self) -> None:
        """Answer everybody, and end every attempt."""
        for one in list(self.active.values()):
            if not self._give_up(one, STOPPING) and one.attempt in self.active:
                self._core.finish(one.attempt)
                self._answer_failed(one, STOPPING)

    def _answer_failed(self, one: Active, why: Refused) -> None:
        self.active.pop(one.attempt, None)
        attempt = 0 if one.since is None else one.attempt
        self._say("debug", request=one.ask.request, attempt=attempt, text=why.reason)
        one.ask.answer.give(why)

    def _give_up(self, one: Active, why: Refused) -> bool:
        """Abort it, if it still waits for its memory or its bytes."""
        one.why = why
        if not self._core.abort(one.attempt, why.reason):
            return False
        if one.since is None:  # nobody but us knew of it
            self._answer_failed(one, why)
        return True

    def _unannounced(self, attempt: int, why: Refused) -> None:
        if attempt in self.active:
            self._give_up(self.active[attempt], Refused(why.status, f"no Prefill served it: {why.reason}"))

    def _cancel(self, ask: Ask) -> None:
        """Its client has gone, or needs it no more; nothing happens if it is over."""
        for one in [one for one in self.active.values() if one.ask is ask]:
            one.stop = not self._give_up(one, GONE)
