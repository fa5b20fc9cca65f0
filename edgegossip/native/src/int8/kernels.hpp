#pragma once

#include <cstdint>

namespace edgegossip {

constexpr int64_t INT8_PANEL = 16;  // output channels of a panel of packed weights
constexpr int64_t INT8_SLACK = 64;  // values that may be read, and count for nothing, behind widened maps
constexpr int64_t FLOATS_OF_A_LINE = 16;  // of a cache

// How one sample is quantised: value = scale (q - zero), q int8. A scale of NaN says that the sample is not finite.
struct Affine {
    float scale;
    int32_t zero;
};

// One constant a channel for each of three uses, repeated `times` times, so that loops run over several pixels at once.
struct PerChannel {
    int64_t channels, times;
    const int32_t* offset;  // subtracted from integer sums
    const float* scale;
    const float* shift;
};

// Convolutions of 3x3 taps by tiles of side x side outputs: the same sums from products of (side + 2)^2 places (kernels/winograd.inc).
struct Winograd {
    int64_t side;
    // From int16[panels][9][pairs][16][2] to int16[places][panels][pairs][16][2].
    void (*weights)(const int16_t* values, int64_t panels, int64_t pairs, int16_t* out);
    // Tiles of a map, from x[at[t]] on, rows `row` and pixels `channels` values apart: int16[places][tiles][channels].
    void (*inputs)(const int16_t* x, const int64_t* at, int64_t tiles, int64_t row, int64_t channels, int16_t* out);
    // From the products' sums int32[places][tiles][channels] to acc[pixel][channels], a tile's pixels being from pixels[t] on, its rows
    // `width` apart.
    void (*outputs)(const int32_t* sums, int64_t tiles, const int64_t* pixels, int64_t width, int64_t channels, int32_t* acc);
};

// The place of a map inside a larger map of zeros, and which of its channels it is.
struct Placement {
    int64_t height, width, channels;  // of the source, int8[height][width][channels]
    int64_t first, count;             // the channels taken
    int64_t above, below, before, after;
};

constexpr int64_t PAIR_ROOM = 64;

// Weight gradients: out[o][t][i] += factor (sum over pixels of g x) over samples in order, i < run, for `taps` rows of taps, one row
// of x after the other. Pixel (y, 2 k + b) of a sample's x starts at (y + t) * x_row + (2 k + b) * x_pixel; its g is what
// Int8::pair_up makes.
struct PairProducts {
    int64_t samples, taps, rows, pairs;
    const int16_t* x;
    int64_t x_sample, x_row, x_pixel;
    const int16_t* g;
    int64_t g_sample;
    int16_t* room;        // for PAIR_ROOM values of every pair of x
    int64_t limit;        // so many pairs cannot overflow an int32
    const float* factor;  // [samples]
    int64_t outs, run;
    float* out;
    int64_t out_stride, out_tap;
    bool fresh;           // sums begin at -0, which changes nothing that is added, not at `out`
};

// Quads of a row of `width` columns, every `stride`th of them.
constexpr int64_t quads_of(int64_t width, int64_t stride) { return ((width + stride - 1) / stride + 3) / 4; }

// Weight gradients of products of bytes, for one row of taps: out[o][t][i] += factor (sum of g (x - bias)) over samples in
// order. x is what Int8::quads lays out, g what Int8::turned does, at tap 0; tap t finds its gradients t bytes before.
struct QuadProducts {
    int64_t samples, rows, quads;
    const int8_t* x;
    int64_t x_sample, x_row, x_quad;
    const int8_t* g;
    int64_t g_sample, g_row, g_out;
    int64_t low;              // from the high bytes of gradients of 16 bits to the low ones; 0: they have 8
    // What the sums lack, because every byte of x has too much: [samples][taps][outs], modulo 2^32, or as it is
    // where sums of gradients of 16 bits may not fit into an int32 (null where they all do).
    const int32_t* offsets;
    const double* wide_offsets;
    int64_t offsets_sample, offsets_tap;
    const float* factor;      // [samples]
    int64_t outs, taps, inputs;
    float* out;
    int64_t out_stride, out_tap;
    bool fresh;               // out = what it says above, not +=
};

// The gradient of ranges: of every chunk of pixels, gradient[c] goes in equal parts to the values that equal the highest of their
// group of `each` channels, and less it to those that equal the lowest.
struct RangeTies {
    const int8_t* q;  // [chunks][chunk][channels]
    int64_t chunks, chunk, channels, each;
    int64_t times;              // pixels taken together, a divisor of `chunk`
    const int8_t *high, *low;   // [chunks][channels], as group_extremes leaves them
    const float* gradient;      // [channels], the same in all channels of a group
    int8_t* extremes;           // room for 2 times channels of each
    int32_t* counts;
    float* shares;
};

// Range layer norm of a token of so many values: they are cut into `chunks` equal chunks, whose ranges, summed, times
// `factor` and the scale of the values, plus epsilon, stand for the deviation.
struct TokenNorm {
    int64_t features, chunks;
    float scale, factor, epsilon;
    const float *gamma, *beta;  // [features]; beta is not looked at backward
};

// Kernels of integer training (docs/int8.md). Maps are [height][width][channels]. Products and sums of integers are exact;
// float arithmetic is one operation after another in a fixed order, so that all results have the same bits everywhere.
struct Int8 {
    // q = clamp(trunc(x / scale + zero + 128.5), 0, 255) - 128, from the extremes of x and 0.
    Affine (*quantise)(const float* x, int64_t n, int8_t* q);

