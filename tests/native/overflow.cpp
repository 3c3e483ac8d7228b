// What a build with sanitizers must catch: read beyond memory, and an integer that does not fit.
#include <vector>

extern "C" {

__attribute__((visibility("default"))) int read_at(int index) {
  std::vector<int> numbers(16, 1);
  return numbers.data()[index];
}

__attribute__((visibility("default"))) int next(int number) { return number + 1; }
}
