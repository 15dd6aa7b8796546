"""Says a step of the system model, and a message, in words.

Rules: a step keeps the name that it has in tla/system, what follows it is only for the reader; an action without a phrase here is
said by its arguments, and taken by the side whose variables it changes, so a new action shows before anybody describes it.
"""

from __future__ import annotations

from tidegate.spec.diagram import NETWORK
from tidegate.spec.explain import as_function, message_text, value_text
from tidegate.spec.trace_lines import RECEIVED, ROLE_OF
from tidegate.spec.values import TRUE, Value, show
from tidegate.spec.vocabulary import Vocabulary, items, record

__all__ = ["actor", "phrase", "receiver", "sender"]

PHRASES = {
    "Admit": "attempt {attempt} gets blocks {block}",
    "Registered": "attempt {attempt}'s blocks are registered",
    "Owned": "rank {rank} has registered attempt {attempt}'s blocks",
    "Forward": "all ranks begin a forward of attempt {attempt}",
    "ForwardEnd": "rank {rank} has computed its part for attempt {attempt}",
    "Schedule": "inference of attempt {attempt} begins",
    "Finish": "inference of attempt {attempt} ends",
    "Abort": "attempt {attempt} is given up",
    "Landed": "the failed read of {transfer} stops",
    "ResendReport": "the report on {transfer}, again",
    "Claim": "run {run} takes the slot for {step}",
    "Write": "run {run} has computed {step}",
    "Miss": "run {run}: what it must load is gone",
    "GiveWay": "run {run} leaves its own slots to others, until it goes on",
    "LayerDone": "attention of {transfer} ends",
    "Revoke": "the lease of {transfer} is over",
    "ResendReady": "{transfer}, again",
    "Evict": "object {object} leaves the pool",
    "Lose": "{message}",
    "Deliver": "{message}",
}
HOW = {"ok": "read of {} ends well", "quiet": "read of {} fails, and has stopped", "unknown": "read of {} fails, may still land"}
CLIENT = ("Admit", "Abort")


def phrase(event: dict[str, Value], before: dict[str, Value], words: Vocabulary) -> str:
    """What a step is, without its name."""
    op = str(event["op"])
    said = {name: value_text(value) for name, value in event.items() if name != "message"}
    if op == "ReadEnd" and event.get("how") in HOW:
        return HOW[str(event["how"])].format(said.get("transfer", ""))
    if op in ("SaveEnd", "LoadEnd"):
        return f"{op[:4].lower()} of {said.get('transfer', '')} {'ends' if event.get('ok') == TRUE else 'fails'}"
    if "message" in event:
        said["message"] = message_text(event["message"])
    said["step"] = _step(event, before)
    template = PHRASES.get(op)
    try:
        text = template.format_map(said) if template else None
    except KeyError:
        text = None
    if text is None:
        text = ", ".join(f"{name} {value}" for name, value in sorted(said.items()) if name not in ("op", "step"))
    if op == "Deliver" and event.get("keep") == TRUE:
        text += ", doubled on its way"
    return text


def _step(event: dict[str, Value], before: dict[str, Value]) -> str:
    """The chunk and layer at which a run is, on its rank where there are several."""
    runs = as_function(before.get("runs", "")) or {}
    if "member" in event:
        runs = as_function(runs.get(event["member"], "")) or {}
    state = record(runs.get(event.get("run"), "")) or {}
    return f"chunk {state['chunk']} layer {state['layer']}" if {"chunk", "layer"} <= state.keys() else "its next step"


def receiver(message: Value) -> str:
    """The lifeline at which a message arrives."""
    op = (record(message) or {}).get("op")
    role = next((role for role, received in RECEIVED.items() if op in received), NETWORK)
    return _ranked(role, record(message) or {})


def _ranked(role: str, about: dict[str, Value]) -> str:
    """A side's lifeline: of Prefill, the rank that a transfer or a message names."""
    transfer = items(about.get("transfer", "")) or []
    member = about.get("member", transfer[3] if len(transfer) > 3 else None)
    return f"{role} {member}" if role == "prefill" and isinstance(member, int) else role


def sender(message: Value, who: str) -> str:
    """The lifeline from which a message comes: the other side of its receiver, where the step itself is nobody's."""
    to = receiver(message)
    return {"prefill": "decode", "decode": _ranked("prefill", record(message) or {})}.get(to.split()[0], who)


def actor(event: dict[str, Value], before: dict[str, Value], after: dict[str, Value], words: Vocabulary) -> str:
    """Who takes a step."""
    op = str(event["op"])
    if op in CLIENT:
        return "client"
    if op == "Deliver" and "message" in event:
        return receiver(event["message"])
    if op == "Evict":
        return "pool"
    if op in ROLE_OF and op != "Deliver":
        return _ranked(ROLE_OF[op], event)
    if op == "Lose":
        return NETWORK
    changed = {name for name in after if before.get(name) != after[name]}
    for role in ("prefill", "decode"):
        if role in op.lower() or changed & OWN[role]:
            return _ranked(role, event)
    return NETWORK if "net" in changed else show(op)


OWN = {"prefill": {"runs", "slots", "transfers", "pool"}, "decode": {"attempts", "bindings", "dests", "groups", "reads"}}
