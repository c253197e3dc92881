// Convolutional networks on one image, with random weights, the same for everyone.
#include <nlohmann/json.hpp>

#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/convnet.h"

namespace bm::cli {
namespace {

/// onnxruntime's idle threads spin for longer than 20 ms: after so much MobileNet took us 8.0 ms on
/// two threads, after 250 ms 4.2 (release 1.30).
constexpr double kOrtSettleMs = 250;

Status add_torch(World& w, const ConvNet& net, const Tensor& input,
                 const std::vector<Tensor>& weights, Contest& c) {
  PythonPeer* peer = w.python();
  if (!peer) return {};
  BM_TRY(peer->clear());
  BM_TRY(w.share("x", input));
  for (size_t i = 0; i < weights.size(); ++i)
    BM_TRY(w.share(fmt::format("{}{}", i % 2 == 0 ? 'w' : 'b', i / 2), weights[i]));
  const auto define = [&](const std::string& name, const std::string& before,
                          bool is_compiled) -> Status {
    BM_TRY(peer->ask({{"op", "define"},
                      {"name", name},
                      {"code", before + torch_source(net)},
                      {"expression", "net(x)"},
                      {"compile", is_compiled}}));
    c.peers.push_back({name, [peer, name](int calls) { return peer->run(name, calls); }});
    return {};
  };
  // Weights and image with channels last, as PyTorch's own advice for the CPU has it.
  std::string last = "x = x.contiguous(memory_format=torch.channels_last)\n";
  size_t weight = 0;
  for (const Layer& l : net.layers) {
    if (l.kind == LayerKind::kConv)
      last += fmt::format("w{0} = w{0}.contiguous(memory_format=torch.channels_last)\n", weight);
    if (l.has_weights()) ++weight;
  }
  BM_TRY(define("PyTorch", "", false));
  BM_TRY(define("PyTorch NHWC", last, false));
  if (peer->versions().has_compile) BM_TRY(define("torch.compile", "", true));
  return {};
}

Result<Contest> make_net(World& w, const ConvNet& net) {
  const Tensor input = w.random({1, net.channels, net.size, net.size}, 1);
  std::vector<Tensor> weights;
  for (const Layer& l : net.layers) {
    if (!l.has_weights()) continue;
    weights.push_back(Tensor::from(l.weight, l.weight_shape(), w.device()));
    weights.push_back(Tensor::from(l.bias, {l.out}, w.device()));
  }
  auto replay = make_replay(
      [net, weights](const std::vector<Tensor>& in) { return apply(net, in[0], weights); },
      {input});
  Contest c;
  c.unit = Unit::kMillis;
  c.ours = contender("ours", [replay] { replay->run(); });
  invite(c, "PyTorch", [&](Contest& with) { return add_torch(w, net, input, weights, with); });
  if (auto* peer = w.onnxruntime())
    invite(c, "onnxruntime", [&](Contest& with) -> Status {
      auto loaded = BM_TRY(peer->load(onnx_model(net), input.data<float>(),
                                      {1, net.channels, net.size, net.size},
                                      static_cast<size_t>(net.layers.back().out)));
      std::shared_ptr<OnnxRuntime::Session> session = std::move(loaded);
      if (relative_error(session->result(), replay->values()) > 1e-3)
        with.notes.push_back("onnxruntime gives another result");
      with.peers.push_back(contender("onnxruntime", [session] { session->run(); }));
      with.settle_ms = kOrtSettleMs;
      return {};
    });
  c.check = [replay, net, input]() -> Result<double> {
    return relative_error(replay->values(), reference(net, input.data<float>()));
  };
  c.tolerance = 1e-4;
  c.goal = {.of_peer = 1.0, .of_bound = 0, .at_most = 0};
  return c;
}

}  // namespace

std::vector<Case> net_cases() {
  return {
      {"ResNet-18 batch 1", [](World& w) { return make_net(w, resnet18(w.is_tiny() ? 32 : 224)); }},
      {"MobileNet-like batch 1",
       [](World& w) { return make_net(w, mobilenet(w.is_tiny() ? 32 : 224)); }}};
}

}  // namespace bm::cli
