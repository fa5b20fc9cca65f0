// What moves int8 values, or compares them with their zero points, forward and backward.
#include "bind/gil.hpp"
#include "bind/int8_shapes.hpp"

namespace edgegossip {
namespace {

int64_t batch_of(int64_t batch) {
    if (batch < 1 || batch > INT32_MAX) throw nb::value_error("a batch must have 1 .. 2^31 - 1 samples");
    return batch;
}

void pad(const Numbers& numbers, nb::handle x_q, nb::handle zero_object, nb::handle q_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const PadShape s = pad_shape(numbers);
    const Buffer<int8_t> x(x_q, "x", false), q(q_object, "q", true);
    const Buffer<int32_t> zero(zero_object, "zero", false);
    x.expect_size(s.batch * s.in_size());
    zero.expect_size(s.batch);
    check_zero_points(zero);
    q.expect_size(s.batch * s.out_size());
    WithoutGil unlocked;
    pad_maps(s, x.data(), zero.data(), q.data(), threads);
}

void slice(const Numbers& numbers, int64_t batch_argument, nb::handle x_q, nb::handle q_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const SliceShape s = slice_shape(numbers);
    const int64_t batch = batch_of(batch_argument);
    const Buffer<int8_t> x(x_q, "x", false), q(q_object, "q", true);
    x.expect_size(bounded({batch, s.in_size()}));
    q.expect_size(batch * s.out_size());
    WithoutGil unlocked;
    slice_maps(s, batch, x.data(), q.data(), threads);
}

void slice_back(const Numbers& numbers, int64_t batch_argument, int64_t pitch, nb::handle g_object, nb::handle dx_object,
                std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const SliceShape s = slice_shape(numbers);
    const int64_t batch = batch_of(batch_argument), pixels = bounded({batch, s.rows.count, s.columns.count});
    if (pitch < s.taken.count || pitch > LARGEST / pixels) throw nb::value_error("the pitch is out of range");
    const Buffer<float> g(g_object, "g", false), dx(dx_object, "dx", true);
    g.expect_size((pixels - 1) * pitch + s.taken.count);
    dx.expect_size(bounded({batch, s.in_size()}));
    WithoutGil unlocked;
    slice_backward(s, batch, g.data(), pitch, dx.data(), threads);
}

// Samples of a batch have the same size.
int64_t sample_size(int64_t values, int64_t batch) {
    if (batch < 1 || values % batch != 0) throw nb::value_error("the batch must divide the maps");
    return values / batch;
}

void relu(nb::handle x_q, nb::handle zero_object, nb::handle q_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const Buffer<int8_t> x(x_q, "x", false), q(q_object, "q", true);
    const Buffer<int32_t> zero(zero_object, "zero", false);
    const int64_t size = sample_size(x.size(), zero.size());
    check_zero_points(zero);
    q.expect_size(x.size());
    WithoutGil unlocked;
    relu_maps(x.data(), zero.data(), zero.size(), size, q.data(), threads);
}

void relu_back(nb::handle x_q, nb::handle zero_object, nb::handle g_object, nb::handle dx_object, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const Buffer<int8_t> x(x_q, "x", false);
    const Buffer<int32_t> zero(zero_object, "zero", false);
    const Buffer<float> g(g_object, "g", false), dx(dx_object, "dx", true);
    const int64_t size = sample_size(x.size(), zero.size());
    check_zero_points(zero);
    g.expect_size(x.size());
    dx.expect_size(x.size());
    WithoutGil unlocked;
    relu_backward(x.data(), zero.data(), zero.size(), size, g.data(), dx.data(), threads);
}

}  // namespace

void bind_int8_shaping(nb::module_& m) {
    using nb::literals::operator""_a;
    const auto threads = "threads"_a.none() = nb::none();
    m.def("int8_pad", &pad, "shape"_a, "x_q"_a.none(), "zero"_a.none(), "q"_a.none(), threads);
    m.def("int8_slice", &slice, "shape"_a, "batch"_a, "x_q"_a.none(), "q"_a.none(), threads);
    m.def("int8_slice_backward", &slice_back, "shape"_a, "batch"_a, "pitch"_a, "g"_a.none(), "dx"_a.none(), threads);
    m.def("int8_relu", &relu, "x_q"_a.none(), "zero"_a.none(), "q"_a.none(), threads);
    m.def("int8_relu_backward", &relu_back, "x_q"_a.none(), "zero"_a.none(), "g"_a.none(), "dx"_a.none(), threads);
}

}  // namespace edgegossip
