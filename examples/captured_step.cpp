// A step is captured once and then replayed as data; a Var changes between replays without a new
// capture.
#include <cstdio>

#include "tensor/jit.h"

int main() {
  try {
    using namespace bm;
    Var length("length", 1, 8);
    Tensor state = Tensor::zeros({8}).contiguous().realize();
    Jit step([&](const Tensor& x) {
      state.assign(state + x);                           // state lives on the device
      return state.shrink({{0, SymInt(length)}}).sum();  // of the first `length` elements
    });
    float last = 0;
    for (int64_t i = 1; i <= 8; ++i) {
      length.set(i);
      last = step(Tensor::full({8}, static_cast<double>(i)).contiguous()).item<float>();
      std::printf("step %ld: %g\n", static_cast<long>(i), static_cast<double>(last));
    }
    std::printf("%zu capture, %zu kernels, replayed as %s\n", step.core().num_captures(),
                step.core().num_calls(), step.core().is_graph() ? "one graph" : "single calls");
    return last == 36.0F * 8 ? 0 : 1;
  } catch (const bm::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
