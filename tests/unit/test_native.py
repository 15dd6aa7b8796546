"""The native kernels under sanitizers; planted bugs, which the oracles must see; the choice of what runs."""

import faulthandler
import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_oracle import PRODUCT, Pair, drifting, parts
from kernel_tools import FLAGS, NATIVE, SOURCES, compile_native, compile_object, compiler, link, native_sets
from lic8_oracle import see_rows as see_lic8

from tidegate.kernels import copy, dispatch, reference, residency
from tidegate.kernels.copy import checked_ranges, first_astray
from tidegate.kernels.residency import Residency
from tidegate.kernels.rows import append_rows, fetch_misses, fetch_rows

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
DRIVER = Path(__file__).parents[1] / "native" / "driver.cpp"

# ---- what sees a planted bug


def see_lives():
    """Lives in which rows drift, are rolled back, change hands, repeat themselves and ask for too much."""
    for hot, k in ((33, 20), (40, 40)):
        pair = Pair(3, hot)
        for t, (asked, length) in enumerate(drifting(hot, hot, k, 12, context=120)):
            back = 30 if t == 5 else 0
            entries = [(r, asked[r], length - back, 7 + (t >= 4 and r == 1), length - 4 - back + 3 * r) for r in (2, 0, 1)]
            pair.step(entries)
            if t == 8:
                pair.truncate([30, 40, 50], [7, 8, 6], [0, 1, 2])
    pair = Pair(3, 4)
    pair.step([(1, [0, 1, 2, 3, 9], 9, 1, 9)])
    pair.step([(1, [4, 3, 2, 1, 0], 9, 1, 9)])  # five do not fit
    pair.step([(1, [4, 9, 4, -1, 8], 9, 1, 9)])


def see_bad_values():
    table = Residency(4, 4)
    for wrong in ({"rows": [1, 1]}, {"rows": [1, 4]}, {"rows": [-1, 1]}, {"keep": [-1, 1]}, {"attempts": [0, 1]}, {"lengths": [-1, 9]}):
        known = {"lengths": [9, 9], "attempts": [1, 1], "rows": [1, 2]} | wrong
        with pytest.raises(ValueError, match="nothing was changed"):
            table.step(torch.tensor([[0, 1], [2, 3]]), **known)


