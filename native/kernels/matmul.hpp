// Matrix products of a few rows with packed weights, written once over Vec (a vec_*.hpp must be included
// before).
//
// A tile is M rows times one block of 16 outputs; the weights of a block are streamed once for up to 8 rows.
// Integer dot products are exact; floating-point sums run over the inputs in order, one accumulator per
// output, so that a result does not depend on M, the other rows or the threads.
#pragma once

#include <algorithm>

#include "kernels/activations.hpp"
#include "kernels/dot.hpp"
#include "weights/formats.hpp"

namespace sonoran {
namespace {

// How far ahead of the weights being read. The latency of memory times the bandwidth of one core is about 4
// KB; twice that was fastest on Zen 5 for one row and for many (measured from 2 to 24 KB).
constexpr size_t kPrefetchBytes = 8192;

// Whether the weights of a block are read once or, with many rows, once for each tile of them. What is read
// once need not displace what the other caches hold: beside another streaming core that made passes of a
// small model up to 9 % shorter on Zen 5 where memory was short, and changed nothing (1 %) where it was not.
enum class Reads { Once, Again };

template <Reads R>
inline void prefetch(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + kPrefetchBytes, 0, R == Reads::Once ? 0 : 3);
}

constexpr int chunk_bytes(int bits) { return bits * 64; }

// The codes of quad q (0..7) of a chunk.
template <int Bits, int q>
inline Vec::Q load_quad(const uint8_t* chunk) {
  if constexpr (Bits == 8) {
    return Vec::load_bytes(chunk + 64 * q);
  } else if constexpr (Bits < 4) {
    const Vec::Q low = Vec::and_bytes(Vec::shift<-2 * (q % 4)>(Vec::load_bytes(chunk + 64 * (q / 4))), 3);
    if constexpr (Bits == 2) return low;
    return Vec::or_bytes(low, Vec::and_bytes(Vec::shift<2 - q>(Vec::load_bytes(chunk + 128)), 4));
  } else {
    const Vec::Q nibbles =
        Vec::and_bytes(Vec::shift<q % 2 ? -4 : 0>(Vec::load_bytes(chunk + 64 * (q / 2))), 15);
    if constexpr (Bits == 4) return nibbles;
    if constexpr (Bits == 5) {
      return Vec::or_bytes(nibbles, Vec::and_bytes(Vec::shift<4 - q>(Vec::load_bytes(chunk + 256)), 16));
    }
    if constexpr (Bits == 6) {
      const Vec::Q upper = Vec::load_bytes(chunk + 256 + 64 * (q / 4));
      return Vec::or_bytes(nibbles, Vec::and_bytes(Vec::shift<4 - 2 * (q % 4)>(upper), 48));
    }
  }
}

// What a dot product takes of quad q: its codes, or what the book has for them, signed if it wants that.
template <Code C, int q>
inline Vec::Q load_factors(const uint8_t* chunk) {
  const Vec::Q codes = load_quad<C.bits, q>(chunk);
  if constexpr (C.book != Book::None) {
    return Vec::look_up(Entries<C.book, Dot<C>::kSigned>::kAll.data(), codes);
  } else {
    if constexpr (Dot<C>::kSigned) return Vec::xor_bytes(codes, 128);
    return codes;
  }
}

// Adds quads First .. First + Count - 1 of a chunk to dot[m]; x[m] points at the 32 codes of row m.
template <Code C, Reads R, int M, int First, int Count>
inline void add_quads(Dot<C> (&dot)[M], const uint8_t* chunk, const int8_t* const (&x)[M]) {
  if constexpr (Count > 0) {
    const Vec::Q codes = load_factors<C, First>(chunk);
    // One prefetch for each 64 bytes of codes: quads come two to a vector below 8 bits, four with 2 and 3.
    constexpr int Bits = C.bits, kShare = Bits == 8 ? 1 : Bits < 4 ? 4 : 2;
    if constexpr (First % kShare == 0) prefetch<R>(chunk + 64 * (First / kShare));
    if constexpr (Bits == 3 && First == 0) prefetch<R>(chunk + 128);
    if constexpr (Bits == 5 && First == 0) prefetch<R>(chunk + 256);
    if constexpr (Bits == 6 && First % 4 == 0) prefetch<R>(chunk + 256 + 16 * First);
    for (int m = 0; m < M; ++m) dot[m].add(codes, x[m] + 4 * First);
    add_quads<C, R, M, First + 1, Count - 1>(dot, chunk, x);
  }
}

template <int M>
inline void store_tile(const Vec::F (&acc)[M], const Matrix& w, int block, float* y, size_t stride) {
  const int left = w.outputs - block * kLanes;
  for (int m = 0; m < M; ++m) {
    float* out = y + static_cast<size_t>(m) * stride + static_cast<size_t>(block) * kLanes;
    if (left >= kLanes) {
      Vec::store(out, acc[m]);
    } else {
      float lanes[kLanes];
      Vec::store(lanes, acc[m]);
      for (int i = 0; i < left; ++i) out[i] = lanes[i];
    }
  }
}

template <int M>
inline void clear(Vec::F (&acc)[M]) {
  for (auto& a : acc) a = Vec::zero();
}

// Activations of M rows, from group s of 256 inputs on.
template <int M>
struct Inputs {
  const Quantised* of[M];

