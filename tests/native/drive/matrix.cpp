#include "lowrank/eigen.hpp"
#include "lowrank/lowrank.hpp"
#include "lowrank/spectral.hpp"
#include "driver.hpp"

namespace {

using namespace edgegossip;

struct Shape {
    int64_t rows, cols;
};
constexpr Shape SHAPES[] = {{1, 1}, {3, 5}, {5, 3}, {8, 8}, {17, 40}, {40, 17}, {33, 300}, {300, 70}, {64, 576}};

void run(const Isa& isa) {
    drive::Random random;
    drive::Hash basis_hash, atom_hash, power_hash, product_hash;
    for (const Shape s : SHAPES)
        for (const float scale : {1.0f, 1e-42f, 3e38f}) {
            const size_t n = size_t(s.rows * s.cols), side = size_t(s.rows < s.cols ? s.rows : s.cols);
            std::vector<float> x(n), error(n), residual(n), long_side(size_t(s.rows < s.cols ? s.cols : s.rows));
            for (float& v : x) v = (float(uint32_t(random.next()) >> 8) / 16777216.0f - 0.5f) * 2.0f * scale;
            for (float& v : error) v = (float(uint32_t(random.next()) >> 8) / 16777216.0f - 0.5f) * scale;
            std::vector<double> basis(side * side), norms(side);
            spectral_basis(*isa.kernels, x.data(), s.rows, s.cols, basis.data(), norms.data());
            basis_hash.add(basis.data(), 8 * basis.size());
            basis_hash.add(norms.data(), 8 * norms.size());
            spectral_atom(*isa.kernels, x.data(), s.rows, s.cols, basis.data(), 0.375, long_side.data());
            atom_hash.add(long_side.data(), 4 * long_side.size());
            for (const int64_t rank : {1, 2, 5})
                for (const bool half : {false, true}) {
                    const FactorShape shape{s.rows, s.cols, rank, half};
                    std::vector<float> start(size_t(rank * s.cols)), next(start.size()), sum(n, 0.25f);
                    for (float& v : start) v = float(uint32_t(random.next()) >> 8) / 8388608.0f - 1.0f;
                    std::vector<uint8_t> factors(size_t(shape.bytes()));
                    power_step(*isa.kernels, shape, x.data(), error.data(), 0.75f, start.data(), factors.data(), next.data(),
                               residual.data());
                    power_hash.add(factors.data(), factors.size());
                    power_hash.add(next.data(), 4 * next.size());
                    power_hash.add(residual.data(), 4 * residual.size());
                    factors_product(*isa.kernels, shape, factors.data(), sum.data(), Into::ADD, 0.3f);
                    product_hash.add(sum.data(), 4 * sum.size());
                }
        }
    drive::report(isa, "spectral_basis", basis_hash);
    drive::report(isa, "spectral_atom", atom_hash);
    drive::report(isa, "power_step", power_hash);
    drive::report(isa, "factors_product", product_hash);
}

const drive::Part part(run);

}  // namespace
