"""A Decode rank to be embedded in whatever decodes: it knows attempts, blocks, pulls and hot buffers, and nothing of a model.

    engine = DecodeEngine([RowKind("main", "bfloat16", 576), RowKind("index", "bfloat16", 128)], layers=61, blocks=4096, block_size=128,
                          rows=8, hot=4096)
    engine.open()                                           # Prefills introduce themselves at engine.port
    attempt = engine.admit("request", prompt, new_tokens=100)
    for attempt in engine.completed(wait=True):             # every row of the prompt is here, in every layer

A decode step, the seed's seven steps, for each layer in turn:

    1. the new tokens' rows are computed                    by the caller; they go to no cache of its own
    2. and put into the host pool and the indexer cache     engine.append(layer, tokens, rows)
    3. the indexer selects top-k positions                  by the caller, over engine.index_rows(layer, attempt)
    4. the residency table finds hits, gives misses slots,  \\
       and evicts                                            |
    5. misses only are copied from the host pool             > hot, rows, slots = engine.select(layer, attempts, topk)
    6. positions become slots                               /
    7. sparse attention reads the slots                     by the caller, over hot[part][rows[i], slots[i]]

    engine.finish(attempt)

Rules: a row is appended before anyone reads it, so 2 comes before 3 and 4, in every layer; what a hot buffer holds belongs to one
attempt, by its nonce; memory goes to another only when nothing can land there any more.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import zmq

from tidegate.engine import control
from tidegate.engine.decode_core import DecodeCore
from tidegate.engine.decode_hands import DecodeHands
from tidegate.engine.decode_memory import DecodeMemory
from tidegate.engine.decode_peers import Peers
from tidegate.engine.decode_rows import DecodeRows, Selected
from tidegate.engine.decode_told import Failed, Listener, Told, Wanted
from tidegate.engine.faults import Injector
from tidegate.engine.hands import Hands
from tidegate.engine.owner import Owner
from tidegate.engine.paged_rows import RowKind
from tidegate.engine.pull_shm import ShmPull
from tidegate.engine.rank_words import Forward
from tidegate.engine.recorder import NULL, Recording
from tidegate.engine.tracing import trace_footer, trace_header, trace_observer
from tidegate.engine.waiting import LIMIT
from tidegate.protocol.decode import DecodeSession
from tidegate.protocol.topology import ALONE, Topology

__all__ = ["DecodeEngine", "Failed", "Listener", "RowKind", "Selected"]

log = logging.getLogger(__name__)


class DecodeEngine(DecodeRows):
    """One Decode rank, the leader where there are several.

    kinds: what a token's rows are: "main" (or "main.k", "main.v", ...), "index" and "scale", as Prefill has them; layers: as many as
    Prefill has; blocks of block_size tokens, for all requests together; rows: requests that may be here at once; hot: slots of a hot
    buffer, at least the top-k.  port: of the control plane, on loopback, 0 for any.  topology: how many ranks either side has.
    backend: what pulls; left out, one of its own over shared memory, with pull_threads copies at once.
    files: of main KV, and hands: the other ranks of this instance, which have those files too; both only where there are several.
    resend_seconds: after which a report is said again.  poison: memory that nobody wrote, and blocks and hot buffers whose owner has
    gone, are NaN (-1).
    read_retries: further tries of a read whose copy failed and has stopped.
    wait_limit, warn: what waits for longer (seconds) is told to `warn`, and makes `core.watch.reason` say why the rank is not well.
    say: told by `open` what memory there is, and later, from the engine's own thread, of progress; on_crash: told there of an error that
    ends the engine; every later call that needs that thread raises RuntimeError with the reason.

    Without `attach`, START goes to one of the Prefills that introduced themselves, each in its turn, and failures to `failed`.
    Call `append`, `index_rows`, `select`, `rollback`, `preempt` and `finish` from one thread, the one that decodes; everything else
    from any.
    OSError where there is no memory, or the port is taken.
    """

    def __init__(
        self,
        kinds: Sequence[RowKind],
        *,
        layers: int,
        blocks: int,
        block_size: int,
        rows: int,
        hot: int,
        port: int = 0,
        topology: Topology = ALONE,
        pull_threads: int = 1,
        resend_seconds: float = 0.5,
        poison: bool = False,
        recorder: Recording = NULL,
        faults: Injector | None = None,
        backend: ShmPull | None = None,
        files: Mapping[str, int] = MappingProxyType({}),
        hands: Hands | None = None,
        wait_limit: float = LIMIT,
        read_retries: int = 0,
        warn: Callable[[str], None] = log.warning,
        say: Callable[[str], None] = lambda text: None,
        on_crash: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self.incarnation, self._recorder = secrets.randbits(62) + 1, recorder
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            guards: list[control.Guard] = []
            socket, self.port = control.bind(self._context, port, guards)
            self.memory = DecodeMemory(kinds, layers=layers, blocks=blocks, block_size=block_size, rows=rows, hot=hot, poison=poison,
                                       files=files)  # fmt: skip
        except BaseException:
            self._context.destroy(linger=0)
            raise
        trace_header(recorder, role="decode", rank=0, ranks=topology.d_tp, members=topology.p_tp,
                     incarnation=self.incarnation, layers=layers, memories=self.memory.files() if recorder.enabled else {})  # fmt: skip
        faults = faults or Injector(())
        self.backend = backend or ShmPull(recorder=recorder, faults=faults.copies(), threads=pull_threads)
        session = DecodeSession(layers=layers, members=topology.p_tp, incarnation=self.incarnation, observer=trace_observer(recorder))
        peers = Peers(self.backend, self.memory, incarnation=self.incarnation, socket=socket, topology=topology, faults=faults,
                      hands=hands.pids if hands else ())  # fmt: skip
        self.core = DecodeCore(
            session, self.memory, self.backend, peers, faults, socket=socket, resend_seconds=resend_seconds, say=say,
            wait_limit=wait_limit, warn=warn, read_retries=read_retries,
        )
        super().__init__(self.memory, self.core.readers, ranks=topology.d_tp)
        self._on_crash, self._crashed, self._say = on_crash, False, say
        self.owner = Owner("decode-session", socket, on_frames=self.core.frames, on_tick=self.core.tick, after=self.core.look,
                           on_crash=self._crash, tick=resend_seconds)  # fmt: skip
        for one in guards:
            self.owner.add(*one)
        self.core.post, self.core.drop = self.owner.post, self.owner.drop
        self._told = self.core.listener = Told(self.core)
        if hands is not None:
            self.core.hands = self.core.parking.hands = DecodeHands(hands, self.owner, topology, self.core.registered_at)

    # ---- from any thread -------------------------------------------------------------------------------------------

    def attach(self, listener: Listener) -> None:
        """Have `listener` told, and START carried by it; once, before `open`."""
        self._told.listener = listener

    def open(self) -> None:
        """Begin to listen; `say` is told what memory there is, and how the system backs it."""
        self._say(f"decode: {self.memory.report()}")
        self.owner.start()

    def admit(self, request: str, prompt: Sequence[int], *, new_tokens: int) -> int:
        """Have `prompt` prefilled, with room for `new_tokens` more; the nonce of the attempt, which never repeats.

        It waits for blocks and a row, first come, first served (`why` says for what), and is announced when it has them.  ValueError
        where it could never have enough; RuntimeError when the engine has failed.
        """
        return self.owner.ask(partial(self.core.new_attempt, Wanted(request, tuple(prompt), new_tokens)))

    def why(self, attempt: int) -> str:
        """What `attempt` waits for memory for; "" if it does not."""
        return self.owner.ask(partial(self.memory.why, attempt))

    def completed(self, *, wait: bool = False) -> list[int] | None:
        """Attempts that have become complete since the last call, or were resumed and have a row, each once; wait: until there is one, or
        one has failed.  None after `stop`.
        """
        found: list[int] = []
        while wait or not self._told.complete.empty():
            if (one := self._told.complete.get()) is None:
                return None
            found += [one] if one else []
            wait = False
        return found

    def failed(self) -> list[Failed]:
        """Attempts that failed since the last call; for an engine without a listener."""
        return [self._told.failures.get() for _ in range(self._told.failures.qsize())]

    def abort(self, attempt: int, reason: str) -> bool:
        """Give up an attempt that is not complete yet; False, and nothing done, for any other."""
        return self.owner.ask(partial(self.core.abort, attempt, reason))

    def stop(self) -> None:
        """Have `completed` return None."""
        self._told.complete.put(None)

    # ---- a decode step: `DecodeRows`, and --------------------------------------------------------------------------

    def forward(self, word: Forward) -> None:
        """All other ranks make this forward now, as the caller does, and then meet."""
        if (hands := self.core.hands) is not None:
            self.owner.post(partial(hands.forward, word))

    def preempt(self, attempt: int) -> None:
        """Stop decoding `attempt` for a while: its row goes to whoever waits for one; its rows in pool and indexer cache stay.

        Nothing but `resume` and `finish` may name it until `completed` does again.  To have its blocks too, `finish` it, and `admit` its
        prompt once more: the same tokens come out again.  KeyError for an attempt that is not complete, is preempted, or is over.
        """
        self._reader(attempt)
        self.owner.ask(partial(self.core.preempt, attempt))

    def resume(self, attempt: int) -> None:
        """Have a preempted attempt wait for a row, before all that are new; `completed` names it again, and it goes on where it was.

        KeyError for one that is not preempted.
        """
        self.owner.ask(partial(self.core.parking.ask, attempt))

    def lacks(self) -> str:
        """What the first of all that wait needs: "row" (preempt one), "blocks" (finish one), or "" if nobody waits."""
        return self.owner.ask(lambda: self.memory.lacks)

    def finish(self, attempt: int) -> None:
        """Inference of `attempt` has ended: its memory goes to others, and nothing above may name it again."""
        self.owner.post(partial(self.core.finish, attempt))

    # ---- the end --------------------------------------------------------------------------------------------------

    def close(self) -> dict[str, float]:
        """Abort what waits, let every pull end and be told, write the trace's last line, give everything back; counts and bytes by name.

        Nobody decodes any more.
        """
        if not self._crashed:
            self.owner.ask(self._end_all)
        self.core.meetings.close()
        self.backend.close()
        self.owner.stop()
        trace_footer(self._recorder)
        self.core.peers.close()
        self._context.term()
        counts, memory, pulled = self.memory.hot.counts, self.memory, self.core.pulled
        return {
            "bytes_pulled_main": sum(size for name, size in pulled.items() if memory.pages[name] in memory.main),
            "bytes_pulled_index": sum(size for name, size in pulled.items() if memory.pages[name] not in memory.main),
            "bytes_missed": counts.bytes_loaded, "bytes_appended": counts.bytes_appended, "hits": counts.hits, "misses": counts.misses,
            "evictions": counts.evictions, "refused": self.owner.refused, "reads_retried": self.core.reads_retried,
            "places_free": memory.free_rows, "places": memory.rows,
            "blocks_free": memory.allocator.free, "blocks": memory.allocator.blocks, **memory.backing(),
        }  # fmt: skip

    def _end_all(self) -> None:
        for attempt in list(self.core.wanted):
            if not self.core.abort(attempt, "this Decode is stopping"):
                self.core.finish(attempt)

    def _crash(self, error: BaseException) -> None:
        self._crashed = True
        self._on_crash(error)
        self.stop()
