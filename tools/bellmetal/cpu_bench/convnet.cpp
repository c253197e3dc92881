#include "tools/bellmetal/cpu_bench/convnet.h"

#include <algorithm>
#include <cmath>

namespace bm::cli {
namespace {

/// Adds layers one after the other; keeps the running value and its shape.
class Maker {
 public:
  explicit Maker(ConvNet& net) : net_(net), channels_(net.channels), size_(net.size) {}
  size_t value() const { return net_.layers.size(); }

  void conv(int64_t out, int64_t kernel, int64_t stride, LayerEnd end, int64_t groups = 1) {
    conv_of(value(), channels_, size_, out, kernel, stride, end, groups);
  }
  void conv_of(size_t from, int64_t in, int64_t in_size, int64_t out, int64_t kernel,
               int64_t stride, LayerEnd end, int64_t groups = 1) {
    Layer l{.kind = LayerKind::kConv,
            .from = from,
            .in = in,
            .out = out,
            .kernel = kernel,
            .stride = stride,
            .padding = kernel / 2,
            .groups = groups,
            .end = end};
    push(std::move(l), in_size);
  }
  void add(size_t other, LayerEnd end) {
    push({.kind = LayerKind::kAdd,
          .from = value(),
          .other = other,
          .in = channels_,
          .out = channels_,
          .end = end},
         size_);
  }
  void max_pool() {
    push({.kind = LayerKind::kMaxPool,
          .from = value(),
          .in = channels_,
          .out = channels_,
          .kernel = 3,
          .stride = 2,
          .padding = 1},
         size_);
  }
  void classify(int64_t classes) {
    push({.kind = LayerKind::kMean, .from = value(), .in = channels_, .out = channels_}, size_);
    net_.layers.back().out_size = size_ = 1;
    push({.kind = LayerKind::kLinear, .from = value(), .in = channels_, .out = classes}, 1);
  }
  int64_t channels() const { return channels_; }
  int64_t size() const { return size_; }

 private:
  void push(Layer l, int64_t in_size) {
    l.in_size = in_size;
    l.out_size = (in_size + 2 * l.padding - l.kernel) / l.stride + 1;
    if (l.has_weights()) {
      const int64_t fan_in = l.in / l.groups * l.kernel * l.kernel;
      fill(l.weight, l.out * fan_in, std::sqrt(6.0F / static_cast<float>(fan_in)));
      fill(l.bias, l.out, 0.1F);
    }
    channels_ = l.out;
    size_ = l.out_size;
    net_.layers.push_back(std::move(l));
  }
  void fill(std::vector<float>& values, int64_t count, float bound) {
    values.resize(static_cast<size_t>(count));
    for (float& v : values) {
      state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
      v = bound * (static_cast<float>(state_ >> 40) * 0x1p-23F - 1);
    }
  }

