// Sixteen lanes in plain C++: the slow, obvious reference beside the fast paths, and the fallback everywhere
// else.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "core/half.hpp"

namespace sonoran {
namespace {

struct Vec {
  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct Q {
    uint8_t v[64];
  };
  static constexpr int kMaxRows = 1;
  static constexpr bool kUnpackOnce = true;   // see matmul.hpp
  static constexpr bool kConvertOnce = true;  // see attention.hpp
  static constexpr int kMaxHeads = 1;         // query heads whose scores of 32 keys are in registers together
  static constexpr int kMaxMixed = 1;         // query heads whose sums of values are
  static constexpr int kMaxSums = 4;          // F that are summed in registers together
  static constexpr bool kPairs = false;       // sums of products are int32, see dot.hpp

  template <class R, class Op>
  static R map(Op op) {
    R r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
  }
  static F zero() { return set(0.0f); }
  static F set(float x) {
    return map<F>([&](int) { return x; });
  }
  static F load(const float* p) {
    return map<F>([&](int i) { return p[i]; });
  }
  static void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
  static F load_half(const uint16_t* p) {
    return map<F>([&](int i) { return half_to_float(p[i]); });
  }
  static void store_half(uint16_t* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(x.v[i]);
  }
  static F load_bf16(const uint16_t* p) {
    return map<F>([&](int i) { return bf16_to_float(p[i]); });
  }
  static F load_power(const uint8_t* p) {
    return map<F>([&](int i) { return std::ldexp(1.0f, p[i] - 128); });
  }
  static F add(F x, F y) {
    return map<F>([&](int i) { return x.v[i] + y.v[i]; });
  }
  static F sub(F x, F y) {
    return map<F>([&](int i) { return x.v[i] - y.v[i]; });
  }
  static F mul(F x, F y) {
    return map<F>([&](int i) { return x.v[i] * y.v[i]; });
  }
  static F div(F x, F y) {
    return map<F>([&](int i) { return x.v[i] / y.v[i]; });
  }
  static F fma(F x, F y, F z) {
#if defined(__FP_FAST_FMAF)
    return map<F>([&](int i) { return std::fma(x.v[i], y.v[i], z.v[i]); });
#else
    for (int i = 0; i < 16; i += 2) fma_two(x.v + i, y.v + i, z.v + i);
    return z;
#endif
  }
  static F max(F x, F y) {
    return map<F>([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
  }
  static F min(F x, F y) {
    return map<F>([&](int i) { return x.v[i] < y.v[i] ? x.v[i] : y.v[i]; });
  }
  static F round(F x) {
    return map<F>([&](int i) { return std::nearbyint(x.v[i]); });
  }
  static F to_float(I x) {
    return map<F>([&](int i) { return static_cast<float>(x.v[i]); });
  }
  static I to_int(F x) {
    // Out of range and NaN give INT_MIN, as on x86.
    return map<I>([&](int i) {
      const float r = std::nearbyint(x.v[i]);
      return r >= -2147483648.0f && r < 2147483648.0f ? static_cast<int32_t>(r) : INT32_MIN;
    });
  }
  static F scale_by_power(F x, I n) {
    return map<F>([&](int i) { return x.v[i] * std::ldexp(1.0f, n.v[i]); });
  }

  // The largest magnitude in x and y, compared as bits, so that a NaN counts as larger than everything.
  static float largest_magnitude(F x, F y) {
    uint32_t largest = 0;
    for (int i = 0; i < 16; ++i) {
      for (const float v : {x.v[i], y.v[i]}) {
        const uint32_t bits = std::bit_cast<uint32_t>(v) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
      }
    }
    return std::bit_cast<float>(largest);
  }
  // Minus the sums of the codes of inputs 0, 1 and of inputs 2, 3 of the quads: of 16 codes, the other 16 and
  // all.
  static void pair_sums(const int8_t* codes, int16_t (&minus_pairs)[3][2]) {
    std::memset(minus_pairs, 0, sizeof minus_pairs);
    for (int i = 0; i < 32; ++i) {
      for (const int part : {i / 16, 2}) minus_pairs[part][i % 4 / 2] -= codes[i];
    }
  }

  static I izero() { return iset(0); }
  static I iset(int32_t x) {
    return map<I>([&](int) { return x; });
  }
  static I iadd(I x, I y) {
    return map<I>([&](int i) { return x.v[i] + y.v[i]; });
  }
  static I imul(I x, I y) {
    return map<I>([&](int i) { return x.v[i] * y.v[i]; });
  }
  static I times_pair(const int16_t (&pair)[2], int factor) { return iset((pair[0] + pair[1]) * factor); }
  static I both(I x) { return x; }
  static I times_pair(const int16_t (&pair)[2], I factors) { return imul(iset(pair[0] + pair[1]), factors); }
  static I load_u8(const uint8_t* p) {
    return map<I>([&](int i) { return p[i]; });
  }
  static I load_low4(const uint8_t* p) {
    return map<I>([&](int i) { return p[i] & 15; });
  }
  static I load_high4(const uint8_t* p) {
    return map<I>([&](int i) { return p[i] >> 4; });
  }
  static I load_s8(const uint8_t* p) {
    return map<I>([&](int i) { return static_cast<int8_t>(p[i]); });
  }
  static void store_s8(int8_t* p, I x) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.v[i]);
  }

