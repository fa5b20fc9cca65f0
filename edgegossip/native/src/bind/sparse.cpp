#include "codec/sparse.hpp"

#include "bind/bind.hpp"
#include "bind/gil.hpp"

namespace edgegossip {
namespace {

Model model_of(const std::vector<int64_t>& offsets) { return {offsets.data(), int64_t(offsets.size()) - 1}; }

int32_t value_form(const std::string& name) {
    if (name == "fp32") return VALUES_FP32;
    if (name == "fp16") return VALUES_FP16;
    if (name == "bf16") return VALUES_BF16;
    throw nb::value_error(("values must be fp32, fp16 or bf16, not " + name).c_str());
}

// How many values of every tensor; copied, as the offsets are.
std::vector<int64_t> read_counts(nb::handle object, const Model& model) {
    const Buffer<int64_t> buffer(object, "counts", false);
    buffer.expect_size(model.tensors);
    const std::vector<int64_t> counts(buffer.data(), buffer.data() + buffer.size());
    for (int64_t k = 0; k < model.tensors; k++)
        if (counts[size_t(k)] < (model.size(k) > 0) || counts[size_t(k)] > model.size(k))
            throw nb::value_error("counts must be 1 to the tensor's number of values, and 0 for an empty tensor");
    return counts;
}

std::vector<int64_t> offsets_alone(nb::handle object) {
    const Buffer<int64_t> buffer(object, "offsets", false);
    return read_offsets(object, buffer.size() > 0 ? buffer.data()[buffer.size() - 1] : 0);
}

int64_t capacity(nb::handle offsets_object, nb::handle counts_object, const std::string& values) {
    const std::vector<int64_t> offsets = offsets_alone(offsets_object);
    const Model model = model_of(offsets);
    return sparse_capacity(model, read_counts(counts_object, model).data(), value_form(values));
}

// What both encoders take.
struct Input {
    const Kernels& kernels;
    int threads;
    int32_t form;
    Buffer<float> x;
    std::vector<int64_t> offsets;
    Model model;
    std::vector<int64_t> counts;
    Buffer<uint8_t> out;

