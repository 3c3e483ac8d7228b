// Dot products of codes with activations over part of a chunk, one per lane: exact integers, whatever the
// instruction set has for them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/activations.hpp"

namespace sonoran {
namespace {

// Stands for a scale of one.
struct Unscaled {};

// Where one instruction adds four products to an int32. Where it takes signed codes, 8-bit ones are made
// signed and need no offset; smaller ones are the same either way.
template <class V, int Bits, int Offset>
struct WideDot {
  static constexpr bool kMakeSigned = Bits == 8 && requires { V::kSignedCodes; };
  using Scale = typename V::I;
  static constexpr int kQuads = 8;  // quads that can be added before times()

  typename V::I sum;

  static Scale load_u8(const uint8_t* p) { return V::load_u8(p); }
  static Scale load_s8(const uint8_t* p) { return V::load_s8(p); }
  void start(const int16_t (&minus_pairs)[2]) {
    sum = Offset == 0 || kMakeSigned ? V::izero() : V::times_pair(minus_pairs, Offset);
  }
  void add(const typename V::Q& codes, const int8_t* x) {
    if constexpr (kMakeSigned) {
      sum = V::template dot4<Bits>(sum, V::xor_bytes(codes, 128), x);
    } else {
      sum = V::template dot4<Bits>(sum, codes, x);
    }
  }
  typename V::I times(Unscaled) const { return sum; }
  typename V::I times(const Scale& scale) const { return V::imul(sum, scale); }
};

// Where the best instruction adds two neighbouring products into an int16 (vpmaddubsw): the int16 are added
// up as they are and widened once, while being multiplied by the scale.
//
// The sums may wrap around on the way, but not at the end: |x| <= 127, so that q quads leave at most
// q * 2 * (largest |code - offset|) * 127:  4 bits 8 * 2 * 15 * 127 = 30,480;  5 bits less 16 and 8 quads, or
// 6 bits less 32 and 4 quads, 32,512;  5 bits and 4 quads 31,496;  all below 2^15. What the instruction
// itself adds, 2 * 63 * 127 = 16,002 at most, does not saturate either.
template <class V, int Bits, int Offset>
struct PairDot {
  using Scale = typename V::Pairs;
  static constexpr int kLargest = std::max(Offset, (1 << Bits) - 1 - Offset);
  static constexpr int kQuads = 8 * 2 * kLargest * 127 < 32768 ? 8 : 4;
  static_assert(kQuads * 2 * kLargest * 127 < 32768);

  typename V::Pairs sum;

  static Scale load_u8(const uint8_t* p) { return V::both(V::load_u8(p)); }
  static Scale load_s8(const uint8_t* p) { return V::both(V::load_s8(p)); }
  void start(const int16_t (&minus_pairs)[2]) {
    sum = Offset == 0 ? V::izero() : V::template pair_times<Offset>(minus_pairs);
  }
  void add(const typename V::Q& codes, const int8_t* x) {
    sum = V::keep(V::add_pairs(sum, V::multiply_pairs(codes, V::four(x))));
  }
  typename V::I times(Unscaled) const { return V::join_pairs(sum, V::ones()); }
  typename V::I times(const Scale& scale) const { return V::join_pairs(sum, scale); }
};

// The same for 8-bit codes less 128, whose products fill the int16 alone: |code| times x with the code's
// sign, 2 * 128 * 127 = 32,512 at most.
template <class V>
struct PairDot<V, 8, 128> {
  static constexpr int kQuads = 8;

  typename V::I sum;

  void start(const int16_t (&)[2]) { sum = V::izero(); }
  void add(const typename V::Q& codes, const int8_t* x) {
    const typename V::Q code = V::xor_bytes(codes, 128);
    const auto pairs = V::multiply_pairs(V::magnitude(code), V::with_sign(V::four(x), code));
    sum = V::keep(V::iadd(sum, V::join_pairs(pairs, V::ones())));
  }
  typename V::I times(Unscaled) const { return sum; }
};

template <int Bits, int Offset>
using Dot = std::conditional_t<Vec::kPairs, PairDot<Vec, Bits, Offset>, WideDot<Vec, Bits, Offset>>;

}  // namespace
}  // namespace sonoran
