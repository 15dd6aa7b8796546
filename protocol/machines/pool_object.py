"""Generated from tla/machines/PoolObject.tla by `tidegate gen`; do not edit.

One object of the Prefill host KV pool: the KV of one chunk of one run,
all layers.  It is written layer by layer and becomes readable only when
every layer is there; a failed save, or a failed run, spoils it for good.  A pin
keeps it from eviction while somebody loads from it.  A key is written
once: what was evicted or failed never comes back under the same key.

absent -> writing -> readable -> gone;  writing -> failed

sha256: 54a0cf1ac2d0903447f23754a1798fa99853aa3fca42073e62eb9b9d854052bd
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import Any, TypeAlias

import msgspec

from tidegate.protocol._runtime import EMPTY, Powerset, Records, no_case


class State(msgspec.Struct, frozen=True, gc=False):
    """[phase, layers, written, pins] in tla/machines/PoolObject.tla."""

    phase: str
    layers: frozenset[Any]
    written: frozenset[Any]
    pins: frozenset[Any]


class EventLayers(msgspec.Struct, frozen=True, gc=False):
    """[op, layers] in tla/machines/PoolObject.tla."""

    op: str
    layers: frozenset[Any]


class EventLayer(msgspec.Struct, frozen=True, gc=False):
    """[op, layer] in tla/machines/PoolObject.tla."""

    op: str
    layer: Any


class EventPin(msgspec.Struct, frozen=True, gc=False):
    """[op, pin] in tla/machines/PoolObject.tla."""

    op: str
    pin: Any


class Event(msgspec.Struct, frozen=True, gc=False):
    """[op] in tla/machines/PoolObject.tla."""

    op: str


AnyEvent: TypeAlias = EventLayer | EventLayers | Event | EventPin

RECORDS: dict[frozenset[str], Any] = {
    frozenset(('layers', 'phase', 'pins', 'written')): State,
    frozenset(('layers', 'op')): EventLayers,
    frozenset(('layer', 'op')): EventLayer,
    frozenset(('op', 'pin')): EventPin,
    frozenset(('op',)): Event,
}
CONSTANTS: tuple[str, ...] = ("Layers", "Pins",)


def States(*, Layers: Any, Pins: Any) -> Set[State]:
    """[tla/machines/PoolObject.tla:13]"""
    return Records(State, phase=frozenset(('absent', 'writing', 'readable', 'failed', 'gone')), layers=Powerset(Layers), written=Powerset(Layers), pins=Powerset(Pins))


@cache
def Initial() -> State:
    """[tla/machines/PoolObject.tla:18]"""
    return State(phase='absent', layers=EMPTY, written=EMPTY, pins=EMPTY)


def CanAllocate(s: State) -> bool:
    """[tla/machines/PoolObject.tla:20]"""
    return s.phase == 'absent'


def Allocate(s: State, layers: frozenset[Any]) -> State:
    """[tla/machines/PoolObject.tla:21]"""
    return State(phase='writing', layers=layers, written=s.written, pins=s.pins)


def CanLayerSaved(s: State, l: Any) -> bool:
    """[tla/machines/PoolObject.tla:23]"""
    return s.phase == 'writing' and l in s.layers


def LayerSaved(s: State, l: Any) -> State:
    """[tla/machines/PoolObject.tla:24]"""
    return State(phase=s.phase, layers=s.layers, written=s.written | {l}, pins=s.pins)


def CanFail(s: State) -> bool:
    """A save failed, or the run that writes it has failed: it will never be complete.

    [tla/machines/PoolObject.tla:27]
    """
    return s.phase == 'writing'


def Fail(s: State) -> State:
    """[tla/machines/PoolObject.tla:28]"""
    return State(phase='failed', layers=s.layers, written=s.written, pins=s.pins)


def CanFinish(s: State) -> bool:
    """[tla/machines/PoolObject.tla:30]"""
    return s.phase == 'writing' and s.written == s.layers


def Finish(s: State) -> State:
    """[tla/machines/PoolObject.tla:31]"""
    return State(phase='readable', layers=s.layers, written=s.written, pins=s.pins)


def CanPin(s: State) -> bool:
    """May a load begin?  If so its pin is taken in the same breath.

    [tla/machines/PoolObject.tla:34]
    """
    return s.phase == 'readable'


def Pin(s: State, p: Any) -> State:
    """[tla/machines/PoolObject.tla:35]"""
    return State(phase=s.phase, layers=s.layers, written=s.written, pins=s.pins | {p})


def CanUnpin(s: State, p: Any) -> bool:
    """[tla/machines/PoolObject.tla:37]"""
    return p in s.pins


def Unpin(s: State, p: Any) -> State:
    """[tla/machines/PoolObject.tla:38]"""
    return State(phase=s.phase, layers=s.layers, written=s.written, pins=s.pins - {p})


def CanEvict(s: State) -> bool:
    """[tla/machines/PoolObject.tla:40]"""
    return s.phase == 'readable' and s.pins == EMPTY


def Evict(s: State) -> State:
    """[tla/machines/PoolObject.tla:41]"""
    return State(phase='gone', layers=s.layers, written=s.written, pins=s.pins)


def Missing(s: State) -> bool:
    """It will never be readable (again): whoever needs it must fail, not wait.

    [tla/machines/PoolObject.tla:44]
    """
    return s.phase in {'failed', 'gone'}


def Events(*, Layers: Any, Pins: Any) -> Set[AnyEvent]:
    """[tla/machines/PoolObject.tla:46]"""
    return Records(EventLayers, op=frozenset(('Allocate',)), layers=Powerset(Layers) - frozenset((EMPTY,))) | Records(EventLayer, op=frozenset(('LayerSaved',)), layer=Layers) | Records(EventPin, op=frozenset(('Pin', 'Unpin')), pin=Pins) | Records(Event, op=frozenset(('Fail', 'Finish', 'Evict')))


def Enabled(s: State, e: AnyEvent) -> bool:
    """[tla/machines/PoolObject.tla:51]"""
    if e.op == 'Allocate':
        return CanAllocate(s)
    if e.op == 'LayerSaved':
        return CanLayerSaved(s, e.layer)
    if e.op == 'Fail':
        return CanFail(s)
    if e.op == 'Finish':
        return CanFinish(s)
    if e.op == 'Pin':
        return CanPin(s)
    if e.op == 'Unpin':
        return CanUnpin(s, e.pin)
    if e.op == 'Evict':
        return CanEvict(s)
    return no_case()


def Step(s: State, e: AnyEvent) -> State:
    """[tla/machines/PoolObject.tla:60]"""
    if e.op == 'Allocate':
        return Allocate(s, e.layers)
    if e.op == 'LayerSaved':
        return LayerSaved(s, e.layer)
    if e.op == 'Fail':
        return Fail(s)
    if e.op == 'Finish':
        return Finish(s)
    if e.op == 'Pin':
        return Pin(s, e.pin)
    if e.op == 'Unpin':
        return Unpin(s, e.pin)
    if e.op == 'Evict':
        return Evict(s)
    return no_case()