    // Values (acc - offset) scale + shift of rows of `channels` sums, `stride` apart, quantised as above. `values` is float[pixels * channels].
    Affine (*requantise)(const int32_t* acc, int64_t pixels, int64_t stride, const PerChannel& per, float* values, int8_t* q);

    // The same values as float, in rows `out_stride` apart.
    void (*scaled)(const int32_t* acc, int64_t pixels, int64_t stride, const PerChannel& per, float* out, int64_t out_stride);

    // Largest |g|; infinity or NaN when g holds one.
    float (*magnitude)(const float* g, int64_t n);

    // q = floor(g inverse + u) within +-127: stochastic rounding, u = the generator's number at first + i, in [0, 1), 24 bits of it.
    void (*round8)(const float* g, int64_t n, float inverse, uint64_t key, int64_t first, int8_t* q);

    // q = g inverse rounded to nearest even; |g inverse| < 2^15.
    void (*round16)(const float* g, int64_t n, float inverse, int16_t* q);

    // q = w inverse rounded to nearest even, |w inverse| < 128; their sum.
    int32_t (*codes)(const float* w, int64_t n, float inverse, int8_t* q);

    // most[i] = the larger of most[i] and the bits of |w[i]|, which are ordered as the numbers are.
    void (*magnitudes)(const float* w, int64_t n, uint32_t* most);

    // Four rows of weights, `step` apart, as bytes c = w inverse[i] rounded to nearest even: words[i] = the four, the first in
    // the lowest byte, sums[i] += all four. |w inverse| < 128.
    void (*words)(const float* w, int64_t step, const float* inverse, int64_t n, uint32_t* words, int32_t* sums);
    // The same of two rows, as 16 bits each, without sums.
    void (*pair_words)(const float* w, int64_t step, const float* inverse, int64_t n, uint32_t* words);

    // out[above + y][before + x][c] = map[y][x][first + c] - zero; 0 around it, and in INT8_SLACK values behind.
    void (*widen)(const int8_t* map, const Placement& at, int32_t zero, int16_t* out);

    // acc[p][16 k + l] = sum over rows r and i < 2 pairs of x[at[p] + r * row_step + i] * weight, for `panels` panels of
    // int16[rows][pairs][16][2].
    void (*gemm)(const int16_t* x, const int64_t* at, int64_t pixels, int64_t rows, int64_t row_step, int64_t pairs, const int16_t* weights,
                 int64_t panels, int32_t* acc, int64_t stride);

    // Products by tiles, of 3x3 taps.
    Winograd tiles_of_2, tiles_of_4;

    // The same with operands of 8 bits, four at a time, where one instruction multiplies and adds those; elsewhere null. Maps are
    // bytes q + byte_bias (x86-64 takes unsigned ones), so every weight counts byte_bias + zero times too much.
    int32_t byte_bias;
    // As widen: the bytes of map, and of zero around it and behind.
    void (*spread)(const int8_t* map, const Placement& at, int32_t zero, int8_t* out);
    // As gemm, for panels of int8[rows][quads][16][4]. A row's quads are those of `taps` taps, which lie side by side in x; places
    // of pixels rise by at least a tap.
    void (*gemm_bytes)(const int8_t* x, const int64_t* at, int64_t pixels, int64_t rows, int64_t row_step, int64_t quads, int64_t taps,
                       const int8_t* weights, int64_t panels, int32_t* acc, int64_t stride);

    void (*products)(const PairProducts& of);

    // Two neighbours of g, int16[rows][width][channels], side by side, with those of a tile of outputs behind one another:
    // int16[tiles][rows][pairs][outputs of a tile][2] of the first `outs` channels. An odd width ends with zeros.
    void (*pair_up)(const int16_t* g, int64_t rows, int64_t width, int64_t channels, int64_t outs, int16_t* out);

