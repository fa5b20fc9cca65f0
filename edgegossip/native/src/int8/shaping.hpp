// What moves int8 values, or compares them with their zero point, and so leaves scales and zero points as they are: slices, ReLU, padding.
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

// [pixels][channels] -> [channels][pixels], of one sample: the order of torch's flatten.
void flatten_map(const int8_t* q, int64_t pixels, int64_t channels, int8_t* out);

// out[y][x][c] = q[row y][column x][channel c], of one sample.
void slice_map(const SliceShape& shape, const int8_t* q, int8_t* out);

// The same, and its gradient, of a batch: dx[row y][column x][channel c] = g[y][x][c], zeros elsewhere. Pixels of g are `pitch` floats
// apart, so that it may be a part of more channels.
void slice_maps(const SliceShape& shape, int64_t batch, const int8_t* q, int8_t* out, int threads);
void slice_backward(const SliceShape& shape, int64_t batch, const float* g, int64_t pitch, float* dx, int threads);

// out = max(q, zero), of one sample.
void relu_map(const int8_t* q, int64_t size, int32_t zero, int8_t* out);

// The same, and its gradient, of a batch: dx = g where q, which may be the output, is above zero, else 0.
void relu_maps(const int8_t* q, const int32_t* zero, int64_t batch, int64_t size, int8_t* out, int threads);
void relu_backward(const int8_t* q, const int32_t* zero, int64_t batch, int64_t size, const float* g, float* dx, int threads);

struct PadShape {
    int64_t batch, height, width, channels;
    int64_t above, below, before, after, first, last;  // zeros: rows, columns, channels

    int64_t out_channels() const { return first + channels + last; }
    int64_t out_row() const { return (before + width + after) * out_channels(); }
    int64_t in_size() const { return height * width * channels; }  // of a sample
    int64_t out_size() const { return (above + height + below) * out_row(); }
};

// out[above + y][before + x][first + c] = q[y][x][c], and the sample's zero point elsewhere.
void pad_maps(const PadShape& shape, const int8_t* q, const int32_t* zero, int8_t* out, int threads);

}  // namespace edgegossip
