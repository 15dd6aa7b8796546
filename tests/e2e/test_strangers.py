"""Who can reach the ports of real servers, and reads there all that is told to anybody: it learns no incarnation, and what it says with the
names that it did learn is heard by nobody.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
import zmq
from pair_tools import slow
from serving_tools import Serving, serving
from test_serving import LONGEST, right, small, tokens
from test_waiting import status, until

from tidegate.engine import control
from tidegate.engine.recorder import read_lines
from tidegate.protocol.messages import Committed, ReadDone, Ready, Retire, Retired, Revoked, RunFailed, TransferId, encode

ROLES = ("proxy", "prefill", "decode")
TELLS_ALL = """
from tidegate.engine import control
from tidegate.engine.recorder import read_lines
control.public_name = str
from tidegate.engine.decode_worker import main
main()
"""


def read_by_anybody(s: Serving) -> str:
    """Everything that the servers answer to whoever asks, good requests and bad ones."""
    texts = [httpx.get(f"{s.url[role]}{path}", timeout=60, trust_env=False).text
             for role in ROLES for path in ("/status", "/health", "/metrics", "/nothing")]  # fmt: skip
    texts += [s.post_bytes(role, "/v1/completions", b"{}").text for role in ROLES]
    return "\n".join(texts)


def incarnations(trace: Path) -> list[int]:
    return [int(read_lines(trace / f"{role}-0.jsonl")[0]["incarnation"]) for role in ("prefill", "decode")]


def told(text: str, secrets: Sequence[int]) -> list[int]:
    """Those that stand in `text`, in whatever form."""
    return [one for one in secrets if re.search(rf"\b0*{one}\b|{one:x}", text)]


def say(s: Serving, transfer: TransferId, slot: int, epoch: int) -> None:
    """To Decode's control port, everything that could be said about a read that is under way, by somebody who has met nobody."""
    port = s.run.ready["decode"].port
    context = zmq.Context[zmq.Socket[bytes]]()
    socket = control.connect(context, port)
    for message in (
        Committed(transfer), Revoked(transfer), RunFailed("x", transfer.run, transfer.run, "a lie"), ReadDone(transfer, slot, epoch, 1, 1),
        Ready("x", transfer.run, transfer, slot, epoch, 1, 0, 1, True), Retire("x", transfer.run), Retired(transfer.run),
    ):  # fmt: skip
        socket.send_multipart([control.MESSAGE, encode(message)])
    socket.send_multipart([control.HELLO, control.frame(control.Hello(2, 1, "0" * 16, "tidegate-nobody"))])
    assert socket.poll(20_000), "it was heard to the end"
    assert control.parse_welcome(socket.recv_multipart()[1]).refused
    context.destroy(linger=0)


def visited(trace: Path, decode_argv: Sequence[str] | None = None) -> str:
    """What anybody can read while a read is under way; which comes out right although it is talked about."""
    c, answers = small(trace=str(trace), decode_faults=(slow("read", 2.0, layer=2, chunk=1, nth=1),)), list[httpx.Response]()
    with serving(c, decode_argv=decode_argv) as s:
        client = threading.Thread(target=lambda: answers.append(s.post(prompt=list(LONGEST))))
        client.start()
        found: list[TransferId] = []

        def reading() -> bool:
            for wait in status(s, "decode").waits:
                if wait.kind == "copy":
                    found.append(TransferId(*map(int, re.findall(r"\d+", wait.transfer))))
            return bool(found)

        until(reading)
        texts = read_by_anybody(s)
        before = s.figure("decode", "tidegate_messages_refused_total")
        say(s, found[0], 1, 1)
        assert s.figure("decode", "tidegate_messages_refused_total") == before + 7
        client.join()
        texts += read_by_anybody(s) + answers[0].text
        assert tokens(answers[0]) == right(c, LONGEST)
        assert s.stop()["decode"]["blocks_free"] == c.decode_blocks
    return texts


def test_nobody_is_told_an_incarnation_and_what_is_told_opens_nothing(tmp_path: Path) -> None:
    texts = visited(tmp_path)
    assert told(texts, incarnations(tmp_path)) == []
    names = [control.public_name(one) for one in incarnations(tmp_path)]
    assert all(name in texts for name in names), "a life has a name for everybody, which is another one"


def test_planted_a_server_that_tells_it_is_found(tmp_path: Path) -> None:
    texts = visited(tmp_path, [sys.executable, "-c", TELLS_ALL])
    assert set(told(texts, incarnations(tmp_path))) & set(incarnations(tmp_path)) != set()
    assert msgspec.json.encode(incarnations(tmp_path)[1]).decode() in texts
