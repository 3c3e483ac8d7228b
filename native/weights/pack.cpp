#include "weights/pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/error.hpp"
#include "core/half.hpp"
#include "weights/file_blocks.hpp"

namespace sonoran {

namespace {

void write_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

// A plane holds Width bits of every code: Width vectors of 64 bytes with 8 / Width quads each, the first quad
// lowest.
template <int Width>
void put_plane(uint8_t* plane, int lane, const uint8_t* codes, int shift) {
  constexpr int kQuads = 8 / Width;
  constexpr int kMask = (1 << Width) - 1;
  for (int v = 0; v < Width; ++v) {
    for (int i = 0; i < 4; ++i) {
      int byte = 0;
      for (int q = 0; q < kQuads; ++q) {
        byte |= ((codes[4 * (kQuads * v + q) + i] >> shift) & kMask) << (Width * q);
      }
      plane[64 * v + 4 * lane + i] = static_cast<uint8_t>(byte);
    }
  }
}

template <int Width>
void get_plane(const uint8_t* plane, int lane, uint8_t* codes, int shift) {
  constexpr int kQuads = 8 / Width;
  constexpr int kMask = (1 << Width) - 1;
  for (int v = 0; v < Width; ++v) {
    for (int i = 0; i < 4; ++i) {
      const int byte = plane[64 * v + 4 * lane + i];
      for (int q = 0; q < kQuads; ++q) {
        codes[4 * (kQuads * v + q) + i] |= static_cast<uint8_t>(((byte >> (Width * q)) & kMask) << shift);
      }
    }
  }
}

// Calls visit(width, offset of the plane in a chunk, shift of its bits in a code) for the planes of a format.
template <class Visit>
void for_planes(int bits, Visit visit) {
  using std::integral_constant;
  switch (bits) {
    case 2:
    case 3:
      visit(integral_constant<int, 2>{}, 0, 0);
      if (bits == 3) visit(integral_constant<int, 1>{}, 128, 2);
      return;
    case 8:
      return visit(integral_constant<int, 8>{}, 0, 0);
    default:
      visit(integral_constant<int, 4>{}, 0, 0);
      if (bits == 5) visit(integral_constant<int, 1>{}, 256, 4);
      if (bits == 6) visit(integral_constant<int, 2>{}, 256, 4);
  }
}

// Sets the 32 codes of one lane in a chunk.
void put_codes(uint8_t* chunk, int bits, int lane, const uint8_t* codes) {
  for_planes(bits, [&](auto width, int offset, int shift) {
    put_plane<width()>(chunk + offset, lane, codes, shift);
  });
}

// The 32 codes of one lane of a chunk.
void get_codes(const uint8_t* chunk, int bits, int lane, uint8_t* codes) {
  std::memset(codes, 0, kChunk);
  for_planes(bits, [&](auto width, int offset, int shift) {
    get_plane<width()>(chunk + offset, lane, codes, shift);
  });
}

void put_scales(uint8_t* scales, Scheme scheme, int lane, const FileBlock& block) {
  switch (scheme) {
    case Scheme::Scale:
      write_u16(scales + 2 * lane, block.d);
      break;
    case Scheme::ScaleMin:
      write_u16(scales + 2 * lane, block.d);
      write_u16(scales + 32 + 2 * lane, block.m);
      break;
    case Scheme::KMin:
      for (int j = 0; j < 8; ++j) scales[16 * j + lane] = block.sc[j];
      for (int j = 0; j < 8; ++j) scales[128 + 16 * j + lane] = block.mn[j];
      write_u16(scales + 256 + 2 * lane, block.d);
      write_u16(scales + 288 + 2 * lane, block.m);
      break;
    case Scheme::Power:
      scales[lane] = block.sc[0];
      break;
    case Scheme::KMin16:
      for (int j = 0; j < 16; ++j) {
        scales[16 * j + lane] = static_cast<uint8_t>(block.sc[j] | (block.mn[j] << 4));
      }
      write_u16(scales + 256 + 2 * lane, block.d);
      write_u16(scales + 288 + 2 * lane, block.m);
      break;
    case Scheme::KOffset:
      for (int j = 0; j < 8; ++j) scales[16 * j + lane] = block.sc[j];
      write_u16(scales + 128 + 2 * lane, block.d);
      break;
    case Scheme::KOffset16:
      for (int j = 0; j < 16; ++j) scales[16 * j + lane] = block.sc[j];
      write_u16(scales + 256 + 2 * lane, block.d);
      break;
    case Scheme::Dense:
      break;
  }
}

void pack_dense(uint8_t* block, const uint8_t* rows, size_t row_bytes, size_t width, int lanes, int inputs) {
  for (int lane = 0; lane < lanes; ++lane) {
    const uint8_t* row = rows + static_cast<size_t>(lane) * row_bytes;
    for (int i = 0; i < inputs; ++i) {
      std::memcpy(block + (static_cast<size_t>(i) * kLanes + static_cast<size_t>(lane)) * width,
                  row + static_cast<size_t>(i) * width, width);
    }
  }
}

void pack_one(const Matrix& m, int b, const uint8_t* rows, int lanes) {
  const FormatInfo& info = format_info(m.format);
  uint8_t* block = m.data + static_cast<size_t>(b) * m.block_bytes;
  std::memset(block, 0, m.block_bytes);
  const int groups = m.inputs / info.file_group;
  const size_t row_bytes = static_cast<size_t>(groups) * static_cast<size_t>(info.file_bytes);
  if (info.scheme == Scheme::Dense) {
    return pack_dense(block, rows, row_bytes, static_cast<size_t>(info.file_bytes), lanes, m.inputs);
  }
  const int chunks = info.file_group / kChunk;
  for (int g = 0; g < groups; ++g) {
    for (int lane = 0; lane < lanes; ++lane) {
      FileBlock file;
      read_file_block(m.format,
                      rows + static_cast<size_t>(lane) * row_bytes + static_cast<size_t>(g * info.file_bytes),
                      file);
      for (int c = 0; c < chunks; ++c) {
        put_codes(block + place_of(m, g * chunks + c).codes, info.bits, lane, file.codes + kChunk * c);
      }
      put_scales(block + place_of(m, g * chunks).scales, info.scheme, lane, file);
    }
  }
}

int entry(Book book, int code) {
  return book == Book::Iq4 ? kIq4Book[code] : book == Book::Mxfp4 ? kMxfp4Book[code] : code;
}

// Decodes the 32 inputs of one lane of a chunk, with the arithmetic of the file format's own decoder.
void decode_chunk(const Matrix& m, const FormatInfo& info, const uint8_t* block, int lane, int chunk,
                  float* out) {
  const ChunkPlace place = place_of(m, chunk);
  const uint8_t* scales = block + place.scales;
  uint8_t codes[kChunk];
  get_codes(block + place.codes, info.bits, lane, codes);
  const auto half_at = [&](int byte) { return half_to_float(read_u16(scales + byte + 2 * lane)); };
  const int j = chunk % (kSuper / kChunk);  // of a K format's super-block
  float scale[2] = {0.0f, 0.0f};            // of the first and the second 16 inputs
  float low[2] = {0.0f, 0.0f};
  switch (info.scheme) {
    case Scheme::Scale:
      scale[0] = scale[1] = half_at(0);
      break;
    case Scheme::ScaleMin:
      scale[0] = scale[1] = half_at(0);
      low[0] = low[1] = half_at(32);
      break;
    case Scheme::KMin:
      scale[0] = scale[1] = half_at(256) * static_cast<float>(scales[16 * j + lane]);
      low[0] = low[1] = -half_at(288) * static_cast<float>(scales[128 + 16 * j + lane]);
      break;
    case Scheme::Power:
      scale[0] = scale[1] = std::ldexp(1.0f, scales[lane] - 128);
      break;
    case Scheme::KMin16:
      for (int h = 0; h < 2; ++h) {
        const int both = scales[16 * (2 * j + h) + lane];
        scale[h] = half_at(256) * static_cast<float>(both & 15);
        low[h] = -half_at(288) * static_cast<float>(both >> 4);
      }
      break;
    case Scheme::KOffset:
      scale[0] = scale[1] = half_at(128) * static_cast<float>(static_cast<int8_t>(scales[16 * j + lane]));
      break;
    case Scheme::KOffset16:
      for (int h = 0; h < 2; ++h) {
        scale[h] = half_at(256) * static_cast<float>(static_cast<int8_t>(scales[16 * (2 * j + h) + lane]));
      }
      break;
    case Scheme::Dense:
      break;
  }
  const bool has_minimum =
      info.scheme == Scheme::ScaleMin || info.scheme == Scheme::KMin || info.scheme == Scheme::KMin16;
  for (int i = 0; i < kChunk; ++i) {
    const float value = scale[i / 16] * static_cast<float>(entry(info.book, codes[i]) - info.offset);
    out[i] = has_minimum ? value + low[i / 16] : value;
  }
}

float decode_dense(Format format, const uint8_t* p) {
  if (format == Format::F16) return half_to_float(read_u16(p));
  if (format == Format::BF16) return bf16_to_float(read_u16(p));
  float v;
  std::memcpy(&v, p, 4);
  return v;
}

}  // namespace

void pack_blocks(const Matrix& to, Format from, const uint8_t* rows, int first, int last) {
  const FormatInfo& info = format_info(from);
  const size_t row_bytes =
      static_cast<size_t>(to.inputs / info.file_group) * static_cast<size_t>(info.file_bytes);
  const FormatInfo& target = format_info(to.format);
  const size_t new_bytes =
      static_cast<size_t>(to.inputs / target.file_group) * static_cast<size_t>(target.file_bytes);
  std::vector<uint8_t> decoded_block;
  std::vector<uint8_t> requantised(to.format == from ? 0 : new_bytes * kLanes);
  std::vector<float> values(to.format == from ? 0 : static_cast<size_t>(to.inputs));
  for (int b = first; b < last; ++b) {
    const int lanes = std::min(kLanes, to.outputs - b * kLanes);
    const uint8_t* source = rows + static_cast<size_t>(b) * kLanes * row_bytes;
    if (to.format == from) {
      pack_one(to, b, source, lanes);
      continue;
    }
    Matrix exact = plan_matrix(from, kLanes, to.inputs);
    decoded_block.resize(exact.bytes());
    exact.data = decoded_block.data();
    pack_one(exact, 0, source, lanes);
    for (int lane = 0; lane < lanes; ++lane) {
      decode_row(exact, lane, values.data());
      quantise_row(to.format, values.data(), to.inputs,
                   requantised.data() + static_cast<size_t>(lane) * new_bytes);
    }
    pack_one(to, b, requantised.data(), lanes);
  }
}

void decode_row(const Matrix& m, int row, float* out) {
  const FormatInfo& info = format_info(m.format);
  const uint8_t* block = m.block(row / kLanes);
  const int lane = row % kLanes;
  if (info.scheme != Scheme::Dense) {
    for (int c = 0; c < m.inputs / kChunk; ++c) decode_chunk(m, info, block, lane, c, out + kChunk * c);
    return;
  }
  const auto width = static_cast<size_t>(info.file_bytes);
  for (int i = 0; i < m.inputs; ++i) {
    out[i] =
        decode_dense(m.format, block + (static_cast<size_t>(i) * kLanes + static_cast<size_t>(lane)) * width);
  }
}

}  // namespace sonoran
