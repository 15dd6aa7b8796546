"""Rows of several requests in blocks that they share, as serving stacks keep them; NaN wherever nobody wrote."""

import torch

from tidegate.engine.model import Chunk
from tidegate.engine.model.config import ROW_DTYPES


class Pages:
    """For each layer and kind of row [blocks, block_size, width]; `calls` notes what a step asked, in order."""

    def __init__(self, config, blocks, block_size):
        self.config, self.size, self.calls = config, block_size, []
        self.memory = [
            {name: spoilt(blocks * block_size, width, ROW_DTYPES[dtype]) for name, (dtype, width) in config.row_kinds(layer).items()}
            for layer in range(config.cache_layers)
        ]

    def places(self, blocks, first, end):
        return torch.tensor([blocks[token // self.size] * self.size + token % self.size for token in range(first, end)])

    def chunk(self, tokens, start, blocks, next_token=0):
        return Chunk(tokens, start, PagedChunk(self, start, start + len(tokens), blocks), next_token)

    def batch(self, steps):
        """steps: (token, position, blocks) each."""
        return PagedBatch(self, steps)


def spoilt(rows, width, dtype):
    memory = torch.empty(rows, width, dtype=dtype)
    memory.view(torch.uint8).fill_(0xFF)
    return memory


class PagedChunk:
    def __init__(self, pages, start, end, blocks):
        self.pages, self.start, self.end, self.blocks = pages, start, end, blocks
        self.flat = {}

    def wait_for_layer(self, layer):
        self.pages.calls.append(("wait", layer))
        places = self.pages.places(self.blocks, 0, self.end)
        self.flat = {name: memory[places] for name, memory in self.pages.memory[layer].items()}
        return self.flat

    def kv_written(self, layer):
        self.pages.calls.append(("written", layer))
        places = self.pages.places(self.blocks, self.start, self.end)
        for name, memory in self.pages.memory[layer].items():
            memory[places] = self.flat[name][self.start :]

    def layer_done(self, layer):
        self.pages.calls.append(("done", layer))
        for rows in self.flat.values():
            rows.view(torch.uint8).fill_(0xFF)


class PagedBatch:
    def __init__(self, pages, steps):
        self.pages, self.blocks = pages, [blocks for _, _, blocks in steps]
        self.tokens, self.positions = [token for token, _, _ in steps], [position for _, position, _ in steps]

    def append(self, layer, rows):
        self.pages.calls.append(("append", layer))
        for i, (position, blocks) in enumerate(zip(self.positions, self.blocks, strict=True)):
            [place] = self.pages.places(blocks, position, position + 1)
            for name, memory in self.pages.memory[layer].items():
                memory[place] = rows[name][i]

    def index_rows(self, layer, token):
        places = self.pages.places(self.blocks[token], 0, self.positions[token] + 1)
        return {name: memory[places] for name, memory in self.pages.memory[layer].items() if name != "main"}

    def fetch(self, layer, positions):
        self.pages.calls.append(("fetch", layer))
        for chosen, blocks in zip(positions, self.blocks, strict=True):
            yield self.pages.memory[layer]["main"][self.pages.places(blocks, 0, int(chosen.max()) + 1)[chosen]]
