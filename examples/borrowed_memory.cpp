// Tensors over memory that someone else owns: nothing is copied, and the owner is told when it is
// free.
#include <cstdio>
#include <vector>

#include "tensor/tensor.h"

int main() {
  try {
    std::vector<float> theirs = {1, 2, 3, 4, 5, 6};
    bool is_released = false;
    float sum = 0;
    {
      bm::Tensor t = bm::Tensor::from_blob(theirs.data(), {2, 3}, bm::DType::kF32, "CPU",
                                           [&] { is_released = true; });
      t.assign(t * 10);  // writes straight into `theirs`
      sum = t.sum().item<float>();
    }
    std::printf("sum %g, first element in their memory %g, released: %s\n",
                static_cast<double>(sum), static_cast<double>(theirs[0]),
                is_released ? "yes" : "no");
    return sum == 210 && theirs[0] == 10 && is_released ? 0 : 1;
  } catch (const bm::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
