// Compares the kernels of every instruction set of the processor with portable code, bit by bit, and runs a
// tiny decoder with each. It needs no Python, so that it runs under an emulator of another processor; what it
// prints is the same everywhere.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "kernels/kernels.hpp"
#include "model/decoder.hpp"
#include "weights/pack.hpp"

namespace {

using namespace sonoran;

int failures = 0;

// Numbers that are the same on every machine.
struct Random {
  uint64_t state;

  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  float uniform() { return static_cast<float>(next() % 65536) / 32768.0f - 1.0f; }
  std::vector<float> floats(size_t n, float size = 1.0f) {
    std::vector<float> values(n);
    for (float& v : values) v = size * uniform();
    return values;
  }
};

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash = 14695981039346656037u) {
  const auto* p = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 1099511628211u;
  return hash;
}

uint64_t hash_of(const std::vector<float>& v) { return hash_of(v.data(), v.size() * sizeof(float)); }

void expect(bool same, const std::string& what) {
  if (same) return;
  ++failures;
  std::printf("DIFFERENT: %s\n", what.c_str());
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Random bytes of a file, with scales that are small and finite.
std::vector<uint8_t> file_rows(Format format, int outputs, int inputs, Random& random) {
  const FormatInfo& info = format_info(format);
  const auto size = static_cast<size_t>(info.file_bytes);
  std::vector<uint8_t> rows(static_cast<size_t>(outputs) * static_cast<size_t>(inputs / info.file_group) *
                            size);
  for (uint8_t& b : rows) b = static_cast<uint8_t>(random.next());
  const auto put = [&](size_t at) {
    const uint16_t h = float_to_half(0.1f * random.uniform());
    std::memcpy(&rows[at], &h, 2);
  };
  for (size_t at = 0; at < rows.size(); at += size) {
    if (format == Format::F32) {
      const float v = random.uniform();
      std::memcpy(&rows[at], &v, 4);
    } else if (format == Format::F16) {
      put(at);
    } else if (format == Format::BF16) {
      const uint16_t h = float_to_bf16(random.uniform());
      std::memcpy(&rows[at], &h, 2);
    } else if (info.scheme == Scheme::KOffset16) {
      put(at + size - 2);
    } else if (format == Format::Q2_K) {
      put(at + 80), put(at + 82);
    } else if (format == Format::MXFP4) {
      rows[at] = static_cast<uint8_t>(120 + rows[at] % 8);
    } else {
      put(at);
      if (info.scheme == Scheme::ScaleMin || info.scheme == Scheme::KMin) put(at + 2);
    }
  }
  return rows;
}

std::vector<float> product(const Kernels& kernels, const Matrix& m, const std::vector<float>& x, int rows) {
  const auto inputs = static_cast<size_t>(m.inputs);
  const auto groups = inputs / 32;
  std::vector<Quantised> codes(static_cast<size_t>(rows) * groups);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
    kernels.quantise(x.data() + r * inputs, m.inputs, codes.data() + r * groups);
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(m.outputs));
  kernels.matmul(m, 0, m.blocks(), {x.data(), codes.data(), inputs, groups}, rows, y.data(),
                 static_cast<size_t>(m.outputs));
  return y;
}

void check_products(const std::vector<const Kernels*>& all) {
  Random random{1};
  for (int f = 0; f < kFormatCount; ++f) {
    const auto format = static_cast<Format>(f);
    const int outputs = 41, inputs = 768;
    Matrix m = plan_matrix(format, outputs, inputs);
    LineVector<uint8_t> memory(m.bytes() + 16384);
    m.data = memory.data();
    pack_blocks(m, format, file_rows(format, outputs, inputs, random).data(), 0, m.blocks());
    uint64_t hash = 0;
    for (const float size : {1.0f, 1e-38f, 1e20f}) {
      for (int rows = 1; rows <= 13; ++rows) {
        std::vector<float> x = random.floats(static_cast<size_t>(rows * inputs), size);
        for (size_t i = 0; i < x.size(); i += 5) x[i] = x[i] < 0 ? -size : size;  // the largest codes
        const std::vector<float> expected = product(*all.back(), m, x, rows);
        hash = hash * 31 + hash_of(expected);
        for (const Kernels* kernels : all) {
          expect(same_bits(product(*kernels, m, x, rows), expected), std::string(kernels->name) + ", " +
                                                                         format_info(format).name + ", " +
                                                                         std::to_string(rows) + " rows");
        }
      }
    }
    std::printf("products %s %016llx\n", format_info(format).name, static_cast<unsigned long long>(hash));
  }
}

void check_elementwise(const std::vector<const Kernels*>& all) {
  Random random{2};
  const int n = 208;
  for (const float size : {1.0f, 30.0f, 1e-3f}) {
    const std::vector<float> x = random.floats(n, size), w = random.floats(n);
    std::vector<float> norm(n), gate = x;
    all.back()->rms_norm(x.data(), w.data(), n, 200, 1e-6f, norm.data());
    all.back()->silu_mul(gate.data(), w.data(), n);
    std::vector<float> gelu = x, capped = x;
    all.back()->gelu_mul(gelu.data(), w.data(), n);
    all.back()->softcap(capped.data(), n, 5.0f);
    std::printf("norm %016llx silu %016llx\n", static_cast<unsigned long long>(hash_of(norm)),
                static_cast<unsigned long long>(hash_of(gate)));
    for (const Kernels* kernels : all) {
      std::vector<float> a(n), b = x, c = x, d = x;
      kernels->rms_norm(x.data(), w.data(), n, 200, 1e-6f, a.data());
      kernels->silu_mul(b.data(), w.data(), n);
      expect(same_bits(a, norm), std::string(kernels->name) + ", norm");
      expect(same_bits(b, gate), std::string(kernels->name) + ", silu");
      kernels->gelu_mul(c.data(), w.data(), n);
      kernels->softcap(d.data(), n, 5.0f);
      expect(same_bits(c, gelu), std::string(kernels->name) + ", gelu");
      expect(same_bits(d, capped), std::string(kernels->name) + ", softcap");
    }
  }
}

