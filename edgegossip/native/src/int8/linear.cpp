#include "int8/linear.hpp"

#include "runtime/parallel.hpp"

namespace edgegossip {

namespace {

constexpr int64_t PAIRS = LinearRows::MOST / 2;
constexpr int64_t TASK_OUTS = 64;  // whose gradients a first-level cache holds
constexpr int64_t LINE = 32;       // int16 of a cache line

int64_t in_lines(int64_t values) { return (values + LINE - 1) / LINE * LINE; }

}  // namespace

bool is_linear(const ConvShape& s) {
    const bool one_pixel = s.height == 1 && s.width == 1 && s.pixels() == 1 && s.pad_h == 0 && s.pad_w == 0;
    return one_pixel && s.kernel_h == 1 && s.kernel_w == 1 && s.groups == 1;
}

LinearRows::LinearRows(const Int8& kernels, const ConvShape& shape, const Maps& x)
    : kernels_(kernels), shape_(shape), x_(x), width_(in_lines(shape.in + INT8_SLACK)) {}

void LinearRows::begin(int64_t first, int64_t rows) {
    first_ = first;
    rows_ = rows;
    most_.assign(size_t(rows), 0.0f);
    inputs_.need((rows + 1) * width_);
    gradients_.need(rows * shape_.out);
    std::fill_n(inputs_.data() + rows * width_, width_, int16_t(0));
}

void LinearRows::take(int64_t first, int64_t count, const GradientScales* scales, bool wide, const ConvWork& work) {
    const Placement whole{1, 1, shape_.in, 0, shape_.in, 0, 0, 0, 0};
    const int64_t outs = shape_.out;
    for (int64_t n = 0; n < count; n++) {
        const int64_t row = first + n - first_;
        kernels_.widen(x_.q + (first + n) * shape_.in, whole, x_.zero[first + n], inputs_.data() + row * width_);
        const float factor = x_.scale[first + n] * (wide ? scales[n].wide : scales[n].narrow);
        float* const to = gradients_.data() + row * outs;
        if (wide)
            for (int64_t o = 0; o < outs; o++) to[o] = factor * float(work.g16.data()[n * outs + o]);
        else
            for (int64_t o = 0; o < outs; o++) to[o] = factor * float(work.g8.data()[n * outs + o]);
        most_[size_t(row)] = kernels_.magnitude(to, outs);
    }
}

void LinearRows::write(float* out, bool fresh, int threads) const {
    float most = 0.0f;
    for (const float of_row : most_)
        if (!std::isnan(most) && !(of_row <= most)) most = of_row;  // a NaN stays
    const float scale = std::isfinite(most) ? std::max(most * (1.0f / 32512.0f), GRADIENT_SCALE_FLOOR) : std::numeric_limits<float>::quiet_NaN();
    parallel_for((shape_.out + TASK_OUTS - 1) / TASK_OUTS, threads, [&](int64_t k) {
        const int64_t first = k * TASK_OUTS;
        write(first, std::min(TASK_OUTS, shape_.out - first), scale, out, fresh);
    });
}

void LinearRows::write(int64_t first_out, int64_t outs, float scale, float* out, bool fresh) const {
    ConvWork& work = conv_work();
    const int64_t size = rows_ * outs;
    work.scaled_g.need(size);
    work.together.need(size);
    work.strips.need((rows_ + 1) / 2 * PAIR_ROOM);
    work.pairs.need(size + outs);  // an odd row has a pair, too
    for (int64_t n = 0; n < rows_; n++) std::copy_n(gradients_.data() + n * shape_.out + first_out, outs, work.scaled_g.data() + n * outs);
    if (std::isfinite(scale))
        kernels_.round16(work.scaled_g.data(), size, 1.0f / scale, work.together.data());
    else
        std::fill_n(work.together.data(), size, int16_t(0));
    kernels_.pair_up(work.together.data(), 1, rows_, outs, outs, work.pairs.data());
    kernels_.products({1, 1, 1, (rows_ + 1) / 2, inputs_.data(), 0, 0, width_, work.pairs.data(), 0, work.strips.data(), PAIRS, &scale, outs, shape_.in,
                       out + first_out * shape_.in, shape_.in, 0, fresh});
}

}  // namespace edgegossip
