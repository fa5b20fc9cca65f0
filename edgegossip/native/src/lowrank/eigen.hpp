// Eigenvectors of a symmetric matrix, the same bits on every machine.
#pragma once

#include <cstdint>

namespace edgegossip {

// a: float64[n][n], finite; its upper triangle counts, all of it is overwritten. vectors: float64[n][n], row i the i-th
// eigenvector; the rows are orthonormal to rounding whatever the matrix. No order is promised. Works in 32 n bytes besides.
//
// Householder reduction to a tridiagonal matrix, then the QL algorithm with implicit shifts (Golub and Van Loan, "Matrix
// Computations", 4th edition, sections 8.3.1 and 8.3.3). Additions, products, quotients and square roots only, each sum in
// one order; a row that has not converged after 60 sweeps is taken as it is.
void symmetric_eigenvectors(double* a, int64_t n, double* vectors);

}  // namespace edgegossip
