"""Runs of the real sessions in which something goes wrong that may go wrong."""

from __future__ import annotations

from scripted import CHUNK, nonce

from tidegate.engine import tracing


def copy_one(pair):
    work = pair.work.popleft()
    pair.begin(*work)
    pair.end(*work)


def advertised(pair, name, chunks):
    """Admit an attempt, register it, and deliver its START; the run's nonce."""
    attempt = pair.admit(name, chunks * CHUNK)
    pair.do(pair.decode.registered(pair.registering.pop()))
    pair.deliver(pair.net.pop())
    assert attempt in pair.decode.attempts
    return list(pair.prefill.runs)[-1]


def resends(pair):
    """READY and reports are sent again while the first copies are in flight, and all of them arrive."""
    pair.admit("a", 2 * CHUNK)
    for _ in range(400):
        for transfer in [t for t in pair.prefill.readies if pair.prefill.is_held(t)][: len(pair.net) < 40]:
            pair.do(pair.prefill.resend_ready(transfer))
        for transfer in [t for t in pair.decode.reads if pair.decode.is_unanswered(t)][: len(pair.net) < 40]:
            pair.do(pair.decode.resend_report(transfer))
        if pair.work:
            copy_one(pair)
        elif pair.registering:
            pair.do(pair.decode.registered(pair.registering.pop(0)))
        elif pair.net:
            pair.deliver(pair.net.popleft())
        for run in list(pair.prefill.runs):
            pair.step(run)
    pair.settle()


def loses(pair):
    """The first READY and the first READ_DONE are lost, and sent again."""
    run = advertised(pair, "a", 2)
    pair.step(run)
    pair.step(run)
    pair.net.clear()
    step = next(iter(pair.prefill.readies))
    pair.do(pair.prefill.resend_ready(step))
    pair.deliver(pair.net.popleft())
    while pair.work:
        copy_one(pair)
    pair.net.clear()
    pair.do(pair.decode.resend_report(step))
    pair.settle()


def doubles(pair):
    """Every message is delivered twice, START too: a second run is begun and refused."""
    pair.admit("a", CHUNK)
    deliver = pair.deliver

    def twice(message):
        deliver(message)
        deliver(message)

    pair.deliver = twice
    pair.settle()


def fails(what, how="quiet", chunk=1, layer=2):
    def scenario(pair):
        pair.bad[what, chunk, layer] = how
        pair.admit("a", 2 * CHUNK)
        pair.settle()
        pair.bad.clear()
        pair.admit("b", 2 * CHUNK)
        pair.settle()

    return scenario


def aborts(pair):
    run = advertised(pair, "a", 2)
    for _ in range(3):
        pair.step(run)
    pair.do(pair.decode.abort(nonce("a"), "the client went away"))
    pair.admit("b", CHUNK)
    pair.settle()


def aborts_a_computation(pair):
    """ABORT arrives between the computation's begin and its end: the rows are written all the same, and never published."""
    run = advertised(pair, "a", 1)
    pair.do(pair.prefill.claim(run))
    step, p = pair.prefill.step_of(run), pair.recorders["prefill"]
    tracing.trace_begin(p, "write", step, 0, 1, [pair.range_of(1, 0)], ["main"])
    pair.do(pair.decode.abort(nonce("a")))
    pair.deliver(pair.net.popleft())
    tracing.trace_end(p, "write", step, 0, 1, [pair.rows(1, 0)])
    pair.admit("b", CHUNK)
    pair.settle()


def evicts(pair):
    """The first chunk's object is evicted before the second chunk loads it: a miss."""
    pair.admit("a", 2 * CHUNK)
    deliver = pair.deliver

    def evicting(message):
        for key in [k for k in pair.prefill.pool if k[1] == 1 and pair.prefill.can_evict(k)]:
            pair.do(pair.prefill.evict(key))
        deliver(message)

    pair.deliver = evicting
    pair.settle()


def revokes(pair):
    """A lease runs out while Decode still reads: the slot is overwritten under it, and nobody believes what it got."""
    run = advertised(pair, "a", 1)
    pair.step(run)
    pair.step(run)
    copy_one(pair)
    pair.deliver(pair.net.popleft())
    read = pair.work.popleft()
    pair.begin(*read)
    pair.do(pair.prefill.revoke(read[1]))
    other = advertised(pair, "b", 1)
    pair.step(other)
    pair.step(other)
    pair.end(*read)
    pair.settle()


def comes_long_after(pair):
    """A READY comes again when its attempt is forgotten, and is refused, as it was not when it came first.  RETIRED comes often: so that,
    of all that Decode is told, the READY comes late, and its refusal early of what Prefill is."""
    kept, deliver = {}, pair.deliver

    def keeping(message):
        kept.setdefault(type(message).__name__, message)
        deliver(message)

    pair.deliver = keeping
    advertised(pair, "a", 1)
    pair.settle()
    for _ in range(30):
        deliver(kept["Retired"])
    deliver(kept["Ready"])
    deliver(pair.net.popleft())
    advertised(pair, "b", 2)
    pair.settle()


SCENARIOS = {
    "resends": resends, "losses": loses, "duplicates": doubles, "a quiet failure": fails("read"),
    "an unknown failure": fails("read", "unknown"), "a failed save": fails("save"),
    "a failed load": fails("load", chunk=2, layer=1), "an abort": aborts, "an abort during a computation": aborts_a_computation,
    "an eviction": evicts, "a READY of what is forgotten": comes_long_after,
}  # fmt: skip
