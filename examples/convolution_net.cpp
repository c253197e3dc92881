// A small convolutional network: layers are functions of tensors, captured once and replayed.
#include <cmath>
#include <cstdio>
#include <vector>

#include "tensor/jit.h"

namespace {

using bm::Tensor;

/// Convolution, bias and activation; the compiler makes one kernel of them.
struct Convolution {
  Tensor weight, bias;
  int64_t stride, groups;

  Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride_, int64_t groups_ = 1)
      : weight((Tensor::randn({out, in / groups_, kernel, kernel}) *
                std::sqrt(2.0 / static_cast<double>(in / groups_ * kernel * kernel)))
                   .realize()),
        bias(Tensor::zeros({out}).contiguous().realize()),
        stride(stride_),
        groups(groups_) {}

  Tensor operator()(const Tensor& x) const {
    const int64_t padding = weight.size(-1).constant() / 2;
    return x.conv(weight, bias, {stride, stride}, {padding, padding}, {1, 1}, groups).relu();
  }
};

}  // namespace

int main() {
  try {
    Tensor::manual_seed(1);
    const Convolution first(3, 16, 3, 2), deep(16, 16, 3, 1, 16), mix(16, 32, 1, 1);
    const Convolution narrow(32, 32, 3, 2), shortcut(32, 32, 1, 2);
    const Tensor head = Tensor::randn({10, 32}).realize();

    bm::Jit network([&](const Tensor& image) {
      const Tensor x = mix(deep(first(image)));  // depthwise, then 1 x 1
      const Tensor y = narrow(x) + shortcut(x);  // two ways that meet again
      return y.mean({2, 3}).linear(head).softmax();
    });

    Tensor image = Tensor::randn({1, 3, 32, 32});
    image.realize();
    std::vector<float> plain = network(image).data<float>();
    network(image);
    const std::vector<float> replayed = network(image).data<float>();
    float sum = 0;
    for (float p : replayed) sum += p;
    std::printf("%zu classes, probabilities sum to %.4f; %zu kernels replayed\n", replayed.size(),
                static_cast<double>(sum), network.core().num_calls());
    return replayed == plain && std::abs(sum - 1) < 1e-4F ? 0 : 1;
  } catch (const bm::Exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
