// The example of README.md: a computation is described first and runs when its result is read.
#include <cstdio>
#include <vector>

#include "tensor/tensor.h"

int main() {
  try {
    bm::Tensor a = bm::Tensor::from<float>({1, 2, 3});
    bm::Tensor b = a * 2 + 1;                     // nothing has run yet
    std::vector<float> values = b.data<float>();  // compiled, run, copied out
    for (float value : values) std::printf("%g ", static_cast<double>(value));
    std::printf("\n");
    return values == std::vector<float>{3, 5, 7} ? 0 : 1;
  } catch (const bm::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