// Greedy tokens of a decoder with random weights, first by passes of one row, then a pass of all of them: the
// branch of two rows at the end sees itself by extra slots.
void check_decoder(const std::vector<const Kernels*>& all) {
  DecoderConfig c;
  c.vocab_size = 96, c.hidden_size = 256, c.intermediate_size = 512, c.num_layers = 2;
  c.num_heads = 6, c.num_kv_heads = 2, c.head_dim = 48, c.norm_epsilon = 1e-6f;
  c.ropes = {{10000.0, {}, 1.0}}, c.rotary_dim = c.head_dim, c.num_blocks = 8, c.sliding_windows = {29, 29};
  const int q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  std::vector<MatrixSpec> specs = {{"embed", Format::Q8_0, c.vocab_size, c.hidden_size},
                                   {"output", Format::Q6_K, c.vocab_size, c.hidden_size}};
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string p = "layers." + std::to_string(i) + ".";
    specs.push_back({p + "q", i == 0 ? Format::Q4_K : Format::IQ4_XS, q, c.hidden_size});
    specs.push_back({p + "k", i == 0 ? Format::Q5_K : Format::Q3_K, kv, c.hidden_size});
    specs.push_back({p + "v", Format::Q6_K, kv, c.hidden_size});
    specs.push_back({p + "o", i == 0 ? Format::Q4_0 : Format::IQ4_NL, c.hidden_size, q});
    specs.push_back({p + "gate", i == 0 ? Format::Q4_1 : Format::Q2_K, c.intermediate_size, c.hidden_size});
    specs.push_back({p + "up", i == 0 ? Format::Q3_0 : Format::MXFP4, c.intermediate_size, c.hidden_size});
    specs.push_back({p + "down", Format::Q5_0, c.hidden_size, c.intermediate_size});
  }
  std::string first;
  for (const Kernels* kernels : all) {
    Random random{3};
    Decoder decoder(c, specs, 2, {}, kernels->name, 2);
    for (const MatrixSpec& spec : specs) {
      const auto rows = file_rows(spec.format, spec.outputs, spec.inputs, random);
      decoder.weights().load_matrix(spec.name, spec.format, rows.data(), rows.size(), decoder.pool());
    }
    const auto vector = [&](const std::string& name) {
      const std::vector<float> v(static_cast<size_t>(c.hidden_size), 0.5f);
      decoder.weights().load_vector(name, v.data(), v.size());
    };
    for (int i = 0; i < c.num_layers; ++i) {
      vector("layers." + std::to_string(i) + ".attn_norm"),
          vector("layers." + std::to_string(i) + ".ffn_norm");
    }
    vector("final_norm");
    decoder.finish();

    const std::vector<int32_t> table = {5, 2, 7, 0, 1};
    const auto slot = [&](int position) {
      return table[static_cast<size_t>(position / 16)] * 16 + position % 16;
    };
    const auto run = [&](const std::vector<int32_t>& tokens, int start, int trunk_end) {
      std::vector<int32_t> positions, slots, sequences, trunks, wants, offsets = {0}, extras;
      for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
        const int position = start + i;
        positions.push_back(position), slots.push_back(slot(position)), sequences.push_back(0),
            wants.push_back(1);
        trunks.push_back(std::min(position + 1, trunk_end));
        for (int e = trunk_end; e <= position; ++e) extras.push_back(slot(e));
        offsets.push_back(static_cast<int32_t>(extras.size()));
      }
      RowBatch rows;
      rows.n = static_cast<int>(tokens.size());
      rows.tokens = tokens.data(), rows.positions = positions.data(), rows.slots = slots.data();
      rows.sequences = sequences.data(), rows.trunk_lengths = trunks.data(), rows.wants_logits = wants.data();
      rows.block_tables = table.data(), rows.num_sequences = 1,
      rows.table_width = static_cast<int>(table.size());
      rows.extra_offsets = offsets.data(), rows.extra_slots = extras.data();
      rows.num_extra_slots = static_cast<int>(extras.size());
      std::vector<float> logits(tokens.size() * static_cast<size_t>(c.vocab_size));
      decoder.forward(rows, logits.data());
      return logits;
    };
    std::vector<int32_t> tokens = {17};
    std::vector<float> one_by_one;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      const std::vector<float> logits = run({tokens.back()}, i, i + 1);
      one_by_one.insert(one_by_one.end(), logits.begin(), logits.end());
      tokens.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      text += static_cast<char>(' ' + tokens.back() % 95);
    }
    tokens.pop_back();
    expect(same_bits(run(tokens, 0, 58), one_by_one),
           std::string(kernels->name) + ", rows together and alone");
    if (first.empty()) {
      first = text;
      std::printf("text %s\nlogits %016llx\n", text.c_str(),
                  static_cast<unsigned long long>(hash_of(one_by_one)));
    }
    expect(text == first, std::string(kernels->name) + ", text");
  }
}

}  // namespace

int main() {
  std::vector<const Kernels*> all;
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.present) continue;
    all.push_back(&select_kernels(set.name));
    std::fprintf(stderr, "%s\n", set.name);
  }
  check_products(all);
  check_elementwise(all);
  check_decoder(all);
  std::printf("%d differences\n", failures);
  return failures == 0 ? 0 : 1;
}
