// Many rows to 8-bit integers and back: threads around the loops of variant.cpp (what they compute: lic8.h).
#include <algorithm>

#include "tidegate.h"
#include "variant.h"
#include "workers.h"

namespace {

using i64 = std::int64_t;

constexpr i64 WORTH_A_THREAD = 1 << 17;  // elements; below it starting a thread takes longer than its share

// f(row) for rows 0..n, in as many stretches as are worth it.
template <class F>
void each_row(i64 n, i64 width, i64 threads, const F& f) {
    const i64 workers = std::max<i64>(1, std::min({threads, n, n * width / WORTH_A_THREAD + 1}));
    run_workers(workers, [&](i64 worker) {
        for (i64 row = n * worker / workers; row < n * (worker + 1) / workers; ++row) f(row);
    });
}

}  // namespace

void tg_quantize(const tg_quantize_args* s) {
    const Variant& how = variant(s->isa);
    each_row(s->n, s->width, s->threads, [&](i64 row) {
        how.quantize(s->source + row * s->source_stride, s->source_size == 4, s->width, s->rows + row * s->width, s->scales + row);
    });
}

void tg_dequantize(const tg_dequantize_args* s) {
    const Variant& how = variant(s->isa);
    each_row(s->n, s->width, s->threads, [&](i64 row) {
        how.dequantize(s->rows + row * s->row_stride, s->scales[row * s->scale_stride], s->width, s->target + row * s->width);
    });
}
