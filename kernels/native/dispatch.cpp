// What the library is: the instruction sets compiled in and on this CPU, and the sizes of its structures.
#include "tidegate.h"
#include "variant.h"

const Variant& variant(std::int64_t isa) {
#ifdef TG_X86
    if (isa == TG_AVX512) return avx512_variant;
    if (isa == TG_AVX2) return avx2_variant;
#endif
    (void)isa;
    return portable_variant;
}

std::int64_t tg_isas() {
    std::int64_t found = 1 << TG_PORTABLE;
#ifdef TG_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    if (avx2) found |= 1 << TG_AVX2;
    if (avx2 && avx512) found |= 1 << TG_AVX512;
#endif
    return found;
}

std::int64_t tg_sizes(std::int64_t i) {
    const std::int64_t sizes[] = {sizeof(tg_step), sizeof(tg_truncate_args), sizeof(tg_part), sizeof(tg_rows), sizeof(tg_misses),
                                  sizeof(tg_quantize_args), sizeof(tg_dequantize_args)};
    return i >= 0 && i < 7 ? sizes[i] : -1;
}
