"""Who is heard, and what is never on a wire; what is wrong is planted too."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tidegate.engine import hands
from tidegate.engine.hands import private_socket
from tidegate.spec.paths import root

PARTS = ("engine", "protocol", "kernels")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
"""Modules that make anything of bytes, code included."""
UNSAFE_CALLS = {"send_pyobj", "recv_pyobj", "send_object_list", "recv_object_list", "broadcast_object_list", "all_gather_object",
                "gather_object", "scatter_object_list", "eval", "exec"}  # fmt: skip


def unsafe(source: str) -> Iterator[str]:
    """What in a module could make an object, or run code, that a peer or a file names."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names if name.name.split(".")[0] in UNSAFE)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNSAFE:
                yield module
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr="load" | "save" as called)):
                yield f"torch.{called}"
            case ast.Call(func=ast.Attribute(attr=called)) if called in UNSAFE_CALLS - {"eval"}:  # model.eval() runs no text
                yield called
            case ast.Call(func=ast.Name(called)) if called in UNSAFE_CALLS:
                yield called
            case ast.keyword(arg="allow_pickle", value=ast.Constant(True)):
                yield "allow_pickle=True"


def test_no_wire_and_no_file_carries_a_pickle() -> None:
    modules = [path for part in PARTS for path in (root() / part).rglob("*.py")]
    assert len(modules) > 150
    assert {str(path): found for path in modules if (found := list(unsafe(path.read_text())))} == {}


@pytest.mark.parametrize("planted", [
    "import pickle", "from pickle import loads as f", "import marshal as m", "socket.recv_pyobj()", "torch.load(path)",
    "np.load(path, allow_pickle=True)", "dist.all_gather_object(out, mine)", "def f(text):\n    return eval(text)",
])  # fmt: skip
def test_planted_a_pickle_is_found(planted: str) -> None:
    assert list(unsafe(planted))


def meets(context: zmq.Context[zmq.Socket[bytes]], address: str) -> bool:
    """Does who listens there speak with this process?  It ends with the one event or the other."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    monitor = socket.get_monitor_socket()
    socket.connect(address)
    try:
        while monitor.poll(60_000):
            event = recv_monitor_message(monitor)["event"]
            if event in (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED):
                return event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        raise AssertionError("nothing came of it")
    finally:
        socket.disable_monitor()
        socket.close()


def changed(change: Callable[[str], str]) -> Callable[[zmq.Context[zmq.Socket[bytes]]], tuple[zmq.Socket[bytes], str]]:
    """`private_socket` of a source that has been changed."""
    names: dict[str, Any] = dict(vars(hands))
    exec(compile(change(Path(hands.__file__).read_text()), hands.__file__, "exec"), names)
    made: Callable[[zmq.Context[zmq.Socket[bytes]]], tuple[zmq.Socket[bytes], str]] = names["private_socket"]
    return made


FILTER = "    socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())"


def test_the_ranks_of_a_group_hear_nobody_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process plays the stranger: the leader takes itself for somebody else's."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    source = Path(hands.__file__).read_text()
    assert source.count(FILTER) == 1
    try:
        mine = private_socket(context)
        assert meets(context, mine[1])
        monkeypatch.setattr("os.geteuid", lambda: 4242)
        other = private_socket(context)
        assert not meets(context, other[1])
        planted = changed(lambda text: text.replace(FILTER, "    pass"))(context)
        assert meets(context, planted[1]), "planted: everybody is heard"
    finally:
        context.destroy(linger=0)
