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
    const float* bias;
    const std::vector<Panels>& panels;  // by group

    Placement placement(int64_t group) const {
        return {shape.height, shape.width, shape.in, group * shape.group_in(), shape.group_in(),
                shape.pad_h, shape.pad_h, shape.pad_w, shape.pad_w};
    }

    // acc[samples * pixels][padded] of one group, from sample `first` on.
    void sums(int64_t first, int64_t samples, int64_t group, ConvWork& work, int64_t padded) const {
        const Placement at = placement(group);
        const int64_t row = (shape.width + 2 * shape.pad_w) * at.count;
        const int64_t size = (shape.height + 2 * shape.pad_h) * row + INT8_SLACK;
        work.wide.need(samples * size);
        work.at.clear();
        for (int64_t n = 0; n < samples; n++) {
            int16_t* const map = work.wide.data() + n * size;
            kernels.widen(x.q + (first + n) * shape.in_size(), at, x.zero[first + n], map);
            for (int64_t y = 0; y < shape.out_height(); y++)
                for (int64_t k = 0; k < shape.out_width(); k++)
                    work.at.push_back(map + y * shape.stride_h * row + k * shape.stride_w * at.count);
        }
        const Panels& p = panels[size_t(group)];
        const int64_t per_group = p.panels * INT8_PANEL;
        kernels.gemm(work.at.data(), int64_t(work.at.size()), p.rows, row, p.pairs, p.values.data(), p.panels,
                     shape.groups == 1 ? work.acc.data() : work.group_acc.data(), shape.groups == 1 ? padded : per_group);
        if (shape.groups == 1) return;
        for (int64_t k = 0; k < int64_t(work.at.size()); k++)
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
    const Forward forward{kernels, s, x, weight_scale.data(), bias, panels};
    const int64_t together = samples_together(s.pixels(), s.batch);
    parallel_for((s.batch + together - 1) / together, threads, [&](int64_t k) {
        const int64_t first = k * together;
        forward.block(first, std::min(together, s.batch - first), q, scale, zero, values);
    });
}

}  // namespace edgegossip
