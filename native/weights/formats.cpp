#include "weights/formats.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/error.hpp"

namespace sonoran {

namespace {

constexpr std::array<FormatInfo, kFormatCount> kFormats = {{
    {"F32", Scheme::Dense, 32, 0, 1, 4, 1, 0},
    {"F16", Scheme::Dense, 16, 0, 1, 2, 1, 0},
    {"BF16", Scheme::Dense, 16, 0, 1, 2, 1, 0},
    {"Q4_0", Scheme::Scale, 4, 8, 32, 18, 32, 32},
    {"Q4_1", Scheme::ScaleMin, 4, 0, 32, 20, 32, 64},
    {"Q5_0", Scheme::Scale, 5, 16, 32, 22, 32, 32},
    {"Q5_1", Scheme::ScaleMin, 5, 0, 32, 24, 32, 64},
    {"Q8_0", Scheme::Scale, 8, 128, 32, 34, 32, 32},
    {"Q2_K", Scheme::KMin16, 2, 0, 256, 84, 256, 320},
    {"Q3_K", Scheme::KOffset16, 3, 4, 256, 110, 256, 288},
    {"Q4_K", Scheme::KMin, 4, 0, 256, 144, 256, 320},
    {"Q5_K", Scheme::KMin, 5, 0, 256, 176, 256, 320},
    {"Q6_K", Scheme::KOffset16, 6, 32, 256, 210, 256, 288},
    {"IQ4_NL", Scheme::Scale, 4, 128, 32, 18, 32, 32, Book::Iq4},
    {"IQ4_XS", Scheme::KOffset, 4, 128, 256, 136, 256, 160, Book::Iq4},
    {"MXFP4", Scheme::Power, 4, 16, 32, 17, 32, 16, Book::Mxfp4},
    {"Q3_0", Scheme::Scale, 3, 4, 32, 14, 32, 32},  // of no file: what weights may be lowered to
}};

}  // namespace

const FormatInfo& format_info(Format format) { return kFormats[static_cast<size_t>(format)]; }

Format format_from_name(const char* name) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (std::strcmp(kFormats[i].name, name) == 0) return static_cast<Format>(i);
  }
  throw ModelError("unsupported weight format " + std::string(name));
}

Matrix plan_matrix(Format format, int outputs, int inputs) {
  const FormatInfo& info = format_info(format);
  if (outputs <= 0 || inputs <= 0 || inputs % info.file_group != 0) {
    throw ModelError(std::string(info.name) + " needs a multiple of " + std::to_string(info.file_group) +
                     " inputs, got a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs));
  }
  Matrix m{format, outputs, inputs, 0, 0, nullptr};
  const auto n = static_cast<size_t>(inputs);
  const auto align = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
  if (info.scheme == Scheme::Dense) {
    m.block_bytes = align(n * kLanes * static_cast<size_t>(info.bits) / 8);
    return m;
  }
  const auto bytes_of = [&](size_t span) {
    return align(span / kChunk * static_cast<size_t>(info.chunk_bytes()) +
                 span / static_cast<size_t>(info.scale_group) * static_cast<size_t>(info.scale_bytes));
  };
  m.group_bytes = bytes_of(kSuper);
  m.block_bytes = n / kSuper * m.group_bytes + bytes_of(n % kSuper);
  return m;
}

ChunkPlace place_of(const Matrix& m, int chunk) {
  const FormatInfo& info = format_info(m.format);
  constexpr int kChunks = kSuper / kChunk;
  const int group = chunk / kChunks;
  const int chunks = std::min(kChunks, m.inputs / kChunk - group * kChunks);
  const size_t start = static_cast<size_t>(group) * m.group_bytes;
  const auto bytes = static_cast<size_t>(info.chunk_bytes());
  const int per_scale = info.scale_group / kChunk;
  return {start + static_cast<size_t>(chunk % kChunks) * bytes,
          start + static_cast<size_t>(chunks) * bytes +
              static_cast<size_t>(chunk % kChunks / per_scale) * static_cast<size_t>(info.scale_bytes)};
}

}  // namespace sonoran
