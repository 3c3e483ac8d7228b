// Matrix products of a few rows with packed weights, written once over Vec (a vec_*.hpp must be included
// before).
//
// A tile is M rows times one block of 16 outputs; the weights of a block are streamed once for up to 8 rows.
// Integer dot products are exact; floating-point sums run over the inputs in order, one accumulator per
// output, so that a result does not depend on M, the other rows or the threads.
#pragma once

#include <algorithm>
#include <cstring>

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
// On Intel such a prefetch passes the second cache by and has only the few line buffers of the first: on
// Emerald Rapids one row took 1.5 times as long with it (137 against 91 ms), so there all is read as if
// again.
enum class Reads { Once, Again };

inline bool passes_caches_by() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool amd = __builtin_cpu_is("amd") != 0;
  return amd;
#else
  return true;
#endif
}

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

// The factors of 256 inputs as they are packed; R says how they are prefetched.
template <Code C, Reads R>
struct PackedFactors {
  const uint8_t* group;

  template <int q>
  Vec::Q quad(int c) const {
    constexpr int Bits = C.bits;
    const uint8_t* chunk = group + c * chunk_bytes(Bits);
    // One prefetch for each 64 bytes of codes: quads come two to a vector below 8 bits, four with 2 and 3.
    constexpr int kShare = Bits == 8 ? 1 : Bits < 4 ? 4 : 2;
    if constexpr (q % kShare == 0) sonoran::prefetch<R>(chunk + 64 * (q / kShare));
    if constexpr (Bits == 3 && q == 0) sonoran::prefetch<R>(chunk + 128);
    if constexpr (Bits == 5 && q == 0) sonoran::prefetch<R>(chunk + 256);
    if constexpr (Bits == 6 && q % 4 == 0) sonoran::prefetch<R>(chunk + 256 + 16 * q);
    return load_factors<C, q>(chunk);
  }
  void prefetch(const uint8_t* scales) const { sonoran::prefetch<R>(scales); }
};

// The same factors, a byte each, as unpack() writes them.
struct UnpackedFactors {
  const uint8_t* group;

  template <int q>
  Vec::Q quad(int c) const {
    return Vec::load_bytes(group + chunk_bytes(8) * c + 64 * q);
  }
  void prefetch(const uint8_t*) const {}
};

template <int q = 0, class Factors>
inline void unpack(const Factors& factors, int chunks, uint8_t* out) {
  if constexpr (q < 8) {
    for (int c = 0; c < chunks; ++c)
      Vec::store_bytes(out + chunk_bytes(8) * c + 64 * q, factors.template quad<q>(c));
    unpack<q + 1>(factors, chunks, out);
  }
}

