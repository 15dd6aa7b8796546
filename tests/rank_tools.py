"""Processes that compute one model together: what is called runs in all of them, and each one's answer comes back."""

import multiprocessing
from contextlib import contextmanager, suppress

import torch

from tidegate.engine.model import ALONE, GlooRanks

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "tidegate.engine.model"])
BOUND = 120  # seconds after which a test that hangs is told so


def serve(pipe, folder, rank, size):
    torch.set_num_threads(1)
    groups = {1: ALONE, size: GlooRanks(folder / "all", rank=rank, size=size)}
    if size == 4:
        groups[2] = GlooRanks(folder / f"pair{rank // 2}", rank=rank % 2, size=2)
    while job := pipe.recv():
        function, arguments = job
        try:
            pipe.send(function(groups, *arguments))
        except Exception as error:
            pipe.send(error)


class Ranks:
    """`size` processes; one of four has two groups of two besides."""

    def __init__(self, size, folder):
        folder.mkdir()
        ends = [CONTEXT.Pipe() for _ in range(size)]
        self.pipes = [ours for ours, _ in ends]
        self.processes = [CONTEXT.Process(target=serve, args=(end, folder, rank, size)) for rank, (_, end) in enumerate(ends)]
        for process, (_, end) in zip(self.processes, ends, strict=True):
            process.start()
            end.close()

    def call(self, function, *arguments):
        """What `function(groups, *arguments)` returned, or raised, in each rank; function: one of a module."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        assert all(pipe.poll(BOUND) for pipe in self.pipes), "a rank does not answer"
        return [pipe.recv() for pipe in self.pipes]

    def end(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with suppress(OSError):
                pipe.send(None)
            process.join(BOUND)
            process.kill()


@contextmanager
def ranks(size, folder):
    started = Ranks(size, folder)
    try:
        yield started
    finally:
        started.end()
