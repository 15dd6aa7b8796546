"""Keys: equal prefixes and nothing else share them; and where an object's rows lie in its extent."""

import itertools

import numpy as np
import pytest

from tidegate.engine.pool_keys import KEY_BYTES, block_key, chain_keys, private_key, root_key
from tidegate.engine.pool_layout import ExtentLayout

ROOT = root_key("layout", "model")


def test_equal_prefixes_share_keys_up_to_the_first_difference():
    one, two = list(range(20)), [*range(11), 99, *range(12, 20)]
    a, b = (chain_keys(ROOT, tokens, (4, 8, 12, 16, 20)) for tokens in (one, two))
    assert a[:2] == b[:2]
    assert not set(a[2:]) & set(b)
    assert chain_keys(ROOT, tuple(one), (4, 8)) == a[:2]
    assert all(len(key) == KEY_BYTES for key in a)


def test_nothing_else_shares_a_key():
    """Every chain over a small alphabet, every way to cut it, several roots: the keys are as many as the prefixes."""
    seen: dict[bytes, tuple] = {}
    roots = {("l", "m"): root_key("l", "m"), ("lm", ""): root_key("lm", ""), ("", "lm"): root_key("", "lm"), ("l", "n"): root_key("l", "n")}
    for name, root in roots.items():
        for length in range(1, 5):
            for tokens in itertools.product((0, 1, 256), repeat=length):
                for cuts in itertools.product((False, True), repeat=length - 1):
                    stops = [i + 1 for i, cut in enumerate(cuts) if cut] + [length]
                    for count, key in enumerate(chain_keys(root, tokens, stops), 1):
                        meaning = (name, tokens[: stops[count - 1]], tuple(stops[:count]))
                        assert seen.setdefault(key, meaning) == meaning
    assert len(set(seen.values())) == len(seen)
    assert not set(seen) & set(roots.values())


def test_where_rows_look_ahead_the_tokens_after_a_block_are_in_its_key():
    """Every chain over a small alphabet, every way to cut it: equal keys mean equal rows, those of the last token too."""
    seen: dict[bytes, tuple] = {}
    for length in range(1, 6):
        for tokens in itertools.product((0, 1), repeat=length):
            for cuts in itertools.product((False, True), repeat=length - 1):
                stops = [i + 1 for i, cut in enumerate(cuts) if cut] + [length]
                for count, key in enumerate(chain_keys(ROOT, tokens, stops, lookahead=1), 1):
                    meaning = (tokens[: stops[count - 1] + 1], tuple(stops[:count]))
                    assert seen.setdefault(key, meaning) == meaning
    assert len(set(seen.values())) == len(seen)


def test_a_private_key_is_one_runs_own():
    key = block_key(ROOT, [1, 2])
    names = {key, private_key(key, 7), private_key(key, 8), private_key(block_key(ROOT, [1]), 7)}
    assert len(names) == 4


@pytest.mark.parametrize(("stops", "message"), [((4, 4), "stops ascend"), ((4, 21), "4..21 of 20"), ((0,), "0..0 of 20")])
def test_blocks_outside_of_the_prompt_are_refused(stops, message):
    with pytest.raises(ValueError, match=message):
        chain_keys(ROOT, range(20), stops)


def test_a_block_needs_a_token_and_a_parent():
    for parent, tokens in ((ROOT, []), (b"short", [1])):
        with pytest.raises(ValueError, match="a key has 32 bytes, a block a token"):
            block_key(parent, tokens)


def test_every_row_has_one_place_in_the_extent():
    layout = ExtentLayout(rows=3, layers=((5, 2), (7,), (1, 1, 1)))
    seen = np.zeros(layout.size, int)
    for layer, areas in enumerate(layout.layers):
        for at, width in zip(layout.area_offsets(layer), areas, strict=True):
            seen[at : at + width * layout.rows] += 1
    assert seen.max() == 1
    assert seen.sum() == 3 * 17
    assert layout.size == 4096


def test_layouts_that_differ_have_other_digests():
    layouts = [ExtentLayout(3, ((5, 2),)), ExtentLayout(4, ((5, 2),)), ExtentLayout(3, ((5,), (2,))), ExtentLayout(3, ((5, 2),), "rank 1")]
    assert len({layout.digest for layout in layouts}) == len(layouts)
    for wrong in (ExtentLayout(0, ((5,),)), ExtentLayout(1, ()), ExtentLayout(1, ((),)), ExtentLayout(1, ((5, 0),))):
        with pytest.raises(ValueError, match="at least a row"):
            wrong.checked()
    with pytest.raises(ValueError, match=r"layers 0\.\.0"):
        layouts[0].row_bytes(1)
