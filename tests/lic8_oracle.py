"""A plain oracle of the indexer's rows in 8 bits, element by element, and rows that are hard to get right."""

import numpy as np
import torch

from tidegate.kernels import dequantize_rows, quantize_rows

F, H = np.float32, np.float16


def plain(row):
    """(integers, bits of the scale) of one row of float32, element by element."""
    with np.errstate(over="ignore", invalid="ignore"):
        most = F(0)
        for x in row:
            most = F("nan") if np.isnan(x) or np.isnan(most) else max(most, abs(x))
        scale = H(most / F(127))
    if not np.isfinite(scale):
        return [0] * len(row), 0x7E00
    if scale == 0:
        return [0] * len(row), 0
    return [min(127, max(-127, int(np.rint(x / F(scale))))) for x in row], int(scale.view(np.uint16))


def check(rows, quantized, scales):
    for row, q, scale in zip(rows.float().numpy(), quantized.tolist(), scales.view(torch.int16)[:, 0].tolist(), strict=True):
        assert (q, scale & 0xFFFF) == plain(row), f"row {row}"


def check_back(quantized, scales, back):
    """The product, rounded once; whatever the scale is."""
    with np.errstate(invalid="ignore"):
        want = quantized.numpy().astype(F) * scales.numpy().astype(F)
    assert np.array_equal(back.numpy(), want, equal_nan=True)
    assert np.array_equal(np.signbit(back.numpy()), np.signbit(want)) or np.isnan(want).any()


def see_rows(threads=1):
    """Rows of all sizes and widths, ties among them, and rows that are spoilt."""
    g = torch.Generator().manual_seed(1)
    for width in (1, 7, 8, 9, 16, 31, 32, 33, 128, 200):
        size = torch.randint(-30, 24, (40, 1), generator=g).float().exp2()
        rows = torch.randn(40, width, generator=g) * size
        rows[0], rows[1, -1], rows[2, 0], rows[3, -1] = 0, float("nan"), float("inf"), -float("inf")
        rows[4], rows[5, -1] = 127 * 65504.0, 127 * 65520.0
        rows[6] = torch.arange(width).float().remainder(127) + 0.5
        rows[6, -1] = 127
        rows[7], rows[8] = -rows[6], torch.where(torch.arange(width) % 2 == 0, 127 * 2.0**-25, -127 * 2.0**-24 * 1.4)
        rows[9], rows[10] = 127 * (1 + 2.0**-11), 127 * (1 + 3 * 2.0**-11)  # scales in the middle between two halves
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            typed = rows.to(dtype)
            quantized, scales = quantize_rows(typed, threads=threads)
            check(typed, quantized, scales)
            back = dequantize_rows(quantized, scales, threads=threads)
            check_back(quantized, scales, back)
            assert back[1:4].isnan().all()
            holder = torch.zeros(40, width + 3, dtype=torch.int8)
            holder[:, 1:-2] = quantized
            check_back(quantized, scales, dequantize_rows(holder[:, 1:-2], scales.repeat(1, 2)[:, 1:], threads=threads))
    ends = torch.arange(-128, 128).to(torch.int8).expand(1024, 256).contiguous()
    scales = torch.arange(0, 65536, 64).to(torch.int32).to(torch.int16).view(torch.float16)[:, None]
    check_back(ends, scales, dequantize_rows(ends, scales, threads=threads))
