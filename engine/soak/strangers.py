"""Strangers at every port: what comes to a server that anyone of this machine can reach.

Rules: what a stranger says is drawn from the seed of its visit; it knows what every user of the machine can know (the release, and what
/status tells: runs and their transfers), and not what only our processes tell each other (an incarnation, an attempt); nobody asks for
work in good form; each lets go of everything before its visit ends, so none of it may be found on the other side afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import zmq.asyncio

from tidegate.engine import control
from tidegate.engine.soak.lies import NUMBERS, changed
from tidegate.protocol.messages import (
    VERSION,
    Abort,
    Blocks,
    Committed,
    Message,
    ReadDone,
    ReadFailed,
    Ready,
    Retire,
    Retired,
    Revoked,
    RunFailed,
    Start,
    TransferId,
    encode,
)

__all__ = ["Strangers", "memory_addresses"]

AT_ONCE = 4
HOLD = 0.5
BIG = control.MAX_BYTES + (1 << 20)
Visit = Callable[[random.Random], Awaitable[None]]


def memory_addresses(pid: int) -> list[str]:
    """Where that process serves memory: every user of the machine can read it."""
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({name[1:] for name in names if name.startswith(f"@tidegate-{pid}-")})


class Strangers:
    """ports: of the servers, by role, and "control"; prefill: process id of the Prefill.  visits: made so far; digest: of the servers'
    layout, which whoever knows their sizes can work out."""

    def __init__(self, ports: Mapping[str, int], prefill: Callable[[], int]) -> None:
        self._ports, self._prefill = ports, prefill
        self.visits, self.digest = 0, "d" * 16

    @property
    def kinds(self) -> list[Visit]:
        """What a visit may be."""
        return [self._bytes, self._http, self._nearly, self._frames, self._knowing, self._greeting, self._inventing, self._stalling,
                self._memory]  # fmt: skip

    async def come(self, seed: int, seconds: float) -> None:
        """Visit, some side by side, for so long."""
        end = asyncio.get_running_loop().time() + seconds

        async def one(number: int) -> None:
            draw = random.Random(f"{seed}/{number}")
            while asyncio.get_running_loop().time() < end:
                # whoever is not let in, or is hung up on, has seen what it came for
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError, httpx.HTTPError):
                    await asyncio.wait_for(draw.choice(self.kinds)(draw), 30)
                self.visits += 1

        await asyncio.gather(*(one(number) for number in range(AT_ONCE)))

    # ---- TCP ------------------------------------------------------------------------------------------------------

    async def _say(self, port: int, *pieces: bytes, hold: float = 0.0) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 10)
                await asyncio.sleep(hold / len(pieces))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1 << 16), HOLD)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _bytes(self, draw: random.Random) -> None:
        """Noise, or the beginning of something, at any port."""
        port = self._ports[draw.choice(sorted(self._ports))]
        greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48)
        said = draw.choice([
            [], [draw.randbytes(draw.randrange(1, 5000))], [greeting[: draw.randrange(1, 64)]], [greeting, draw.randbytes(200)],
            [greeting, b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"], [b"GET /health HTTP/1.1\r\n"],
            [b"GET / HTTP/1.1\r\nA: ", *[b"b" * 999] * 200],
            [b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"],
        ])  # fmt: skip
        await self._say(port, *said or [b""], hold=draw.uniform(0, HOLD))

    async def _http(self, draw: random.Random) -> None:
        """A request that is none, or of what is not served."""
        role = draw.choice(sorted(set(self._ports) - {"control"}))
        nested = b'{"prompt":' + b"[" * 100_000
        params = {"request_id": "cmpl-x-0", "attempt": draw.getrandbits(62) + 1, "incarnation": 1, "remote_host": "127.0.0.1"}
        bodies = [
            b"", b"{", nested, b'{"x":' + b"[" * 100_000, b'\xff\xfe{"prompt":[1]}', b'{"prompt":[1e400]}',
            b'{"prompt":[-1],"max_tokens":1}',
            b'{"prompt":' + b"9" * 10_000 + b"}", b'{"prompt":"' + b"a" * BIG + b'"}', draw.randbytes(1000),
            json.dumps({"prompt": [1], "max_tokens": 1, "kv_transfer_params": params | {"remote_port": self._ports["proxy"]}}).encode(),
            json.dumps({"role": "prefill", "url": "http://192.0.2.1:9"}).encode(), json.dumps(params).encode(),
        ]  # fmt: skip
        body, method = draw.choice(bodies), draw.choice(["POST", "POST", "POST", "GET", "PUT", "DELETE", "BREW"])
        path = draw.choice(["/v1/completions", "/v1/metaserver", "/v1/instances", "/../../etc/passwd", "/" + "x" * 3000])
        length = draw.choice([len(body), len(body), max(0, len(body) - 5), len(body) + 5])
        kind = draw.choice(["application/json", "application/json", "text/plain"])
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        await self._say(self._ports[role], head.encode(), body)

    async def _nearly(self, draw: random.Random) -> None:
        """A request of our servers' own with one thing changed: it is of nobody who is served, and for nobody who could be."""
        params: dict[str, Any] = {
            "request_id": "cmpl-x-0", "do_remote_prefill": False, "do_remote_decode": True, "remote_engine_id": "d",
            "remote_host": "127.0.0.1", "remote_port": self._ports["control"], "remote_tp_size": 1, "remote_pcp_size": 1,
            "remote_dcp_size": 1, "remote_cached_tokens": 0, "attempt": draw.getrandbits(62) + 1,
            "incarnation": draw.getrandbits(62) + 1, "prompt_digest": "0" * 16,
        }  # fmt: skip
        asked = {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": "http://192.0.2.1:9/v1/metaserver"}
        role, path, body = draw.choice([
            ("proxy", "/v1/metaserver", params),
            ("proxy", "/v1/instances", {"role": "decode", "url": "http://192.0.2.1:9", "seconds": 30.0}),
            ("prefill", "/v1/completions", {"prompt": [1, 2], "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": params}),
            ("decode", "/v1/completions", {"prompt": [1, 2], "max_tokens": 1, "kv_transfer_params": asked}),
        ])  # fmt: skip
        inside = draw.choice([body, *(value for value in body.values() if isinstance(value, dict))])
        inside[draw.choice([*inside, "x"])] = draw.choice([*NUMBERS, None, True, 0.5, "", "x" * 300, "\x00", [], [[1]], {}, {"x": {}}])
        async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
            await client.post(f"http://127.0.0.1:{self._ports[role]}{path}", content=json.dumps(body),
                              headers={"Content-Type": "application/json", "X-Request-Id": draw.choice(["x", "cmpl-x", "?"])})  # fmt: skip

    # ---- the control port -----------------------------------------------------------------------------------------

    async def _frames(self, draw: random.Random) -> None:
        """Well-formed multiparts of somebody who has not introduced himself, or who cannot speak."""
        run = TransferId(draw.getrandbits(62), 1, 1)
        true = [
            encode(Ready("x", run.run, run, 0, 1, 1, 0, 8, False)), encode(Committed(run)), encode(Revoked(run)),
            encode(RunFailed("x", run.run, run.run)), encode(Abort("x", run.run)),
        ]  # fmt: skip
        one = draw.choice(true)
        await self._multipart(draw.choice([
            [b""], [control.MESSAGE], [control.MESSAGE, *true], [control.MESSAGE, draw.randbytes(500)],
            [control.MESSAGE, one[: len(one) // 2]],
            [control.MESSAGE, bytes((VERSION + 1,)) + one[1:]], [control.MESSAGE, *[one] * 1000], [b"x" * 100] * 50, [b"", b"", b""],
            [control.MESSAGE, bytes(BIG)], [control.MESSAGE, one[:2] + b"\x91" * 9999], [control.HELLO, b'{"x":' + b"[" * 9999],
            [control.HELLO, draw.randbytes(99)], [control.WELCOME, b"{}"],
        ]))  # fmt: skip

    async def _knowing(self, draw: random.Random) -> None:
        """What is under way, as /status tells it, said by somebody who has met nobody: as it would be true, and changed in one thing."""
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            text = (await client.get(f"http://127.0.0.1:{self._ports[draw.choice(['decode', 'prefill'])]}/status")).text
        told = [TransferId(*map(int, one)) for one in re.findall(r"run (\d+) chunk (\d+) layer (\d+) member (\d+)", text)]
        t = draw.choice(told or [TransferId(draw.getrandbits(62), 1, 1)])
        slot, epoch, life = draw.randrange(4), draw.randrange(1, 50), draw.getrandbits(62)
        true: list[Message] = [
            Ready("x", t.run, t, slot, epoch, life, 0, 8, False), Committed(t), Revoked(t), RunFailed("x", t.run, t.run),
            Blocks(t.run, t.chunk, t.member, life, 1, bytes(8)), Retired(t.run), ReadDone(t, slot, epoch, life, life),
            ReadFailed(t, slot, epoch, life, life), Abort("x", t.run), Retire("x", t.run), Start("x", t.run, life, 2, (1, 2)),
        ]  # fmt: skip
        said, one = [*map(encode, true)], encode(draw.choice(true))
        await self._multipart([control.MESSAGE, *draw.choice([
            said, [one[:end] for end in range(len(one))], [changed(draw, message) for message in true for _ in range(20)],
            said[:1] + [changed(draw, true[0]) for _ in range(99)],
        ])])  # fmt: skip

    async def _inventing(self, draw: random.Random) -> None:
        """Lives that there are not, of memory that there is."""
        for address in memory_addresses(self._prefill()):
            hello = control.Hello(VERSION, draw.getrandbits(62) + 1, self.digest, address)
            await self._multipart([control.HELLO, control.frame(hello)])

    async def _greeting(self, draw: random.Random) -> None:
        """A HELLO that is one, but of another version, or of memory that is nowhere."""
        served = draw.choice(["", "tidegate-nobody", "\0", "\ud800", "m" * 150, "m" * 300])
        others = tuple(["tidegate-nobody"] * draw.choice([0, 0, 1, 2000]))
        hello = {"version": draw.choice([VERSION, VERSION, 1, -1]), "incarnation": draw.choice([secrets.randbits(62) + 1, 0, -1, 1 << 70]),
                 "digest": draw.choice([self.digest, "d" * 16]), "memory": served, "others": others}  # fmt: skip
        await self._multipart([control.HELLO, json.dumps(hello).encode()])

    async def _stalling(self, draw: random.Random) -> None:
        """A HELLO whose memory is served by somebody who says nothing, says it slowly, or hands over what is no memory."""
        address = f"tidegate-stranger-{secrets.token_hex(8)}"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(draw.choice([b"", b"\0", b"\0\0\0\x10", b"\0\0\x10\0"]))
                await asyncio.sleep(draw.uniform(0, 4 * HOLD))
                writer.close()

        server = await asyncio.start_unix_server(serve, path="\0" + address)
        async with server:
            hello = control.Hello(VERSION, secrets.randbits(62) + 1, self.digest, address)
            await self._multipart([control.HELLO, control.frame(hello)])

    async def _multipart(self, frames: list[bytes]) -> None:
        with zmq.asyncio.Context() as context:
            dealer = context.socket(zmq.DEALER)
            try:
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(f"tcp://127.0.0.1:{self._ports['control']}")
                await dealer.send_multipart(frames)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(dealer.recv_multipart(), HOLD)
            finally:
                dealer.close(linger=0)

    # ---- memory ---------------------------------------------------------------------------------------------------

    async def _memory(self, draw: random.Random) -> None:
        """At the address where Prefill hands its memory over: come, say something or nothing, and go; it is handed over to this user."""
        for address in memory_addresses(self._prefill()):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.setblocking(False)
                one.connect("\0" + address)
                if draw.random() < 0.5:
                    one.send(draw.randbytes(100))
                await asyncio.sleep(draw.uniform(0, HOLD))
