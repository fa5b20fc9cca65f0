#include "bind/bind.hpp"
#include "bind/gil.hpp"
#include "runtime/parallel.hpp"

namespace edgegossip {
namespace {

constexpr int64_t TASK_VALUES = int64_t(1) << 18;

const FloatForm& form_of(const Kernels& kernels, const std::string& name) {
    if (name == "fp32") return kernels.half.fp32;
    if (name == "fp16") return kernels.half.fp16;
    if (name == "bf16") return kernels.half.bf16;
    throw nb::value_error(("form must be fp32, fp16 or bf16, not " + name).c_str());
}

// task(start, count) on every piece of n values; true when all of them are.
template <class Task>
bool all_pieces(int64_t n, int threads, const Task& task) {
    std::atomic<bool> good{true};
    parallel_for((n + TASK_VALUES - 1) / TASK_VALUES, threads, [&](int64_t k) {
        const int64_t start = k * TASK_VALUES, count = n - start < TASK_VALUES ? n - start : TASK_VALUES;
        if (good && !task(start, count)) good = false;
    });
    return good;
}

int64_t floats_encode(const std::string& form_name, nb::handle x_object, nb::handle offsets_object, nb::handle out_object,
                      const Name& isa_name, std::optional<int> threads_argument) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    const FloatForm& form = form_of(kernels, form_name);
    const Buffer<float> x(x_object, "x", false);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, x.size());
    const Buffer<uint8_t> out(out_object, "out", true);
    out.expect_size(form.bytes * x.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    const bool good = all_pieces(x.size(), threads, [&](int64_t start, int64_t count) {
        return form.encode(x.data() + start, count, out.data() + form.bytes * start);
    });
    return good ? -1 : kernels.general.first_nonfinite(x.data(), offsets.data(), int64_t(offsets.size()) - 1);
}

bool floats_finite(const std::string& form_name, nb::handle body_object, const Name& isa_name) {
    const FloatForm& form = form_of(*choose(isa_name).kernels, form_name);
    const Buffer<uint8_t> body(body_object, "body", false);
    const int64_t n = body.size() / form.bytes;
    body.expect_size(form.bytes * n);
    WithoutGil unlocked;
    return form.finite(body.data(), n);
}

bool floats_decode(const std::string& form_name, nb::handle body_object, nb::handle out_object, std::optional<double> weight,
                   const Name& isa_name, std::optional<int> threads_argument) {
    const int threads = choose_threads(threads_argument);
    const FloatForm& form = form_of(*choose(isa_name).kernels, form_name);
    const Buffer<float> out(out_object, "out", true);
    const Buffer<uint8_t> body(body_object, "body", false);
    body.expect_size(form.bytes * out.size());
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    WithoutGil unlocked;
    DefaultFloatEnv env;
    const auto piece = [&](int64_t start) { return body.data() + form.bytes * start; };
    if (weight && !all_pieces(out.size(), threads, [&](int64_t start, int64_t count) { return form.finite(piece(start), count); }))
        return false;
    return all_pieces(out.size(), threads, [&](int64_t start, int64_t count) {
        return form.decode(piece(start), count, out.data() + start, weight.has_value(), narrow);
    });
}

}  // namespace

void bind_half(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("floats_encode", &floats_encode, "form"_a, "x"_a.none(), "offsets"_a.none(), "out"_a.none(),
          "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
    m.def("floats_finite", &floats_finite, "form"_a, "body"_a.none(), "isa"_a.none() = nb::none());
    m.def("floats_decode", &floats_decode, "form"_a, "body"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
}

}  // namespace edgegossip
