#pragma once
// Convolutional networks as lists of layers, so that one description gives our tensors, the peers'
// programs and a plain reference.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace bm::cli {

enum class LayerKind { kConv, kAdd, kMaxPool, kMean, kLinear };
enum class LayerEnd { kNone, kRelu, kRelu6 };

/// Values are numbered: 0 is the input, i + 1 the output of layer i. Images are [1, channels, size,
/// size]; kMean makes [1, channels], kLinear takes it.
struct Layer {
  LayerKind kind;
  size_t from = 0, other = 0;  ///< values; `other`: second operand of kAdd
  int64_t in = 0, out = 0;     ///< channels
  int64_t kernel = 1, stride = 1, padding = 0, groups = 1;
  LayerEnd end = LayerEnd::kNone;
  int64_t in_size = 0, out_size = 0;  ///< rows and columns
  std::vector<float> weight = {},
                     bias = {};  ///< [out, in / groups, kernel, kernel] or [out, in]; [out]

  bool has_weights() const { return kind == LayerKind::kConv || kind == LayerKind::kLinear; }
  Shape weight_shape() const;
};

struct ConvNet {
  std::string name;
  int64_t channels = 3, size = 224;
  std::vector<Layer> layers;
  double flops() const;
};

/// 18 weighted layers with shortcuts. Source of the shapes: He et al., "Deep Residual Learning for
/// Image Recognition", table 1; batch norms are folded into weights and biases.
ConvNet resnet18(int64_t size);
/// Inverted residuals with depthwise convolutions. Source of the shapes: Sandler et al.,
/// "MobileNetV2", table 2.
ConvNet mobilenet(int64_t size);

/// The network on tensors; weights and biases in the order of the layers that have them.
Tensor apply(const ConvNet& net, const Tensor& input, const std::vector<Tensor>& weights);
/// Plain loops.
std::vector<float> reference(const ConvNet& net, const std::vector<float>& input);
/// Python source of `net(v0)` over weights w0, b0, w1, …
std::string torch_source(const ConvNet& net);
/// An ONNX model with input "x" and output "y".
std::string onnx_model(const ConvNet& net);

}  // namespace bm::cli
