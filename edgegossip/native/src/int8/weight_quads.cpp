#include "int8/weights.hpp"

namespace edgegossip {

namespace {

constexpr int64_t MOST_PIXELS = 65536;  // 127 * 255 each stay below 2^31
constexpr int64_t FEW_PIXELS = 256;     // 32512 * 255 each stay below 2^31
constexpr int64_t FEWEST_INPUTS = 3;    // of 16 in a register

// Quotients rounded up and down, of any sign; b > 0.
int64_t up(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
int64_t down(int64_t a, int64_t b) { return -up(-a, b); }

// The outputs, first <= k < last, whose input k * stride + tap - pad lies in the map.
struct Met {
    int64_t first, last;

    Met(int64_t tap, int64_t stride, int64_t pad, int64_t size, int64_t outputs)
        : first(std::clamp<int64_t>(up(pad - tap, stride), 0, outputs)),
          last(std::clamp<int64_t>(down(size - 1 + pad - tap, stride) + 1, first, outputs)) {}
};

struct Quads {
    const Int8& kernels;
    const ConvShape& s;
    const Maps& x;
    bool wide;
    int64_t first, samples;
    ConvWork& work;

    bool is_long() const { return wide && s.pixels() > FEW_PIXELS; }
    int64_t quads() const { return quads_of(s.width, s.stride_w); }
    int64_t x_quad() const { return panels_of(s.group_in()) * INT8_PANEL * 4; }
    int64_t x_phase() const { return quads() * x_quad(); }
    int64_t x_row() const { return s.stride_w * x_phase(); }
    int64_t x_sample() const { return s.height * x_row(); }
    // Gradient columns lie from `lead` on; the farthest that a tap starts before them, and that quads end behind them.
    int64_t lead() const { return std::max<int64_t>(up(s.kernel_w - 1 - s.pad_w, s.stride_w), 0); }
    int64_t pitch() const {
        const int64_t turned = (s.out_width() + 15) / 16 * 16, read = (s.stride_w - 1 + s.pad_w) / s.stride_w + 4 * quads();
        return lead() + std::max(turned, read);
    }
    int64_t g_row() const { return s.group_out() * pitch(); }
    int64_t g_map() const { return s.out_height() * g_row(); }
    int64_t g_sample() const { return (wide ? 2 : 1) * g_map(); }

    void split() const {
        if (!wide) return;
        const int64_t size = samples * s.out_size();
        work.halves.need(2 * size);
        kernels.split(work.g16.data(), size, work.halves.data(), work.halves.data() + size);
    }
    // Gradients of a sample as bytes; `part` 1: the low ones.
    const int8_t* gradient(int64_t n, int64_t part) const {
        return wide ? work.halves.data() + (part * samples + n) * s.out_size() : work.g8.data() + n * s.out_size();
    }

    // [samples][kernel_h][kernel_w][out]: sums of the gradients that meet inputs, times what every byte of these lacks.
    void sum_up() const {
        const int64_t size = s.kernel_h * s.kernel_w * s.out;
        work.offsets.assign(size_t(samples * size), 0);
        if (is_long()) work.wide_offsets.resize(work.offsets.size());
        for (int64_t n = 0; n < samples; n++) {
            int32_t* const sums = work.offsets.data() + n * size;
            for (int64_t part = 0; part < (wide ? 2 : 1); part++) sum_up(gradient(n, part), wide && part == 0 ? 256 : 1, sums);
            const int32_t bias = -(x.zero[first + n] + kernels.byte_bias);
            if (is_long())
                for (int64_t k = 0; k < size; k++) work.wide_offsets[size_t(n * size + k)] = double(bias) * double(sums[k]);
            else
                for (int64_t k = 0; k < size; k++) sums[k] = int32_t(uint32_t(bias) * uint32_t(sums[k]));
        }
    }
    void sum_up(const int8_t* g, int32_t times, int32_t* sums) const {
        const int64_t row = s.out_width() * s.out;
        work.columns.need(3 * row);
        int32_t *const all = work.columns.data(), *const some = all + row, *const rest = some + row;
        kernels.column_sums(g, s.out_height(), row, all);
        for (int64_t kh = 0; kh < s.kernel_h; kh++, sums += s.kernel_w * s.out) {
            const Met rows(kh, s.stride_h, s.pad_h, s.height, s.out_height());
            std::copy_n(all, row, some);
            const auto leave_out = [&](int64_t from, int64_t to) {
                if (from == to) return;
                kernels.column_sums(g + from * row, to - from, row, rest);
                for (int64_t i = 0; i < row; i++) some[i] -= rest[i];
            };
            leave_out(0, rows.first);
            leave_out(rows.last, s.out_height());
            over_columns(some, times, sums);
        }
    }
    // sums[kw][out] += times the sums of the columns that each tap has inputs for.
    void over_columns(const int32_t* columns, int32_t times, int32_t* sums) const {
        std::vector<int32_t>& all = work.all_columns;
        all.assign(size_t(s.out), 0);
        for (int64_t k = 0; k < s.out_width(); k++)
            for (int64_t o = 0; o < s.out; o++) all[size_t(o)] += columns[k * s.out + o];
        for (int64_t kw = 0; kw < s.kernel_w; kw++, sums += s.out) {
            const Met met(kw, s.stride_w, s.pad_w, s.width, s.out_width());
            const auto add = [&](const int32_t* from, int32_t factor) {
                for (int64_t o = 0; o < s.out; o++) sums[o] += factor * from[o];
            };
            add(all.data(), times);
            for (int64_t k = 0; k < met.first; k++) add(columns + k * s.out, -times);
            for (int64_t k = met.last; k < s.out_width(); k++) add(columns + k * s.out, -times);
        }
    }

    void lay_out(int64_t group) const {
        const int64_t inputs = s.group_in(), count = s.group_out();
        const Placement of_x{s.height, s.width, s.in, group * inputs, inputs, 0, 0, 0, 0};
        const Placement of_g{s.out_height(), s.out_width(), s.out, group * count, count, 0, 0, 0, 0};
        work.quads.need(samples * x_sample());
        work.turned.need(samples * g_sample());
        for (int64_t n = 0; n < samples; n++) {
            kernels.quads(x.q + (first + n) * s.in_size(), of_x, s.stride_w, work.quads.data() + n * x_sample());
            for (int64_t part = 0; part < (wide ? 2 : 1); part++)
                kernels.turned(gradient(n, part), of_g, lead(), pitch(), work.turned.data() + n * g_sample() + part * g_map());
        }
    }

    // The sums of taps that see nothing but padding: 0, which a factor that is not finite makes NaN, as everywhere else.
    void spoil_what_met_nothing(int64_t group, float* sums) const {
        for (int64_t kh = 0; kh < s.kernel_h; kh++)
            for (int64_t kw = 0; kw < s.kernel_w; kw++) {
                const Met rows(kh, s.stride_h, s.pad_h, s.height, s.out_height()), columns(kw, s.stride_w, s.pad_w, s.width, s.out_width());
                if (rows.first < rows.last && columns.first < columns.last) continue;
                for (int64_t o = group * s.group_out(); o < (group + 1) * s.group_out(); o++)
                    std::fill_n(sums + ((o * s.kernel_h + kh) * s.kernel_w + kw) * s.group_in(), s.group_in(), std::numeric_limits<float>::quiet_NaN());
            }
    }

    void products(int64_t group, float* sums, bool fresh) const {
        const int64_t inputs = s.group_in(), count = s.group_out(), run = s.kernel_w * inputs, taps = s.kernel_h * s.kernel_w;
        for (int64_t kh = 0; kh < s.kernel_h; kh++) {
            const Met rows(kh, s.stride_h, s.pad_h, s.height, s.out_height());
            if (rows.first == rows.last) {
                for (int64_t o = group * count; fresh && o < (group + 1) * count; o++) std::fill_n(sums + (o * s.kernel_h + kh) * run, run, 0.0f);
                continue;
            }
            const int64_t row = rows.first * s.stride_h + kh - s.pad_h;
            for (int64_t phase = 0; phase < std::min(s.stride_w, s.width); phase++) {
                const int64_t kw = (phase + s.pad_w) % s.stride_w, start = (phase + s.pad_w - kw) / s.stride_w;
                if (kw >= s.kernel_w) continue;
                const int64_t offsets = (kh * s.kernel_w + kw) * s.out + group * count;
                kernels.quad_products({samples, rows.last - rows.first, quads(),
                                       work.quads.data() + row * x_row() + phase * x_phase(), x_sample(), s.stride_h * x_row(), x_quad(),
                                       work.turned.data() + rows.first * g_row() + lead() + start, g_sample(), g_row(), pitch(),
                                       wide ? g_map() : 0,
                                       work.offsets.data() + offsets, is_long() ? work.wide_offsets.data() + offsets : nullptr, taps * s.out,
                                       s.stride_w * s.out, work.factor.data(), count, (s.kernel_w - 1 - kw) / s.stride_w + 1, inputs,
                                       sums + group * count * s.kernel_h * run + kh * run + kw * inputs, s.kernel_h * run,
                                       s.stride_w * inputs, fresh});
            }
        }
    }
};

}  // namespace

bool takes_quads(const Int8& kernels, const ConvShape& s, bool wide) {
    return kernels.quad_products != nullptr && (!wide || kernels.quads_of_words) && s.group_in() >= FEWEST_INPUTS && s.pixels() > 1 && s.pixels() <= MOST_PIXELS;
}

void add_quads(const Int8& kernels, const ConvShape& s, const Maps& x, bool wide, int64_t first, int64_t samples, ConvWork& work,
               float* sums, bool fresh) {
    if (fresh && s.width < s.stride_w) {  // not every tap is met
        std::fill_n(sums, s.weights(), 0.0f);
        fresh = false;
    }
    const Quads quads{kernels, s, x, wide, first, samples, work};
    const bool finite = std::all_of(work.factor.begin(), work.factor.begin() + samples, [](float f) { return std::isfinite(f); });
    quads.split();
    quads.sum_up();
    for (int64_t group = 0; group < s.groups; group++) {
        quads.lay_out(group);
        quads.products(group, sums, fresh);
        if (!finite) quads.spoil_what_met_nothing(group, sums);
    }
}

}  // namespace edgegossip
