#include "codec/quantiser.hpp"

namespace edgegossip {

namespace {

bool between(int64_t value, int64_t low, int64_t high) { return low <= value && value <= high; }

const char* list_error(const Quantiser& q) {
    if (!between(q.bits, 2, 8)) return "bits must be 2 to 8 for this kind";
    if (q.list == nullptr || !between(q.list_count, 2, int64_t(1) << (q.bits - 1)))
        return "the list must have 2 to 2^(bits - 1) levels";
    if (q.list[0] != 0.0f || q.list[q.list_count - 1] != 1.0f) return "the list must start at 0 and end at 1";
    for (int32_t j = 1; j < q.list_count; j++)
        if (!(q.list[j - 1] < q.list[j])) return "the list must increase";
    return nullptr;
}

}  // namespace

const char* quantiser_error(const Quantiser& q) {
    if (q.bucket != 0 && (!between(q.bucket, 8, QUANTISE_BLOCK) || (q.bucket & (q.bucket - 1)) != 0))
        return "bucket must be 0 or a power of two from 8 to 65536";
    switch (q.kind) {
        case UNIFORM:
            if (!between(q.bits, 2, 16)) return "bits must be 2 to 16 for this kind";
            return between(q.levels, 1, (int64_t(1) << (q.bits - 1)) - 1) ? nullptr : "levels must be 1 to 2^(bits - 1) - 1";
        case LOG2:
            if (!between(q.bits, 2, 8)) return "bits must be 2 to 8 for this kind";
            return between(q.levels, 0, (int64_t(1) << (q.bits - 1)) - 2) ? nullptr : "levels must be 0 to 2^(bits - 1) - 2";
        case LEVELS: return list_error(q);
        case FP4:
            if (q.bucket != 0) return "bucket must be 0 for this kind";
            return q.bits == 4 ? nullptr : "bits must be 4 for this kind";
        case SIGN: return q.bits == 1 ? nullptr : "bits must be 1 for this kind";
        default: return "no such kind of quantiser";
    }
}

}  // namespace edgegossip
