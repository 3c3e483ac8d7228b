// The extension module sonoran._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/error.hpp"
#include "kernels/kernels.hpp"
#include "runtime/bandwidth.hpp"
#include "runtime/thread_pool.hpp"

namespace nb = nanobind;

void bind_model(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_sampling(nb::module_& m);

namespace {

template <class Error>
void translate(const char* name) {
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void* payload) {
        try {
          std::rethrow_exception(p);
        } catch (const Error& e) {
          nb::object type = nb::module_::import_("sonoran.errors").attr(static_cast<const char*>(payload));
          PyErr_SetString(type.ptr(), e.what());
        }
      },
      const_cast<char*>(name));
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels and forward pass of the CPU backend.";
  translate<sonoran::ConfigError>("ConfigError");
  translate<sonoran::ModelError>("ModelError");
  translate<sonoran::NumericsError>("NumericsError");

  nb::class_<sonoran::InstructionSet>(m, "InstructionSet", "Kernels for a kind of processor.")
      .def_ro("name", &sonoran::InstructionSet::name, "As the option instruction_set takes it.")
      .def_ro("built", &sonoran::InstructionSet::built, "Whether this build has its kernels.")
      .def_ro("present", &sonoran::InstructionSet::present, "Whether this processor can run them, too.");
  m.def("instruction_sets", &sonoran::instruction_sets,
        "All instruction sets, the best first; the first one present is chosen by default.");
  m.def(
      "best_instruction_set", [] { return std::string(sonoran::select_kernels("auto").name); },
      "The name of the instruction set that is chosen by default.");
  m.def(
      "packed_layout", [] { return std::string(SONORAN_PACKED_LAYOUT); },
      "Names the packed layout of this build: it differs where the layout may differ.");
  m.def("available_cores", &sonoran::available_cores, "The cores that this process may use.");
  m.def("measure_read_bandwidth", &sonoran::measure_read_bandwidth, nb::arg("bytes"), nb::arg("threads"),
        nb::arg("cores"), nb::arg("repeats"), nb::call_guard<nb::gil_scoped_release>(),
        "GB/s that a plain read loop reaches on these cores (best of the repeats).");
  bind_weights(m);
  bind_model(m);
  bind_sampling(m);
}