  ConvNet& net_;
  int64_t channels_, size_;
  uint64_t state_ = 1;
};

Tensor finish(const Tensor& t, LayerEnd end) {
  switch (end) {
    case LayerEnd::kNone: return t;
    case LayerEnd::kRelu: return t.relu();
    case LayerEnd::kRelu6: return t.clip(0.0, 6.0);
  }
  __builtin_unreachable();
}

float finish(double v, LayerEnd end) {
  if (end != LayerEnd::kNone) v = std::max(v, 0.0);
  if (end == LayerEnd::kRelu6) v = std::min(v, 6.0);
  return static_cast<float>(v);
}

using Values = std::vector<float>;

Values conv_reference(const Layer& l, const Values& x) {
  const int64_t n = l.in_size, m = l.out_size, in = l.in / l.groups, per = l.out / l.groups;
  Values out;
  out.reserve(static_cast<size_t>(l.out * m * m));
  std::vector<double> row(static_cast<size_t>(m));
  for (int64_t o = 0; o < l.out; ++o)
    for (int64_t y = 0; y < m; ++y) {
      std::fill(row.begin(), row.end(), static_cast<double>(l.bias[static_cast<size_t>(o)]));
      for (int64_t i = 0; i < in; ++i)
        for (int64_t dy = 0; dy < l.kernel; ++dy) {
          const int64_t from = y * l.stride + dy - l.padding;
          if (from < 0 || from >= n) continue;
          const float* line = x.data() + ((o / per * in + i) * n + from) * n;
          for (int64_t dx = 0; dx < l.kernel; ++dx) {
            const double w = static_cast<double>(
                l.weight[static_cast<size_t>(((o * in + i) * l.kernel + dy) * l.kernel + dx)]);
            const int64_t shift = dx - l.padding;
            const int64_t first = shift < 0 ? (-shift + l.stride - 1) / l.stride : 0;
            const int64_t last = std::min(m, (n - 1 - shift) / l.stride + 1);
            for (int64_t p = first; p < last; ++p)
              row[static_cast<size_t>(p)] += w * static_cast<double>(line[p * l.stride + shift]);
          }
        }
      for (const double v : row) out.push_back(finish(v, l.end));
    }
  return out;
}

Values pool_reference(const Layer& l, const Values& x) {
  const int64_t n = l.in_size, m = l.out_size;
  Values out;
  for (int64_t c = 0; c < l.out; ++c)
    for (int64_t y = 0; y < m; ++y)
      for (int64_t p = 0; p < m; ++p) {
        float most = -INFINITY;
        for (int64_t dy = 0; dy < l.kernel; ++dy)
          for (int64_t dx = 0; dx < l.kernel; ++dx) {
            const int64_t fy = y * l.stride + dy - l.padding, fx = p * l.stride + dx - l.padding;
            if (fy >= 0 && fy < n && fx >= 0 && fx < n)
              most = std::max(most, x[static_cast<size_t>((c * n + fy) * n + fx)]);
          }
        out.push_back(most);
      }
  return out;
}

Values mean_reference(const Layer& l, const Values& x) {
  const int64_t count = l.in_size * l.in_size;
  Values out;
  for (int64_t c = 0; c < l.out; ++c) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i)
      sum += static_cast<double>(x[static_cast<size_t>(c * count + i)]);
    out.push_back(static_cast<float>(sum / static_cast<double>(count)));
  }
  return out;
}

Values add_reference(const Layer& l, const Values& a, const Values& b) {
  Values out(a.size());
  for (size_t i = 0; i < a.size(); ++i)
    out[i] = finish(static_cast<double>(a[i]) + static_cast<double>(b[i]), l.end);
  return out;
}

std::string torch_line(const Layer& l, size_t index, size_t weight) {
  const std::string x = fmt::format("v{}", l.from);
  std::string call;
  switch (l.kind) {
    case LayerKind::kConv:
      call = fmt::format("F.conv2d({}, w{}, b{}, stride={}, padding={}, groups={})", x, weight,
                         weight, l.stride, l.padding, l.groups);
      break;
    case LayerKind::kLinear: call = fmt::format("F.linear({}, w{}, b{})", x, weight, weight); break;
    case LayerKind::kAdd: call = fmt::format("{} + v{}", x, l.other); break;
    case LayerKind::kMaxPool:
      call = fmt::format("F.max_pool2d({}, {}, {}, {})", x, l.kernel, l.stride, l.padding);
      break;
    case LayerKind::kMean: call = x + ".mean((2, 3))"; break;
  }
  if (l.end == LayerEnd::kRelu) call = fmt::format("F.relu({}, inplace=True)", call);
  if (l.end == LayerEnd::kRelu6) call = fmt::format("F.relu6({}, inplace=True)", call);
  return fmt::format("  v{} = {}\n", index + 1, call);
}

}  // namespace

Shape Layer::weight_shape() const {
  if (kind == LayerKind::kLinear) return {out, in};
  return {out, in / groups, kernel, kernel};
}

double ConvNet::flops() const {
  double sum = 0;
  for (const Layer& l : layers)
    sum +=
        2.0 * static_cast<double>(l.weight.size()) * static_cast<double>(l.out_size * l.out_size);
  return sum;
}

