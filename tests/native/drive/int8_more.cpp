#include "int8/attention.hpp"
#include "int8/embedding.hpp"
#include "int8/layernorm.hpp"
#include "int8/pooling.hpp"
#include "int8/shaping.hpp"
#include "int8.hpp"

namespace {

using namespace edgegossip;
using drive::Batch, drive::add, drive::floats, drive::quantised;

// Overlapping windows, padding, ceil_mode's last window, one pixel.
constexpr PoolShape POOLS[] = {
    {2, 7, 9, 5, 3, 3, 2, 2, 1, 1, 4, 5}, {3, 6, 4, 33, 2, 2, 2, 2, 0, 0, 3, 2}, {1, 5, 5, 16, 2, 3, 2, 3, 0, 0, 3, 2}, {2, 1, 1, 3, 1, 1, 1, 1, 0, 0, 1, 1},
};
constexpr EmbeddingShape TABLES[] = {{3, 9, 5, 7}, {1, 1, 1, 1}, {6, 40, 100, 33}};

void run_pool(const Isa& isa) {
    drive::Random random;
    drive::Hash hash;
    for (const PoolShape& s : POOLS) {
        const Batch x = quantised(*isa.int8, random, s.batch, s.in_size(), 1.0f);
        const std::vector<float> g = floats(random, s.batch * s.out_size(), 1.0f);
        std::vector<int8_t> q(g.size());
        std::vector<uint8_t> tap(g.size()), last(g.size());
        max_pool(*isa.int8, s, Tie::LAST, x.q.data(), q.data(), last.data(), 2);
        max_pool(*isa.int8, s, Tie::FIRST, x.q.data(), q.data(), tap.data(), 2);
        hash.add(q.data(), q.size());
        hash.add(tap.data(), tap.size());
        hash.add(last.data(), last.size());
        std::vector<float> dx(size_t(s.batch * s.in_size())), y(g.size());
        if (taps_inside(s, tap.data()) && taps_inside(s, last.data())) max_pool_backward(s, tap.data(), last.data(), g.data(), dx.data(), 2);
        add(hash, dx);
        for (const bool count_padding : {false, true}) {
            average_pool(s, x.view(), count_padding, y.data(), 2);
            average_pool_backward(s, g.data(), count_padding, dx.data(), 2);
            add(hash, y);
            add(hash, dx);
        }
    }
    drive::report(isa, "int8_pool", hash);
}

void run_embedding(const Isa& isa) {
    drive::Random random;
    drive::Hash hash;
    for (const EmbeddingShape& s : TABLES) {
        const std::vector<float> table = floats(random, s.rows * s.width, 1.0f), g = floats(random, s.batch * s.size(), 1e-3f);
        std::vector<int64_t> ids(size_t(s.batch * s.length));
        for (int64_t& id : ids) id = int64_t(random.next() % uint64_t(s.rows));
        Batch y(s.batch, s.size());
        embedding_forward(*isa.int8, s, ids.data(), table.data(), y.q.data(), y.scale.data(), y.zero.data(), 2);
        y.add_to(hash);
        for (const bool wide : {false, true}) {
            std::vector<float> dw(table.size());
            embedding_backward(*isa.int8, s, ids.data(), g.data(), random.next(), wide, 0, dw.data(), 2);
            add(hash, dw);
        }
    }
    drive::report(isa, "int8_embedding", hash);
}

// A convolution and the norm behind it in one step, forward and backward, on one thread and on three.
void run_conv_norm(const Isa& isa) {
    constexpr ConvShape CONVS[] = {{9, 8, 8, 5, 16, 3, 3, 1, 1, 1, 1, 1}, {4, 6, 5, 8, 24, 1, 1, 2, 2, 0, 0, 2}};
    drive::Random random;
    for (const int threads : {1, 3}) {
        drive::Hash hash, forward_hash;
        random = drive::Random();
        for (const ConvShape& s : CONVS) {
            const NormShape norm{s.batch, s.pixels(), s.out, 8, s.pixels() % 4 == 0 ? 4 : 3};
            const Batch x = quantised(*isa.int8, random, s.batch, s.in_size(), 1.0f), y = quantised(*isa.int8, random, s.batch, s.out_size(), 2.0f);
            const std::vector<float> weight = floats(random, s.weights(), 0.5f), g = floats(random, s.batch * s.out_size(), 1e-3f);
            const std::vector<float> v = floats(random, s.out, 2.0f), gamma = floats(random, s.out, 1.0f), beta = floats(random, s.out, 1.0f);
            std::vector<float> dx(size_t(s.batch * s.in_size())), dw(weight.size()), db(v.size()), dv(v.size()), dgamma(v.size()), dbeta(v.size());
            Batch made(s.batch, s.out_size()), z(s.batch, s.out_size());
            conv_evonorm_forward(*isa.int8, s, x.view(), weight.data(), beta.data(), {made.q.data(), made.scale.data(), made.zero.data()}, norm,
                                 {v.data(), gamma.data(), beta.data()}, {z.q.data(), z.scale.data(), z.zero.data()}, threads);
            made.add_to(forward_hash);
            z.add_to(forward_hash);
            const EvoNormGradient gradient(*isa.int8, norm, y.view(), {v.data(), gamma.data(), beta.data()}, g.data());
            conv_backward(*isa.int8, s, x.view(), weight.data(), gradient, random.next(), true, {dx.data(), dw.data(), db.data()}, threads);
            gradient.parameters(dv.data(), dgamma.data(), dbeta.data());
            for (std::vector<float>* values : {&dx, &dw, &db, &dv, &dgamma, &dbeta}) add(hash, *values);
        }
        drive::report(isa, "int8_conv_evonorm", forward_hash);
        drive::report(isa, "int8_conv_evonorm_backward", hash);  // the same keys twice: both lines must agree
    }
}

// Slices and ReLU, forward and backward: a small batch, and one that threads share.
void run_shaping(const Isa& isa) {
    constexpr SliceShape SLICES[] = {{4, 4, 2, {1, 2, 2}, {0, 3, 2}, {0, 1, 2}}, {16, 16, 32, {0, 2, 8}, {1, 2, 8}, {3, 4, 7}}};
    constexpr int64_t BATCH = 5;
    drive::Random random;
    drive::Hash hash;
    for (const SliceShape& s : SLICES) {
        const Batch x = quantised(*isa.int8, random, BATCH, s.in_size(), 1.0f);
        const int64_t pixels = BATCH * s.rows.count * s.columns.count, pitch = s.taken.count + 3;
        const std::vector<float> g = floats(random, (pixels - 1) * pitch + s.taken.count, 1.0f), of_x = floats(random, BATCH * s.in_size(), 1.0f);
        std::vector<int8_t> taken(size_t(BATCH * s.out_size())), positive(of_x.size());
        std::vector<float> dx(of_x.size());
        slice_maps(s, BATCH, x.q.data(), taken.data(), 3);
        slice_backward(s, BATCH, g.data(), pitch, dx.data(), 3);
        hash.add(taken.data(), taken.size());
        add(hash, dx);
        relu_maps(x.q.data(), x.zero.data(), BATCH, s.in_size(), positive.data(), 3);
        relu_backward(positive.data(), x.zero.data(), BATCH, s.in_size(), of_x.data(), dx.data(), 3);
        hash.add(positive.data(), positive.size());
        add(hash, dx);
    }
    drive::report(isa, "int8_shaping", hash);
}

// Attention with keys that are hidden and without, with dropout, heads of odd width, and scales that overflow; layer norm
// and GELU of values of any size.
void run_sequences(const Isa& isa) {
    constexpr AttentionShape ATTENTIONS[] = {{2, 9, 17, 3, 7}, {1, 33, 33, 2, 32}, {3, 1, 1, 1, 1}, {2, 5, 40, 1, 16}};
    constexpr LayerNormShape LAYERS[] = {{2, 7, 96, 16}, {3, 2, 30, 6}, {1, 1, 1, 1}, {2, 3, 47, 1}};
    drive::Random random;
    drive::Hash attention_hash, norm_hash, gelu_hash;
    for (const AttentionShape& s : ATTENTIONS)
        for (const float width : {1.0f, 1e-38f, 3e30f}) {
            const Batch q = quantised(*isa.int8, random, s.batch, s.query_size(), width), k = quantised(*isa.int8, random, s.batch, s.key_size(), width),
                        v = quantised(*isa.int8, random, s.batch, s.key_size(), 1.0f);
            std::vector<uint8_t> seen(size_t(s.batch * s.keys));
            for (uint8_t& one : seen) one = random.next() % 4 != 0;
            const std::vector<float> g = floats(random, s.batch * s.query_size(), 1e-3f);
            for (const bool whole : {false, true}) {
                const KeyMask mask{whole ? nullptr : seen.data(), whole ? 1 : s.batch, 1, 1};
                const Attention of{s, q.view(), k.view(), v.view(), mask, {whole ? 1u << 30 : 0u, whole ? 4.0f / 3.0f : 1.0f}, random.next()};
                std::vector<float> out(g.size()), dq(g.size()), dk(size_t(s.batch * s.key_size())), dv(dk.size());
                attention_forward(*isa.int8, of, out.data(), 2);
                attention_backward(*isa.int8, of, g.data(), dq.data(), dk.data(), dv.data(), 2);
                for (std::vector<float>* values : {&out, &dq, &dk, &dv}) add(attention_hash, *values);
            }
        }
    for (const LayerNormShape& s : LAYERS)
        for (const float width : {1.0f, 1e-38f, 3e37f}) {
            const Batch y = quantised(*isa.int8, random, s.batch, s.size(), width);
            Batch z(s.batch, s.size());
            const std::vector<float> gamma = floats(random, s.features, 1.0f), beta = floats(random, s.features, 1.0f),
                                     g = floats(random, s.batch * s.size(), 1.0f);
            std::vector<float> dy(g.size()), dgamma(gamma.size()), dbeta(gamma.size());
            const LayerRange range{0.3f / float(s.chunks), 1e-12f};
            layernorm_forward(*isa.int8, s, y.view(), gamma.data(), beta.data(), range, {z.q.data(), z.scale.data(), z.zero.data()}, 2);
            layernorm_backward(*isa.int8, s, y.view(), gamma.data(), range, g.data(), {dy.data(), dgamma.data(), dbeta.data()}, 2);
            z.add_to(norm_hash);
            for (std::vector<float>* values : {&dy, &dgamma, &dbeta}) add(norm_hash, *values);
            gelu_forward(*isa.int8, y.view(), s.batch, s.size(), {z.q.data(), z.scale.data(), z.zero.data()}, 2);
            gelu_backward(y.view(), s.batch, s.size(), g.data(), dy.data(), 2);
            z.add_to(gelu_hash);
            add(gelu_hash, dy);
        }
    drive::report(isa, "int8_attention", attention_hash);
    drive::report(isa, "int8_layernorm", norm_hash);
    drive::report(isa, "int8_gelu", gelu_hash);
}

void run(const Isa& isa) {
    run_pool(isa);
    run_sequences(isa);
    run_shaping(isa);
    run_embedding(isa);
    run_conv_norm(isa);
}

const drive::Part part(run);

}  // namespace
