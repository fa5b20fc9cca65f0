#include "lowrank/eigen.hpp"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace edgegossip {
namespace {

constexpr int MAX_SWEEPS = 60;

constexpr double NEGLIGIBLE = 1e-290;  // below it squares lose bits, and a reflection would be none

// sqrt(a^2 + b^2) to rounding for any a and b: the vectors stay orthonormal only if every rotation is one.
double length(double a, double b) {
    a = std::fabs(a), b = std::fabs(b);
    const double large = a > b ? a : b, small = a > b ? b : a;
    if (large == 0.0) return 0.0;
    const double ratio = small / large;
    return large * std::sqrt(1.0 + ratio * ratio);
}

// The reflection I - beta v v^T that zeroes a row right of its first entry, applied from both sides to the square at `corner`
// of m rows, `stride` apart. v replaces the row `v`; returns beta and the first entry that remains.
struct Reflection {
    double beta, remains;
};

Reflection reflect(double* v, double* corner, int64_t m, int64_t stride, double* q) {
    double rest = 0.0;
    for (int64_t i = 1; i < m; i++) rest += v[i] * v[i];
    if (rest < NEGLIGIBLE) return {0.0, v[0]};
    const double size = std::sqrt(v[0] * v[0] + rest);
    const double remains = v[0] > 0 ? -size : size;
    v[0] -= remains;
    const double beta = 2.0 / (v[0] * v[0] + rest);
    std::memset(q, 0, size_t(m) * sizeof(double));
    for (int64_t r = 0; r < m; r++) {
        const double* const row = corner + r * stride;
        const double factor = beta * v[r];
        for (int64_t i = 0; i < m; i++) q[i] += factor * row[i];
    }
    double along = 0.0;
    for (int64_t i = 0; i < m; i++) along += v[i] * q[i];
    along *= 0.5 * beta;
    for (int64_t i = 0; i < m; i++) q[i] -= along * v[i];
    for (int64_t r = 0; r < m; r++) {
        double* const row = corner + r * stride;
        const double vr = v[r], qr = q[r];
        for (int64_t i = 0; i < m; i++) row[i] -= vr * q[i] + qr * v[i];
    }
    return {beta, remains};
}

// Leaves v of reflection k in row k of `a`, right of the diagonal.
void tridiagonalise(double* a, int64_t n, double* diagonal, double* beside, double* betas, double* scratch) {
    for (int64_t k = 0; k < n; k++) {
        double* const row = a + k * n;
        diagonal[k] = row[k];
        if (k + 1 == n) break;
        const Reflection made = reflect(row + k + 1, a + (k + 1) * n + k + 1, n - k - 1, n, scratch);
        betas[k] = made.beta;
        beside[k] = made.remains;
    }
}

// vectors = product of the reflections, from the last to the first; transposed, so that its rows are the new basis.
void accumulate(const double* a, int64_t n, const double* betas, double* vectors, double* scratch) {
    std::memset(vectors, 0, size_t(n * n) * sizeof(double));
    for (int64_t i = 0; i < n; i++) vectors[i * n + i] = 1.0;
    for (int64_t k = n - 2; k >= 0; k--) {
        if (betas[k] == 0.0) continue;
        const int64_t m = n - k - 1;
        const double* const v = a + k * n + k + 1;
        double* const corner = vectors + (k + 1) * n + k + 1;
        std::memset(scratch, 0, size_t(m) * sizeof(double));
        for (int64_t r = 0; r < m; r++)
            for (int64_t i = 0; i < m; i++) scratch[i] += v[r] * corner[r * n + i];
        for (int64_t r = 0; r < m; r++) {
            const double factor = betas[k] * v[r];
            for (int64_t i = 0; i < m; i++) corner[r * n + i] -= factor * scratch[i];
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) std::swap(vectors[i * n + j], vectors[j * n + i]);
}

void rotate(double* upper, double* lower, int64_t n, double c, double s) {
    for (int64_t i = 0; i < n; i++) {
        const double u = upper[i], l = lower[i];
        lower[i] = s * u + c * l;
        upper[i] = c * u - s * l;
    }
}

// First index from `from` on at which the tridiagonal matrix falls into two.
int64_t split(const double* diagonal, const double* beside, int64_t from, int64_t n) {
    int64_t at = from;
    while (at < n - 1 && std::fabs(beside[at]) > DBL_EPSILON * (std::fabs(diagonal[at]) + std::fabs(diagonal[at + 1]))) at++;
    return at;
}

// One implicit QL sweep over rows first..last.
void sweep(double* diagonal, double* beside, int64_t first, int64_t last, int64_t n, double* vectors) {
    double g = (diagonal[first + 1] - diagonal[first]) / (2.0 * beside[first]);
    double r = length(g, 1.0);
    g = diagonal[last] - diagonal[first] + beside[first] / (g + (g < 0 ? -r : r));
    double s = 1.0, c = 1.0, p = 0.0;
    for (int64_t i = last - 1; i >= first; i--) {
        const double f = s * beside[i], b = c * beside[i];
        r = length(f, g);
        beside[i + 1] = r;
        if (r == 0.0) {  // fell apart on the way
            diagonal[i + 1] -= p;
            beside[last] = 0.0;
            return;
        }
        s = f / r;
        c = g / r;
        g = diagonal[i + 1] - p;
        r = (diagonal[i] - g) * s + 2.0 * c * b;
        p = s * r;
        diagonal[i + 1] = g + p;
        g = c * r - b;
        rotate(vectors + i * n, vectors + (i + 1) * n, n, c, s);
    }
    diagonal[first] -= p;
    beside[first] = g;
    beside[last] = 0.0;
}

}  // namespace

void symmetric_eigenvectors(double* a, int64_t n, double* vectors) {
    if (n == 0) return;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) a[i * n + j] = a[j * n + i];
    std::vector<double> diagonal(static_cast<size_t>(n)), beside(static_cast<size_t>(n)), scratch(static_cast<size_t>(n));
    std::vector<double> betas(static_cast<size_t>(n));
    tridiagonalise(a, n, diagonal.data(), beside.data(), betas.data(), scratch.data());
    accumulate(a, n, betas.data(), vectors, scratch.data());
    for (int64_t first = 0; first < n; first++)
        for (int tries = 0; tries < MAX_SWEEPS; tries++) {
            const int64_t last = split(diagonal.data(), beside.data(), first, n);
            if (last == first) break;
            sweep(diagonal.data(), beside.data(), first, last, n, vectors);
        }
}

}  // namespace edgegossip
