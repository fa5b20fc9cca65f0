#include "int8/winograd.hpp"

#include <algorithm>

#include "int8/work.hpp"

namespace edgegossip {

namespace {

// What tiles of two by two outputs and of four by four are for.
constexpr int64_t MOST_CHANNELS[] = {1024, 32};  // sums of a tile's products, and results before their last shift, fit into an int32
constexpr int64_t LEAST_PIXELS[] = {64, 256};    // of a map: with fewer, to make the weights takes what they save
// Tiles at a time: enough to be worth fetching weights for, and few enough for a second-level cache. Not a power of two: the arrays
// of their products would lie in the same places of the first one.
constexpr int64_t TOGETHER = 36;

int64_t places_of(const Winograd& tile) { return (tile.side + 2) * (tile.side + 2); }

const Winograd* tile_for(const Int8& kernels, int64_t channels, int64_t height, int64_t width) {
    for (const int large : {1, 0}) {
        const Winograd& tile = large ? kernels.tiles_of_4 : kernels.tiles_of_2;
        const bool whole = height % tile.side == 0 && width % tile.side == 0;
        if (whole && channels <= MOST_CHANNELS[large] && height * width >= LEAST_PIXELS[large]) return &tile;
    }
    return nullptr;
}

}  // namespace

void tile_weights(const Int8& kernels, int64_t taps, int64_t channels, int64_t height, int64_t width, Panels& p) {
    if (kernels.gemm_bytes != nullptr || p.rows != 3 || taps != 3 || channels % INT8_PANEL != 0) return;
    p.tile = tile_for(kernels, channels, height, width);
    if (p.tile == nullptr) return;
    p.tiled.need(places_of(*p.tile) * p.size() / 9);
    p.tile->weights(p.values.data(), p.panels, p.steps / 3, p.tiled.data());
}

void multiply_tiles(const Int8& kernels, const Panels& p, ConvWork& work, const std::vector<int64_t>& places, int64_t pixels, int64_t width, int64_t row,
                    int32_t* acc) {
    const Winograd& tile = *p.tile;
    const int64_t pairs = p.steps / 3, channels = 2 * pairs, outputs = p.panels * INT8_PANEL, count = places_of(tile);
    const int64_t tiles = pixels / (tile.side * tile.side), together = std::min(TOGETHER, tiles);
    work.tiles.need(count * together * channels + INT8_SLACK);
    work.tile_sums.need(count * together * outputs);
    std::vector<int64_t> first(static_cast<size_t>(together)), at(first.size()), rows(first.size());
    for (int64_t t = 0; t < together; t++) rows[size_t(t)] = t * channels;
    // The heights of samples are whole tiles, so their rows of tiles go on one after the other.
    for (int64_t begin = 0, pixel = 0, end_of_row = width; begin < tiles; begin += together) {
        const int64_t some = std::min(together, tiles - begin);
        for (int64_t t = 0; t < some; t++, pixel += tile.side) {
            if (pixel == end_of_row) {
                pixel += (tile.side - 1) * width;
                end_of_row += tile.side * width;
            }
            first[size_t(t)] = pixel;
            at[size_t(t)] = places[size_t(pixel)];
        }
        tile.inputs(work.wide.data(), at.data(), some, row, channels, work.tiles.data());
        for (int64_t j = 0; j < count; j++)
            kernels.gemm(work.tiles.data() + j * some * channels, rows.data(), some, 1, 0, pairs, p.tiled.data() + j * p.size() / 9, p.panels,
                         work.tile_sums.data() + j * some * outputs, outputs);
        tile.outputs(work.tile_sums.data(), some, first.data(), width, outputs, acc);
    }
}

}  // namespace edgegossip
