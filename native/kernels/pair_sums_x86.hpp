#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace sonoran {
namespace {

// See Vec::pair_sums; for all instruction sets that include AVX2.
inline void pair_sums_x86(const int8_t* codes, int16_t (&minus_pairs)[3][2]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
  sums = _mm256_add_epi16(sums, _mm256_bsrli_epi128(sums, 8));
  sums = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(sums, _mm256_bsrli_epi128(sums, 4)));
  const __m128i first = _mm256_castsi256_si128(sums);
  const __m128i second = _mm256_extracti128_si256(sums, 1);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(minus_pairs), _mm_unpacklo_epi32(first, second));
  const int32_t whole = _mm_cvtsi128_si32(_mm_add_epi16(first, second));
  std::memcpy(minus_pairs[2], &whole, sizeof whole);
}

}  // namespace
}  // namespace sonoran
