"""Indexer rows in 8 bits: every implementation gives the bits of a plain oracle, for any row at all."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_tools import implementations
from lic8_oracle import F, check, check_back, see_rows

from tidegate.kernels import dequantize_rows, forced, quantize_rows


@pytest.fixture(params=implementations())
def implementation(request):
    with forced(request.param):
        yield


@pytest.mark.parametrize("threads", [1, 4])
def test_rows_are_those_of_the_plain_oracle(implementation, threads):
    see_rows(threads)


BITS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(BITS, st.integers(0, 255))
@example([0x7F800001, 0], 255)  # a NaN that signals
@example([0x00000001, 0x80000000], 127)  # the smallest number, and a zero below zero
@example([0x47800000, 0x477FF000, 0x38800000, 0x387FFFFF], 127)
@example([0xBF800000, 0x3F800000, 0x3F010204, 0x3C810204], 112)
def test_any_bits_at_all_are_taken(bits, exponent):
    """The bits of a row; `exponent`: a ceiling that brings most rows into the range of a scale."""
    limited = [b & 0x807FFFFF | min(b >> 23 & 255, exponent) << 23 for b in bits]
    rows = torch.from_numpy(np.array(limited, np.uint32).view(F).copy())[None]
    for name in implementations():
        with forced(name):
            for typed in (rows, rows.bfloat16()):
                quantized, scales = quantize_rows(typed)
                check(typed, quantized, scales)
                check_back(quantized, scales, dequantize_rows(quantized, scales))


def test_rows_may_lie_apart_and_anywhere(implementation):
    memory = torch.randn(5000)
    apart = memory[3:3003].view(20, 150)[:, 1:130]
    quantized, scales = quantize_rows(apart)
    check(apart, quantized, scales)
    holder, holder_scales = torch.zeros(20, 200, dtype=torch.int8), torch.zeros(20, 3, dtype=torch.float16)
    holder[:, 5:134], holder_scales[:, 1:2] = quantized, scales
    assert torch.equal(dequantize_rows(holder[:, 5:134], holder_scales[:, 1:2]), dequantize_rows(quantized, scales))


def test_nothing_at_all(implementation):
    for shape in ((0, 5), (3, 0)):
        quantized, scales = quantize_rows(torch.zeros(shape))
        assert (quantized.shape, scales.shape) == (shape, (shape[0], 1))
        assert dequantize_rows(quantized, scales).shape == shape


@pytest.mark.parametrize(("call", "why"), [
    (lambda: quantize_rows(torch.zeros(4)), r"rows is torch.float32 of shape \(4,\)"),
    (lambda: quantize_rows(torch.zeros(4, 4, dtype=torch.float16)), "give torch.bfloat16 or torch.float32 or torch.float64"),
    (lambda: quantize_rows(torch.zeros(4, 5).t()), "the elements of a row side by side"),
    (lambda: dequantize_rows(torch.zeros(4, 4), torch.zeros(4, 1, dtype=torch.float16)), r"give torch.int8 \[n, width\]"),
    (lambda: dequantize_rows(torch.zeros(4, 4, dtype=torch.int8), torch.zeros(4, 1)), r"scales is torch.float32"),
    (lambda: dequantize_rows(torch.zeros(4, 4, dtype=torch.int8), torch.zeros(3, 1).half()), r"scales are \(3, 1\) for 4 rows"),
])  # fmt: skip
def test_other_shapes_and_types_are_refused(call, why):
    with pytest.raises(ValueError, match=why):
        call()
