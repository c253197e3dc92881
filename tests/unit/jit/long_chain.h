#pragma once
// What the tests of a replay's cost replay: a hundred kernels in a row.

#include <vector>

#include "tensor/jit.h"

namespace bm::test {

inline Tensor long_chain(const Tensor& x, const Tensor& y) {
  Tensor t = x;
  for (int i = 0; i < 100; ++i) t = (t + y).contiguous();
  return t;
}

/// Four inputs of a chain, filled with 0 to 3.
inline std::vector<Tensor> chain_inputs() {
  std::vector<Tensor> list;
  for (int i = 0; i < 4; ++i)
    list.push_back(Tensor::from(std::vector<float>(16, static_cast<float>(i)), {16}));
  return list;
}

}  // namespace bm::test
