#include "runtime/parallel.hpp"
#include "int8/linear.hpp"
#include "int8/pack.hpp"
#include "int8/weights.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

constexpr int64_t CHUNKS = 8;                              // parts of a batch that sum up weight gradients by themselves
constexpr int64_t CHUNK_FLOATS = int64_t(1) << 20;         // and the memory for that, unless two parts need more
constexpr int64_t GATHERED = 8;                            // outputs that one task adds up
constexpr int64_t GATHERED_TOGETHER = 1 << 16;             // floats from which on threads share that

// A dimension's phases and the zeros around g that they reach into.
struct Reach {
    std::vector<Phase> phases;
    int64_t before = 0, after = 0;

    Reach(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t outputs) : phases(phases_of(size, kernel, stride, pad)) {
        for (const Phase& p : phases) {
            if (p.taps == 0) continue;
            before = std::max(before, -p.base);
            after = std::max(after, p.base + p.count - 1 + p.taps - outputs);
        }
    }
};

struct Phases {
    const Phase* down;
    const Phase* across;
    Panels panels;
};

// Gradients of a block, widened, with the zeros around them.
struct Widened {
    int64_t row, size;  // of a sample

    Widened(const ConvShape& s, const Reach& down, const Reach& across)
        : row((across.before + s.out_width() + across.after) * s.group_out()),
          size((down.before + s.out_height() + down.after) * row + INT8_SLACK) {}
};

// Where the inputs of one phase find their first gradients.
std::vector<int64_t> places_of(const ConvShape& s, const Reach& down, const Reach& across, const Phase& d, const Phase& a, int64_t samples) {
    const Widened map(s, down, across);
    std::vector<int64_t> made;
    made.reserve(size_t(samples * d.count * a.count));
    for (int64_t n = 0; n < samples; n++)
        for (int64_t y = 0; y < d.count; y++)
            for (int64_t k = 0; k < a.count; k++)
                made.push_back(n * map.size + (down.before + d.base + y) * map.row + (across.before + a.base + k) * s.group_out());
    return made;
}

struct Backward {
    const Int8& kernels;
    const ConvShape& shape;
    const Maps& x;
    const Gradient& g;
    uint64_t key;
    bool wide;
    const ConvGradients& out;
    const Reach &down, &across;
    const std::vector<std::vector<Phases>>& phases;  // by group
    const std::vector<std::vector<int64_t>>& places;  // by phase
    const float* input_scale;
    float* bias_rows;  // [batch][out]

    GradientScales quantise(int64_t n, const float* from, int8_t* g8, int16_t* g16) const {
        const GradientScales scales = gradient_scales(kernels.magnitude(from, shape.out_size()));
        if (!scales.finite()) {
            std::fill_n(g8, shape.out_size(), int8_t(0));
            if (wide) std::fill_n(g16, shape.out_size(), int16_t(0));
            return scales;
        }
        if (out.x != nullptr || !wide)
            kernels.round8(from, shape.out_size(), 1.0f / scales.narrow, key, n * ((shape.out_size() + 1) & ~int64_t(1)), g8);
        if (wide) kernels.round16(from, shape.out_size(), 1.0f / scales.wide, g16);
        return scales;
    }

