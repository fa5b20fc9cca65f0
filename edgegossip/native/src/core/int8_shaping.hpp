// What moves int8 values, or compares them with their zero point, and so leaves scales and zero points as they are.
#pragma once

#include <cstdint>

namespace edgegossip {

// Every `step`th of a dimension, `count` of them, from `first` on.
struct Range {
    int64_t first, step, count;
};

struct SliceShape {
    int64_t height, width, channels;
    Range rows, columns, taken;

    int64_t in_size() const { return height * width * channels; }  // of a sample
    int64_t out_size() const { return rows.count * columns.count * taken.count; }
};

// out[y][x][c] = q[row y][column x][channel c], of one sample.
void slice_map(const SliceShape& shape, const int8_t* q, int8_t* out);

// [pixels][channels] -> [channels][pixels], of one sample: the order of torch's flatten.
void flatten_map(const int8_t* q, int64_t pixels, int64_t channels, int8_t* out);

// out = max(q, zero).
void relu_map(const int8_t* q, int64_t size, int32_t zero, int8_t* out);

}  // namespace edgegossip
