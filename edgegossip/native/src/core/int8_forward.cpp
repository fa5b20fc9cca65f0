#include "../parallel.hpp"
#include "int8_pack.hpp"
#include "int8_work.hpp"

namespace edgegossip {

namespace {

struct Forward {
    const Int8& kernels;
    const ConvShape& shape;
    const Maps& x;
    const float* weight_scale;
    const int32_t* weight_sums;  // by output channel, for products of bytes
    const float* bias;
    const std::vector<Panels>& panels;  // by group
    const std::vector<int64_t>& places;  // of the outputs' first inputs in the maps of a block

    Placement placement(int64_t group) const {
        return {shape.height, shape.width, shape.in, group * shape.group_in(), shape.group_in(),
                shape.pad_h, shape.pad_h, shape.pad_w, shape.pad_w};
    }

    static int64_t row_of(const ConvShape& s) { return (s.width + 2 * s.pad_w) * s.group_in(); }
    static int64_t map_of(const ConvShape& s) { return (s.height + 2 * s.pad_h) * row_of(s) + INT8_SLACK; }

    static std::vector<int64_t> places_of(const ConvShape& s, int64_t samples) {
        std::vector<int64_t> made;
        made.reserve(size_t(samples * s.pixels()));
        for (int64_t n = 0; n < samples; n++)
            for (int64_t y = 0; y < s.out_height(); y++)
                for (int64_t k = 0; k < s.out_width(); k++)
                    made.push_back(n * map_of(s) + y * s.stride_h * row_of(s) + k * s.stride_w * s.group_in());
        return made;
    }

    // acc[samples * pixels][padded] of one group, from sample `first` on.
    void sums(int64_t first, int64_t samples, int64_t group, ConvWork& work, int64_t padded) const {
        const Placement at = placement(group);
        const int64_t row = row_of(shape), pixels = samples * shape.pixels();
        const Panels& p = panels[size_t(group)];
        lay_out(kernels, p, x.q + first * shape.in_size(), samples, shape.in_size(), at, [&](int64_t n) { return x.zero[first + n]; },
                map_of(shape), work);
        const int64_t per_group = p.panels * INT8_PANEL;
        multiply(kernels, p, work, places, pixels, row, shape.groups == 1 ? work.acc.data() : work.group_acc.data(),
                 shape.groups == 1 ? padded : per_group);
        if (shape.groups == 1) return;
        for (int64_t k = 0; k < pixels; k++)
            std::copy_n(work.group_acc.data() + k * per_group, shape.group_out(), work.acc.data() + k * padded + group * shape.group_out());
    }

    void block(int64_t first, int64_t samples, int8_t* q, float* scale, int32_t* zero, float* values) const {
        ConvWork& work = conv_work();
        const int64_t padded = shape.groups == 1 ? panels[0].panels * INT8_PANEL : shape.out;
        work.acc.need(samples * shape.pixels() * padded);
        if (shape.groups > 1) work.group_acc.need(samples * shape.pixels() * panels[0].panels * INT8_PANEL);
        for (int64_t group = 0; group < shape.groups; group++) sums(first, samples, group, work, padded);
        Repeated per(shape.out);
        per.set_shift(bias);
        for (int64_t n = first; n < first + samples; n++) {
            const int32_t* const acc = work.acc.data() + (n - first) * shape.pixels() * padded;
            per.set_scale(weight_scale, x.scale[n]);
            if (panels[0].of_bytes()) per.set_offset(weight_sums, x.zero[n] + kernels.byte_bias);
            if (values != nullptr) {
                kernels.scaled(acc, shape.pixels(), padded, per.view(), values + n * shape.out_size(), shape.out);
                continue;
            }
            work.values.need(shape.out_size());
            const Affine to = kernels.requantise(acc, shape.pixels(), padded, per.view(), work.values.data(), q + n * shape.out_size());
            scale[n] = to.scale;
            zero[n] = to.zero;
        }
    }
};

}  // namespace

void conv_forward(const Int8& kernels, const ConvShape& s, const Maps& x, const float* weight, const float* bias, int8_t* q,
                  float* scale, int32_t* zero, float* values, int threads) {
    std::vector<float> weight_scale(static_cast<size_t>(s.out));
    scales_by_output(kernels, s, weight, weight_scale.data());
    std::vector<Panels> panels(static_cast<size_t>(s.groups));
    for (int64_t group = 0; group < s.groups; group++) pack_forward(kernels, s, weight, weight_scale.data(), group, panels[size_t(group)]);
    const int64_t together = samples_together(s.pixels(), s.batch);
    const std::vector<int64_t> places = Forward::places_of(s, together);
    std::vector<int32_t> sums;
    for (const Panels& p : panels)
        if (p.of_bytes()) sums.insert(sums.end(), p.sums.begin(), p.sums.begin() + s.group_out());
    const Forward forward{kernels, s, x, weight_scale.data(), sums.data(), bias, panels, places};
    parallel_for((s.batch + together - 1) / together, threads, [&](int64_t k) {
        const int64_t first = k * together;
        forward.block(first, std::min(together, s.batch - first), q, scale, zero, values);
    });
}

}  // namespace edgegossip