  Inputs(const Activations& x, size_t row, int s) {
    for (int m = 0; m < M; ++m) of[m] = x.codes + (row + static_cast<size_t>(m)) * x.codes_stride + 8 * s;
  }
};

// out[m] (Add: added to it) = scale times the sum of (code - offset) * x over quads First .. First + Count -
// 1 of chunk c, for each output.
template <Code C, Reads R, int First, int Count, bool Add = false, int M, class LoadScale>
inline void dot_quads(Vec::I (&out)[M], const uint8_t* chunk, const LoadScale& load_scale,
                      const Inputs<M>& in, int c) {
  constexpr int kQuads = std::min(Count, Dot<C>::kQuads);
  const int8_t* codes[M];
  Dot<C> dot[M];
  for (int m = 0; m < M; ++m) {
    codes[m] = in.of[m][c].codes;
    dot[m].start(in.of[m][c].minus_pairs[kQuads == 8 ? 2 : First / 4]);
  }
  add_quads<C, R, M, First, kQuads>(dot, chunk, codes);
  const auto scale = load_scale();  // behind the codes: a pass of one row waits for memory
  for (int m = 0; m < M; ++m) {
    const Vec::I product = dot[m].times(scale);
    out[m] = Add ? Vec::iadd(out[m], product) : product;
  }
  if constexpr (Count > kQuads) {
    dot_quads<C, R, First + kQuads, Count - kQuads, true>(out, chunk, load_scale, in, c);
  }
}

// Q4_K and Q5_K. Scales of a group: 8 x 16 sc, 8 x 16 mn, 16 d, 16 dmin.
template <int Bits>
struct KMinTile {
  static constexpr Code kCode{Bits, 0};

  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    for (int s = 0; s < w.inputs / kSuper; ++s) {
      const Inputs<M> in(x, row, s);
      const uint8_t* group = w.block(block) + static_cast<size_t>(s) * w.group_bytes;
      const uint8_t* scales = group + 8 * chunk_bytes(Bits);
      Vec::F sum[M], low[M];
      clear(sum), clear(low);
      for (int c = 0; c < 8; ++c)
        add_chunk<R>(sum, low, group + c * chunk_bytes(Bits), scales + 16 * c, in, c);
      for (int line = 0; line < 320; line += 64) prefetch<R>(scales + line);
      const auto* d16 = reinterpret_cast<const uint16_t*>(scales + 256);
      const Vec::F d = Vec::load_half(d16);
      const Vec::F dmin = Vec::sub(Vec::zero(), Vec::load_half(d16 + 16));
      for (int m = 0; m < M; ++m) acc[m] = Vec::fma(low[m], dmin, Vec::fma(sum[m], d, acc[m]));
    }
    store_tile(acc, w, block, y, stride);
  }