    // Gradients of the inputs of samples first ... of one group.
    void data(int64_t first, int64_t samples, int64_t group, const std::vector<GradientScales>& scales, ConvWork& work) const {
        const int64_t count = shape.group_out();
        if (phases[size_t(group)].empty()) return;
        const Placement at{shape.out_height(), shape.out_width(), shape.out, group * count, count,
                           down.before, down.after, across.before, across.after};
        const auto [row, size] = Widened(shape, down, across);
        lay_out(kernels, phases[size_t(group)][0].panels, work.g8.data(), samples, shape.out_size(), at, [](int64_t) { return 0; }, size, work);
        Repeated per(shape.group_in());
        for (size_t which = 0; which < phases[size_t(group)].size(); which++) {
            const Phases& phase = phases[size_t(group)][which];
            const Phase &d = *phase.down, &a = *phase.across;
            const Panels& p = phase.panels;
            const int64_t padded = p.panels * INT8_PANEL, pixels = d.count * a.count;
            work.acc.need(samples * pixels * padded);
            multiply(kernels, p, work, places[which], samples * pixels, a.count, row, work.acc.data());
            if (p.of_bytes()) per.set_offset(p.sums.data(), kernels.byte_bias);
            for (int64_t n = 0; n < samples; n++) {
                per.set_scale(input_scale + group * shape.group_in(), scales[size_t(n)].narrow);
                const int32_t* const acc = work.acc.data() + n * pixels * padded;
                float* const to = out.x + (first + n) * shape.in_size() + group * shape.group_in();
                if (shape.stride_h == 1 && shape.stride_w == 1) {
                    kernels.scaled(acc, pixels, padded, per.view(), to, shape.in);
                    continue;
                }
                for (int64_t y = 0; y < d.count; y++)
                    kernels.scaled(acc + y * a.count * padded, a.count, padded, per.view(),
                                   to + ((d.first + y * shape.stride_h) * shape.width + a.first) * shape.in, shape.stride_w * shape.in);
            }
        }
    }

    // Rounds the gradients of some samples, for `weights` to go on with: scales by sample, and the integers in this thread's memory.
    template <class Weights>
    void block(int64_t first, int64_t samples, const Weights& weights) const {
        ConvWork& work = conv_work();
        work.g8.need(samples * shape.out_size());
        if (wide) work.g16.need(samples * shape.out_size());
        std::vector<GradientScales> scales(static_cast<size_t>(samples));
        for (int64_t n = 0; n < samples; n++) {
            const float* const from = g.sample(first + n);
            int16_t* const g16 = wide ? work.g16.data() + n * shape.out_size() : nullptr;
            scales[size_t(n)] = quantise(first + n, from, work.g8.data() + n * shape.out_size(), g16);
            if (out.bias != nullptr) kernels.channel_sums(from, shape.pixels(), shape.out, bias_rows + (first + n) * shape.out);
        }
        if (out.x != nullptr)
            for (int64_t group = 0; group < shape.groups; group++) data(first, samples, group, scales, work);
        if (out.weight != nullptr) weights(scales.data(), work);
    }

    // The weight gradient of a linear layer.
    void linear(int64_t together, int threads) const {
        LinearRows rows(kernels, shape, x);
        for (int64_t begin = 0; begin < shape.batch; begin += LinearRows::MOST) {
            const int64_t count = std::min(LinearRows::MOST, shape.batch - begin);
            rows.begin(begin, count);
            parallel_for((count + together - 1) / together, threads, [&](int64_t k) {
                const int64_t first = begin + k * together, some = std::min(together, begin + count - first);
                block(first, some, [&](const GradientScales* scales, ConvWork& work) { rows.take(first, some, scales, wide, work); });
            });
            rows.write(out.weight, begin == 0, threads);
        }
    }

    // Parts of the batch by themselves; the first has its sums where the gradient will lie, sums[chunks - 1][weights] are the others'.
    void chunks(int64_t chunk, int64_t together, float* sums, int threads) const {
        parallel_for((shape.batch + chunk - 1) / chunk, threads, [&](int64_t k) {
            const int64_t last = std::min((k + 1) * chunk, shape.batch);
            float* const of_chunk = out.weight == nullptr || k == 0 ? out.weight : sums + (k - 1) * shape.weights();
            for (int64_t first = k * chunk; first < last; first += together) {
                const int64_t some = std::min(together, last - first);
                block(first, some, [&](const GradientScales* scales, ConvWork& work) {
                    add_weight_gradients(kernels, shape, x, wide, first, some, scales, work, of_chunk, first == k * chunk);
                });
            }
        });
    }
};