  static Q load_bytes(const uint8_t* p) {
    Q q;
    std::memcpy(q.v, p, sizeof q.v);
    return q;
  }
  static void store_bytes(uint8_t* p, const Q& v) { std::memcpy(p, v.v, sizeof v.v); }
  static Q and_bytes(Q x, uint8_t mask) {
    for (auto& b : x.v) b &= mask;
    return x;
  }
  static Q or_bytes(Q x, const Q& y) {
    for (int i = 0; i < 64; ++i) x.v[i] |= y.v[i];
    return x;
  }
  static Q xor_bytes(Q x, uint8_t mask) {
    for (auto& b : x.v) b ^= mask;
    return x;
  }
  static Q look_up(const uint8_t* table, Q codes) {
    for (auto& b : codes.v) b = table[b];
    return codes;
  }
  template <int N>
  static Q shift(Q x) {
    for (auto& b : x.v) b = static_cast<uint8_t>(N >= 0 ? b << (N >= 0 ? N : 0) : b >> (N < 0 ? -N : 0));
    return x;
  }
  // Per lane, the sum of 4 products of unsigned codes (Bits wide) and signed bytes x, the same 4 for every
  // lane. A product fits an int16, and below 8 bits the sum of two does; in these widths processors without a
  // dot product multiply best.
  template <int Bits>
  static I dot4(I acc, const Q& codes, const int8_t* x) {
    const int16_t a = x[0], b = x[1], c = x[2], d = x[3];
    const Int16s even = {a, c, a, c, a, c, a, c}, odd = {b, d, b, d, b, d, b, d};
    for (int i = 0; i < 16; i += 4) {
      Uint32s lanes;
      std::memcpy(&lanes, codes.v + 4 * i, sizeof lanes);
      const Int16s first = reinterpret_cast<Int16s>(lanes & 0x00ff00ff) * even;
      const Int16s second = reinterpret_cast<Int16s>((lanes >> 8) & 0x00ff00ff) * odd;
      Int32s sum;
      std::memcpy(&sum, acc.v + i, sizeof sum);
      sum += Bits < 8 ? joined(first + second) : joined(first) + joined(second);
      std::memcpy(acc.v + i, &sum, sizeof sum);
    }
    return acc;
  }

 private:
  // Vectors of the compiler, of whatever registers there are.
  using Int16s [[gnu::vector_size(16)]] = int16_t;
  using Int32s [[gnu::vector_size(16)]] = int32_t;
  using Uint32s [[gnu::vector_size(16)]] = uint32_t;
  using Int64s [[gnu::vector_size(16)]] = int64_t;
  using Doubles [[gnu::vector_size(16)]] = double;
  using Floats [[gnu::vector_size(8)]] = float;

  // z = x y + z for two lanes, rounded once, where the processor has no instruction for it. The product is
  // exact in double; the sum is rounded to odd there, which rounding to float then does not notice (Boldo and
  // Melquiond, 2008).
  static void fma_two(const float* x, const float* y, float* z) {
    const Doubles product = doubles(x) * doubles(y), addend = doubles(z);
    Doubles sum = product + addend;
    const Doubles rest = sum - product, lost = (product - (sum - rest)) + (addend - rest);
    const auto bits = reinterpret_cast<Int64s>(sum);
    const Int64s inexact = (lost > 0) | (lost < 0);  // neither with a NaN
    const Int64s outwards = (lost > 0) == (sum > 0);
    const Int64s step = inexact & (((bits & 1) == 0) & ((outwards & 1) | ~outwards));
    sum = reinterpret_cast<Doubles>(bits + step);
    const Floats result = __builtin_convertvector(sum, Floats);
    std::memcpy(z, &result, sizeof result);
  }
  static Doubles doubles(const float* p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Doubles);
  }
  static Int32s joined(Int16s pairs) {
    const auto lanes = reinterpret_cast<Uint32s>(pairs);
    return (reinterpret_cast<Int32s>(lanes << 16) >> 16) + (reinterpret_cast<Int32s>(lanes) >> 16);
  }
};

}  // namespace
}  // namespace sonoran
