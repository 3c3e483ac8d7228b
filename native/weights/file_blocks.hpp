// Reading the blocks of the GGUF quantisation formats into unsigned codes and their scales.
#pragma once

#include <cstdint>
#include <cstring>

#include "weights/formats.hpp"

namespace sonoran {

// One file block: up to 256 codes; d and m stay fp16, sc and mn are the integer sub-scales of the K formats;
// MXFP4 has its exponent in sc.
struct FileBlock {
  uint8_t codes[256];
  uint16_t d = 0;
  uint16_t m = 0;
  uint8_t sc[16] = {};
  uint8_t mn[16] = {};
};

inline uint16_t read_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// 32 codes from 16 bytes of nibbles (low ones first) and, if high is given, a fifth bit each.
inline void read_nibbles32(const uint8_t* nibbles, const uint8_t* high, uint8_t* codes) {
  uint32_t bits = 0;
  if (high != nullptr) std::memcpy(&bits, high, 4);
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>((nibbles[i] & 15) | (((bits >> i) & 1) << 4));
    codes[i + 16] = static_cast<uint8_t>((nibbles[i] >> 4) | (((bits >> (i + 16)) & 1) << 4));
  }
}

// The 6-bit sub-scales and minima of Q4_K and Q5_K, eight of each in 12 bytes.
inline void read_k_scales(const uint8_t* s, FileBlock& block) {
  for (int j = 0; j < 4; ++j) {
    block.sc[j] = s[j] & 63;
    block.mn[j] = s[j + 4] & 63;
    block.sc[j + 4] = static_cast<uint8_t>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    block.mn[j + 4] = static_cast<uint8_t>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
}

inline void read_k_codes(const uint8_t* nibbles, const uint8_t* high, uint8_t* codes) {
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = nibbles[32 * j + i];
      const int bits = high != nullptr ? high[i] >> (2 * j) : 0;
      codes[64 * j + i] = static_cast<uint8_t>((byte & 15) | ((bits & 1) << 4));
      codes[64 * j + 32 + i] = static_cast<uint8_t>((byte >> 4) | ((bits & 2) << 3));
    }
  }
}

// Four codes' lower bits in each of eight bytes, then eight codes' third bits in each of four.
inline void read_threes32(const uint8_t* p, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const int low = (p[i / 4] >> (2 * (i % 4))) & 3;
    codes[i] = static_cast<uint8_t>(low | (((p[8 + i / 8] >> (i % 8)) & 1) << 2));
  }
}

// Two bits of code i of 256 in 64 bytes: 32 bytes hold 128 codes, those of the first 32 lowest.
inline int two_bits(const uint8_t* p, int i) {
  return (p[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
}

inline void read_q2_k(const uint8_t* p, FileBlock& block) {
  for (int i = 0; i < 256; ++i) block.codes[i] = static_cast<uint8_t>(two_bits(p + 16, i));
  for (int j = 0; j < 16; ++j) block.sc[j] = p[j] & 15, block.mn[j] = p[j] >> 4;
  block.d = read_u16(p + 80);
  block.m = read_u16(p + 82);
}

inline void read_q3_k(const uint8_t* p, FileBlock& block) {
  for (int i = 0; i < 256; ++i) {
    const int high = (p[i % 32] >> (i / 32)) & 1;
    block.codes[i] = static_cast<uint8_t>(two_bits(p + 32, i) | (high << 2));
  }
  const uint8_t* s = p + 96;
  for (int j = 0; j < 16; ++j) {
    const int low = (s[j % 8] >> (4 * (j / 8))) & 15, high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
    block.sc[j] = static_cast<uint8_t>((low | (high << 4)) - 32);
  }
  block.d = read_u16(p + 108);
}

inline void read_iq4_xs(const uint8_t* p, FileBlock& block) {
  const int high = read_u16(p + 2);
  for (int j = 0; j < 8; ++j) {
    const int low = (p[4 + j / 2] >> (4 * (j % 2))) & 15;
    block.sc[j] = static_cast<uint8_t>((low | (((high >> (2 * j)) & 3) << 4)) - 32);
    read_nibbles32(p + 8 + 16 * j, nullptr, block.codes + 32 * j);
  }
}

inline void read_q6_k(const uint8_t* p, FileBlock& block) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    uint8_t* out = block.codes + 128 * half;
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<uint8_t>((low[i] & 15) | ((high[i] & 3) << 4));
      out[i + 32] = static_cast<uint8_t>((low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4));
      out[i + 64] = static_cast<uint8_t>((low[i] >> 4) | (((high[i] >> 4) & 3) << 4));
      out[i + 96] = static_cast<uint8_t>((low[i + 32] >> 4) | ((high[i] >> 6) << 4));
    }
  }
  std::memcpy(block.sc, p + 192, 16);
  block.d = read_u16(p + 208);
}

inline void read_file_block(Format format, const uint8_t* p, FileBlock& block) {
  block.d = read_u16(p);
  switch (format) {
    case Format::Q4_0:
    case Format::IQ4_NL:
      return read_nibbles32(p + 2, nullptr, block.codes);
    case Format::Q5_0:
      return read_nibbles32(p + 6, p + 2, block.codes);
    case Format::Q3_0:
      return read_threes32(p + 2, block.codes);
    case Format::Q8_0:
      for (int i = 0; i < 32; ++i) block.codes[i] = static_cast<uint8_t>(p[2 + i] ^ 0x80);  // + 128
      return;
    case Format::MXFP4:
      block.sc[0] = p[0];
      return read_nibbles32(p + 1, nullptr, block.codes);
    case Format::IQ4_XS:
      return read_iq4_xs(p, block);
    case Format::Q2_K:
      return read_q2_k(p, block);
    case Format::Q3_K:
      return read_q3_k(p, block);
    case Format::Q6_K:
      return read_q6_k(p, block);
    default:
      break;
  }
  block.m = read_u16(p + 2);
  switch (format) {
    case Format::Q4_1:
      return read_nibbles32(p + 4, nullptr, block.codes);
    case Format::Q5_1:
      return read_nibbles32(p + 8, p + 4, block.codes);
    case Format::Q4_K:
      read_k_scales(p + 4, block);
      return read_k_codes(p + 16, nullptr, block.codes);
    case Format::Q5_K:
      read_k_scales(p + 4, block);
      return read_k_codes(p + 48, p + 16, block.codes);
    default:
      return;
  }
}

}  // namespace sonoran