  template <Reads R, int M>
  static void add_chunk(Vec::F (&sum)[M], Vec::F (&low)[M], const uint8_t* chunk, const uint8_t* scales,
                        const Inputs<M>& in, int c) {
    Vec::I dot[M];
    dot_quads<kCode, R, 0, 8>(dot, chunk, [&] { return Dot<kCode>::load_u8(scales); }, in, c);
    const Vec::F mn = Vec::to_float(Vec::load_u8(scales + 128));
    for (int m = 0; m < M; ++m) {
      sum[m] = Vec::fma(Vec::to_float(dot[m]), Vec::set(in.of[m][c].scale), sum[m]);
      low[m] = Vec::fma(mn, Vec::set(in.of[m][c].scaled_sum), low[m]);
    }
  }
};

// Q2_K. Scales of a group: 16 x 16 bytes, sc and (upper nibble) mn, 16 d, 16 dmin.
struct KMin16Tile {
  static constexpr Code kCode{2, 0};

  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    for (int s = 0; s < w.inputs / kSuper; ++s) {
      const Inputs<M> in(x, row, s);
      const uint8_t* group = w.block(block) + static_cast<size_t>(s) * w.group_bytes;
      const uint8_t* scales = group + 8 * chunk_bytes(2);
      Vec::F sum[M], low[M];
      clear(sum), clear(low);
      for (int c = 0; c < 8; ++c) add_chunk<R>(sum, low, group + c * chunk_bytes(2), scales + 32 * c, in, c);
      for (int line = 0; line < 320; line += 64) prefetch<R>(scales + line);
      const auto* d16 = reinterpret_cast<const uint16_t*>(scales + 256);
      const Vec::F d = Vec::load_half(d16), dmin = Vec::load_half(d16 + 16);
      for (int m = 0; m < M; ++m) acc[m] = Vec::fma(low[m], dmin, Vec::fma(sum[m], d, acc[m]));
    }
    store_tile(acc, w, block, y, stride);
  }

  template <Reads R, int M>
  static void add_chunk(Vec::F (&sum)[M], Vec::F (&low)[M], const uint8_t* chunk, const uint8_t* scales,
                        const Inputs<M>& in, int c) {
    Vec::I dot[M];
    dot_quads<kCode, R, 0, 4>(dot, chunk, [&] { return Dot<kCode>::load_low4(scales); }, in, c);
    dot_quads<kCode, R, 4, 4, true>(dot, chunk, [&] { return Dot<kCode>::load_low4(scales + 16); }, in, c);
    const Vec::I first = Vec::both(Vec::load_high4(scales)), second = Vec::both(Vec::load_high4(scales + 16));
    for (int m = 0; m < M; ++m) {
      const Quantised& x = in.of[m][c];
      const Vec::F scale = Vec::set(x.scale);
      sum[m] = Vec::fma(Vec::to_float(dot[m]), scale, sum[m]);
      const Vec::I minus =
          Vec::iadd(Vec::times_pair(x.minus_pairs[0], first), Vec::times_pair(x.minus_pairs[1], second));
      low[m] = Vec::fma(Vec::to_float(minus), scale, low[m]);
    }
  }
};

