// Sixteen lanes on AVX2, FMA and F16C, as two registers of eight.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sonoran {
namespace {

struct Vec {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using Q = I;
  static constexpr int kMaxRows = 4;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set(float v) { return {_mm256_set1_ps(v), _mm256_set1_ps(v)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b); }
  static __m128i half(const void* p, int i) { return _mm_loadu_si128(static_cast<const __m128i*>(p) + i); }
  static F load_half(const uint16_t* p) { return {_mm256_cvtph_ps(half(p, 0)), _mm256_cvtph_ps(half(p, 1))}; }
  static void store_half(uint16_t* p, F v) {
    auto* out = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(out, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(out + 1, _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static __m256 from_bf16(__m128i v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
  static F load_bf16(const uint16_t* p) { return {from_bf16(half(p, 0)), from_bf16(half(p, 1))}; }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F round(F x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
  }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static __m256 power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static F scale_by_power(F x, I n) { return mul(x, {power(n.a), power(n.b)}); }

  // The largest magnitude in x and y, compared as bits, so that a NaN counts as larger than everything.
  static float largest_magnitude(F x, F y) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const auto bits = [&](__m256 v) { return _mm256_and_si256(_mm256_castps_si256(v), mask); };
    const __m256i m =
        _mm256_max_epi32(_mm256_max_epi32(bits(x.a), bits(x.b)), _mm256_max_epi32(bits(y.a), bits(y.b)));
    __m128i r = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(r));
  }
  static int32_t sum(I x) {
    const __m256i m = _mm256_add_epi32(x.a, x.b);
    __m128i r = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_add_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    r = _mm_add_epi32(r, _mm_shuffle_epi32(r, 0xb1));
    return _mm_cvtsi128_si32(r);
  }

  static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I iset(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
  static I load_u8(const uint8_t* p) {
    const __m128i v = half(p, 0);
    return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
  }
  static I load_s8(const uint8_t* p) {
    const __m128i v = half(p, 0);
    return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
  }
  static void store_s8(int8_t* p, I v) {
    alignas(32) int32_t lanes[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v.a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + 8), v.b);
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(lanes[i]);
  }

  static Q load_bytes(const uint8_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static Q and_bytes(Q x, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
  }
  static Q or_bytes(Q x, Q y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  template <int N>
  static Q shift(Q x) {
    if constexpr (N > 0) return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
    if constexpr (N < 0) return {_mm256_srli_epi16(x.a, -N), _mm256_srli_epi16(x.b, -N)};
    return x;
  }
  template <int Bits>
  static __m256i products(__m256i codes, __m256i x) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (Bits <= 6) return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones);
    // Eight-bit codes would saturate the 16-bit sums: multiply the nibbles apart.
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i lo = _mm256_maddubs_epi16(_mm256_and_si256(codes, low), x);
    const __m256i hi = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(codes, 4), low), x);
    return _mm256_add_epi32(_mm256_madd_epi16(lo, ones), _mm256_madd_epi16(hi, _mm256_set1_epi16(16)));
  }
  template <int Bits>
  static I dot4(I acc, Q codes, const int8_t* x) {
    const __m256i v = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(x));
    return {_mm256_add_epi32(acc.a, products<Bits>(codes.a, v)),
            _mm256_add_epi32(acc.b, products<Bits>(codes.b, v))};
  }
};

}  // namespace
}  // namespace sonoran
