"""The other ranks of an instance, as its leader sees them: their processes, and one socket to all of them.

Rules: the leader starts them and ends them; each hears its configuration on standard input, which stays open as long as the leader
lives; a group is one failure domain: a hand that ends before it was told to, or says that it must, ends the leader, and a hand whose
leader is gone ends itself, all with one exit code; the socket has no name in a file system, and hears nobody but this user's processes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import zmq

from tidegate.engine.multipart import new_socket
from tidegate.engine.owner import Owner
from tidegate.engine.rank_words import Failed, HandWord, Here, LeaderWord, Stats, Stop, pack, unpack_hand
from tidegate.protocol.errors import RemoteProtocolError

__all__ = ["HandConfig", "Hands", "private_socket"]

START_SECONDS, STOP_SECONDS = 120.0, 15.0


class HandConfig(msgspec.Struct, frozen=True):
    """What a hand is told first.  address: of the leader's socket; meeting: the file where the ranks' collectives begin; config: as
    JSON, what the whole instance is told; more: what its leader has decided beside the configuration.
    """

    rank: int
    size: int
    address: str
    meeting: str
    config: msgspec.Raw
    more: dict[str, str] = {}


def rank_argv(module: str) -> list[str]:
    """The command of a hand."""
    return [sys.executable, "-m", module]


def private_socket(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], str]:
    """(ROUTER, its address), to which the system lets only processes of this user connect."""
    socket = new_socket(context, zmq.ROUTER)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())  # every user can read the names of such sockets in /proc/net/unix
    address = f"ipc://@tidegate-{secrets.token_hex(8)}"
    socket.bind(address)
    return socket, address


class Hands:
    """Ranks 1 to size - 1 of an instance, each a process that runs `module`.

    config: what each is told; scratch: a folder for what they need to meet; files: descriptors that they inherit; fail: ends this
    process with a reason; called from any thread.  With `size` 1 there are none, and nothing is made.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], module: str, config: msgspec.Struct, *, scratch: str, size: int,
        fail: Callable[[str], Any], more: dict[str, str] | None = None, files: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.size, self._fail, self._module, self._files = size, fail, module, files
        self.stats: dict[int, dict[str, float]] = {}
        self._stopping = False
        self._all_stopped = threading.Event()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        if size > 1:
            self._start_all(context, msgspec.Raw(msgspec.json.encode(config)), scratch, more or {})

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of their processes."""
        return tuple(process.pid for process in self._processes.values())

    def _start_all(self, context: zmq.Context[zmq.Socket[bytes]], config: msgspec.Raw, scratch: str, more: dict[str, str]) -> None:
        self._socket, address = private_socket(context)
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-ranks-", dir=scratch or None))
        self.meeting = self._folder / "meeting"
        for rank in range(1, self.size):
            self._processes[rank] = self._start(rank, HandConfig(rank, self.size, address, str(self.meeting), config, more))

    def _start(self, rank: int, told: HandConfig) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(rank_argv(self._module), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   pass_fds=self._files)  # fmt: skip
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already: the thread below tells
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
        threading.Thread(target=self._watch, args=(rank, process), name=f"hand-{rank}", daemon=True).start()
        return process

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._stopping:
            how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
            self._fail(f"rank {rank} of {self.size} ended {how}, so all ranks of this instance end")

    def wait(self) -> list[Here]:
        """What each said when it was ready, in the order of ranks; before `attach`.  OSError where one does not come in time."""
        found: dict[int, Here] = {}
        end = time.monotonic() + START_SECONDS
        while len(found) < self.size - 1:
            if not self._socket.poll(max(0, int(1000 * (end - time.monotonic())))):
                missing = sorted(set(range(1, self.size)) - found.keys())
                raise OSError(f"ranks {missing} of {self.size} were not ready within {START_SECONDS:g} s")
            sender, data = self._socket.recv_multipart()
            word = unpack_hand(data)
            if isinstance(word, Failed):
                raise OSError(f"rank {abs(int(sender))} of {self.size}: {word.reason}")
            if isinstance(word, Here):
                found[word.rank] = word
        return [found[rank] for rank in range(1, self.size)]

    def attach(self, owner: Owner, take: Callable[[int, HandWord], None]) -> None:
        """From now on `owner` hears them: take(rank, word)."""
        owner.add(self._socket, partial(self._frames, take))

    def _frames(self, take: Callable[[int, HandWord], None], frames: Sequence[bytes]) -> None:
        try:
            rank, word = abs(int(frames[0])), unpack_hand(frames[1])
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise RemoteProtocolError(f"no word of a hand: {error}", machine="hands", state=len(frames), event=frames[0]) from error
        if isinstance(word, Failed):
            self._fail(f"rank {rank} of {self.size}: {word.reason}")
        elif isinstance(word, Stats):
            self.stats[rank] = word.stats
            if len(self.stats) == self.size - 1:
                self._all_stopped.set()
        else:
            take(rank, word)

    def say(self, rank: int, word: LeaderWord) -> None:
        """To one of them.  In the owner's thread."""
        with contextlib.suppress(zmq.ZMQError):  # it has just gone: whoever watches its process ends this one
            self._socket.send_multipart([str(rank).encode(), pack(word)])

    def say_all(self, word: LeaderWord) -> None:
        """To each of them."""
        for rank in self._processes:
            self.say(rank, word)

    def stop(self, owner: Owner) -> None:
        """Have all of them end in order, and wait for that; `stats` is whole then.  While `owner` runs, from another thread."""
        if not self._processes:
            return
        self._stopping = True
        owner.post(partial(self.say_all, Stop()))
        if not self._all_stopped.wait(STOP_SECONDS):
            self._fail(f"ranks {sorted(set(self._processes) - self.stats.keys())} of {self.size} do not stop")
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)
