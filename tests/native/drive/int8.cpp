#include "int8.hpp"

#include "int8/evonorm_s0.hpp"

namespace {

using namespace edgegossip;
using drive::Batch, drive::add, drive::floats, drive::quantised;

// Kernels of 1, 3, 5 and 7, strides, groups and depthwise, odd sizes, single pixels, maps on which 16-bit sums are spilt, rows
// that are cut into strips, and maps that are cut into tiles.
constexpr ConvShape SHAPES[] = {
    {2, 7, 5, 3, 16, 3, 3, 1, 1, 1, 1, 1}, {3, 8, 8, 16, 33, 3, 3, 2, 2, 1, 1, 1}, {2, 6, 9, 8, 8, 5, 5, 1, 2, 2, 2, 8},
    {1, 13, 13, 6, 4, 7, 7, 2, 2, 3, 3, 2}, {40, 1, 1, 50, 21, 1, 1, 1, 1, 0, 0, 1}, {301, 1, 1, 50, 70, 1, 1, 1, 1, 0, 0, 1}, {1, 33, 31, 2, 3, 1, 1, 1, 1, 0, 0, 1},
    {2, 4, 4, 4, 5, 1, 1, 3, 3, 0, 0, 1}, {300, 3, 4, 20, 37, 3, 3, 1, 1, 1, 1, 1}, {2, 9, 21, 16, 36, 3, 3, 1, 1, 1, 1, 1},
    {2, 8, 10, 32, 48, 3, 3, 1, 1, 1, 1, 1}, {1, 12, 10, 80, 72, 3, 3, 1, 1, 0, 1, 2},
};
constexpr NormShape NORMS[] = {{2, 64, 16, 8, 16}, {3, 15, 20, 5, 3}, {1, 1, 3, 3, 1}, {2, 16, 96, 8, 4}, {2, 256, 64, 8, 16}, {2, 48, 32, 8, 3}};
constexpr float WIDTHS[] = {1.0f, 1e-38f, 3e37f};

void run_conv(const Isa& isa) {
    drive::Random random;
    drive::Hash quantise_hash, forward_hash, backward_hash;
    for (const ConvShape& s : SHAPES)
        for (const float width : WIDTHS) {
            Batch x = quantised(*isa.int8, random, s.batch, s.in_size(), width), y(s.batch, s.out_size());
            x.add_to(quantise_hash);
            const std::vector<float> weight = floats(random, s.weights(), 0.5f), bias = floats(random, s.out, width);
            conv_forward(*isa.int8, s, x.view(), weight.data(), bias.data(), y.q.data(), y.scale.data(), y.zero.data(), nullptr, 1);
            y.add_to(forward_hash);
            std::vector<float> values(size_t(s.batch * s.out_size()));
            conv_forward(*isa.int8, s, x.view(), weight.data(), nullptr, nullptr, nullptr, nullptr, values.data(), 2);
            add(forward_hash, values);
            const std::vector<float> g = floats(random, s.batch * s.out_size(), 1e-3f);
            for (const bool wide : {false, true}) {
                std::vector<float> dx(size_t(s.batch * s.in_size())), dw(size_t(s.weights())), db(size_t(s.out));
                conv_backward(*isa.int8, s, x.view(), weight.data(), ArrayGradient(g.data(), s.out_size()), random.next(), wide,
                              {dx.data(), dw.data(), db.data()}, 2);
                for (std::vector<float>* values_of : {&dx, &dw, &db}) add(backward_hash, *values_of);
            }
        }
    drive::report(isa, "int8_quantise", quantise_hash);
    drive::report(isa, "int8_conv", forward_hash);
    drive::report(isa, "int8_conv_backward", backward_hash);
}

void run_norm(const Isa& isa) {
    drive::Random random;
    drive::Hash forward_hash, backward_hash, add_hash;
    for (const NormShape& s : NORMS)
        for (const float width : WIDTHS) {
            Batch y = quantised(*isa.int8, random, s.batch, s.size(), width), z(s.batch, s.size()), sum(s.batch, s.size());
            const std::vector<float> v = floats(random, s.channels, 2.0f), gamma = floats(random, s.channels, 1.0f),
                                     beta = floats(random, s.channels, 1.0f);
            const NormParameters with{v.data(), gamma.data(), beta.data()};
            evonorm_forward(*isa.int8, s, y.view(), with, z.q.data(), z.scale.data(), z.zero.data(), 2);
            z.add_to(forward_hash);
            const std::vector<float> g = floats(random, s.batch * s.size(), 1.0f);
            std::vector<float> dy(g.size()), dv(v.size()), dgamma(v.size()), dbeta(v.size());
            evonorm_backward(*isa.int8, s, y.view(), with, g.data(), {dy.data(), dv.data(), dgamma.data(), dbeta.data()}, 2);
            for (std::vector<float>* values : {&dy, &dv, &dgamma, &dbeta}) add(backward_hash, *values);
            add_maps(*isa.int8, y.view(), z.view(), s.batch, s.size(), sum.q.data(), sum.scale.data(), sum.zero.data(), 1);
            sum.add_to(add_hash);
        }
    drive::report(isa, "int8_evonorm", forward_hash);
    drive::report(isa, "int8_evonorm_backward", backward_hash);
    drive::report(isa, "int8_add", add_hash);
}

void run_evonorm_s0(const Isa& isa) {
    drive::Random random;
    drive::Hash forward_hash, backward_hash;
    for (const NormShape& s : NORMS)
        for (const float width : WIDTHS) {
            const std::vector<float> y = floats(random, s.batch * s.size(), width), g = floats(random, s.batch * s.size(), 1.0f),
                                     v = floats(random, s.channels, 2.0f), gamma = floats(random, s.channels, 1.0f),
                                     beta = floats(random, s.channels, 1.0f);
            const NormParameters with{v.data(), gamma.data(), beta.data()};
            std::vector<float> z(y.size()), moments(size_t(s.batch * 2 * s.groups));
            evonorm_s0_forward(*isa.int8, s, y.data(), with, z.data(), moments.data(), 2);
            for (std::vector<float>* values : {&z, &moments}) add(forward_hash, *values);
            std::vector<float> dy(y.size()), dv(v.size()), dgamma(v.size()), dbeta(v.size());
            evonorm_s0_backward(*isa.int8, s, y.data(), with, moments.data(), g.data(),
                                {dy.data(), dv.data(), dgamma.data(), dbeta.data()}, 2);
            for (std::vector<float>* values : {&dy, &dv, &dgamma, &dbeta}) add(backward_hash, *values);
        }
    drive::report(isa, "evonorm_s0", forward_hash);
    drive::report(isa, "evonorm_s0_backward", backward_hash);
}

void run(const Isa& isa) {
    run_conv(isa);
    run_norm(isa);
    run_evonorm_s0(isa);
}

const drive::Part part(run);

}  // namespace
