// A program of a user: compiles and runs kernels on the device it is given and checks them.
#include <cstdio>
#include <string>
#include <vector>

#include "tensor/tensor.h"

int main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "CPU:LLVM";
  try {
    const bm::Tensor a = bm::Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}, device);
    const bm::Tensor b = bm::Tensor::from(std::vector<float>{1, 0, 0, 1, 1, -20}, {3, 2}, device);
    const std::vector<float> got = a.matmul(b).relu().data<float>();
    const std::vector<float> want{4, 0, 10, 0};
    std::printf("%g %g %g %g\n", got.at(0), got.at(1), got.at(2), got.at(3));
    return got == want ? 0 : 1;
  } catch (const bm::Exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}
