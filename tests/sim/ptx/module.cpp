// parse: tree, variables, kernels. run: blocks over host threads.
#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "tests/sim/ptx/block.h"
#include "tests/sim/ptx/builder.h"

namespace bm::sim::ptx {
namespace {

constexpr uint64_t kMaxImage = uint64_t{1} << 30;
constexpr uint64_t kMaxConst = 64 * 1024;

class Assembler {
 public:
  Assembler(const Tree& tree, detail::ModuleData& out) : tree_(tree), out_(out) {}

  Status run() {
    out_.version = tree_.version;
    out_.sm = tree_.sm;
    for (const Variables& v : tree_.variables) BM_TRY(variables(v));
    for (const Variables& v : tree_.variables) BM_TRY(initialise(v));
    for (const Function& f : tree_.functions) {
      const Function*& known = context_.functions[f.name];
      if (known && known->has_body && f.has_body)
        return fail(Code::kCompile, "line {}: '{}' is defined twice", f.line, f.name);
      if (!known || f.has_body) known = &f;
    }
    for (const Function& f : tree_.functions) {
      if (!f.is_entry || !f.has_body) continue;
      Kernel& kernel = out_.kernels.emplace_back();
      BM_TRY(Builder(context_, kernel).build(f));
      const auto dim = [](const uint32_t(&d)[3]) { return Dim3{d[0], d[1], d[2]}; };
      if (f.has_max_block) kernel.info.max_block = dim(f.max_block);
      if (f.has_required_block) kernel.info.required_block = dim(f.required_block);
    }
    for (const Kernel& k : out_.kernels) out_.infos.push_back(k.info);
    return {};
  }

 private:
  Status variables(const Variables& v) {
    using Space = Variables::Space;
    for (const Variables::One& one : v.names) {
      ModuleSymbol s;
      s.space = v.space;
      s.bytes = one.bytes;
      s.alignment = std::max(v.alignment, type_bytes(v.type) * v.vector);
      const auto refuse = [&](std::string_view why) {
        return fail(Code::kCompile, "line {}: '{}': {}", one.line, one.name, why);
      };
      if (one.range) return refuse("numbered names are for registers");
      if (v.space == Space::kShared) {
        s.is_dynamic = v.is_extern && one.is_array && one.count == 0;
        if (v.is_extern && !s.is_dynamic) return refuse("not defined in this module");
        if (!one.values.empty()) return refuse("shared memory has no initial value");
      } else if (v.space == Space::kGlobal || v.space == Space::kConst) {
        if (v.is_extern) return refuse("not defined in this module");
        if (one.bytes == 0) return refuse("array without a size");
        out_.image_bytes = (out_.image_bytes + s.alignment - 1) / s.alignment * s.alignment;
        s.offset = out_.image_bytes;
        out_.image_bytes += one.bytes;
        const_bytes_ += v.space == Space::kConst ? one.bytes : 0;
        if (out_.image_bytes > kMaxImage || const_bytes_ > kMaxConst)
          return refuse("variables take too much memory");
        out_.variables.push_back(
            {std::string(one.name), s.offset, one.bytes, v.space == Space::kConst});
      } else {
        return refuse("variable of this space outside a function");
      }
      if (!context_.symbols.emplace(one.name, s).second) return refuse("declared twice");
    }
    return {};
  }

  Status initialise(const Variables& v) {
    const uint32_t width = type_bytes(v.type);
    for (const Variables::One& one : v.names) {
      if (one.values.empty()) continue;
      const ModuleSymbol& s = context_.symbols.at(one.name);
      if (one.values.size() * width > one.bytes)
        return fail(Code::kCompile, "line {}: '{}' has too many initial values", one.line,
                    one.name);
      uint64_t at = s.offset;
      out_.image.resize(std::max<uint64_t>(out_.image.size(), s.offset + one.bytes));
      for (const Operand& o : one.values) {
        const uint64_t bits = BM_TRY(initial(o, v.type, at, one));
        std::memcpy(out_.image.data() + at, &bits, std::min(width, 8u));
        at += width;
      }
    }
    return {};
  }

  Result<uint64_t> initial(const Operand& o, Type type, uint64_t at, const Variables::One& one) {
    using Kind = Operand::Kind;
    const uint32_t width = type_bytes(type);
    if (o.kind == Kind::kInteger) return o.bits;
    if (o.kind == Kind::kFloat32 && width == 4) return o.bits;
    if (o.kind == Kind::kFloat64 && width == 8) return o.bits;
    if (o.kind == Kind::kFloat32 && width == 8)
      return std::bit_cast<uint64_t>(double{std::bit_cast<float>(static_cast<uint32_t>(o.bits))});
    if (o.kind == Kind::kFloat64 && width == 4)
      return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(o.bits)));
    const auto found = context_.symbols.find(o.name);
    if (o.kind != Kind::kName || width != 8 || found == context_.symbols.end() ||
        found->second.space == Variables::Space::kShared)
      return fail(Code::kCompile, "line {}: '{}': initial value not known here", one.line,
                  one.name);
    out_.relocations.push_back({at, found->second.offset + o.bits, 8});
    return uint64_t{0};
  }

  const Tree& tree_;
  detail::ModuleData& out_;
  ModuleContext context_;
  uint64_t const_bytes_ = 0;
};

/// Device memory with the module's private variables beside it.
class WithImage : public Memory {
 public:
  WithImage(Memory& inner, std::vector<std::byte> image)
      : inner_(inner), image_(std::move(image)) {}
  std::byte* at(uint64_t address, uint32_t bytes, Access access) override {
    if ((address & kWindowMask) != kPrivateImage) return inner_.at(address, bytes, access);
    const uint64_t offset = address & ~kWindowMask;
    return offset + bytes <= image_.size() ? image_.data() + offset : nullptr;
  }