    // The same of bytes, four pixels at a time; null where gemm_bytes is.
    // Inputs: int8[height][stride][quads][channels taken, padded to panels][4], bytes as spread() makes them, 0 outside the map.
    void (*quads)(const int8_t* map, const Placement& at, int64_t stride, int8_t* out);
    // Gradients: int8[height][channels taken][pitch], column x at lead + x, zeros around; pitch >= lead + width up to a multiple of 16.
    void (*turned)(const int8_t* g, const Placement& at, int64_t lead, int64_t pitch, int8_t* out);
    // g = 256 high + low, |g| < 32640.
    void (*split)(const int16_t* g, int64_t n, int8_t* high, int8_t* low);
    // sums[i] = sum over rows of g[row][i].
    void (*column_sums)(const int8_t* g, int64_t rows, int64_t width, int32_t* sums);
    void (*quad_products)(const QuadProducts& of);
    bool quads_of_words;  // whether that takes gradients of 16 bits, as two bytes

    // sums[c] = sum over pixels in order of g[p][c].
    void (*channel_sums)(const float* g, int64_t pixels, int64_t channels, float* sums);

    // out = a + b, quantised anew. `values` is float[n].
    Affine (*add)(const int8_t* a, Affine in_a, const int8_t* b, Affine in_b, int64_t n, float* values, int8_t* out);

    // Extremes of every channel of every chunk of `chunk` pixels: int8[pixels / chunk][channels] each.
    void (*extremes)(const int8_t* q, int64_t pixels, int64_t channels, int64_t chunk, int8_t* high, int8_t* low);

    // Extremes of channels become those of groups of `each` adjacent ones, in every channel; n, a multiple of `each`, values.
    void (*group_extremes)(int8_t* high, int8_t* low, int64_t n, int64_t each);

    // z = gain[c] t clamp(slope[c] t + 1/2, 0, 1) + shift[c] with t the value of q; gain in per.scale. Quantised.
    Affine (*evonorm)(const int8_t* q, Affine in, int64_t pixels, const PerChannel& per, const float* slope, float* values, int8_t* out);

    // With h = clamp(slope t + 1/2, 0, 1) and w = t where 0 < slope t + 1/2 < 1, else 0: d = g gain (h + slope w), and the
    // sums over pixels of g, g t h and g gain t w, float[3][channels * times], the lanes of `times` pixels apart.
    void (*evonorm_backward)(const int8_t* q, Affine in, const float* g, int64_t pixels, const PerChannel& per, const float* slope,
                             float* d, float* sums);

    // d += the gradient of the chunks' ranges.
    void (*range_gradient)(const RangeTies& of, float* d);

    // EvoNorm-S0 of float32 maps [pixels][channels]. Sums over pixels, float[channels * times], the lanes of `times` pixels apart:
    // of y, and of (y - shift)^2.
    void (*map_sums)(const float* y, int64_t pixels, const PerChannel& per, float* sums);
    void (*map_squares)(const float* y, int64_t pixels, const PerChannel& per, float* sums);

    // z = scale y sigmoid(slope y) + shift.
    void (*evonorm_s0)(const float* y, int64_t pixels, const PerChannel& per, const float* slope, float* z);

    // With s = sigmoid(slope y) and w = y s (1 - s): d = g scale (s + slope w), and the sums over pixels of g, g y s and
    // g scale y w, float[3][channels * times].
    void (*evonorm_s0_backward)(const float* y, const float* g, int64_t pixels, const PerChannel& per, const float* slope, float* d,
                                float* sums);

    // d -= scale (y - shift).
    void (*subtract_centred)(const float* y, int64_t pixels, const PerChannel& per, float* d);

    // q[c] = the largest of from[k][c], k < count, and tap[c] = places[k] of the first such k. With count 0: -128 and 0.
    void (*largest)(const int8_t* const* from, const uint8_t* places, int64_t count, int64_t channels, int8_t* q, uint8_t* tap);

    // e[j] = 255 e^((scores[j] - most) factor) rounded, most the largest score where keep is -1; 0 where keep is 0. Their
    // sum. n: whole panels; factor finite and not negative.
    int32_t (*softmax)(const int32_t* scores, const int32_t* keep, int64_t n, float factor, int16_t* e);

    // e[j] = 0 where the generator's number at first + j, even, is below `below`. n: whole panels.
    void (*drop)(int16_t* e, int64_t n, uint64_t key, int64_t first, uint32_t below);

    // d[j] = e[j] (factor / sum) (o[j] - (sum over k of kept[k] of_p[k]) / sum), o = of_p where kept is not 0, else 0: the
    // gradient of the scores of which e came, where of_p is that of the probabilities. All 0 with a sum of 0.
    void (*softmax_backward)(const int16_t* e, const int16_t* kept, const int32_t* of_p, int64_t n, int32_t sum, float factor, float* d);

    // out[j] = (value less the mean) gamma[j] / deviation + beta[j] of one token.
    void (*layernorm)(const int8_t* q, const TokenNorm& by, float* out);

    // d = the gradient of the values from g, that of the result; those of gamma and beta are added up.
    void (*layernorm_backward)(const int8_t* q, const TokenNorm& by, const float* g, float* d, float* of_gamma, float* of_beta);
};

}  // namespace edgegossip
