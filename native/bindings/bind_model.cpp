// The decoder as sonoran._native.Decoder; sonoran.backends.native wraps it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "core/error.hpp"
#include "model/decoder.hpp"

namespace nb = nanobind;
using sonoran::Decoder;
using sonoran::DecoderConfig;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Spec = std::tuple<std::string, std::string, int, int>;

std::vector<sonoran::MatrixSpec> read_specs(const std::vector<Spec>& specs) {
  std::vector<sonoran::MatrixSpec> out;
  for (const auto& [name, format, outputs, inputs] : specs) {
    out.push_back({name, sonoran::format_from_name(format.c_str()), outputs, inputs});
  }
  return out;
}

void forward(Decoder& d, Ints tokens, Ints positions, Ints slots, Ints sequences, Ints trunk_lengths,
             Ints wants_logits, Table block_tables, Ints extra_offsets, Ints extra_slots, Logits logits) {
  const size_t n = tokens.shape(0);
  size_t wanted = 0;
  for (size_t i = 0; i < wants_logits.shape(0); ++i) wanted += wants_logits.data()[i] != 0;
  if (positions.shape(0) != n || slots.shape(0) != n || sequences.shape(0) != n ||
      trunk_lengths.shape(0) != n || wants_logits.shape(0) != n || extra_offsets.shape(0) != n + 1) {
    throw sonoran::ConfigError("all fields of the rows must have the same length");
  }
  if (extra_offsets.data()[0] != 0 || extra_offsets.data()[n] != static_cast<int32_t>(extra_slots.shape(0))) {
    throw sonoran::ConfigError("extra_offsets do not cover extra_slots");
  }
  if (logits.shape(0) != wanted || static_cast<int>(logits.shape(1)) != d.vocab_size()) {
    throw sonoran::ConfigError("logits has the wrong shape");
  }
  sonoran::RowBatch rows;
  rows.n = static_cast<int>(n);
  rows.tokens = tokens.data(), rows.positions = positions.data(), rows.slots = slots.data();
  rows.sequences = sequences.data(), rows.trunk_lengths = trunk_lengths.data();
  rows.wants_logits = wants_logits.data(), rows.block_tables = block_tables.data();
  rows.num_sequences = static_cast<int>(block_tables.shape(0));
  rows.table_width = static_cast<int>(block_tables.shape(1));
  rows.extra_offsets = extra_offsets.data(), rows.extra_slots = extra_slots.data();
  rows.num_extra_slots = static_cast<int>(extra_slots.shape(0));
  const nb::gil_scoped_release release;
  d.forward(rows, logits.data());
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<DecoderConfig>(m, "DecoderConfig", "Shape of a decoder and of its KV memory.")
      .def(
          "__init__",
          [](DecoderConfig* self, int vocab_size, int hidden_size, int intermediate_size, int num_layers,
             int num_heads, int num_kv_heads, int head_dim, float norm_epsilon, double rope_theta,
             bool rope_interleaved, std::vector<double> rope_factors, double rope_attention_factor,
             std::vector<int> sliding_windows, int block_size, int num_blocks) {
            new (self) DecoderConfig{vocab_size,
                                     hidden_size,
                                     intermediate_size,
                                     num_layers,
                                     num_heads,
                                     num_kv_heads,
                                     head_dim,
                                     norm_epsilon,
                                     rope_theta,
                                     rope_interleaved,
                                     std::move(rope_factors),
                                     rope_attention_factor,
                                     std::move(sliding_windows),
                                     block_size,
                                     num_blocks};
          },
          nb::kw_only(), nb::arg("vocab_size"), nb::arg("hidden_size"), nb::arg("intermediate_size"),
          nb::arg("num_layers"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
          nb::arg("norm_epsilon"), nb::arg("rope_theta"), nb::arg("rope_interleaved"),
          nb::arg("rope_factors"), nb::arg("rope_attention_factor"), nb::arg("sliding_windows"),
          nb::arg("block_size"), nb::arg("num_blocks"),
          "rope_factors divide the frequencies (empty: not scaled), rope_attention_factor scales rotated "
          "queries and "
          "keys; sliding_windows are those of the layers, 0 for none (empty: none at all); "
          "block_size is in KV slots.");
  nb::class_<Decoder>(m, "Decoder", "A decoder with its weights, KV memory and threads.")
      .def(
          "__init__",
          [](Decoder* self, const DecoderConfig& config, const std::vector<Spec>& matrices, int threads,
             const std::vector<int>& cores, const std::string& instruction_set, int loading_threads) {
            new (self)
                Decoder(config, read_specs(matrices), threads, cores, instruction_set, loading_threads);
          },
          nb::arg("config"), nb::arg("matrices"), nb::arg("threads"), nb::arg("cores"),
          nb::arg("instruction_set"), nb::arg("loading_threads") = 0,
          "Reserve memory; matrices are (name, packed format, outputs, inputs). Threads are pinned to the "
          "cores if there are any; until finish(), loading_threads (0: the same ones) work on any core.")
      .def(
          "load_matrix",
          [](Decoder& d, const std::string& name, const std::string& format, Bytes rows) {
            const sonoran::Format from = sonoran::format_from_name(format.c_str());
            const nb::gil_scoped_release release;
            d.weights().load_matrix(name, from, rows.data(), rows.size(), d.loading_pool());
          },
          nb::arg("name"), nb::arg("format"), nb::arg("rows"),
          "Pack the rows of a matrix, as a file has them in this format.")
      .def(
          "read_packed",
          [](Decoder& d, int file, size_t offset) {
            const nb::gil_scoped_release release;
            return d.weights().read_packed(file, offset, d.loading_pool());
          },
          nb::arg("file"), nb::arg("offset"),
          "Read all matrices from an open file that holds packed() of the same matrices at an offset; return "
          "what "
          "digest() is now. A matrix that is loaded afterwards takes the place of what was read.")
      .def(
          "packed",
          [](Decoder& d) {
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(d.weights().packed(),
                                                                      {d.weights().bytes()}, nb::handle());
          },
          nb::rv_policy::reference_internal,
          "All matrices in the packed layout, one after another; not copied.")
      .def(
          "digest",
          [](Decoder& d) {
            const nb::gil_scoped_release release;
            return d.weights().digest(d.loading_pool());
          },
          "A checksum of packed(), against damage.")
      .def(
          "load_vector",
          [](Decoder& d, const std::string& name, Vector v) {
            d.weights().load_vector(name, v.data(), v.size());
          },
          nb::arg("name"), nb::arg("values"), "Copy a norm's weights or a bias.")
      .def("finish", &Decoder::finish, "Check that every tensor is there with its shape; call after loading.")
      .def("restrict_output", &Decoder::restrict_output, nb::arg("blocks"),
           "Compute the logits of these blocks of 16 tokens only, in ascending order; others become -inf.")
      .def("forward", &forward, nb::arg("tokens"), nb::arg("positions"), nb::arg("slots"),
           nb::arg("sequences"), nb::arg("trunk_lengths"), nb::arg("wants_logits"), nb::arg("block_tables"),
           nb::arg("extra_offsets"), nb::arg("extra_slots"), nb::arg("logits"),
           "Run the rows (fields of sonoran.backends.base.Rows); write logits [rows that want them, vocab].")
      .def(
          "copy_block", [](Decoder& d, int from, int to) { d.kv().copy_block(from, to); }, nb::arg("source"),
          nb::arg("destination"), "Copy the keys and values of a block in all layers.")
      .def_prop_ro("read_bytes", &Decoder::read_bytes, "Bytes of weights that a pass reads.")
      .def_prop_ro(
          "weight_bytes", [](Decoder& d) { return d.weights().bytes(); }, "Bytes of all matrices.")
      .def_prop_ro(
          "kv_bytes", [](Decoder& d) { return d.kv().bytes(); }, "Bytes of KV memory.")
      .def_prop_ro(
          "threads", [](Decoder& d) { return d.pool().threads(); }, "Threads of a pass, the caller included.")
      .def_prop_ro(
          "instruction_set", [](const Decoder& d) { return std::string(d.kernels().name); },
          "The instruction set of the kernels in use.");
}
