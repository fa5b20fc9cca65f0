#include "int8/forward.hpp"

#include "runtime/parallel.hpp"
#include "int8/norm.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

int64_t row_of(const ConvShape& s) { return (s.width + 2 * s.pad_w) * s.group_in(); }
int64_t map_of(const ConvShape& s) { return (s.height + 2 * s.pad_h) * row_of(s) + INT8_SLACK; }

std::vector<int64_t> places_of(const ConvShape& s, int64_t samples) {
    std::vector<int64_t> made;
    made.reserve(size_t(samples * s.pixels()));
    for (int64_t n = 0; n < samples; n++)
        for (int64_t y = 0; y < s.out_height(); y++)
            for (int64_t k = 0; k < s.out_width(); k++)
                made.push_back(n * map_of(s) + y * s.stride_h * row_of(s) + k * s.stride_w * s.group_in());
    return made;
}

Placement placement(const ConvShape& s, int64_t group) {
    return {s.height, s.width, s.in, group * s.group_in(), s.group_in(), s.pad_h, s.pad_h, s.pad_w, s.pad_w};
}

}  // namespace

PackedConv::PackedConv(const Int8& kernels, const ConvShape& s, const float* weight, int threads)
    : kernels_(kernels), shape_(s), together_(samples_together(s.pixels(), s.batch)), weight_scale_(size_t(s.out)), panels_(size_t(s.groups)),
      places_(places_of(s, together_)) {
    for (int64_t group = 0; group < s.groups; group++) {
        Panels& p = panels_[size_t(group)];
        pack_forward(kernels, s, weight, group, weight_scale_.data(), p, threads);
        if (p.of_bytes()) weight_sums_.insert(weight_sums_.end(), p.sums.begin(), p.sums.begin() + s.group_out());
    }
}

// acc[samples * pixels][padded] of one group, from sample `first` on.
void PackedConv::sums(const Maps& x, int64_t first, int64_t samples, int64_t group, ConvWork& work, int64_t padded) const {
    const ConvShape& s = shape_;
    const int64_t pixels = samples * s.pixels();
    const Panels& p = panels_[size_t(group)];
    lay_out(kernels_, p, x.q + first * s.in_size(), samples, s.in_size(), placement(s, group), [&](int64_t n) { return x.zero[first + n]; },
            map_of(s), work);
    const int64_t per_group = p.panels * INT8_PANEL;
    multiply(kernels_, p, work, places_, pixels, s.out_width(), row_of(s), s.groups == 1 ? work.acc.data() : work.group_acc.data());
    if (s.groups == 1) return;
    for (int64_t k = 0; k < pixels; k++)
        std::copy_n(work.group_acc.data() + k * per_group, s.group_out(), work.acc.data() + k * padded + group * s.group_out());
}

void PackedConv::run(const Maps& x, int64_t first, int64_t samples, const float* bias, const ConvOutput& out) const {
    const ConvShape& s = shape_;
    ConvWork& work = conv_work();
    const int64_t padded = s.groups == 1 ? panels_[0].panels * INT8_PANEL : s.out;
    work.acc.need(samples * s.pixels() * padded);
    if (s.groups > 1) work.group_acc.need(samples * s.pixels() * panels_[0].panels * INT8_PANEL);
    for (int64_t group = 0; group < s.groups; group++) sums(x, first, samples, group, work, padded);
    Repeated& per = work.per;
    per.resize(s.out);
    per.set_shift(bias);
    for (int64_t n = first; n < first + samples; n++) {
        const int32_t* const acc = work.acc.data() + (n - first) * s.pixels() * padded;
        per.set_scale(weight_scale_.data(), x.scale[n]);
        if (panels_[0].of_bytes()) per.set_offset(weight_sums_.data(), x.zero[n] + kernels_.byte_bias);
        if (out.values != nullptr) {
            kernels_.scaled(acc, s.pixels(), padded, per.view(), out.values + n * s.out_size(), s.out);
            continue;
        }
        work.values.need(s.out_size());
        const Affine to = kernels_.requantise(acc, s.pixels(), padded, per.view(), work.values.data(), out.q + n * s.out_size());
        out.scale[n] = to.scale;
        out.zero[n] = to.zero;
    }
}

namespace {

// Calls then(first, samples) in the thread that has just made these outputs.
template <class Then>
void convolve(const Int8& kernels, const ConvShape& s, const Maps& x, const float* weight, const float* bias, const ConvOutput& out,
              int threads, const Then& then) {
    const PackedConv packed(kernels, s, weight, threads);
    const int64_t together = packed.together();
    parallel_for((s.batch + together - 1) / together, threads, [&](int64_t k) {
        const int64_t first = k * together, samples = std::min(together, s.batch - first);
        packed.run(x, first, samples, bias, out);
        then(first, samples);
    });
}

}  // namespace

void conv_forward(const Int8& kernels, const ConvShape& s, const Maps& x, const float* weight, const float* bias, int8_t* q,
                  float* scale, int32_t* zero, float* values, int threads) {
    convolve(kernels, s, x, weight, bias, {q, scale, zero, values}, threads, [](int64_t, int64_t) {});
}

void conv_evonorm_forward(const Int8& kernels, const ConvShape& s, const Maps& x, const float* weight, const float* bias,
                          const WritableMaps& y, const NormShape& norm, const NormParameters& with, const WritableMaps& z, int threads) {
    convolve(kernels, s, x, weight, bias, {y.q, y.scale, y.zero, nullptr}, threads, [&](int64_t first, int64_t samples) {
        NormShape some = norm;
        some.batch = samples;
        const int64_t at = first * norm.size();
        evonorm_forward(kernels, some, {y.q + at, y.scale + first, y.zero + first}, with, z.q + at, z.scale + first, z.zero + first, 1);
    });
}

}  // namespace edgegossip