 private:
  Memory& inner_;
  std::vector<std::byte> image_;
};

Fault refuse(const Launch& launch, std::string why) {
  Fault f;
  f.kind = Fault::Kind::kInvalidLaunch;
  f.where = fmt::format("kernel '{}': {}", launch.kernel, why);
  return f;
}

std::optional<Fault> check(const Kernel* kernel, const Launch& l) {
  if (!kernel) return refuse(l, "the module has no such kernel");
  const auto is_empty = [](const Dim3& d) { return d.x == 0 || d.y == 0 || d.z == 0; };
  if (is_empty(l.grid) || is_empty(l.block)) return refuse(l, "empty grid or block");
  if (l.block.x > kMaxBlock || l.block.y > kMaxBlock || l.block.z > 64 ||
      l.block.volume() > kMaxBlock)
    return refuse(l, fmt::format("block of {}x{}x{} threads", l.block.x, l.block.y, l.block.z));
  if (l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
    return refuse(l, fmt::format("grid of {}x{}x{} blocks", l.grid.x, l.grid.y, l.grid.z));
  const KernelInfo& info = kernel->info;
  if (info.max_block && l.block.volume() > info.max_block->volume())
    return refuse(l, fmt::format("{} threads where .maxntid allows {}", l.block.volume(),
                                 info.max_block->volume()));
  if (info.required_block && !(l.block == *info.required_block))
    return refuse(l, "block differs from .reqntid");
  if (l.params.size() < info.param_bytes)
    return refuse(l, fmt::format("{} bytes of parameters where {} belong", l.params.size(),
                                 info.param_bytes));
  const uint64_t shared = uint64_t{info.shared_bytes} + l.dynamic_shared;
  if (shared > l.max_shared)
    return refuse(l, fmt::format("{} bytes of shared memory of {}", shared, l.max_shared));
  return std::nullopt;
}

}  // namespace

Module::Module(std::unique_ptr<const detail::ModuleData> data) : data_(std::move(data)) {}
Module::~Module() = default;
uint32_t Module::version() const { return data_->version; }
uint32_t Module::sm() const { return data_->sm; }
const std::vector<KernelInfo>& Module::kernels() const { return data_->infos; }
const std::vector<Variable>& Module::variables() const { return data_->variables; }
uint64_t Module::image_bytes() const { return data_->image_bytes; }

const KernelInfo* Module::find(std::string_view kernel) const {
  for (const KernelInfo& k : data_->infos)
    if (k.name == kernel) return &k;
  return nullptr;
}

std::vector<std::byte> Module::image(uint64_t address) const {
  std::vector<std::byte> out = data_->image;
  out.resize(data_->image_bytes);
  for (const Relocation& r : data_->relocations) {
    const uint64_t value = address + r.target;
    std::memcpy(out.data() + r.at, &value, sizeof value);
  }
  return out;
}

Result<std::shared_ptr<const Module>> parse(std::string_view text) {
  auto data = std::make_unique<detail::ModuleData>();
  data->text = text.substr(0, text.find('\0'));
  const Tree tree = BM_TRY(parse_tree(data->text));
  BM_TRY(Assembler(tree, *data).run());
  return std::make_shared<const Module>(std::move(data));
}

std::string_view fault_name(Fault::Kind kind) {
  constexpr std::array<std::string_view, 12> kNames{"invalid launch",
                                                    "address not mapped",
                                                    "misaligned address",
                                                    "shared memory out of range",
                                                    "local memory out of range",
                                                    "parameter out of range",
                                                    "uninitialised shared memory",
                                                    "race in shared memory",
                                                    "illegal instruction",
                                                    "barrier deadlock",
                                                    "instruction limit",
                                                    "cancelled"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Fault::text() const {
  constexpr std::array<std::string_view, 3> kAccess{"read", "write", "atomic"};
  return fmt::format("{} at 0x{:x} ({}), block {},{},{} thread {},{},{}: {}", fault_name(kind),
                     address, kAccess[static_cast<size_t>(access)], block.x, block.y, block.z,
                     thread.x, thread.y, thread.z, where);
}

tl::expected<Stats, Fault> run(const Module& module, const Launch& launch, Memory& memory) {
  const Kernel* kernel = nullptr;
  for (const Kernel& k : module.data().kernels)
    if (k.info.name == launch.kernel) kernel = &k;
  if (auto fault = check(kernel, launch)) return tl::unexpected<Fault>(std::move(*fault));

  std::optional<WithImage> own;
  Memory* seen = &memory;
  uint64_t image = launch.image;
  if (image == 0 && module.image_bytes()) {
    image = kPrivateImage;
    seen = &own.emplace(memory, module.image(image));
  }
  Progress progress;
  const uint64_t blocks = launch.grid.volume();
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    const auto runner = std::make_unique<BlockRunner>(*kernel, launch, image, *seen, progress);
    for (uint64_t b = next++; b < blocks; b = next++) {
      const uint64_t rest = b / launch.grid.x;
      const Dim3 at{static_cast<uint32_t>(b % launch.grid.x),
                    static_cast<uint32_t>(rest % launch.grid.y),
                    static_cast<uint32_t>(rest / launch.grid.y)};
      if (!runner->run(at)) return;
    }
  };
  const uint32_t wanted = launch.threads ? launch.threads : std::thread::hardware_concurrency();
  const uint64_t threads = std::min<uint64_t>(std::max(wanted, 1u), blocks);
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  if (progress.has_fault) return tl::unexpected<Fault>(progress.fault);
  return Stats{progress.steps, progress.lane_instructions, progress.blocks, progress.traffic};
}

}  // namespace bm::sim::ptx
