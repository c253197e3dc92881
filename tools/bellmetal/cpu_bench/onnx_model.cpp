// ConvNet → ONNX. Source of field numbers: onnx.proto3 (ModelProto, GraphProto, NodeProto,
// AttributeProto, TensorProto, ValueInfoProto); wire format: Protocol Buffers, "Encoding".
#include <cstring>

#include "tools/bellmetal/cpu_bench/convnet.h"

namespace bm::cli {
namespace {

class Message {
 public:
  Message& number(uint32_t field, int64_t value) {
    varint(field << 3);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  Message& text(uint32_t field, std::string_view bytes) {
    varint(field << 3 | 2);
    varint(bytes.size());
    out_ += bytes;
    return *this;
  }
  Message& part(uint32_t field, const Message& message) { return text(field, message.out_); }
  std::string take() { return std::move(out_); }

 private:
  void varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) out_ += static_cast<char>(v | 0x80);
    out_ += static_cast<char>(v);
  }
  std::string out_;
};

constexpr int64_t kFloat = 1, kInts = 7, kInt = 2;  // TensorProto.FLOAT; AttributeProto types

Message ints(std::string_view name, std::initializer_list<int64_t> values) {
  Message m;
  m.text(1, name);
  for (const int64_t v : values) m.number(8, v);
  return m.number(20, kInts);
}

Message integer(std::string_view name, int64_t value) {
  return Message().text(1, name).number(3, value).number(20, kInt);
}

Message tensor(const std::string& name, const Shape& shape, const std::vector<float>& values) {
  Message m;
  for (const SymInt& s : shape) m.number(1, s.constant());
  const std::string_view raw(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof(float));
  return m.number(2, kFloat).text(8, name).text(9, raw);
}

Message value_info(const std::string& name, std::initializer_list<int64_t> dims) {
  Message shape;
  for (const int64_t d : dims) shape.part(1, Message().number(1, d));
  return Message().text(1, name).part(
      2, Message().part(1, Message().number(1, kFloat).part(2, shape)));
}

Message node(std::string_view op, std::initializer_list<std::string> inputs,
             const std::string& output, std::initializer_list<Message> attributes = {}) {
  Message m;
  for (const std::string& in : inputs) m.text(1, in);
  m.text(2, output).text(4, op);
  for (const Message& a : attributes) m.part(5, a);
  return m;
}

std::string value_name(size_t i) { return i == 0 ? "x" : fmt::format("v{}", i); }

Message layer_node(const Layer& l, const std::string& out, size_t weight) {
  const std::string x = value_name(l.from);
  const std::string w = fmt::format("w{}", weight), b = fmt::format("b{}", weight);
  switch (l.kind) {
    case LayerKind::kConv:
      return node(
          "Conv", {x, w, b}, out,
          {ints("kernel_shape", {l.kernel, l.kernel}), ints("strides", {l.stride, l.stride}),
           ints("pads", {l.padding, l.padding, l.padding, l.padding}), integer("group", l.groups)});
    case LayerKind::kLinear: return node("Gemm", {x, w, b}, out, {integer("transB", 1)});
    case LayerKind::kAdd: return node("Add", {x, value_name(l.other)}, out);
    case LayerKind::kMaxPool:
      return node(
          "MaxPool", {x}, out,
          {ints("kernel_shape", {l.kernel, l.kernel}), ints("strides", {l.stride, l.stride}),
           ints("pads", {l.padding, l.padding, l.padding, l.padding})});
    case LayerKind::kMean:
      return node("ReduceMean", {x}, out, {ints("axes", {2, 3}), integer("keepdims", 0)});
  }
  __builtin_unreachable();
}

}  // namespace

std::string onnx_model(const ConvNet& net) {
  Message graph;
  size_t weight = 0;
  for (size_t i = 0; i < net.layers.size(); ++i) {
    const Layer& l = net.layers[i];
    const std::string out = i + 1 == net.layers.size() ? "y" : value_name(i + 1);
    const bool ends = l.end != LayerEnd::kNone;
    graph.part(1, layer_node(l, ends ? out + "_raw" : out, weight));
    if (l.end == LayerEnd::kRelu) graph.part(1, node("Relu", {out + "_raw"}, out));
    if (l.end == LayerEnd::kRelu6) graph.part(1, node("Clip", {out + "_raw", "zero", "six"}, out));
    if (l.has_weights()) {
      graph.part(5, tensor(fmt::format("w{}", weight), l.weight_shape(), l.weight));
      graph.part(5, tensor(fmt::format("b{}", weight++), {l.out}, l.bias));
    }
  }
  graph.part(5, tensor("zero", {}, {0})).part(5, tensor("six", {}, {6}));
  graph.text(2, "net");
  graph.part(11, value_info("x", {1, net.channels, net.size, net.size}));
  graph.part(12, value_info("y", {1, net.layers.back().out}));
  return Message().number(1, 8).part(7, graph).part(8, Message().number(2, 13)).take();
}

}  // namespace bm::cli
