// Sixteen lanes on AVX2, FMA and F16C, as two registers of eight.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "kernels/pair_sums_x86.hpp"

namespace sonoran {
namespace {

struct Avx2 {
  struct F {
    __m256 a, b;
  };
  struct I {
    __m256i a, b;
  };
  using Q = I;
  using Pairs = I;                            // 32 int16, two of each lane
  static constexpr int kMaxRows = 6;          // two sums of each row and what they need fill the 16 registers
  static constexpr bool kUnpackOnce = true;   // see matmul.hpp
  static constexpr bool kConvertOnce = true;  // see attention.hpp
  static constexpr int kMaxHeads = 3;         // query heads whose scores of 32 keys are in registers together
  static constexpr int kMaxMixed = 2;         // query heads whose sums of values are
  static constexpr int kMaxSums = 4;          // F that are summed in registers together
  static constexpr bool kPairs = true;        // see dot.hpp

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
  static __m256 power_of(__m256i e) {
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i subnormal =
        _mm256_min_epi32(_mm256_slli_epi32(_mm256_add_epi32(e, one), 21), _mm256_set1_epi32(0x400000));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
  }
  static F load_power(const uint8_t* p) {  // 2^(e - 128) of 16 bytes e
    const I e = load_u8(p);
    return {power_of(e.a), power_of(e.b)};
  }
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
  static void pair_sums(const int8_t* codes, int16_t (&minus_pairs)[3][2]) {
    pair_sums_x86(codes, minus_pairs);
  }

  static I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static I iset(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static I imul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
  static __m256i pair_of(const int16_t (&pair)[2]) {
    return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(pair));
  }
  static I times_pair(const int16_t (&pair)[2], int factor) {
    const __m256i v = _mm256_madd_epi16(pair_of(pair), _mm256_set1_epi16(static_cast<int16_t>(factor)));
    return {v, v};
  }
  static I times_pair(const int16_t (&pair)[2], I factors) {  // factors are both() of what they are
    const __m256i v = pair_of(pair);
    return {_mm256_madd_epi16(v, factors.a), _mm256_madd_epi16(v, factors.b)};
  }
  static I widen_u8(__m128i v) {
    return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
  }
  static I load_u8(const uint8_t* p) { return widen_u8(half(p, 0)); }
  static I load_low4(const uint8_t* p) { return widen_u8(_mm_and_si128(half(p, 0), _mm_set1_epi8(15))); }
  static I load_high4(const uint8_t* p) {
    return widen_u8(_mm_and_si128(_mm_srli_epi16(half(p, 0), 4), _mm_set1_epi8(15)));
  }
  static I load_s8(const uint8_t* p) {
    const __m128i v = half(p, 0);
    return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
  }
  static void store_s8(int8_t* p, I v) {
    const __m256i lowest = _mm256_set1_epi32(0x0c080400);  // byte of each int32, four to an int32
    const __m256i bytes =
        _mm256_unpacklo_epi32(_mm256_shuffle_epi8(v.a, lowest), _mm256_shuffle_epi8(v.b, lowest));
    // Now inputs 0-3, 8-11 and 4-7, 12-15.
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }

  static Q load_bytes(const uint8_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static void store_bytes(uint8_t* p, Q v) {
    auto* out = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(out, v.a), _mm256_storeu_si256(out + 1, v.b);
  }
  static Q and_bytes(Q x, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
  }
  static Q or_bytes(Q x, Q y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
  static Q look_up(const uint8_t* table, Q codes) {  // codes below 16
    const __m256i v = _mm256_broadcastsi128_si256(half(table, 0));
    return {_mm256_shuffle_epi8(v, codes.a), _mm256_shuffle_epi8(v, codes.b)};
  }
  template <int N>
  static Q shift(Q x) {
    if constexpr (N > 0) return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
    if constexpr (N < 0) return {_mm256_srli_epi16(x.a, -N), _mm256_srli_epi16(x.b, -N)};
    return x;
  }
  static Q xor_bytes(Q x, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_xor_si256(x.a, m), _mm256_xor_si256(x.b, m)};
  }

  static Q four(const int8_t* x) {  // the same 4 bytes for every lane
    const __m256i v = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(x));
    return {v, v};
  }
  static Q magnitude(Q x) { return {_mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b)}; }
  static Q with_sign(Q x, Q of) { return {_mm256_sign_epi8(x.a, of.a), _mm256_sign_epi8(x.b, of.b)}; }
  static Pairs multiply_pairs(Q codes, Q x) {  // sums of two neighbouring products
    return {_mm256_maddubs_epi16(codes.a, x.a), _mm256_maddubs_epi16(codes.b, x.b)};
  }
  static I join_pairs(Pairs x, Pairs y) { return {_mm256_madd_epi16(x.a, y.a), _mm256_madd_epi16(x.b, y.b)}; }
  static Pairs ones() { return {_mm256_set1_epi16(1), _mm256_set1_epi16(1)}; }
  static Pairs both(I x) {  // each lane's value, an int16, twice
    const __m256i low =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
    return {_mm256_shuffle_epi8(x.a, low), _mm256_shuffle_epi8(x.b, low)};
  }
  template <int Factor>
  static Pairs pair_times(const int16_t (&pair)[2]) {  // a power of two
    const __m256i product = _mm256_slli_epi16(pair_of(pair), std::countr_zero(static_cast<unsigned>(Factor)));
    return {product, product};
  }
  // Additions that GCC does not see. Those that it sees it may reorder, and postpones until what they wait
  // for has to go to memory: 73 stores and as many loads in the loop of 4 rows.
  static Pairs accumulate_pairs(Pairs sum, Pairs x) {
    asm("vpaddw %1, %0, %0" : "+x"(sum.a) : "x"(x.a));
    asm("vpaddw %1, %0, %0" : "+x"(sum.b) : "x"(x.b));
    return sum;
  }
  static I accumulate(I sum, I x) {
    asm("vpaddd %1, %0, %0" : "+x"(sum.a) : "x"(x.a));
    asm("vpaddd %1, %0, %0" : "+x"(sum.b) : "x"(x.b));
    return sum;
  }
};

}  // namespace
}  // namespace sonoran
