// What is compiled once per instruction set (see variant.h): the table, and one row's step of residency.
//
// Residency keeps the order of eviction itself, as two parallel arrays, and walks it once per step.  A map from position to
// slot would be O(k) but is a random access to memory of each row and layer; the marks here belong to a thread, stay in its
// cache over all rows and layers, and everything else is streamed.
#include "variant.h"

#include "stream.h"
#include "walk.h"

#include "lic8.h"

namespace {

// Dropped entries join the empty ones, which come before all others; their own order stays.  The hits are in the order
// already and have been copied, so its memory serves as the place to sort in.
void empty_first(const Residency& r, Lists& l) {
    i64 empty = 0;
    for (i64 i = 0; i < l.rest; ++i) empty += l.rest_positions[i] < 0;
    i64 to[2] = {empty, 0};
    for (i64 i = 0; i < l.rest; ++i) {
        const i64 at = to[l.rest_positions[i] < 0]++;
        r.positions[at] = l.rest_positions[i];
        r.slots[at] = l.rest_slots[i];
    }
    move_words(l.rest_positions, r.positions, l.rest);
    move_words(l.rest_slots, r.slots, l.rest);
}

// Positions asked that have no slot yet are misses, or repeats of one that has, whose mark says where it is asked first.
template <class T>
void give_slots(Residency& r, const T* asked, Lists& l) {
    i32 evicted = 0;
    for (i64 o = 0; o < l.opened; ++o) {
        const i32 at = l.open[o], position = static_cast<i32>(asked[at]);
        const u32 first = r.mark[position] - r.base;
        if (first != static_cast<u32>(at)) {
            r.out[at] = r.out[first];
            continue;
        }
        const i32 slot = l.rest_slots[l.misses];
        evicted += l.rest_positions[l.misses] >= 0;
        r.out[at] = r.miss_slots[l.misses] = slot;
        r.miss_positions[l.misses++] = position;
    }
    blank_words(r.miss_positions + l.misses, r.k - l.misses);
    blank_words(r.miss_slots + l.misses, r.k - l.misses);
    r.hits = static_cast<i32>(l.hits);
    r.misses = static_cast<i32>(l.misses);
    r.evictions = evicted;
}

// The new order: untouched entries, then misses as they were asked, then hits in their old order.
void reorder(const Residency& r, const Lists& l) {
    const i64 untouched = l.rest - l.misses;
    auto write = [&](i32* order, const i32* rest, const i32* missed, const i32* hits) {
        move_words(order, rest + l.misses, untouched);
        move_words(order + untouched, missed, l.misses);
        move_words(order + l.rest, hits, l.hits);
    };
    write(r.positions, l.rest_positions, r.miss_positions, l.hit_positions);
    write(r.slots, l.rest_slots, r.miss_slots, l.hit_slots);
}

template <class T>
void residency_of(Residency& r) {
    const T* asked = static_cast<const T*>(r.asked);
    Lists l(r);
    blank_words(r.out, r.k);
    mark_asked(r, asked);
    walk(r, l);
    if (l.dropped) empty_first(r, l);
    find_open(r, asked, l);
    give_slots(r, asked, l);
    reorder(r, l);
}

void residency(Residency& r) { r.wide ? residency_of<i64>(r) : residency_of<i32>(r); }

}  // namespace

const Variant TG_VARIANT = {residency, stream, quantize, dequantize};