// Q3_K, Q6_K (a scale for 16 inputs) and IQ4_XS (for 32). Scales of a group: 16 or 8 x 16 sc (int8), 16 d.
template <Code C, int Group>
struct KOffsetTile {
  static constexpr int kScales = 16 * (kSuper / Group);  // bytes of them

  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    for (int s = 0; s < w.inputs / kSuper; ++s) {
      const Inputs<M> in(x, row, s);
      const uint8_t* group = w.block(block) + static_cast<size_t>(s) * w.group_bytes;
      const uint8_t* scales = group + 8 * chunk_bytes(C.bits);
      Vec::F sum[M];
      clear(sum);
      for (int c = 0; c < 8; ++c) {
        const uint8_t* chunk = group + c * chunk_bytes(C.bits);
        const uint8_t* sc = scales + kScales / 8 * c;
        Vec::I scaled[M];
        dot_quads<C, R, 0, Group / 4>(scaled, chunk, [&] { return Dot<C>::load_s8(sc); }, in, c);
        if constexpr (Group == 16) {
          dot_quads<C, R, 4, 4, true>(scaled, chunk, [&] { return Dot<C>::load_s8(sc + 16); }, in, c);
        }
        for (int m = 0; m < M; ++m) {
          sum[m] = Vec::fma(Vec::to_float(scaled[m]), Vec::set(in.of[m][c].scale), sum[m]);
        }
      }
      for (int line = 0; line < kScales + 32; line += 64) prefetch<R>(scales + line);
      const Vec::F d = Vec::load_half(reinterpret_cast<const uint16_t*>(scales + kScales));
      for (int m = 0; m < M; ++m) acc[m] = Vec::fma(sum[m], d, acc[m]);
    }
    store_tile(acc, w, block, y, stride);
  }
};

// Q3_0, Q4_0, Q5_0, Q8_0, IQ4_NL (an offset, no minimum), Q4_1, Q5_1 (a minimum, no offset) and MXFP4 (a
// power of two).
template <Code C, Scheme S>
struct SmallTile {
  static constexpr int kScaleBytes = S == Scheme::ScaleMin ? 64 : S == Scheme::Power ? 16 : 32;

  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    const int chunks = w.inputs / kChunk;
    for (int start = 0; start < chunks; start += 8) {
      const int count = chunks - start < 8 ? chunks - start : 8;
      const uint8_t* group = w.block(block) + static_cast<size_t>(start / 8) * w.group_bytes;
      const uint8_t* scales = group + count * chunk_bytes(C.bits);
      for (int line = 0; line < 8 * kScaleBytes; line += 64) prefetch<R>(scales + line);
      const Inputs<M> in(x, row, start / 8);
      for (int c = 0; c < count; ++c)
        add_chunk<R>(acc, group + c * chunk_bytes(C.bits), scales + c * kScaleBytes, in, c);
    }
    store_tile(acc, w, block, y, stride);
  }

  template <Reads R, int M>
  static void add_chunk(Vec::F (&acc)[M], const uint8_t* chunk, const uint8_t* scales, const Inputs<M>& in,
                        int c) {
    Vec::I dot[M];
    dot_quads<C, R, 0, 8>(dot, chunk, [] { return Unscaled{}; }, in, c);
    const Vec::F d = load_scale(scales);
    for (int m = 0; m < M; ++m) {
      acc[m] = Vec::fma(Vec::to_float(dot[m]), Vec::mul(d, Vec::set(in.of[m][c].scale)), acc[m]);
      if constexpr (S == Scheme::ScaleMin) {
        const Vec::F low = Vec::load_half(reinterpret_cast<const uint16_t*>(scales + 32));
        acc[m] = Vec::fma(low, Vec::set(in.of[m][c].scaled_sum), acc[m]);
      }
    }
  }

  static Vec::F load_scale(const uint8_t* p) {
    if constexpr (S == Scheme::Power) return Vec::load_power(p);
    return Vec::load_half(reinterpret_cast<const uint16_t*>(p));
  }
};

struct LoadF32 {
  using T = float;
  static Vec::F load(const T* p) { return Vec::load(p); }
};
struct LoadF16 {
  using T = uint16_t;
  static Vec::F load(const T* p) { return Vec::load_half(p); }
};
struct LoadBF16 {
  using T = uint16_t;
  static Vec::F load(const T* p) { return Vec::load_bf16(p); }
};

template <class Loader>
struct DenseTile {
  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    const auto* weights = reinterpret_cast<const typename Loader::T*>(w.block(block));
    const float* in[M];
    for (int m = 0; m < M; ++m) in[m] = x.dense + (row + static_cast<size_t>(m)) * x.dense_stride;
    for (int i = 0; i < w.inputs; ++i, weights += kLanes) {
      prefetch<R>(weights);
      const Vec::F v = Loader::load(weights);
      for (int m = 0; m < M; ++m) acc[m] = Vec::fma(v, Vec::set(in[m][i]), acc[m]);
    }
    store_tile(acc, w, block, y, stride);
  }
};

