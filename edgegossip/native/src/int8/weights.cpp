#include "int8/weights.hpp"

namespace edgegossip {

namespace {

constexpr int64_t PAIRS_8 = 32768, PAIRS_16 = 128;  // pairs of pixels: 127 * 255 and 32512 * 255 a pixel stay below 2^31

struct Pairs {
    const Int8& kernels;
    const ConvShape& shape;
    const Maps& x;
    bool wide;
    int64_t first, samples;
    const float* factor;  // by sample: scale of x times that of its gradient
    ConvWork& work;

    // Where a sample has one pixel, samples take the place of pixels: their gradients times scales get one 16-bit scale together.
    void single_pixels(int64_t group, int64_t size, float* sums) const {
        const int64_t count = shape.group_out(), pairs = (samples + 1) / 2, run = shape.kernel_w * shape.group_in();
        const int64_t row = (shape.width + 2 * shape.pad_w) * shape.group_in();
        work.scaled_g.need(samples * count);
        for (int64_t n = 0; n < samples; n++) {
            const int64_t from = n * shape.out + group * count;
            for (int64_t c = 0; c < count; c++)
                work.scaled_g.data()[n * count + c] = factor[n] * float(wide ? work.g16.data()[from + c] : work.g8.data()[from + c]);
        }
        const float most = kernels.magnitude(work.scaled_g.data(), samples * count);
        const float scale = std::isfinite(most) ? std::max(most * (1.0f / 32512.0f), GRADIENT_SCALE_FLOOR) : most;
        work.together.need(samples * count);
        std::fill_n(work.together.data(), samples * count, int16_t(0));
        if (std::isfinite(most)) kernels.round16(work.scaled_g.data(), samples * count, 1.0f / scale, work.together.data());
        work.pairs.need(2 * pairs * count);
        work.strips.need(shape.kernel_h * pairs * PAIR_ROOM);
        kernels.pair_up(work.together.data(), 1, samples, count, count, work.pairs.data());
        const float all = std::isfinite(scale) ? scale : std::numeric_limits<float>::quiet_NaN();
        kernels.products({1, shape.kernel_h, 1, pairs, work.wide.data(), 0, row, size, work.pairs.data(), 0, work.strips.data(), PAIRS_16, &all,
                          count, run, sums, shape.kernel_h * run, run, false});
    }

    void add(int64_t group, float* sums) const {
        const int64_t inputs = shape.group_in(), count = shape.group_out(), run = shape.kernel_w * inputs;
        const Placement at{shape.height, shape.width, shape.in, group * inputs, inputs, shape.pad_h, shape.pad_h, shape.pad_w, shape.pad_w};
        const int64_t row = (shape.width + 2 * shape.pad_w) * inputs, slack = INT8_SLACK + shape.stride_w * inputs;
        const int64_t size = (shape.height + 2 * shape.pad_h) * row + slack, step = shape.kernel_h * run;
        work.wide.need((samples + 1) * size);
        std::fill_n(work.wide.data() + samples * size, size, int16_t(0));
        for (int64_t n = 0; n < samples; n++) {
            int16_t* const map = work.wide.data() + n * size;
            kernels.widen(x.q + (first + n) * shape.in_size(), at, x.zero[first + n], map);
            std::fill_n(map + size - (slack - INT8_SLACK), slack - INT8_SLACK, int16_t(0));
        }
        sums += group * count * step;
        if (shape.pixels() == 1) {
            single_pixels(group, size, sums);
            return;
        }
        const int64_t pairs = (shape.out_width() + 1) / 2, of_sample = shape.out_height() * pairs * count * 2;
        work.pairs.need(samples * of_sample);
        if (!wide) {
            work.g16.need(samples * shape.out_size());
            std::copy_n(work.g8.data(), samples * shape.out_size(), work.g16.data());
        }
        for (int64_t n = 0; n < samples; n++)
            kernels.pair_up(work.g16.data() + n * shape.out_size() + group * count, shape.out_height(), shape.out_width(), shape.out, count,
                            work.pairs.data() + n * of_sample);
        // Rows of taps share what is laid out where one begins a row after the other.
        const int64_t taps = shape.stride_h == 1 ? shape.kernel_h : 1;
        work.strips.need(samples * (shape.out_height() + taps - 1) * pairs * PAIR_ROOM);
        for (int64_t kh = 0; kh < shape.kernel_h; kh += taps)
            kernels.products({samples, taps, shape.out_height(), pairs, work.wide.data() + kh * row, size, shape.stride_h * row,
                              shape.stride_w * inputs, work.pairs.data(), of_sample, work.strips.data(), wide ? PAIRS_16 : PAIRS_8, factor, count,
                              run, sums + kh * run, step, run, false});
    }
};

}  // namespace

void add_weight_gradients(const Int8& kernels, const ConvShape& shape, const Maps& x, bool wide, int64_t first, int64_t samples,
                          const GradientScales* scales, ConvWork& work, float* sums, bool fresh) {
    std::vector<float>& factor = work.factor;
    factor.resize(size_t(samples));
    for (int64_t n = 0; n < samples; n++) factor[size_t(n)] = x.scale[first + n] * (wide ? scales[n].wide : scales[n].narrow);
    if (takes_quads(kernels, shape, wide)) {
        add_quads(kernels, shape, x, wide, first, samples, work, sums, fresh);
        return;
    }
    if (fresh) std::fill_n(sums, shape.weights(), 0.0f);
    const Pairs pairs{kernels, shape, x, wide, first, samples, factor.data(), work};
    for (int64_t group = 0; group < shape.groups; group++) pairs.add(group, sums);
}

}  // namespace edgegossip