// Adds quads First .. First + Count - 1 of chunk c to the dots, Done of them being there; x[m] points at the
// 32 codes of row m.
template <int First, int Count, int Done = 0, class D, class Factors, int M>
inline void add_quads(D& dots, const Factors& factors, int c, const int8_t* const (&x)[M]) {
  if constexpr (Done < Count) {
    constexpr int q = First + Done;
    dots.template add<Done>(factors.template quad<q>(c), x, q);
    add_quads<First, Count, Done + 1>(dots, factors, c, x);
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
template <Code C, int First, int Count, bool Add = false, class Factors, int M, class LoadScale>
inline void dot_quads(Vec::I (&out)[M], const Factors& factors, const LoadScale& load_scale,
                      const Inputs<M>& in, int c) {
  constexpr int kQuads = std::min(Count, Dot<C>::kQuads);
  const int8_t* codes[M];
  Dots<C, M> dots;
  for (int m = 0; m < M; ++m) {
    codes[m] = in.of[m][c].codes;
    dots.start(m, in.of[m][c].minus_pairs[kQuads == 8 ? 2 : First / 4]);
  }
  add_quads<First, kQuads>(dots, factors, c, codes);
  const auto scale = load_scale();  // behind the codes: a pass of one row waits for memory
  for (int m = 0; m < M; ++m) {
    const Vec::I product = dots.times(m, scale);
    out[m] = Add ? Vec::iadd(out[m], product) : product;
  }
  if constexpr (Count > kQuads) {
    dot_quads<C, First + kQuads, Count - kQuads, true>(out, factors, load_scale, in, c);
  }
}

// How a kind of format adds the products of a group of 256 inputs (the last one may have fewer chunks) to
// acc[m].

// Q4_K and Q5_K. Scales of a group: 8 x 16 sc, 8 x 16 mn, 16 d, 16 dmin.
template <int Bits>
struct KMin {
  static constexpr Code kCode{Bits, 0};

  template <class Factors, int M>
  static void add_group(Vec::F (&acc)[M], const Factors& factors, const uint8_t* scales, int,
                        const Inputs<M>& in) {
    Vec::F sum[M], low[M];
    clear(sum), clear(low);
    for (int c = 0; c < 8; ++c) add_chunk(sum, low, factors, scales + 16 * c, in, c);
    for (int line = 0; line < 320; line += 64) factors.prefetch(scales + line);
    const auto* d16 = reinterpret_cast<const uint16_t*>(scales + 256);
    const Vec::F d = Vec::load_half(d16);
    const Vec::F dmin = Vec::sub(Vec::zero(), Vec::load_half(d16 + 16));
    for (int m = 0; m < M; ++m) acc[m] = Vec::fma(low[m], dmin, Vec::fma(sum[m], d, acc[m]));
  }

  template <class Factors, int M>
  static void add_chunk(Vec::F (&sum)[M], Vec::F (&low)[M], const Factors& factors, const uint8_t* scales,
                        const Inputs<M>& in, int c) {
    Vec::I dot[M];
    dot_quads<kCode, 0, 8>(dot, factors, [&] { return Dot<kCode>::load_u8(scales); }, in, c);
    const Vec::F mn = Vec::to_float(Vec::load_u8(scales + 128));
    for (int m = 0; m < M; ++m) {
      sum[m] = Vec::fma(Vec::to_float(dot[m]), Vec::set(in.of[m][c].scale), sum[m]);
      low[m] = Vec::fma(mn, Vec::set(in.of[m][c].scaled_sum), low[m]);
    }
  }
};

// Q2_K. Scales of a group: 16 x 16 bytes, sc and (upper nibble) mn, 16 d, 16 dmin.
struct KMin16 {
  static constexpr Code kCode{2, 0};

  template <class Factors, int M>
  static void add_group(Vec::F (&acc)[M], const Factors& factors, const uint8_t* scales, int,
                        const Inputs<M>& in) {
    Vec::F sum[M], low[M];
    clear(sum), clear(low);
    for (int c = 0; c < 8; ++c) add_chunk(sum, low, factors, scales + 32 * c, in, c);
    for (int line = 0; line < 320; line += 64) factors.prefetch(scales + line);
    const auto* d16 = reinterpret_cast<const uint16_t*>(scales + 256);
    const Vec::F d = Vec::load_half(d16), dmin = Vec::load_half(d16 + 16);
    for (int m = 0; m < M; ++m) acc[m] = Vec::fma(low[m], dmin, Vec::fma(sum[m], d, acc[m]));
  }

  template <class Factors, int M>
  static void add_chunk(Vec::F (&sum)[M], Vec::F (&low)[M], const Factors& factors, const uint8_t* scales,
                        const Inputs<M>& in, int c) {
    Vec::I dot[M];
    dot_quads<kCode, 0, 4>(dot, factors, [&] { return Dot<kCode>::load_low4(scales); }, in, c);
    dot_quads<kCode, 4, 4, true>(dot, factors, [&] { return Dot<kCode>::load_low4(scales + 16); }, in, c);
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
struct KOffset {
  static constexpr Code kCode = C;
  static constexpr int kScales = 16 * (kSuper / Group);  // bytes of them

  template <class Factors, int M>
  static void add_group(Vec::F (&acc)[M], const Factors& factors, const uint8_t* scales, int,
                        const Inputs<M>& in) {
    Vec::F sum[M];
    clear(sum);
    for (int c = 0; c < 8; ++c) {
      const uint8_t* sc = scales + kScales / 8 * c;
      Vec::I scaled[M];
      dot_quads<C, 0, Group / 4>(scaled, factors, [&] { return Dot<C>::load_s8(sc); }, in, c);
      if constexpr (Group == 16) {
        dot_quads<C, 4, 4, true>(scaled, factors, [&] { return Dot<C>::load_s8(sc + 16); }, in, c);
      }
      for (int m = 0; m < M; ++m) {
        sum[m] = Vec::fma(Vec::to_float(scaled[m]), Vec::set(in.of[m][c].scale), sum[m]);
      }
    }
    for (int line = 0; line < kScales + 32; line += 64) factors.prefetch(scales + line);
    const Vec::F d = Vec::load_half(reinterpret_cast<const uint16_t*>(scales + kScales));
    for (int m = 0; m < M; ++m) acc[m] = Vec::fma(sum[m], d, acc[m]);
  }
};

// Q3_0, Q4_0, Q5_0, Q8_0, IQ4_NL (an offset, no minimum), Q4_1, Q5_1 (a minimum, no offset) and MXFP4 (a
// power of two).
template <Code C, Scheme S>
struct Small {
  static constexpr Code kCode = C;
  static constexpr int kScaleBytes = S == Scheme::ScaleMin ? 64 : S == Scheme::Power ? 16 : 32;

  template <class Factors, int M>
  static void add_group(Vec::F (&acc)[M], const Factors& factors, const uint8_t* scales, int chunks,
                        const Inputs<M>& in) {
    for (int line = 0; line < 8 * kScaleBytes; line += 64) factors.prefetch(scales + line);
    for (int c = 0; c < chunks; ++c) add_chunk(acc, factors, scales + c * kScaleBytes, in, c);
  }

  template <class Factors, int M>
  static void add_chunk(Vec::F (&acc)[M], const Factors& factors, const uint8_t* scales, const Inputs<M>& in,
                        int c) {
    Vec::I dot[M];
    dot_quads<C, 0, 8>(dot, factors, [] { return Unscaled{}; }, in, c);
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

// Codes and scales of group s of a block.
template <class Kind>
struct Group {
  const uint8_t* codes;
  const uint8_t* scales;
  int chunks;

  Group(const Matrix& w, int block, int s)
      : codes(w.block(block) + static_cast<size_t>(s) * w.group_bytes),
        chunks(std::min(8, w.inputs / kChunk - 8 * s)) {
    scales = codes + chunks * chunk_bytes(Kind::kCode.bits);
  }
};

inline int groups_of(const Matrix& w) { return (w.inputs + kSuper - 1) / kSuper; }

template <class Kind>
struct QuantisedTile {
  template <Reads R, int M>
  static void run(const Matrix& w, int block, const Activations& x, size_t row, float* y, size_t stride) {
    Vec::F acc[M];
    clear(acc);
    for (int s = 0; s < groups_of(w); ++s) {
      const Group<Kind> group(w, block, s);
      const PackedFactors<Kind::kCode, R> factors{group.codes};
      Kind::add_group(acc, factors, group.scales, group.chunks, Inputs<M>(x, row, s));
    }
    store_tile(acc, w, block, y, stride);
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
  if (parts == 1 && passes_caches_by()) {
    multiply_parts<Tile, Reads::Once>(w, first, last, x, parts, rows, y, stride);
  } else {
    multiply_parts<Tile, Reads::Again>(w, first, last, x, parts, rows, y, stride);
  }
}

// Many rows, where it pays to unpack once for all of them (Vec::kUnpackOnce). A group of 256 inputs of a few
// blocks is unpacked into the first cache, where the rows of a panel come by, a tile at a time; from group to
// group the sums lie in memory.
template <class Kind>
struct Panel {
  static constexpr int kBlocks = 4;
  static constexpr int kRows = 96;

  const Matrix& w;
  const Activations& x;
  int first, count = 0;  // blocks
  alignas(64) uint8_t factors[kBlocks][8 * chunk_bytes(8)];
  alignas(64) float sums[kRows][kBlocks][kLanes];

  Panel(const Matrix& weights, const Activations& activations, int block)
      : w(weights), x(activations), first(block) {}

  // Rows [row, row + rows) of x, at most kRows.
  void run(size_t row, int rows, float* y, size_t stride) {
    std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(rows));
    const int parts = (rows + Vec::kMaxRows - 1) / Vec::kMaxRows;
    for (int s = 0; s < groups_of(w); ++s) {
      for (int b = 0; b < count; ++b) {
        const Group<Kind> group(w, first + b, s);
        unpack(PackedFactors<Kind::kCode, Reads::Again>{group.codes}, group.chunks, factors[b]);
      }
      for (int part = 0; part < parts; ++part) {
        const int begin = rows * part / parts;
        add_rows(rows * (part + 1) / parts - begin, s, row + static_cast<size_t>(begin), sums + begin);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int b = 0; b < count; ++b) {
        const Vec::F sum[1] = {Vec::load(sums[r][b])};
        store_tile(sum, w, first + b, y + static_cast<size_t>(r) * stride, stride);
      }
    }
  }

  template <int Most = Vec::kMaxRows>
  void add_rows(int rows, int s, size_t row, float (*to)[kBlocks][kLanes]) {
    if constexpr (Most > 1) {
      if (rows < Most) return add_rows<Most - 1>(rows, s, row, to);
    }
    add_tile<Most>(s, row, to);
  }

  // A function of its own: within a larger one GCC copies a third of the registers.
  template <int M>
  [[gnu::noinline]] void add_tile(int s, size_t row, float (*to)[kBlocks][kLanes]) {
    const Inputs<M> in(x, row, s);
    for (int b = 0; b < count; ++b) {
      prefetch_next(in, b);
      Vec::F acc[M];
      for (int m = 0; m < M; ++m) acc[m] = Vec::load(to[m][b]);
      const Group<Kind> group(w, first + b, s);
      Kind::add_group(acc, UnpackedFactors{factors[b]}, group.scales, group.chunks, in);
      for (int m = 0; m < M; ++m) Vec::store(to[m][b], acc[m]);
    }
  }

  // Part b of the rows that come next: runs of 384 bytes are too short for the processor to see.
  template <int M>
  void prefetch_next(const Inputs<M>& in, int b) const {
    for (int m = b; m < M; m += count) {
      const auto* next = reinterpret_cast<const char*>(in.of[m] + M * x.codes_stride);
      for (size_t line = 0; line < 8 * sizeof(Quantised); line += 64) __builtin_prefetch(next + line);
    }
  }
};

template <class Kind>
void multiply_quantised(const Matrix& w, int first, int last, const Activations& x, int rows, float* y,
                        size_t stride) {
  if (!Vec::kUnpackOnce || rows <= 4 * Vec::kMaxRows)
    return multiply<QuantisedTile<Kind>>(w, first, last, x, rows, y, stride);
  Panel<Kind> panel(w, x, first);
  const int panels = (rows + panel.kRows - 1) / panel.kRows;
  for (; panel.first < last; panel.first += panel.kBlocks) {
    panel.count = std::min(panel.kBlocks, last - panel.first);
    for (int p = 0; p < panels; ++p) {
      const int begin = rows * p / panels, end = rows * (p + 1) / panels;
      const auto row = static_cast<size_t>(begin);
      panel.run(row, end - begin, y + row * stride, stride);
    }
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
      return multiply_quantised<Small<Code{3, 4}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q4_0:
      return multiply_quantised<Small<Code{4, 8}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q4_1:
      return multiply_quantised<Small<Code{4, 0}, Scheme::ScaleMin>>(w, first, last, x, rows, y, stride);
    case Format::Q5_0:
      return multiply_quantised<Small<Code{5, 16}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::Q5_1:
      return multiply_quantised<Small<Code{5, 0}, Scheme::ScaleMin>>(w, first, last, x, rows, y, stride);
    case Format::Q8_0:
      return multiply_quantised<Small<Code{8, 128}, Scheme::Scale>>(w, first, last, x, rows, y, stride);
    case Format::IQ4_NL:
      return multiply_quantised<Small<Code{4, 128, Book::Iq4}, Scheme::Scale>>(w, first, last, x, rows, y,
                                                                               stride);
    case Format::MXFP4:
      return multiply_quantised<Small<Code{4, 16, Book::Mxfp4}, Scheme::Power>>(w, first, last, x, rows, y,
                                                                                stride);
    case Format::Q2_K:
      return multiply_quantised<KMin16>(w, first, last, x, rows, y, stride);
    case Format::Q3_K:
      return multiply_quantised<KOffset<Code{3, 4}, 16>>(w, first, last, x, rows, y, stride);
    case Format::Q4_K:
      return multiply_quantised<KMin<4>>(w, first, last, x, rows, y, stride);
    case Format::Q5_K:
      return multiply_quantised<KMin<5>>(w, first, last, x, rows, y, stride);
    case Format::Q6_K:
      return multiply_quantised<KOffset<Code{6, 32}, 16>>(w, first, last, x, rows, y, stride);
    case Format::IQ4_XS:
      return multiply_quantised<KOffset<Code{4, 128, Book::Iq4}, 32>>(w, first, last, x, rows, y, stride);
  }
}

}  // namespace
}  // namespace sonoran