// One tile of 1 to Most rows.
template <class Tile, Reads R, int Most = Vec::kMaxRows>
void tile_rows(int rows, const Matrix& w, int block, const Activations& x, size_t row, float* y,
               size_t stride) {
  if constexpr (Most > 1) {
    if (rows < Most) return tile_rows<Tile, R, Most - 1>(rows, w, block, x, row, y, stride);
  }
  Tile::template run<R, Most>(w, block, x, row, y, stride);
}

// y[r][o] = sum_i w[o][i] x[r][i] for rows [0, rows) and the outputs of blocks [first, last).
template <class Tile, Reads R>
void multiply_parts(const Matrix& w, int first, int last, const Activations& x, int parts, int rows, float* y,
                    size_t stride) {
  for (int block = first; block < last; ++block) {
    for (int part = 0; part < parts; ++part) {
      const auto begin = static_cast<size_t>(rows * part / parts);
      const auto end = static_cast<size_t>(rows * (part + 1) / parts);
      tile_rows<Tile, R>(static_cast<int>(end - begin), w, block, x, begin, y + begin * stride, stride);
    }
  }
}

template <class Tile>
void multiply(const Matrix& w, int first, int last, const Activations& x, int rows, float* y, size_t stride) {
  const int parts = (rows + Vec::kMaxRows - 1) / Vec::kMaxRows;
  if (parts == 1) {
    multiply_parts<Tile, Reads::Once>(w, first, last, x, parts, rows, y, stride);
  } else {
    multiply_parts<Tile, Reads::Again>(w, first, last, x, parts, rows, y, stride);
  }
}

void matmul(const Matrix& w, int first, int last, const Activations& x, int rows, float* y, size_t stride) {
  switch (w.format) {
    case Format::F32:
      return multiply<DenseTile<LoadF32>>(w, first, last, x, rows, y, stride);
    case Format::F16:
      return multiply<DenseTile<LoadF16>>(w, first, last, x, rows, y, stride);
    case Format::BF16:
      return multiply<DenseTile<LoadBF16>>(w, first, last, x, rows, y, stride);
    case Format::Q3_0:
      return multiply<SmallTile<Code{3, 4}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q4_0:
      return multiply<SmallTile<Code{4, 8}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q4_1:
      return multiply<SmallTile<Code{4, 0}, Scheme::ScaleMin>>(w, first, last, x, rows, y, stride);
    case Format::Q5_0:
      return multiply<SmallTile<Code{5, 16}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q5_1:
      return multiply<SmallTile<Code{5, 0}, Scheme::ScaleMin>>(w, first, last, x, rows, y, stride);
    case Format::Q8_0:
      return multiply<SmallTile<Code{8, 128}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::IQ4_NL:
      return multiply<SmallTile<Code{4, 128, Book::Iq4}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::MXFP4:
      return multiply<SmallTile<Code{4, 16, Book::Mxfp4}, Scheme::Power>>(w, first, last, x, rows, y, stride);
    case Format::Q2_K:
      return multiply<KMin16Tile>(w, first, last, x, rows, y, stride);
    case Format::Q3_K:
      return multiply<KOffsetTile<Code{3, 4}, 16>>(w, first, last, x, rows, y, stride);
    case Format::Q4_K:
      return multiply<KMinTile<4>>(w, first, last, x, rows, y, stride);
    case Format::Q5_K:
      return multiply<KMinTile<5>>(w, first, last, x, rows, y, stride);
    case Format::Q6_K:
      return multiply<KOffsetTile<Code{6, 32}, 16>>(w, first, last, x, rows, y, stride);
    case Format::IQ4_XS:
      return multiply<KOffsetTile<Code{4, 128, Book::Iq4}, 32>>(w, first, last, x, rows, y, stride);
  }
}

}  // namespace
}  // namespace sonoran
