// Philox4x32-10 (Salmon et al., SC 2011) and the Gumbel noise made of it; see docs/exactness.md.
#pragma once

#include <array>
#include <cstdint>

#include "sampling/portable.hpp"

namespace sonoran::sampling {

// Last counter word; those that only Python names are in src/sonoran/sampling/noise.py.
enum Stream : uint32_t { k_gumbel_high = 0, k_gumbel_low = 1 };

// Key and position of a draw: everything that does not depend on the token.
struct NoiseKey {
  uint64_t seed;
  uint64_t position;
};

// Lanes independent generators at once: c0 differs between lanes, the other counter words are shared.
template <int Lanes>
SONORAN_INLINE void philox(NoiseKey key, Stream stream, const uint32_t* blocks, uint32_t (&out)[4][Lanes]) {
  for (int j = 0; j < Lanes; ++j) {
    out[0][j] = blocks[j];
    out[1][j] = static_cast<uint32_t>(key.position);
    out[2][j] = static_cast<uint32_t>(key.position >> 32);
    out[3][j] = stream;
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < Lanes; ++j) {
      const uint64_t p0 = static_cast<uint64_t>(out[0][j]) * 0xD2511F53u;
      const uint64_t p1 = static_cast<uint64_t>(out[2][j]) * 0xCD9E8D57u;
      const uint32_t c0 = static_cast<uint32_t>(p1 >> 32) ^ out[1][j] ^ k0;
      const uint32_t c2 = static_cast<uint32_t>(p0 >> 32) ^ out[3][j] ^ k1;
      out[1][j] = static_cast<uint32_t>(p1);
      out[3][j] = static_cast<uint32_t>(p0);
      out[0][j] = c0;
      out[2][j] = c2;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

inline uint32_t token_word(NoiseKey key, Stream stream, int32_t token) {
  const uint32_t block = static_cast<uint32_t>(token) >> 2;
  uint32_t words[4][1];
  philox<1>(key, stream, &block, words);
  return words[token & 3][0];
}

// Standard Gumbel noise of a token.
inline double gumbel(NoiseKey key, int32_t token) {
  const uint64_t high = token_word(key, k_gumbel_high, token);
  const uint64_t low = token_word(key, k_gumbel_low, token);
  const double n = static_cast<double>((high << 20) | (low >> 12));
  const double v = (n + 0.5) * 0x1p-52;
  return -log_of(-log_of(1.0 - v));
}

}  // namespace sonoran::sampling