def see_rows():
    (hot_guard, hot), (pool_guard, pool), (_, rows) = (parts(PRODUCT, *shape) for shape in ((2, 3), (3, 2), (2,)))
    before = [guard.clone() for guard in (*hot_guard, *pool_guard)]
    one, two = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])
    step = Residency(2, 3).step(torch.tensor([[5, 1], [2, 0]]), [8, 8], [1, 1])
    good, bad_slot = torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[0, 3], [1, 1]]).int()
    calls = [
        lambda: append_rows(pool, torch.tensor([0, 6]), rows),
        lambda: append_rows(pool, torch.tensor([0, -2]), rows),
        lambda: fetch_rows(hot, one - 1, pool, one),
        lambda: fetch_rows(hot, one, pool, one + 6),
        lambda: fetch_misses(hot, pool, step, good[:, :2], 2),
        lambda: fetch_misses(hot, pool, step, good + torch.tensor([0, 0, 1]), 2),
        lambda: fetch_misses(hot, pool, step._replace(miss_slots=bad_slot), good, 2),
        lambda: fetch_misses(hot, pool, step._replace(rows=two + 1), good, 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="nothing was changed"):
            call()
    assert all(map(torch.equal, before, (*hot_guard, *pool_guard)))
    append_rows(pool, torch.tensor([4, 4]), rows)
    fetch_rows(hot, two, pool, torch.tensor([4, 0]))
    assert torch.equal(hot[1][0, 0], rows[1][1])


def see_ranges():
    target = torch.zeros(16, dtype=torch.uint8)
    copy.copy_ranges(target, torch.arange(16, dtype=torch.uint8), [0, 4], [8, 0], [4, 4])
    assert target.tolist() == [8, 9, 10, 11, 0, 1, 2, 3] + [0] * 8
    large, long = torch.zeros(60_000, dtype=torch.uint8), torch.randint(1, 256, (60_000,), dtype=torch.uint8)
    copy.copy_ranges(large, long, [3], [5], [50_000])
    assert torch.equal(large[3:50_003], long[5:50_005])
    assert not large[:3].any()
    assert not large[50_003:].any()


def seen(check):
    """Whether `check` fails, in a process of its own: a planted bug may write anywhere."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        torch.set_num_threads(1)
        try:
            check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def see_checks():
    good = ([0, 60], [0, 56], [4, 4])
    checked_ranges(64, 60, *good)
    for column, value in ((0, 61), (0, -1), (1, 57), (1, -1), (2, 5), (2, -1)):
        bad = [list(x) for x in good]
        bad[column][1] = value
        with pytest.raises(ValueError, match="range 1 "):
            checked_ranges(64, 60, *bad)
    spans = np.array([[4, 8], [10, 12]])
    for at, size, first in ((4, 4, -1), (10, 2, -1), (3, 1, 0), (4, 5, 0), (7, 4, 0), (8, 1, 0), (12, 1, 0), (9, 0, -1)):
        assert first_astray(np.array([at]), np.array([size]), spans) == first


# ---- planted in the native library: (source, instruction set, [(old, new)], what sees it)

PLANTED = [
    ("walk.h", "portable", [("for (i64 i = r.k; i-- > 0;)", "for (i64 i = 0; i < r.k; ++i)")], see_lives),
    ("walk.h", "portable", [("static_cast<i64>(position) < r.length", "static_cast<i64>(position) <= r.length")], see_lives),
    ("walk.h", "portable", [("p >= 0 && p < r.keep", "p >= 0")], see_lives),
    ("variant.cpp", "portable", [("if (l.dropped) empty_first(r, l);", "")], see_lives),
    ("variant.cpp", "portable", [("if (first != static_cast<u32>(at)) {", "if (false) {")], see_lives),
    ("variant.cpp", "portable", [("evicted += l.rest_positions[l.misses] >= 0;", "++evicted;")], see_lives),
    ("variant.cpp", "portable", [("blank_words(r.miss_slots + l.misses, r.k - l.misses);", "")], see_lives),
    ("variant.cpp", "portable", [("move_words(order + untouched, missed", "move_words(order + untouched + l.hits, missed"),
                             ("move_words(order + l.rest, hits", "move_words(order + untouched, hits")], see_lives),
    ("residency.cpp", "portable", [("s->attempts[row] != s->nonces[e]", "false")], see_lives),
    ("residency.cpp", "portable", [("std::min(s->keep[e], s->lengths[e])", "s->lengths[e]")], see_lives),
    ("residency.cpp", "portable", [("std::min(s->keep[e], s->lengths[e])", "s->keep[e]")], see_lives),
    ("residency.cpp", "portable", [("next_ += static_cast<u32>(k);", "++next_;")], see_lives),
    ("residency.cpp", "portable", [("if (n > s->hot)", "if (n > s->hot + 9)")], see_lives),
    ("residency.cpp", "portable", [("gone = positions[i] < 0 || positions[i] >= keep", "gone = positions[i] < 0")], see_lives),
    ("residency.cpp", "portable", [("if (s->attempts[row] == s->nonces[e])", "")], see_lives),
    ("residency.cpp", "portable", [("if (seen[static_cast<std::size_t>(row)])", "if (false)")], see_bad_values),
    ("residency.cpp", "portable", [("s->nonces[e] < 1", "false")], see_bad_values),
    ("residency.cpp", "portable", [("s->keep[e] < 0", "false")], see_bad_values),
    ("rows.cpp", "portable", [("target >= s->targets", "target > s->targets")], see_rows),
    ("rows.cpp", "portable", [("source >= s->sources", "source > s->sources")], see_rows),
    ("rows.cpp", "portable", [("target == -1 && s->skip", "target < 0 && s->skip")], see_rows),
    ("rows.cpp", "portable", [("target == -1 && s->skip", "target == -1")], see_rows),
    ("rows.cpp", "portable", [("position / s->block >= s->table_width", "false")], see_rows),
    ("rows.cpp", "portable", [("block >= s->sources / s->block", "block > s->sources / s->block")], see_rows),
    ("rows.cpp", "portable", [("slot >= s->hot", "slot > s->hot")], see_rows),
    ("rows.cpp", "portable", [("row >= s->targets / s->hot", "row > s->targets / s->hot")], see_rows),
    ("ranges.cpp", "portable", [(" && source[i] == last.source + last.size", "")], see_ranges),
    ("ranges.cpp", "portable", [("if (size < 0 || ", "if (")], see_checks),
    ("ranges.cpp", "portable", [("target_offsets[i] < 0 || ", "")], see_checks),
    ("ranges.cpp", "portable", [("source_offsets[i] < 0 || ", "")], see_checks),
    ("ranges.cpp", "portable", [("target_offsets[i] > target_size - size || ", "")], see_checks),
    ("ranges.cpp", "portable", [(" || source_offsets[i] > source_size - size)", ")")], see_checks),
    ("ranges.cpp", "portable", [("after == begin || ", "after != begin && ")], see_checks),
    ("ranges.cpp", "portable", [("at > (after - 1)->last - lengths[i]", "at >= (after - 1)->last")], see_checks),
    ("ranges.cpp", "portable", [("value < span.first", "value <= span.first")], see_checks),
    ("ranges.cpp", "portable", [("if (lengths[i] <= 0) continue;", "")], see_checks),
    ("stream.h", "avx2", [("std::memcpy(to, from, static_cast<std::size_t>(head));", "")], see_ranges),
    ("stream.h", "avx512", [("size >= LANE; to", "size > 0; to")], see_ranges),
    ("walk.h", "avx2", [("t.lane[mask][n++] = bit;", "t.lane[mask][n++] = bit ^ 1;")], see_lives),
    ("walk.h", "avx2", [("_mm256_and_si256(there, _mm256_cmpgt_epi32(keep, p))", "there")], see_lives),
    ("walk.h", "avx2", [("r.k > 0 && at + 8 <= r.hot; at += 8", "at < r.hot - 7; at += 16")], see_lives),
    ("walk.h", "avx512", [("_mm512_mask_cmplt_epu32_mask(kept, d, k)", "_mm512_cmplt_epu32_mask(d, k)")], see_lives),
    ("walk.h", "avx512", [("dropped |= _mm512_mask_cmpge", "_mm512_mask_cmpge")], see_lives),
    ("walk.h", "avx512", [("_mm512_mask_cmplt_epu64_mask(low", "_mm512_mask_cmplt_epi64_mask(low")], see_lives),
    ("lic8.h", "portable", [("0xfff + (b >> 13 & 1)", "0x1000")], see_lic8),
    ("lic8.h", "portable", [("q > 127 ? 127 : q < -127 ? -127 : q", "q")], see_lic8),
    ("lic8.h", "portable", [("bits_of(x / scale + 12582912.0f) - bits_of(12582912.0f)", "x / scale")], see_lic8),
    ("lic8.h", "portable", [("*scale = spoilt ? HALF_NAN : half;", "*scale = half;")], see_lic8),
    ("lic8.h", "portable", [("if (spoilt || half == 0)", "if (spoilt)")], see_lic8),
    ("lic8.h", "portable", [("if (b < 0x38800000)", "if (false)")], see_lic8),
    ("lic8.h", "portable", [("if (exponent == 0)", "if (false)")], see_lic8),
    ("lic8.h", "avx2", [("_mm_set1_epi16(-127)", "_mm_set1_epi16(-128)")], see_lic8),
    ("lic8.h", "avx2", [("_mm256_extracti128_si256(w, 1)", "_mm256_extracti128_si256(w, 0)")], see_lic8),
    ("lic8.h", "avx2", [("for (; i < width; ++i) x[i]", "for (; i < width - 1; ++i) x[i]")], see_lic8),
    ("lic8.h", "avx512", [("_mm512_set1_epi32(-127)", "_mm512_set1_epi32(-128)")], see_lic8),
    ("lic8.h", "avx512", [("for (const u32 one : each) most = one > most ? one : most;", "most = each[0];")], see_lic8),
    ("quantize.cpp", "portable", [("s->rows + row * s->row_stride", "s->rows + row * s->width")], see_lic8),
    ("quantize.cpp", "portable", [("s->scales[row * s->scale_stride]", "s->scales[row]")], see_lic8),
]  # fmt: skip


def compiled(folder, source, isa, changes, *flags):
    """The object that `changes` of `source` alter, under the name that it has in a library."""
    copy_of = shutil.copytree(NATIVE, folder / "native")
    text = (copy_of / source).read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{source} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    (copy_of / source).write_text(text)
    name = Path(source).stem
    if name in SOURCES:
        return {name: compile_object(copy_of / source, folder / "planted.o", *flags)}
    of_variant = [f"-DTG_VARIANT={isa}_variant", *FLAGS[isa]]
    return {isa: compile_object(copy_of / "variant.cpp", folder / "planted.o", *of_variant, *flags)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Objects of a library per instruction set: for "portable" of that alone, as on a machine without the others."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("portable", "all")}
    sets = {"portable": ("portable",), "all": tuple(native_sets())}
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(folders, threads.map(lambda name: compile_native(folders[name], only=sets[name]), folders), strict=True))


def use(monkeypatch, path, isa):
    native = dispatch.Native(dispatch.bind(path), dispatch.SETS[isa])
    monkeypatch.setattr(dispatch, "_native", lambda name: native)


@needs_compiler
@pytest.mark.parametrize("isa", native_sets())
def test_the_oracles_are_content_with_what_is_built(built, tmp_path, monkeypatch, isa):
    objects = built["portable" if isa == "portable" else "all"]
    use(monkeypatch, link(objects, tmp_path / "library.so"), isa)
    for check in (see_lives, see_bad_values, see_rows, see_ranges, see_lic8):
        check()


@needs_compiler
@pytest.mark.parametrize(("source", "isa", "changes", "check"), PLANTED)
def test_a_planted_bug_is_seen(built, tmp_path, monkeypatch, source, isa, changes, check):
    if isa not in native_sets():
        pytest.skip(f"this CPU has no {isa}")
    objects = built["portable" if isa == "portable" else "all"] | compiled(tmp_path, source, isa, changes)
    use(monkeypatch, link(objects, tmp_path / "library.so"), isa)
    assert seen(check)


# ---- planted in the torch versions

PLANTED_TORCH = [
    ([("first = index.gather(1, torch.searchsorted(value, wanted))", "first = torch.arange(k).expand_as(index)")], see_lives),
    ([("(asked < length), asked", "(asked <= length), asked")], see_lives),
    ([("torch.minimum(keep.to(device)[:, None], length)", "length")], see_lives),
    ([("torch.minimum(keep.to(device)[:, None], length)", "keep.to(device)[:, None]")], see_lives),
    ([("(positions >= 0).int() + hit", "hit.int()")], see_lives),
    ([("lead = (first == torch.arange(k, device=asked.device)) & (wanted < PADDING)", "lead = wanted < PADDING")], see_lives),
    ([("(victim & (positions >= 0)).sum(1)", "victim.sum(1)")], see_lives),
    ([("mine = (table.attempts[place] == nonce)[:, None]", "mine = (table.attempts[place] > 0)[:, None]")], see_lives),
    ([("    table.attempts[place] = nonce\n", "")], see_lives),
    ([("torch.where(hit, here, here - misses)", "torch.where(hit, here - misses, here - misses)"),
      ("here + rest - misses", "here + len(hit[0]) - misses")], see_lives),
    ([("| ~mine", "")], see_lives),
    ([("_refuse(a.lead.sum(1) > hot,", "_refuse(a.lead.sum(1) > hot + 9,")], see_lives),
    ([("first[rows.clamp(0, count - 1)] < torch.arange(n)", "rows < -99")], see_bad_values),
    ([('targets >= known["targets"]', 'targets > known["targets"]')], see_rows),
    ([('sources >= known["sources"]', 'sources > known["sources"]')], see_rows),
    ([("(targets == -1) if skip", "(targets < 0) if skip")], see_rows),
    ([("last[:-1] = value[1:] != value[:-1]", "last[1:] = value[1:] != value[:-1]")], see_rows),
    ([('position >= known["width"] * block', "position < -99")], see_rows),
    ([('number >= known["blocks"]', 'number > known["blocks"]')], see_rows),
    ([("slot >= hot)", "slot > hot)")], see_rows),
    ([("torch.full_like(most, 127)", "torch.full_like(most, 128)")], see_lic8),
    ([(".round()", ".trunc()")], see_lic8),
    ([("scale.isfinite()", "~scale.isnan()")], see_lic8),
    ([("q.clamp(-127, 127)", "q.clamp(-128, 127)")], see_lic8),
    ([("rows.float() * scales.float()", "(rows.half() * scales).float()")], see_lic8),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "check"), PLANTED_TORCH)
def test_a_bug_planted_in_torch_is_seen(tmp_path, monkeypatch, changes, check):
    text = Path(reference.__file__).read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"reference.py has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    (tmp_path / "planted.py").write_text(text)
    specification = importlib.util.spec_from_file_location("planted", tmp_path / "planted.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(residency, "reference", module)
    monkeypatch.setattr("tidegate.kernels.rows.reference", module)
    monkeypatch.setattr("tidegate.kernels.lic8.reference", module)
    with dispatch.forced("torch"):
        assert seen(check)


# ---- sanitizers: the driver compares instruction sets and thread counts while they watch

SANITIZERS = {"address,undefined": ["-fno-sanitize-recover=all"], "thread": []}
UNSOUND = [
    ("address,undefined", "residency.cpp", "portable", [("work_words(hot, k)))", "work_words(hot, k) - SLACK))")], "AddressSanitizer"),
    ("address,undefined", "walk.h", "portable", [("if (n > 0) std::memset", "if (n > -1) std::memset")], "null pointer"),
    ("thread", "rows.cpp", "portable", [(": (target >> 3) % workers()", ": source % workers()")], "data race"),
    ("thread", "ranges.cpp", "portable", [("if (workers > 1 && !targets_are_disjoint(runs)) workers = 1;", "")], "data race"),
    ("address,undefined", "lic8.h", "avx512", [("i + WIDE <= width; i += WIDE) store_product", "i < width; i += WIDE) store_product")],
     "AddressSanitizer"),
    ("thread", "quantize.cpp", "portable", [("row = n * worker / workers;", "row = 0;")], "data race"),
    ("thread", "residency.cpp", "portable", [("all[static_cast<std::size_t>(worker)]);", "all[0]);")], "data race"),
]  # fmt: skip


def sanitizing(kind):
    return ["-O1", "-g", f"-fsanitize={kind}", *SANITIZERS[kind]]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Objects of the library and its driver under each sanitizer."""

    def build(kind):
        folder = tmp_path_factory.mktemp("watched")
        objects = compile_native(folder, *sanitizing(kind))
        return objects | {"driver": compile_object(DRIVER, folder / "driver.o", *sanitizing(kind))}

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(SANITIZERS, threads.map(build, SANITIZERS), strict=True))


