#include "int8/winograd.hpp"

#include "int8/work.hpp"

namespace edgegossip {

namespace {

constexpr int64_t PRODUCTS = 16;           // of a tile, where the taps alone have 36
constexpr int64_t MOST_CHANNELS = 1024;    // sums of a tile's products, and four times a result, fit into an int32
constexpr int64_t LEAST_CHANNELS = 32;     // of a tap, and outputs: with fewer, to make tiles takes what they save
constexpr int64_t LEAST_PIXELS = 64;       // of a map: with fewer, to make the weights does, of which there are almost twice as many
constexpr int64_t NEAR_BYTES = 192 << 10;  // what a second-level cache has for a block of tiles
constexpr int64_t LEAST_TILES = 36;        // that are worth fetching weights for

}  // namespace

bool takes_tiles(const Int8& kernels, const Panels& p, int64_t taps, int64_t channels, int64_t height, int64_t width) {
    const bool three_by_three = p.rows == 3 && taps == 3, whole = height % 2 == 0 && width % 2 == 0 && channels % INT8_PANEL == 0;
    return kernels.gemm_bytes == nullptr && three_by_three && whole && channels >= LEAST_CHANNELS && channels <= MOST_CHANNELS &&
           p.panels * INT8_PANEL >= LEAST_CHANNELS && height * width >= LEAST_PIXELS;
}

void tile_weights(const Int8& kernels, Panels& p) {
    p.tiled.need(PRODUCTS * p.size() / 9);
    kernels.winograd_weights(p.values.data(), p.panels, p.steps / 3, p.tiled.data());
}

void multiply_tiles(const Int8& kernels, const Panels& p, ConvWork& work, const std::vector<int64_t>& places, int64_t pixels, int64_t width, int64_t row,
                    int32_t* acc) {
    const int64_t pairs = p.steps / 3, channels = 2 * pairs, outputs = p.panels * INT8_PANEL, tiles = pixels / 4, across = width / 2;
    const int64_t bytes = PRODUCTS * (channels * int64_t(sizeof(int16_t)) + outputs * int64_t(sizeof(int32_t)));
    const int64_t together = std::min(std::max(NEAR_BYTES / bytes, LEAST_TILES), tiles);
    work.tiles.need(PRODUCTS * together * channels + INT8_SLACK);
    work.tile_sums.need(PRODUCTS * together * outputs);
    std::vector<int64_t> first(static_cast<size_t>(together)), at(first.size()), rows(first.size());
    for (int64_t t = 0; t < together; t++) rows[size_t(t)] = t * channels;
    for (int64_t begin = 0; begin < tiles; begin += together) {
        const int64_t some = std::min(together, tiles - begin);
        for (int64_t t = 0; t < some; t++) {
            // Samples have even heights, so their rows of tiles go on one after the other.
            first[size_t(t)] = (begin + t) / across * 2 * width + (begin + t) % across * 2;
            at[size_t(t)] = places[size_t(first[size_t(t)])];
        }
        kernels.winograd_inputs(work.wide.data(), at.data(), some, row, channels, work.tiles.data());
        for (int64_t j = 0; j < PRODUCTS; j++)
            kernels.gemm(work.tiles.data() + j * some * channels, rows.data(), some, 1, 0, pairs, p.tiled.data() + j * p.size() / 9, p.panels,
                         work.tile_sums.data() + j * some * outputs, outputs);
        kernels.winograd_outputs(work.tile_sums.data(), some, first.data(), width, outputs, acc);
    }
}

}  // namespace edgegossip
