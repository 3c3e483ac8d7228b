// All kernels for one instruction set. Everything but the table has internal linkage, so that no code
// compiled here can be called on a processor that lacks the instructions.
#include "kernels/vec_portable.hpp"
// The vector type comes first: the kernels below are written over it.
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"

namespace sonoran {

extern const Kernels k_portable_kernels;
const Kernels k_portable_kernels = {"portable", matmul, quantise, rms_norm, silu_mul, attend, store_kv};

}  // namespace sonoran
