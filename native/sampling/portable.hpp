// Exponential and logarithm from IEEE operations alone, operation by operation as docs/exactness.md specifies
// them. Must be compiled without contraction and without fast-math.
#pragma once

#include <bit>
#include <cstdint>

// A function with this attribute is compiled for several instruction sets and chosen when the library is
// loaded. Integer sums and uncontracted float64 operations make all of them return the same bits.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define SONORAN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SONORAN_CLONES
#endif
#define SONORAN_INLINE inline __attribute__((always_inline))

namespace sonoran::sampling {

inline constexpr int k_weight_bits = 44;
inline constexpr int k_uniform_bits = 52;
inline constexpr int k_max_vocab = 1 << 19;
inline constexpr double k_ln2 = 0x1.62e42fefa39efp-1;

// round(exp(x) * 2^44) for x <= 0.
SONORAN_INLINE int64_t weight_of(double x) {
  constexpr double log2e = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42fefap-1;
  constexpr double ln2_low = 0x1.cf79abc9e3b39p-40;
  constexpr double round = 0x1.8p+52;
  constexpr double whole = 0x1p+52;
  x = x > -40.0 ? x : -40.0;
  const double shifted = x * log2e + round;
  const double k = shifted - round;
  const double r = (x - k * ln2_high) - k * ln2_low;
  double value = 1.0 / 39916800.0;
  value = value * r + 1.0 / 3628800.0;
  value = value * r + 1.0 / 362880.0;
  value = value * r + 1.0 / 40320.0;
  value = value * r + 1.0 / 5040.0;
  value = value * r + 1.0 / 720.0;
  value = value * r + 1.0 / 120.0;
  value = value * r + 1.0 / 24.0;
  value = value * r + 1.0 / 6.0;
  value = value * r + 1.0 / 2.0;
  value = value * r + 1.0;
  value = value * r + 1.0;
  const int64_t exponent = std::bit_cast<int64_t>(shifted) - 0x4338000000000000 + (1023 + k_weight_bits);
  const double scale = std::bit_cast<double>(exponent << 52);
  return std::bit_cast<int64_t>(value * scale + whole) - 0x4330000000000000;
}

// Natural logarithm of a positive normal number.
inline double log_of(double x) {
  const int64_t bits = std::bit_cast<int64_t>(x);
  int64_t exponent = (bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (mantissa > 0x1.6a09e667f3bcdp+0) {
    mantissa = mantissa * 0.5;
    exponent = exponent + 1;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  double series = 1.0 / 21.0;
  for (int k = 19; k >= 3; k -= 2) series = series * z + 1.0 / k;
  const double twice = s + s;
  return static_cast<double>(exponent) * k_ln2 + (twice + (twice * z) * series);
}

}  // namespace sonoran::sampling
