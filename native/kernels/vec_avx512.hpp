// Sixteen lanes on AVX512 but for the dot product, which avx512vnni.cpp and avx512bw.cpp add. All vec_*.hpp
// define the same operations with the same bits.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/pair_sums_x86.hpp"

namespace sonoran {
namespace {

struct Avx512 {
  using F = __m512;   // 16 floats
  using I = __m512i;  // 16 int32
  using Q = __m512i;  // 64 bytes: 4 of each lane
  static constexpr int kMaxRows = 8;
  // See matmul.hpp. Zen 4 has one 64-byte load a cycle, and the broadcasts of activations need it.
  static constexpr bool kUnpackOnce = false;
  static constexpr bool kConvertOnce = false;  // see attention.hpp
  static constexpr int kMaxHeads = 8;  // query heads whose scores of 32 keys are in registers together
  static constexpr int kMaxMixed = 8;  // query heads whose sums of values are
  static constexpr int kMaxSums = 24;  // F that are summed in registers together

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_half(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F load_power(const uint8_t* p) {  // 2^(e - 128) of 16 bytes e
    const __m512i e = load_u8(p);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, iset(1)), 23);
    const __m512i subnormal =
        _mm512_min_epi32(_mm512_slli_epi32(_mm512_add_epi32(e, iset(1)), 21), iset(0x400000));
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }
  static F scale_by_power(F a, I n) {  // a * 2^n, n within the normal exponents
    return _mm512_mul_ps(
        a, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)));
  }

  // The largest magnitude in a and b, compared as bits, so that a NaN counts as larger than everything.
  static float largest_magnitude(F a, F b) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i x = _mm512_and_si512(_mm512_castps_si512(a), mask);
    const __m512i y = _mm512_and_si512(_mm512_castps_si512(b), mask);
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_max_epi32(x, y)))));
  }
  static void pair_sums(const int8_t* codes, int16_t (&minus_pairs)[3][2]) {
    pair_sums_x86(codes, minus_pairs);
  }

  static I izero() { return _mm512_setzero_si512(); }
  static I iset(int32_t v) { return _mm512_set1_epi32(v); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static I pair_of(const int16_t (&pair)[2]) {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(pair));
  }
  static I both(I x) {  // each lane's value, an int16, twice
    return _mm512_or_si512(_mm512_slli_epi32(x, 16), _mm512_and_si512(x, iset(0xffff)));
  }
  static I times_pair(const int16_t (&pair)[2], I factors) {  // factors are both() of what they are
    return _mm512_madd_epi16(pair_of(pair), factors);
  }
  static I times_pair(const int16_t (&pair)[2], int factor) {
    return _mm512_madd_epi16(pair_of(pair), _mm512_set1_epi16(static_cast<int16_t>(factor)));
  }
  static I load_u8(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I load_low4(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepu8_epi32(_mm_and_si128(v, _mm_set1_epi8(15)));
  }
  static I load_high4(const uint8_t* p) { return _mm512_srli_epi32(load_u8(p), 4); }
  static I load_s8(const uint8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_s8(int8_t* p, I v) {  // values already within int8
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }

  static Q load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_bytes(uint8_t* p, Q v) { _mm512_storeu_si512(p, v); }
  static Q and_bytes(Q a, uint8_t mask) {
    return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static Q xor_bytes(Q a, uint8_t mask) {
    return _mm512_xor_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
  }
  static Q look_up(const uint8_t* table, Q codes) {  // codes below 16
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(v), codes);
  }
  static Q or_bytes(Q a, Q b) { return _mm512_or_si512(a, b); }
  template <int N>
  static Q shift(
      Q a) {  // left by N bits if positive, right by -N otherwise; bits cross bytes, mask afterwards
    if constexpr (N > 0) return _mm512_slli_epi16(a, N);
    if constexpr (N < 0) return _mm512_srli_epi16(a, -N);
    return a;
  }
  static Q four(const int8_t* x) {  // the same 4 bytes for every lane
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(x));
  }
};

}  // namespace
}  // namespace sonoran
