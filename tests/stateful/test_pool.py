"""The local pool against a model, and mistakes planted in it, each of which the same machine must find."""

import importlib.util
import inspect
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pool_machine import PoolMachine
from pool_tools import Rig

RIG = object()
LONG = bool(os.environ.get("TIDEGATE_LONG"))
ALWAYS = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "stateful_step_count": 50,
          "report_multiple_bugs": False}


def test_the_pool_does_what_a_dict_would_do():
    run_state_machine_as_test(PoolMachine, settings=settings(max_examples=2000 if LONG else 100, **ALWAYS))


PLANTED = {
    "readable before every layer is saved": ("pool_local", "item.saved):", "item.begun | item.saved | {0}):"),
    "a failed save counts": ("pool_local", "if outcome.ok:", "if True:"),
    "readable before finish": ("pool_change", 'entry is None or entry.state != "readable":', "entry is None:"),
    "found before finish": ("pool_index", 'not raw or decode_entry(raw).state != "readable"', "not raw"),
    "what is pinned is evicted": ("pool_change", ' or entry.state != "readable" or entry.pins:', ' or entry.state != "readable":'),
    "what is being written is evicted": ("pool_change", ' or entry.state != "readable" or entry.pins:', " or entry.pins:"),
    "recovery takes what a living one uses": ("pool_change", "if not self._alive(Client.unpack(client)):", "if True:"),
    "a living writer's object is given away": ("pool_change", ' == "allocated" and not self._alive(Client.unpack(entry.owner)):',
                                               ' == "allocated":'),
    "the dead keep what they hold": ("pool_change", "if not self._alive(Client.unpack(client)):", "if False:"),
    "an expired pin holds for ever": ("pool_change", "struct.unpack(\">d\", value)[0] < self._now", "False"),
    "an extent is given twice": ("pool_change", "            free.delete()\n", ""),
    "an extent is given back too early": ("pool_change", "        if entry.pins:\n            self._put(key, entry)\n        elif",
                                          "        if False:\n            pass\n        elif"),
    "an extent is never given back": ("pool_change", '        self._txn.put(_order(entry.extent), b"", db=self._t["free"])\n', ""),
    "the last one used goes first": ("pool_change", "if oldest.first():", "if oldest.last():"),
    "of a chain the beginning goes first": ("pool_index", "reversed(keys):\n                t.f", "keys:\n                t.f"),
    "a pin is forgotten once": ("pool_local", "item.pins += 1", "item.pins = 1"),
    "a pin under which is loaded ends": ("pool_local", "if not self._index.renew(keys, now + self._pin_seconds):", "if False:"),
    "a stale pin vouches for what is gone": ("pool_local", "            self._renewed(list(stored), list(stored.values()))\n", ""),
    "the pin of an object that is gone lets its successor go": ("pool_change", "not in (None, WRITING)", "is not None"),
    "anybody finishes": ("pool_change", ' or entry.state != "allocated" or entry.owner != client:', ' or entry.state != "allocated":'),
    "anybody removes what is being written": ("pool_change", "if entry.owner != client and self", "if False and self"),
    "a stored object is written again": ("pool_change", 'Answer.STORED if entry.state == "readable" else Answer.BUSY', "Answer.NEW"),
    "two objects lie in one place": ("pool_moves", "(extents * layout.size)[None, :]", "(extents // 2 * layout.size)[None, :]"),
}  # fmt: skip


RARE = {
    "a failed save counts": ("test_a_failed_save_never_becomes_readable", "quiet"),
    "a pin under which is loaded ends": ("test_a_pin_lasts_while_it_is_used_and_ends_by_itself",),
    "of a chain the beginning goes first": ("test_of_a_chain_the_end_goes_first", RIG),
    "a pin is forgotten once": ("test_each_pin_is_taken_back_once", RIG),
    "the pin of an object that is gone lets its successor go": ("test_a_pin_lasts_while_it_is_used_and_ends_by_itself",),
}
"""Found by the machine too, but by one of its thousands of runs; by a unit test at once."""


def unit_test(name, *args):
    spec = importlib.util.spec_from_file_location("pool_unit", Path(__file__).parent.parent / "unit" / "test_pool_local.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)(*(Rig() if arg is RIG else arg for arg in args))


def machine():
    run_state_machine_as_test(PoolMachine, settings=settings(
        max_examples=1000, phases=[Phase.generate], derandomize=True, **ALWAYS
    ))  # fmt: skip


@pytest.fixture
def cleaned():
    Rig.made.clear()
    yield
    for rig in Rig.made:
        rig.pool.close()


@pytest.mark.usefixtures("cleaned")
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake, monkeypatch):
    name, old, new = PLANTED[mistake]
    module = importlib.import_module(f"tidegate.engine.{name}")
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{name} has changed: plant this mistake anew"
    names = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), module.__file__, "exec", dont_inherit=True), names)
    for public in module.__all__:
        if inspect.isclass(was := getattr(module, public)):
            for method, value in vars(names[public]).items():
                if inspect.isfunction(value) or isinstance(value, classmethod):
                    monkeypatch.setattr(was, method, value)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        unit_test(*RARE[mistake]) if mistake in RARE else machine()
