// Packed matrices on their own, for tests: pack, decode, multiply.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "core/error.hpp"
#include "kernels/kernels.hpp"
#include "runtime/memory.hpp"
#include "weights/pack.hpp"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

class PackedMatrix {
 public:
  PackedMatrix(const std::string& from, const std::string& to, int outputs, int inputs, Bytes rows)
      : matrix_(sonoran::plan_matrix(sonoran::format_from_name(to.c_str()), outputs, inputs)),
        arena_(matrix_.bytes()) {
    matrix_.data = arena_.data();
    const sonoran::Format source = sonoran::format_from_name(from.c_str());
    const auto& info = sonoran::format_info(source);
    const auto expected = static_cast<size_t>(outputs) * static_cast<size_t>(inputs / info.file_group) *
                          static_cast<size_t>(info.file_bytes);
    if (rows.size() != expected) throw sonoran::ModelError("expected " + std::to_string(expected) + " bytes");
    sonoran::pack_blocks(matrix_, source, rows.data(), 0, matrix_.blocks());
  }

  void decode(FloatOut out) const {
    if (static_cast<int>(out.shape(0)) != matrix_.outputs ||
        static_cast<int>(out.shape(1)) != matrix_.inputs) {
      throw sonoran::ConfigError("out must be outputs x inputs");
    }
    for (int r = 0; r < matrix_.outputs; ++r)
      sonoran::decode_row(matrix_, r, out.data() + static_cast<size_t>(r) * out.shape(1));
  }

  // y = x w^T with the kernels of an instruction set.
  void multiply(Floats x, FloatOut y, const std::string& instruction_set) const {
    const auto inputs = static_cast<size_t>(matrix_.inputs);
    const size_t rows = x.shape(0);
    if (x.shape(1) != inputs || y.shape(0) != rows || static_cast<int>(y.shape(1)) != matrix_.outputs) {
      throw sonoran::ConfigError("x must be rows x inputs and y rows x outputs");
    }
    const sonoran::Kernels& kernels = sonoran::select_kernels(instruction_set);
    std::vector<sonoran::Quantised> codes(rows * (inputs / 32));
    if (inputs % 32 == 0) {
      for (size_t r = 0; r < rows; ++r) {
        kernels.quantise(x.data() + r * inputs, matrix_.inputs, &codes[r * (inputs / 32)]);
      }
    }
    const sonoran::Activations a{x.data(), codes.data(), inputs, inputs / 32};
    kernels.matmul(matrix_, 0, matrix_.blocks(), a, static_cast<int>(rows), y.data(), y.shape(1));
  }

  size_t bytes() const { return matrix_.bytes(); }

 private:
  sonoran::Matrix matrix_;
  sonoran::Arena arena_;
};

}  // namespace

void bind_weights(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix",
                           "One matrix in the packed layout, on its own: what tests look at.")
      .def(nb::init<const std::string&, const std::string&, int, int, Bytes>(), nb::arg("from_format"),
           nb::arg("to_format"), nb::arg("outputs"), nb::arg("inputs"), nb::arg("rows"),
           "Pack rows of a file in from_format; to_format is the same or one with fewer bits.")
      .def("decode", &PackedMatrix::decode, nb::arg("out"), "Write all weights as floats [outputs, inputs].")
      .def("multiply", &PackedMatrix::multiply, nb::arg("x"), nb::arg("y"),
           nb::arg("instruction_set") = "auto",
           "Write x W^T: y [rows, outputs] for x [rows, inputs], by the kernels of an instruction set.")
      .def_prop_ro("bytes", &PackedMatrix::bytes, "Bytes in memory.");
}