    Input(nb::handle x_object, nb::handle offsets_object, nb::handle counts_object, const std::string& values,
          nb::handle out_object, const Name& isa_name, std::optional<int> threads_argument)
        : kernels(*choose(isa_name).kernels), threads(choose_threads(threads_argument)), form(value_form(values)),
          x(x_object, "x", false), offsets(read_offsets(offsets_object, x.size())), model(model_of(offsets)),
          counts(read_counts(counts_object, model)), out(out_object, "out", true) {
        out.expect_size(sparse_capacity(model, counts.data(), form));
    }
};

int64_t bind_topk_encode(nb::handle x, nb::handle offsets, nb::handle counts, const std::string& values, nb::handle out,
                         nb::handle zero_object, nb::handle rest_object, const Name& isa_name, std::optional<int> threads) {
    const Input in(x, offsets, counts, values, out, isa_name, threads);
    std::optional<Buffer<float>> zero, rest;
    if (!zero_object.is_none()) zero.emplace(zero_object, "zero", true), zero->expect_size(in.x.size());
    if (!rest_object.is_none()) rest.emplace(rest_object, "rest", true), rest->expect_size(in.x.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return topk_encode(in.kernels, in.x.data(), in.model, in.counts.data(), in.form, in.threads, zero ? zero->data() : nullptr,
                       rest ? rest->data() : nullptr, in.out.data());
}

int64_t bind_randk_encode(nb::handle x, nb::handle offsets, nb::handle counts, const std::string& values, bool unbiased,
                          uint64_t seed, nb::handle out, const Name& isa_name, std::optional<int> threads) {
    const Input in(x, offsets, counts, values, out, isa_name, threads);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return randk_encode(in.kernels, in.x.data(), in.model, in.counts.data(), in.form, unbiased, seed, in.threads, in.out.data());
}

template <class Decode>
nb::tuple decode(nb::handle body_object, nb::handle offsets_object, nb::handle out_object, std::optional<double> weight,
                 const Decode& run) {
    const Buffer<float> out(out_object, "out", true);
    const std::vector<int64_t> offsets = read_offsets(offsets_object, out.size());
    const Buffer<uint8_t> body(body_object, "body", false);
    const float narrow = weight ? checked_weight(*weight) : 1.0f;
    Verdict verdict;
    {
        WithoutGil unlocked;
        DefaultFloatEnv env;
        verdict = run(body.data(), body.size(), model_of(offsets), out.data(), weight.has_value(), narrow);
    }
    return nb::make_tuple(verdict.tensor, int(verdict.fault));
}

nb::tuple bind_topk_decode(nb::handle body, nb::handle offsets, nb::handle out, std::optional<double> weight, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    return decode(body, offsets, out, weight, [&](const uint8_t* data, int64_t bytes, const Model& model, float* to, bool add, float w) {
        return topk_decode(kernels, data, bytes, model, to, add, w);
    });
}

nb::tuple bind_randk_decode(nb::handle body, nb::handle offsets, nb::handle out, std::optional<double> weight, const Name& isa_name,
                            std::optional<int> threads_argument) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const int threads = choose_threads(threads_argument);
    return decode(body, offsets, out, weight, [&](const uint8_t* data, int64_t bytes, const Model& model, float* to, bool add, float w) {
        return randk_decode(kernels, data, bytes, model, to, add, w, threads);
    });
}

double sum_of_squares(nb::handle x_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> x(x_object, "x", false);
    WithoutGil unlocked;
    DefaultFloatEnv env;
    return kernels.sparse.sum_of_squares(x.data(), x.size());
}

void accumulate(nb::handle u_object, nb::handle v_object, nb::handle g_object, double momentum, double factor,
                nb::handle u_next_object, nb::handle v_next_object, const Name& isa_name) {
    const Kernels& kernels = *choose(isa_name).kernels;
    const Buffer<float> u(u_object, "u", false), v(v_object, "v", false), g(g_object, "g", false);
    const Buffer<float> u_next(u_next_object, "u_next", true), v_next(v_next_object, "v_next", true);
    for (const Buffer<float>* other : {&v, &g, &u_next, &v_next}) other->expect_size(u.size());
    WithoutGil unlocked;
    DefaultFloatEnv env;
    kernels.sparse.accumulate(u.data(), v.data(), g.data(), u.size(), float(momentum), float(factor), u_next.data(), v_next.data());
}

}  // namespace

void bind_sparse(nb::module_& m) {
    using nb::literals::operator""_a;
    m.def("sparse_capacity", &capacity, "offsets"_a.none(), "counts"_a.none(), "values"_a);
    m.def("topk_encode", &bind_topk_encode, "x"_a.none(), "offsets"_a.none(), "counts"_a.none(), "values"_a, "out"_a.none(),
          "zero"_a.none() = nb::none(), "rest"_a.none() = nb::none(), "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
    m.def("topk_decode", &bind_topk_decode, "body"_a.none(), "offsets"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none());
    m.def("randk_encode", &bind_randk_encode, "x"_a.none(), "offsets"_a.none(), "counts"_a.none(), "values"_a, "unbiased"_a,
          "seed"_a, "out"_a.none(), "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
    m.def("randk_decode", &bind_randk_decode, "body"_a.none(), "offsets"_a.none(), "out"_a.none(), "weight"_a.none() = nb::none(),
          "isa"_a.none() = nb::none(), "threads"_a.none() = nb::none());
    m.def("sum_of_squares", &sum_of_squares, "x"_a.none(), "isa"_a.none() = nb::none());
    m.def("accumulate_momentum", &accumulate, "u"_a.none(), "v"_a.none(), "g"_a.none(), "momentum"_a, "factor"_a,
          "u_next"_a.none(), "v_next"_a.none(), "isa"_a.none() = nb::none());
}

}  // namespace edgegossip
