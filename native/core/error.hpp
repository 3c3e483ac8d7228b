// Exceptions that the bindings translate to sonoran.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace sonoran {

struct ConfigError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ModelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct NumericsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace sonoran
