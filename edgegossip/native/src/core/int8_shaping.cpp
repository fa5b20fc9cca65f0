#include "int8_shaping.hpp"

#include <algorithm>
#include <cstring>

namespace edgegossip {

void slice_map(const SliceShape& s, const int8_t* q, int8_t* out) {
    for (int64_t y = 0; y < s.rows.count; y++)
        for (int64_t x = 0; x < s.columns.count; x++) {
            const int64_t row = s.rows.first + y * s.rows.step, column = s.columns.first + x * s.columns.step;
            const int8_t* const from = q + (row * s.width + column) * s.channels + s.taken.first;
            if (s.taken.step == 1)
                std::memcpy(out, from, size_t(s.taken.count));
            else
                for (int64_t c = 0; c < s.taken.count; c++) out[c] = from[c * s.taken.step];
            out += s.taken.count;
        }
}

void flatten_map(const int8_t* q, int64_t pixels, int64_t channels, int8_t* out) {
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < pixels; k++) *out++ = q[k * channels + c];
}

void relu_map(const int8_t* q, int64_t size, int32_t zero, int8_t* out) {
    const int8_t least = int8_t(zero);
    for (int64_t k = 0; k < size; k++) out[k] = std::max(q[k], least);
}

}  // namespace edgegossip
