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
  nb::enum_<sonoran::Activation>(m, "Activation", "What the gate of a feed-forward network passes.")
      .value("SILU", sonoran::Activation::Silu)
      .value("GELU_TANH", sonoran::Activation::GeluTanh);
  nb::enum_<sonoran::Norms>(m, "Norms", "Where the norms of a sublayer stand.")
      .value("BEFORE", sonoran::Norms::Before)
      .value("AROUND", sonoran::Norms::Around)
      .value("BEHIND", sonoran::Norms::Behind);
  nb::class_<sonoran::Rope>(m, "Rope", "A rotation of queries and keys.")
      .def(
          "__init__",
          [](sonoran::Rope* self, double theta, std::vector<double> factors, double attention_factor) {
            new (self) sonoran::Rope{theta, std::move(factors), attention_factor};
          },
          nb::arg("theta"), nb::arg("factors"), nb::arg("attention_factor"),
          "factors divide the frequencies (empty: not scaled), attention_factor scales rotated queries and "
          "keys.");
  nb::class_<sonoran::Experts>(m, "Experts", "A feed-forward part of which a router chooses a few experts.")
      .def(
          "__init__",
          [](sonoran::Experts* self, int count, int per_row, int intermediate_size, int shared_size,
             bool normalised) {
            new (self) sonoran::Experts{count, per_row, intermediate_size, shared_size, normalised};
          },
          nb::kw_only(), nb::arg("count"), nb::arg("per_row"), nb::arg("intermediate_size"),
          nb::arg("shared_size"), nb::arg("normalised"),
          "shared_size is the inner width of the expert that every row passes (0: none); normalised: the "
          "chances of those chosen are divided by their sum.");
  nb::class_<DecoderConfig>(m, "DecoderConfig", "Shape of a decoder and of its KV memory; set the fields.")
      .def(nb::init<>())
      .def_rw("vocab_size", &DecoderConfig::vocab_size)
      .def_rw("hidden_size", &DecoderConfig::hidden_size)
      .def_rw("intermediate_size", &DecoderConfig::intermediate_size)
      .def_rw("num_layers", &DecoderConfig::num_layers)
      .def_rw("num_heads", &DecoderConfig::num_heads)
      .def_rw("num_kv_heads", &DecoderConfig::num_kv_heads)
      .def_rw("head_dim", &DecoderConfig::head_dim)
      .def_rw("norm_epsilon", &DecoderConfig::norm_epsilon)
      .def_rw("norms", &DecoderConfig::norms, "Where a sublayer's norms stand.")
      .def_rw("whole_qk_norm", &DecoderConfig::whole_qk_norm,
              "Whether q_norm and k_norm span all heads at once.")
      .def_rw("activation", &DecoderConfig::activation)
      .def_rw("experts", &DecoderConfig::experts)
      .def_rw("embedding_scale", &DecoderConfig::embedding_scale)
      .def_rw("attention_scale", &DecoderConfig::attention_scale, "Of the scores; 0: 1 / sqrt(head_dim).")
      .def_rw("residual_scale", &DecoderConfig::residual_scale, "Of what a sublayer adds.")
      .def_rw("logit_scale", &DecoderConfig::logit_scale)
      .def_rw("attention_softcap", &DecoderConfig::attention_softcap,
              "Scores become c tanh(score / c); 0: they stay.")
      .def_rw("logit_softcap", &DecoderConfig::logit_softcap, "The same for logits.")
      .def_rw("rope_interleaved", &DecoderConfig::rope_interleaved)
      .def_rw("rotary_dim", &DecoderConfig::rotary_dim, "The first elements of a head, which are rotated.")
      .def_rw("ropes", &DecoderConfig::ropes)
      .def_rw("layer_ropes", &DecoderConfig::layer_ropes,
              "Which of the ropes each layer has, -1: none; empty: all the first.")
      .def_rw("sliding_windows", &DecoderConfig::sliding_windows,
              "Of each layer, 0: none; empty: no layer has one.")
      .def_rw("block_size", &DecoderConfig::block_size, "In KV slots.")
      .def_rw("num_blocks", &DecoderConfig::num_blocks);
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
      .def("place", &Decoder::place, nb::arg("threads"), nb::arg("cores"),
           nb::call_guard<nb::gil_scoped_release>(),
           "Run passes on other threads from now on, pinned to the cores if there are any.")
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
