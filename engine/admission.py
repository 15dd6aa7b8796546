"""Prompts on Decode between the HTTP server and the session: those that wait for memory, and those that have it.

Rules: a prompt is admitted when host and device memory for all its tokens is reserved, in order of arrival; only then, and only when
the session says that its destination is registered, does the metaserver hear of it; it is answered once, and its debug line said
before; whoever gives it up (its client, its deadline, a Prefill that cannot be had) goes through the session's abort.  Owner's thread
only, but for what the decoding thread is given.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from tidegate.engine.http.asking import Retries
from tidegate.engine.http.bodies import PrefillParams, prompt_digest
from tidegate.engine.http.decode_server import Answered, Ask, DecodeServer
from tidegate.engine.http.server import LOOPBACK, Refused
from tidegate.engine.recorder import content_tag
from tidegate.engine.row_pool import Place
from tidegate.protocol.messages import Start

if TYPE_CHECKING:
    from tidegate.engine.decode_worker import DecodeWorker

__all__ = ["AREAS", "Active", "Admission"]

AREAS = ("main", "index")
GONE = Refused(499, "the client has gone")
STOPPING = Refused(503, "this Decode is stopping", again=True)


class Active:
    """One attempt and what it owns.  why: how it is to be answered if it fails; stop: it shall make no further token."""

    def __init__(self, ask: Ask, attempt: int, places: dict[str, Place]) -> None:
        self.ask, self.attempt, self.places = ask, attempt, places
        self.since = time.monotonic()
        self.tokens: list[int] = []
        self.logits: list[torch.Tensor] = []
        self.tags: dict[str, str] = {}
        self.why: Refused | None = None
        self.stop = False

    @property
    def done(self) -> bool:
        """Has it all its tokens, or no use for more?"""
        return self.stop or len(self.tokens) == self.ask.new_tokens

    def tag(self, chunk: int) -> None:
        """Note a tag of the rows of each (chunk, layer) as they lie in the destination, before decode adds any."""
        tokens = len(self.ask.prompt)
        for first in range(0, tokens, chunk):
            for layer in range(self.places["main"].rows.shape[0]):
                rows = [self.places[name].rows[layer, first : min(first + chunk, tokens)] for name in AREAS]
                self.tags[f"{first // chunk + 1}/{layer + 1}"] = content_tag(*rows)


class Admission:
    """active: attempt -> what it owns, until the session reclaims it; http: where prompts come from."""

    def __init__(self, worker: DecodeWorker) -> None:
        self._worker, self._session, self._say = worker, worker.session, worker.parent.say
        self._asks: deque[Ask] = deque()
        self.active: dict[int, Active] = {}
        c = worker.config
        self._limit, self._deadline = c.max_waiting, c.deadline_seconds
        self.http = DecodeServer(
            port=c.decode_port, limits=c.limits(c.new_tokens),
            retries=Retries(c.max_retries, c.retry_delay), submit=self._posted(self._add), cancel=self._posted(self._cancel),
            probe=lambda tell: worker.owner.post(lambda: tell({"active": len(self.active), "waiting": len(self._asks)})),
        )  # fmt: skip

    def _posted(self, do: Callable[[Ask], None]) -> Callable[[Ask], None]:
        return lambda ask: self._worker.owner.post(partial(do, ask))

    # ---- in -------------------------------------------------------------------------------------------------------

    def _add(self, ask: Ask) -> None:
        if len(self._asks) >= self._limit:
            self._answer_failed(ask, 0, Refused(503, f"{self._limit} prompts wait already: try again later", again=True))
            return
        self._asks.append(ask)
        self.admit()
        if ask in self._asks:
            self._say("taken", request=ask.request)

    def admit(self) -> None:
        """Give waiting prompts a destination while there is room."""
        while self._asks and (places := self._worker.reserve()) is not None:
            ask, attempt = self._asks.popleft(), secrets.randbits(62) + 1
            self.active[attempt] = Active(ask, attempt, places)
            self._worker.execute(
                self._session.admit(attempt, request=ask.request, tokens=len(ask.prompt), prompt=ask.prompt)
            )

    def announce(self, start: Start, copies: int) -> None:
        """Carry out the session's START: it goes by way of the metaserver, where a Prefill is found.  copies: 0 if it is lost."""
        params = PrefillParams(
            request_id=start.request, do_remote_prefill=False, do_remote_decode=True,
            remote_engine_id=f"decode-{start.incarnation:x}", remote_host=LOOPBACK, remote_port=self._worker.port, remote_tp_size=1,
            remote_cached_tokens=0, attempt=start.attempt, incarnation=start.incarnation, prompt_digest=prompt_digest(start.prompt),
        )  # fmt: skip
        failed = partial(self._unannounced, start.attempt)
        url = self.active[start.attempt].ask.metaserver
        self.http.announce(url, params, lambda why: self._worker.owner.post(partial(failed, why)), copies)
        if copies != 1:
            self._say("taken", request=start.request)

    # ---- out ------------------------------------------------------------------------------------------------------

    def finished(self, one: Active) -> None:
        """Inference is over."""
        if one.stop:
            self._answer_failed(one.ask, one.attempt, GONE)
            return
        logits = torch.stack(one.logits).float().numpy().tobytes()
        self._say("debug", request=one.ask.request, attempt=one.attempt, ok=True, tokens=one.tokens, logits=logits, tags=one.tags)
        one.ask.answer.give(Answered(one.tokens))

    def failed(self, attempt: int, reason: str) -> None:
        """The session says that the attempt has failed."""
        one = self.active[attempt]
        self._answer_failed(one.ask, attempt, one.why or Refused(500, reason))

    def tick(self, now: float) -> None:
        """Give up what has waited for its bytes too long."""
        for one in list(self.active.values()):
            if now - one.since > self._deadline:
                self._give_up(one.attempt, Refused(504, f"not complete after {self._deadline:g} s"))

    def close(self) -> None:
        """Answer everybody, and end every attempt."""
        while self._asks:
            self._answer_failed(self._asks.popleft(), 0, STOPPING)
        for one in list(self.active.values()):
            if not self._give_up(one.attempt, STOPPING) and self._session.can_finish(one.attempt):
                self._worker.execute(self._session.finish(one.attempt))
                self._answer_failed(one.ask, one.attempt, STOPPING)

    def _answer_failed(self, ask: Ask, attempt: int, why: Refused) -> None:
        self._say("debug", request=ask.request, attempt=attempt, text=why.reason)
        ask.answer.give(why)

    def _give_up(self, attempt: int, why: Refused) -> bool:
        """Abort it, if it still waits for its bytes."""
        if attempt not in self.active or not self._session.can_abort(attempt):
            return False
        self.active[attempt].why = why
        self._worker.execute(self._session.abort(attempt, why.reason))
        return True

    def _unannounced(self, attempt: int, why: Refused) -> None:
        self._give_up(attempt, Refused(why.status, f"no Prefill served it: {why.reason}"))

    def _cancel(self, ask: Ask) -> None:
        """Its client has gone, or needs it no more; nothing happens if it is over."""
        if ask in self._asks:
            self._asks.remove(ask)
            self._answer_failed(ask, 0, GONE)
        for one in [one for one in self.active.values() if one.ask is ask]:
            one.stop = not self._give_up(one.attempt, GONE)
