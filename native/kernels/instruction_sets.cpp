#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <string_view>

#include "core/error.hpp"
#include "kernels/kernels.hpp"

namespace sonoran {

#if defined(__x86_64__)
extern const Kernels k_avx512vnni_kernels;
extern const Kernels k_avx512bw_kernels;
extern const Kernels k_avxvnni_kernels;
extern const Kernels k_avx2_kernels;
#elif defined(__aarch64__)
extern const Kernels k_i8mm_kernels;
extern const Kernels k_dotprod_kernels;
#endif
extern const Kernels k_portable_kernels;

namespace {

struct Entry {
  const char* name;
  const char* architecture;
  const char* features;
};

// The best first. CMakeLists.txt reads this table: on that architecture native/kernels/<name>.cpp is compiled
// for these features, in the compiler's names, and here they are what the processor must have.
constexpr Entry kTable[] = {
    {"avx512vnni", "x86_64", "avx512f avx512bw avx512vl avx512dq avx512vnni fma f16c"},
    {"avxvnni", "x86_64", "avxvnni avx2 fma f16c"},
    {"avx512bw", "x86_64", "avx512f avx512bw avx512vl avx512dq fma f16c"},
    {"avx2", "x86_64", "avx2 fma f16c"},
    {"i8mm", "aarch64", "dotprod i8mm"},
    {"dotprod", "aarch64", "dotprod"},
    {"portable", "any", ""},
};

const Kernels* const kBuilt[] = {
#if defined(__x86_64__)
    &k_avx512vnni_kernels, &k_avx512bw_kernels, &k_avxvnni_kernels, &k_avx2_kernels,
#elif defined(__aarch64__)
    &k_i8mm_kernels,
    &k_dotprod_kernels,
#endif
    &k_portable_kernels,
};

#if defined(__x86_64__)
enum Register { kEax, kEbx, kEcx, kEdx };

// A bit of what the processor says of itself, for features whose names not every compiler knows.
bool cpuid_bit(unsigned leaf, unsigned subleaf, Register where, int bit) {
  unsigned registers[4] = {};
  if (!__get_cpuid_count(leaf, subleaf, &registers[kEax], &registers[kEbx], &registers[kEcx],
                         &registers[kEdx])) {
    return false;
  }
  return (registers[where] >> bit & 1) != 0;
}
#endif

bool has_feature([[maybe_unused]] std::string_view name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The names must be literals.
  if (name == "avx2") return __builtin_cpu_supports("avx2");
  if (name == "fma") return __builtin_cpu_supports("fma");
  if (name == "f16c") return cpuid_bit(1, 0, kEcx, 29);
#if defined(SONORAN_EMULATE_AVXVNNI)
  if (name == "avxvnni") return true;
#else
  if (name == "avxvnni") return cpuid_bit(7, 1, kEax, 4);
#endif
  if (name == "avx512f") return __builtin_cpu_supports("avx512f");
  if (name == "avx512bw") return __builtin_cpu_supports("avx512bw");
  if (name == "avx512vl") return __builtin_cpu_supports("avx512vl");
  if (name == "avx512dq") return __builtin_cpu_supports("avx512dq");
  if (name == "avx512vnni") return __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__APPLE__)
  if (name == "dotprod") return true;  // of every processor that runs macOS
  int value = 0;
  size_t size = sizeof value;
  if (name == "i8mm")
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &value, &size, nullptr, 0) == 0 && value != 0;
#elif defined(__aarch64__) && defined(__linux__)
  if (name == "dotprod") return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  if (name == "i8mm") return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#endif
  return false;
}

bool has_all(std::string_view features) {
  while (!features.empty()) {
    const size_t end = std::min(features.find(' '), features.size());
    if (!has_feature(features.substr(0, end))) return false;
    features.remove_prefix(std::min(end + 1, features.size()));
  }
  return true;
}

const Kernels* built(std::string_view name) {
  const auto* found = std::find_if(std::begin(kBuilt), std::end(kBuilt),
                                   [&](const Kernels* kernels) { return kernels->name == name; });
  return found == std::end(kBuilt) ? nullptr : *found;
}

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> all;
    for (const Entry& entry : kTable) {
      const bool is_built = built(entry.name) != nullptr;
      all.push_back({entry.name, is_built, is_built && has_all(entry.features)});
    }
    return all;
  }();
  return sets;
}

const Kernels& select_kernels(const std::string& name) {
  std::string valid = "auto";
  for (const InstructionSet& set : instruction_sets()) {
    if (set.present && (name == "auto" || name == set.name)) return *built(set.name);
    valid += std::string(", ") + set.name;
  }
  throw ConfigError("instruction set '" + name +
                    "' is unknown or missing on this processor; valid: " + valid);
}

}  // namespace sonoran