ConvNet resnet18(int64_t size) {
  ConvNet net{.name = "ResNet-18", .size = size, .layers = {}};
  Maker m(net);
  m.conv(64, 7, 2, LayerEnd::kRelu);
  m.max_pool();
  for (const int64_t width : {64, 128, 256, 512})
    for (int block = 0; block < 2; ++block) {
      const int64_t stride = block == 0 && width > 64 ? 2 : 1, in = m.channels(), n = m.size();
      const size_t start = m.value();
      m.conv(width, 3, stride, LayerEnd::kRelu);
      m.conv(width, 3, 1, LayerEnd::kNone);
      size_t main = m.value();
      if (in != width) {
        m.conv_of(start, in, n, width, 1, stride, LayerEnd::kNone);
        m.add(main, LayerEnd::kRelu);
      } else {
        m.add(start, LayerEnd::kRelu);
      }
    }
  m.classify(1000);
  return net;
}

ConvNet mobilenet(int64_t size) {
  struct Stage {
    int64_t expansion, channels, repeats, stride;
  };
  constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                               {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  ConvNet net{.name = "MobileNet-like", .size = size, .layers = {}};
  Maker m(net);
  m.conv(32, 3, 2, LayerEnd::kRelu6);
  for (const Stage& s : kStages)
    for (int64_t i = 0; i < s.repeats; ++i) {
      const int64_t stride = i == 0 ? s.stride : 1, in = m.channels(), wide = in * s.expansion;
      const size_t start = m.value();
      if (s.expansion > 1) m.conv(wide, 1, 1, LayerEnd::kRelu6);
      m.conv(wide, 3, stride, LayerEnd::kRelu6, wide);
      m.conv(s.channels, 1, 1, LayerEnd::kNone);
      if (stride == 1 && in == s.channels) m.add(start, LayerEnd::kNone);
    }
  m.conv(1280, 1, 1, LayerEnd::kRelu6);
  m.classify(1000);
  return net;
}

Tensor apply(const ConvNet& net, const Tensor& input, const std::vector<Tensor>& weights) {
  std::vector<Tensor> values{input};
  size_t w = 0;
  for (const Layer& l : net.layers) {
    const Tensor& x = values[l.from];
    Tensor y;
    switch (l.kind) {
      case LayerKind::kConv:
        y = x.conv(weights[w], weights[w + 1], {l.stride, l.stride}, {l.padding, l.padding}, {1, 1},
                   l.groups);
        break;
      case LayerKind::kLinear: y = x.linear(weights[w], weights[w + 1]); break;
      case LayerKind::kAdd: y = x + values[l.other]; break;
      case LayerKind::kMaxPool:
        y = x.max_pool({l.kernel, l.kernel}, {l.stride, l.stride}, {l.padding, l.padding});
        break;
      case LayerKind::kMean: y = x.mean({2, 3}); break;
    }
    if (l.has_weights()) w += 2;
    values.push_back(finish(y, l.end));
  }
  return values.back();
}

std::vector<float> reference(const ConvNet& net, const std::vector<float>& input) {
  std::vector<Values> values{input};
  for (const Layer& l : net.layers) {
    const Values& x = values[l.from];
    switch (l.kind) {
      case LayerKind::kConv:
      case LayerKind::kLinear: values.push_back(conv_reference(l, x)); break;
      case LayerKind::kAdd: values.push_back(add_reference(l, x, values[l.other])); break;
      case LayerKind::kMaxPool: values.push_back(pool_reference(l, x)); break;
      case LayerKind::kMean: values.push_back(mean_reference(l, x)); break;
    }
  }
  return values.back();
}

std::string torch_source(const ConvNet& net) {
  std::string out = "def net(v0):\n";
  size_t weight = 0;
  for (size_t i = 0; i < net.layers.size(); ++i) {
    out += torch_line(net.layers[i], i, weight);
    if (net.layers[i].has_weights()) ++weight;
  }
  return out + fmt::format("  return v{}\n", net.layers.size());
}

}  // namespace bm::cli