// From [out][kernel_h][kernel_w][in] to [out][in][kernel_h][kernel_w], with sums[chunks - 1] added in order; an output at a time,
// which a cache can hold.
void gather(const ConvShape& s, const float* sums, int64_t chunks, float* out, int threads) {
    const int64_t inputs = s.group_in(), taps = s.kernel_h * s.kernel_w, each = inputs * taps;
    const bool large = chunks * s.weights() >= GATHERED_TOGETHER;
    parallel_for((s.out + GATHERED - 1) / GATHERED, large ? threads : 1, [&](int64_t part) {
        std::vector<float> total(static_cast<size_t>(each));
        for (int64_t o = part * GATHERED; o < std::min((part + 1) * GATHERED, s.out); o++) {
            float* const to = out + o * each;
            std::copy_n(to, each, total.data());
            for (int64_t k = 0; k < chunks - 1; k++) {
                const float* const more = sums + k * s.weights() + o * each;
                for (int64_t j = 0; j < each; j++) total[size_t(j)] += more[j];
            }
            for (int64_t i = 0; i < inputs; i++)
                for (int64_t t = 0; t < taps; t++) to[i * taps + t] = total[size_t(t * inputs + i)];
        }
    });
}

std::vector<std::vector<Phases>> packed(const Int8& kernels, const ConvShape& s, const float* weight, const float* scale, const Reach& down, const Reach& across, int threads) {
    std::vector<std::vector<Phases>> all(static_cast<size_t>(s.groups));
    for (int64_t group = 0; group < s.groups; group++)
        for (const Phase& d : down.phases)
            for (const Phase& a : across.phases) {
                if (d.taps == 0 || a.taps == 0) continue;
                all[size_t(group)].push_back({&d, &a, {}});
                pack_backward(kernels, s, weight, scale, group, d, a, all[size_t(group)].back().panels, threads);
            }
    return all;
}

bool some_without_taps(const Reach& reach) {
    return std::any_of(reach.phases.begin(), reach.phases.end(), [](const Phase& p) { return p.taps == 0; });
}

}  // namespace

void conv_backward(const Int8& kernels, const ConvShape& s, const Maps& x, const float* weight, const Gradient& g, uint64_t key,
                   bool wide, const ConvGradients& out, int threads) {
    const Reach down(s.height, s.kernel_h, s.stride_h, s.pad_h, s.out_height());
    const Reach across(s.width, s.kernel_w, s.stride_w, s.pad_w, s.out_width());
    std::vector<float> input_scale(static_cast<size_t>(s.in));
    std::vector<std::vector<Phases>> phases(static_cast<size_t>(s.groups));
    if (out.x != nullptr) {
        scales_by_input(kernels, s, weight, input_scale.data());
        phases = packed(kernels, s, weight, input_scale.data(), down, across, threads);
        if (some_without_taps(down) || some_without_taps(across)) std::fill_n(out.x, s.batch * s.in_size(), 0.0f);
    }
    // How the batch is cut depends on the shape alone, so that sums are the same with any number of threads.
    const bool by_rows = out.weight != nullptr && is_linear(s), by_chunks = out.weight != nullptr && !by_rows;
    const int64_t most = by_chunks ? std::clamp<int64_t>(CHUNK_FLOATS / s.weights(), 2, CHUNKS) : s.batch;
    const int64_t chunk = (s.batch + most - 1) / most, chunks = (s.batch + chunk - 1) / chunk;
    const int64_t together = samples_together(s.pixels(), by_rows ? s.batch : chunk, s.pixels() == 1 ? BLOCK_PIXELS : 4 * BLOCK_PIXELS);
    std::vector<float> bias_rows(size_t(out.bias == nullptr ? 0 : s.batch * s.out));
    std::vector<std::vector<int64_t>> places;
    for (const Phases& phase : phases[0]) places.push_back(places_of(s, down, across, *phase.down, *phase.across, together));
    const Backward backward{kernels, s, x, g, key, wide, out, down, across, phases, places, input_scale.data(), bias_rows.data()};
    if (by_rows) {
        backward.linear(together, threads);
    } else {
        static thread_local coding::Scratch<float> sums;  // for the next call: large blocks are cleared by the system each time
        sums.need(by_chunks ? (chunks - 1) * s.weights() : 0);
        backward.chunks(chunk, together, sums.data(), threads);
        if (by_chunks) gather(s, sums.data(), chunks, out.weight, threads);
    }
    if (out.bias == nullptr) return;
    std::fill_n(out.bias, s.out, 0.0f);
    for (int64_t n = 0; n < s.batch; n++)
        for (int64_t c = 0; c < s.out; c++) out.bias[c] += bias_rows[size_t(n * s.out + c)];
}

}  // namespace edgegossip
