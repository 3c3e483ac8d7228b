#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <utility>
#include <vector>

#include "sampling/coupled.hpp"

namespace nb = nanobind;

namespace sonoran::sampling {

namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// Hands a vector over to NumPy without a copy.
template <class T>
Array<T> to_numpy(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array<T>(owned->data(), {owned->size()}, owner);
}

template <class Function>
auto without_lock(const Logits& logits, Function function) {
  nb::gil_scoped_release release;
  return function(Row(logits.data(), static_cast<int64_t>(logits.shape(0))));
}

}  // namespace

}  // namespace sonoran::sampling

void bind_sampling(nb::module_& m) {
  using namespace sonoran::sampling;
  m.def("sampling_argmax",
        [](Logits logits) { return without_lock(logits, [](const Row& row) { return row.argmax(); }); });
  m.def("sampling_top", [](Logits logits, int64_t n, int64_t exclude) {
    return to_numpy(without_lock(logits, [&](const Row& row) { return top(row, n, exclude); }));
  });
  m.def("sampling_select", [](Logits logits, double inverse_temperature, int64_t top_k, double top_p,
                              double min_p, int64_t limit) {
    const Cut cut{inverse_temperature, top_k, top_p, min_p};
    Selection kept = without_lock(logits, [&](const Row& row) { return select(row, cut, limit); });
    return std::make_tuple(to_numpy(std::move(kept.ids)), to_numpy(std::move(kept.x)),
                           to_numpy(std::move(kept.weights)));
  });
  m.def("sampling_coupled_top", [](Logits logits, double inverse_temperature, int64_t top_k, double top_p,
                                   double min_p, uint64_t seed, uint64_t position, int64_t n,
                                   int64_t exclude) {
    const Cut cut{inverse_temperature, top_k, top_p, min_p};
    return to_numpy(without_lock(
        logits, [&](const Row& row) { return coupled_top(row, cut, NoiseKey{seed, position}, n, exclude); }));
  });
  m.def("sampling_inverse", [](Logits logits, double inverse_temperature, int64_t top_k, double top_p,
                               double min_p, uint64_t bits) {
    const Cut cut{inverse_temperature, top_k, top_p, min_p};
    return without_lock(logits, [&](const Row& row) { return inverse_sample(row, cut, bits); });
  });
  m.def("sampling_mass", [](Logits logits, double inverse_temperature, int64_t top_k, double top_p,
                            double min_p, int64_t token) {
    const Cut cut{inverse_temperature, top_k, top_p, min_p};
    const Mass found = without_lock(logits, [&](const Row& row) { return mass(row, cut, token); });
    return std::make_pair(found.weight, found.total);
  });
  m.def("sampling_logsumexp",
        [](Logits logits) { return without_lock(logits, [](const Row& row) { return logsumexp(row); }); });
  m.def("sampling_weights", [](Array<const double> x) {
    std::vector<int64_t> weights(x.shape(0));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = weight_of(x(i));
    return to_numpy(std::move(weights));
  });
  m.def("sampling_words", [](uint64_t seed, uint64_t position, uint32_t block, uint32_t stream) {
    uint32_t words[4][1];
    philox<1>(NoiseKey{seed, position}, static_cast<Stream>(stream), &block, words);
    return std::make_tuple(words[0][0], words[1][0], words[2][0], words[3][0]);
  });
  m.def("sampling_gumbel", [](uint64_t seed, uint64_t position, Array<const int32_t> ids) {
    std::vector<double> noise(ids.shape(0));
    for (size_t i = 0; i < noise.size(); ++i) noise[i] = gumbel(NoiseKey{seed, position}, ids(i));
    return to_numpy(std::move(noise));
  });
}
