// int8 maps with zeros around them.
#pragma once

#include <cstdint>

namespace edgegossip {

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
