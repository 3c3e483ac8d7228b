// Sixteen lanes on 64-bit Arm with the dot product of Armv8.2, as four registers of four.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace sonoran {
namespace {

struct Neon {
  struct F {
    float32x4_t a, b, c, d;
  };
  struct I {
    int32x4_t a, b, c, d;
  };
  struct Q {
    uint8x16_t a, b, c, d;
  };
  static constexpr int kMaxRows = 6;
  static constexpr bool kPairs = false;       // see dot.hpp
  static constexpr bool kSignedCodes = true;  // the dot product takes signed codes only
  static constexpr bool kUnpackOnce = true;   // see matmul.hpp
  static constexpr bool kConvertOnce = true;  // see attention.hpp
  static constexpr int kMaxHeads = 2;         // query heads whose scores of 32 keys are in registers together
  static constexpr int kMaxMixed = 2;         // query heads whose sums of values are
  static constexpr int kMaxSums = 4;          // F that are summed in registers together

  // The same operation on all four registers.
  template <class R, class Op, class... X>
  static R each(Op op, const X&... x) {
    return {op(x.a...), op(x.b...), op(x.c...), op(x.d...)};
  }

  static F zero() { return set(0.0f); }
  static F set(float v) {
    const float32x4_t x = vdupq_n_f32(v);
    return {x, x, x, x};
  }
  static F load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  static void store(float* p, F v) {
    vst1q_f32(p, v.a), vst1q_f32(p + 4, v.b), vst1q_f32(p + 8, v.c), vst1q_f32(p + 12, v.d);
  }
  static float32x4_t from_half(uint16x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
  static F load_half(const uint16_t* p) {
    const uint16x8_t x = vld1q_u16(p), y = vld1q_u16(p + 8);
    return {from_half(vget_low_u16(x)), from_half(vget_high_u16(x)), from_half(vget_low_u16(y)),
            from_half(vget_high_u16(y))};
  }
  static void store_half(uint16_t* p, F v) {
    const auto half = [](float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); };
    vst1_u16(p, half(v.a)), vst1_u16(p + 4, half(v.b)), vst1_u16(p + 8, half(v.c)),
        vst1_u16(p + 12, half(v.d));
  }
  static F load_bf16(const uint16_t* p) {
    const auto wide = [](uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); };
    return {wide(vld1_u16(p)), wide(vld1_u16(p + 4)), wide(vld1_u16(p + 8)), wide(vld1_u16(p + 12))};
  }
  static F load_power(const uint8_t* p) {  // 2^(e - 128) of 16 bytes e
    return each<F>(
        [](auto e) {
          const int32x4_t one = vdupq_n_s32(1);
          const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, one), 23);
          const int32x4_t subnormal = vminq_s32(vshlq_n_s32(vaddq_s32(e, one), 21), vdupq_n_s32(0x400000));
          return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
        },
        load_u8(p));
  }
  static F add(F x, F y) {
    return each<F>([](auto u, auto v) { return vaddq_f32(u, v); }, x, y);
  }
  static F sub(F x, F y) {
    return each<F>([](auto u, auto v) { return vsubq_f32(u, v); }, x, y);
  }
  static F mul(F x, F y) {
    return each<F>([](auto u, auto v) { return vmulq_f32(u, v); }, x, y);
  }
  static F div(F x, F y) {
    return each<F>([](auto u, auto v) { return vdivq_f32(u, v); }, x, y);
  }
  static F fma(F x, F y, F z) {
    return each<F>([](auto u, auto v, auto w) { return vfmaq_f32(w, u, v); }, x, y, z);
  }
  // Not vmaxq, vminq: with a NaN the second operand is the result, as on x86.
  static F max(F x, F y) {
    return each<F>([](auto u, auto v) { return vbslq_f32(vcgtq_f32(u, v), u, v); }, x, y);
  }
  static F min(F x, F y) {
    return each<F>([](auto u, auto v) { return vbslq_f32(vcltq_f32(u, v), u, v); }, x, y);
  }
  static F round(F x) {
    return each<F>([](auto u) { return vrndnq_f32(u); }, x);
  }
  static F to_float(I x) {
    return each<F>([](auto u) { return vcvtq_f32_s32(u); }, x);
  }
  static I to_int(F x) {
    // Out of range and NaN give INT_MIN, as on x86.
    return each<I>(
        [](auto u) {
          const float32x4_t limit = vdupq_n_f32(2147483648.0f);
          const uint32x4_t fits = vandq_u32(vcgeq_f32(u, vnegq_f32(limit)), vcltq_f32(u, limit));
          return vbslq_s32(fits, vcvtnq_s32_f32(u), vdupq_n_s32(INT32_MIN));
        },
        x);
  }
  static F scale_by_power(F x, I n) {
    return each<F>(
        [](auto u, auto k) {
          return vmulq_f32(u, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k, vdupq_n_s32(127)), 23)));
        },
        x, n);
  }

  // The largest magnitude in x and y, compared as bits, so that a NaN counts as larger than everything.
  static float largest_magnitude(F x, F y) {
    const auto larger = [](float32x4_t u, float32x4_t v) {
      const uint32x4_t mask = vdupq_n_u32(0x7fffffffu);
      return vmaxq_u32(vandq_u32(vreinterpretq_u32_f32(u), mask), vandq_u32(vreinterpretq_u32_f32(v), mask));
    };
    const uint32_t bits = vmaxvq_u32(vmaxq_u32(vmaxq_u32(larger(x.a, x.b), larger(x.c, x.d)),
                                               vmaxq_u32(larger(y.a, y.b), larger(y.c, y.d))));
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }
  static void pair_sums(const int8_t* codes, int16_t (&minus_pairs)[3][2]) {
    const auto sums = [](const int8_t* p) {  // of pairs over four quads, in the first two lanes
      int16x8_t v = vpaddlq_s8(vld1q_s8(p));
      v = vaddq_s16(v, vextq_s16(v, v, 4));
      return vnegq_s16(vaddq_s16(v, vextq_s16(v, v, 2)));
    };
    const int16x8_t first = sums(codes), second = sums(codes + 16), whole = vaddq_s16(first, second);
    std::memcpy(minus_pairs[0], &first, 4);
    std::memcpy(minus_pairs[1], &second, 4);
    std::memcpy(minus_pairs[2], &whole, 4);
  }

  static I izero() { return iset(0); }
  static I iset(int32_t v) {
    const int32x4_t x = vdupq_n_s32(v);
    return {x, x, x, x};
  }
  static I iadd(I x, I y) {
    return each<I>([](auto u, auto v) { return vaddq_s32(u, v); }, x, y);
  }
  static I imul(I x, I y) {
    return each<I>([](auto u, auto v) { return vmulq_s32(u, v); }, x, y);
  }
  static I times_pair(const int16_t (&pair)[2], int factor) { return iset((pair[0] + pair[1]) * factor); }
  static I both(I x) { return x; }
  static I times_pair(const int16_t (&pair)[2], I factors) { return imul(iset(pair[0] + pair[1]), factors); }
  static I load_u8(const uint8_t* p) { return widen_u8(vld1q_u8(p)); }
  static I load_low4(const uint8_t* p) { return widen_u8(vandq_u8(vld1q_u8(p), vdupq_n_u8(15))); }
  static I load_high4(const uint8_t* p) { return widen_u8(vshrq_n_u8(vld1q_u8(p), 4)); }
  static I widen_u8(uint8x16_t v) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(v)), high = vmovl_u8(vget_high_u8(v));
    const auto wide = [](uint16x4_t x) { return vreinterpretq_s32_u32(vmovl_u16(x)); };
    return {wide(vget_low_u16(low)), wide(vget_high_u16(low)), wide(vget_low_u16(high)),
            wide(vget_high_u16(high))};
  }
  static I load_s8(const uint8_t* p) {
    const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_s8(vget_high_s8(v));
    return {vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
            vmovl_s16(vget_high_s16(high))};
  }
  static void store_s8(int8_t* p, I v) {  // values already within int8, or INT_MIN
    const int16x8_t low = vcombine_s16(vmovn_s32(v.a), vmovn_s32(v.b));
    const int16x8_t high = vcombine_s16(vmovn_s32(v.c), vmovn_s32(v.d));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }

  static Q load_bytes(const uint8_t* p) {
    return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
  }
  static void store_bytes(uint8_t* p, Q v) {
    vst1q_u8(p, v.a), vst1q_u8(p + 16, v.b), vst1q_u8(p + 32, v.c), vst1q_u8(p + 48, v.d);
  }
  static Q and_bytes(Q x, uint8_t mask) {
    return each<Q>([=](auto u) { return vandq_u8(u, vdupq_n_u8(mask)); }, x);
  }
  static Q or_bytes(Q x, Q y) {
    return each<Q>([](auto u, auto v) { return vorrq_u8(u, v); }, x, y);
  }
  static Q xor_bytes(Q x, uint8_t mask) {
    return each<Q>([=](auto u) { return veorq_u8(u, vdupq_n_u8(mask)); }, x);
  }
  static Q look_up(const uint8_t* table, Q codes) {  // codes below 16
    const uint8x16_t v = vld1q_u8(table);
    return each<Q>([=](auto u) { return vqtbl1q_u8(v, u); }, codes);
  }
  template <int N>
  static Q shift(Q x) {
    if constexpr (N > 0) return each<Q>([](auto u) { return vshlq_n_u8(u, N); }, x);
    if constexpr (N < 0) return each<Q>([](auto u) { return vshrq_n_u8(u, -N); }, x);
    return x;
  }
  // Codes of less than 8 bits, or signed ones.
  template <int Bits>
  static I dot4(I acc, Q codes, const int8_t* x) {
    int32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
    return each<I>([=](auto sum, auto code) { return vdotq_s32(sum, vreinterpretq_s8_u8(code), four); }, acc,
                   codes);
  }
};

}  // namespace
}  // namespace sonoran
