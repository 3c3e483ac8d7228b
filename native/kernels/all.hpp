// Every kernel, for the translation unit of an instruction set; its vec_*.hpp must be included before,
// because the kernels are written over Vec. Everything here has internal linkage, so that no code compiled
// for an instruction set can be called on a processor that lacks it.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/kernels.hpp"
#include "kernels/matmul.hpp"

namespace sonoran {
namespace {

constexpr Kernels all_kernels(const char* name) {
  return {name, matmul, quantise, rms_norm, silu_mul, gelu_mul, softcap, attend, store_kv};
}

}  // namespace
}  // namespace sonoran