def drive(objects, folder, kind):
    program = link(objects, folder / "driver", *sanitizing(kind), shared=False)
    first = {"TSAN_OPTIONS": "halt_on_error=1"}  # a race in a loop would be reported for minutes
    return subprocess.run([program], capture_output=True, text=True, env=os.environ | first)


@needs_compiler
@pytest.mark.parametrize("kind", SANITIZERS)
def test_sanitizers_report_nothing(watched, tmp_path, kind):
    done = drive(watched[kind], tmp_path, kind)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(native_sets())} instruction sets" in done.stdout


@needs_compiler
@pytest.mark.parametrize(("kind", "source", "isa", "changes", "report"), UNSOUND)
def test_sanitizers_report_what_is_planted(watched, tmp_path, kind, source, isa, changes, report):
    if report == "AddressSanitizer" and "avx512" not in native_sets():
        pytest.skip("only vector stores run past what counts")
    done = drive(watched[kind] | compiled(tmp_path, source, isa, changes, *sanitizing(kind)), tmp_path, kind)
    assert done.returncode != 0
    assert report in done.stderr


# ---- what runs


@pytest.fixture
def environment(monkeypatch):
    """Sets TIDEGATE_KERNELS as if the process had begun with it."""

    def begin(value):
        monkeypatch.setenv("TIDEGATE_KERNELS", value)
        dispatch._default.cache_clear()

    yield begin
    monkeypatch.undo()
    dispatch._default.cache_clear()


