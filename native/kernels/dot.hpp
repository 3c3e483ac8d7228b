// Dot products of codes with activations over part of a chunk, one per lane: exact integers, whatever the
// instruction set has for them.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/activations.hpp"
#include "weights/formats.hpp"

namespace sonoran {
namespace {

// The codes of a format; `offset` is subtracted from them, or from what the book has for them.
struct Code {
  int bits;
  int offset;
  Book book = Book::None;

  // Of what is multiplied. The entries of MXFP4 are at most 28, and at most 12 less the offset.
  constexpr int factor_bits() const { return book == Book::Iq4 ? 8 : book == Book::Mxfp4 ? 5 : bits; }
};

// Stands for a scale of one.
struct Unscaled {};

// add<First> adds the products of a quad, the first one if First says so.

// Where one instruction adds four products to an int32. Where it takes signed codes, 8-bit ones come signed
// and need no offset; smaller ones are the same either way.
template <class V, int Bits, int Offset>
struct WideDot {
  static constexpr bool kSigned = Bits == 8 && requires { V::kSignedCodes; };
  using Scale = typename V::I;
  static constexpr int kQuads = 8;  // quads that can be added before times()

  typename V::I sum;

  static Scale load_u8(const uint8_t* p) { return V::load_u8(p); }
  static Scale load_s8(const uint8_t* p) { return V::load_s8(p); }
  static Scale load_low4(const uint8_t* p) { return V::load_low4(p); }
  void start(const int16_t (&minus_pairs)[2]) {
    sum = Offset == 0 || kSigned ? V::izero() : V::times_pair(minus_pairs, Offset);
  }
  template <bool First>
  void add(const typename V::Q& codes, const int8_t* x) {
    sum = V::template dot4<Bits>(sum, codes, x);
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
  static constexpr bool kSigned = false;
  static constexpr int kLargest = std::max(Offset, (1 << Bits) - 1 - Offset);
  static constexpr int kQuads = 8 * 2 * kLargest * 127 < 32768 ? 8 : 4;
  static_assert(kQuads * 2 * kLargest * 127 < 32768);

  typename V::Pairs sum;

  static Scale load_u8(const uint8_t* p) { return V::both(V::load_u8(p)); }
  static Scale load_s8(const uint8_t* p) { return V::both(V::load_s8(p)); }
  static Scale load_low4(const uint8_t* p) { return V::both(V::load_low4(p)); }
  void start(const int16_t (&minus_pairs)[2]) {
    if constexpr (Offset != 0) sum = V::template pair_times<Offset>(minus_pairs);
  }
  template <bool First>
  void add(const typename V::Q& codes, const int8_t* x) {
    const typename V::Pairs pairs = V::multiply_pairs(codes, V::four(x));
    sum = First && Offset == 0 ? pairs : V::accumulate_pairs(sum, pairs);
  }
  typename V::I times(Unscaled) const { return V::join_pairs(sum, V::ones()); }
  typename V::I times(const Scale& scale) const { return V::join_pairs(sum, scale); }
};

// The same for 8-bit codes, which come signed and whose products fill the int16 alone: |code| times x with
// the code's sign, 2 * 128 * 127 = 32,512 at most.
template <class V>
struct PairDot<V, 8, 128> {
  using Scale = typename V::I;
  static constexpr bool kSigned = true;
  static constexpr int kQuads = 8;

  typename V::I sum;

  static Scale load_s8(const uint8_t* p) { return V::load_s8(p); }
  void start(const int16_t (&)[2]) {}
  template <bool First>
  void add(const typename V::Q& code, const int8_t* x) {
    const auto pairs = V::multiply_pairs(V::magnitude(code), V::with_sign(V::four(x), code));
    const typename V::I products = V::join_pairs(pairs, V::ones());
    sum = First ? products : V::accumulate(sum, products);
  }
  typename V::I times(Unscaled) const { return sum; }
  typename V::I times(const Scale& scale) const { return V::imul(sum, scale); }
};

template <Code C>
using Dot = std::conditional_t<Vec::kPairs, PairDot<Vec, C.factor_bits(), C.offset>,
                               WideDot<Vec, C.factor_bits(), C.offset>>;

// Dot products of M rows over quads First .. First + Count - 1 of a chunk, Count even.
template <Code C, int M>
struct SingleDots {
  Dot<C> of[M];

  void start(int m, const int16_t (&minus_pairs)[2]) { of[m].start(minus_pairs); }
  template <int Done>
  void add(const Vec::Q& quad, const int8_t* const (&x)[M], int q) {
    for (int m = 0; m < M; ++m) of[m].template add<Done == 0>(quad, x[m] + 4 * q);
  }
  template <class Scale>
  Vec::I times(int m, const Scale& scale) const {
    return of[m].times(scale);
  }
};

// The same where an instruction multiplies two quads by two rows (Vec::RowPair).
template <class V, Code C, int M>
struct PairedDots {
  typename V::RowPair pairs[M / 2];
  SingleDots<C, 1> last;  // row M - 1 of an odd number
  Vec::Q even;

  void start(int m, const int16_t (&minus_pairs)[2]) {
    constexpr int kOffset = Dot<C>::kSigned ? 0 : C.offset;
    if (m == M - 1 && M % 2) return last.start(0, minus_pairs);
    const int32_t value = (minus_pairs[0] + minus_pairs[1]) * kOffset;
    if (m % 2 == 0) {
      pairs[m / 2].start_first(value);
    } else {
      pairs[m / 2].start_second(value);
    }
  }
  template <int Done>
  void add(const Vec::Q& quad, const int8_t* const (&x)[M], int q) {
    if constexpr (M % 2) {
      const int8_t* const row[1] = {x[M - 1]};
      last.template add<Done>(quad, row, q);
    }
    if constexpr (Done % 2 == 0) {
      even = quad;
    } else {
      for (int p = 0; p < M / 2; ++p)
        pairs[p].add(even, quad, x[2 * p] + 4 * (q - 1), x[2 * p + 1] + 4 * (q - 1));
    }
  }
  template <class Scale>
  Vec::I times(int m, const Scale& scale) const {
    if (m == M - 1 && M % 2) return last.times(0, scale);
    Dot<C> sum;
    sum.sum = m % 2 ? pairs[m / 2].second() : pairs[m / 2].first();
    return sum.times(scale);
  }
};

template <class V>
concept HasRowPairs = requires { typename V::RowPair; };

// One row does not make a pair.
template <Code C, int M>
using Dots = std::conditional_t<(M > 1 && HasRowPairs<Vec>), PairedDots<Vec, C, M>, SingleDots<C, M>>;

// The entries of a book, less 128 where the dot product takes them signed.
template <Book B, bool Signed>
struct Entries {
  static constexpr std::array<uint8_t, 16> kAll = [] {
    std::array<uint8_t, 16> all{};
    for (size_t i = 0; i < 16; ++i) {
      all[i] = static_cast<uint8_t>((B == Book::Iq4 ? kIq4Book : kMxfp4Book)[i] ^ (Signed ? 128 : 0));
    }
    return all;
  }();
};

}  // namespace
}  // namespace sonoran
