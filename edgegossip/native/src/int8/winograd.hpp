// Convolutions of 3x3 taps by tiles of two by two or four by four outputs (kernels/winograd.inc): the same sums from fewer products.
#pragma once

#include <cstdint>
#include <vector>

#include "int8/pack.hpp"

namespace edgegossip {

// Sets panels.tile, and fills panels.tiled from panels.values, where products of `channels` values a tap with these panels, whose rows
// are one position apart, are worth making by tiles for maps of that size.
void tile_weights(const Int8& kernels, int64_t taps, int64_t channels, int64_t height, int64_t width, Panels& panels);

// As multiply() (work.hpp), of rows of `width` outputs; a row of acc has whole panels.
void multiply_tiles(const Int8& kernels, const Panels& panels, struct ConvWork& work, const std::vector<int64_t>& places, int64_t pixels,
                    int64_t width, int64_t row, int32_t* acc);

}  // namespace edgegossip