def test_the_environment_names_what_runs(environment):
    for name in dispatch.available():
        environment(name)
        assert dispatch.chosen() == name
    environment("")
    assert dispatch.chosen() == dispatch.available()[0]
    environment("sse9")
    with pytest.raises(ValueError, match=f"TIDEGATE_KERNELS is 'sse9': this machine and install have {', '.join(dispatch.available())}"):
        Residency(1, 1).step(torch.tensor([[0]]), [1], [1])


def test_what_cannot_be_had_cannot_be_forced(monkeypatch):
    monkeypatch.setattr(dispatch, "native_library", lambda: None)  # an install without a compiler
    dispatch.available.cache_clear()
    try:
        assert dispatch.available() == ("torch",)
        with pytest.raises(ValueError, match="'portable': this machine and install have torch"), dispatch.forced("portable"):
            pass
    finally:
        dispatch.available.cache_clear()


def test_memory_of_another_device_goes_to_torch():
    assert dispatch.native_for(torch.zeros(1, device="meta")) is None
    assert dispatch.native_for(torch.zeros(1), torch.zeros(1, device="meta")) is None
    with pytest.raises(ValueError, match="asked is on cpu, the table on meta"):
        Residency(1, 2, device="meta").step(torch.tensor([[1]]), [2], [1])


@needs_compiler
def test_a_library_of_other_sources_is_refused(built, tmp_path):
    changes = [("sizeof(tg_step)", "sizeof(tg_step) + 8")]
    path = link(built["portable"] | compiled(tmp_path, "dispatch.cpp", "portable", changes), tmp_path / "library.so")
    with pytest.raises(OSError, match="built from other sources than this package: install it again"):
        dispatch.bind(path)
