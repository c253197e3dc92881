// Captured programs to files and back.

#include <algorithm>
#include <unordered_map>

#include "compiler/bundle.h"
#include "runtime/base/mapping.h"
#include "runtime/base/output_file.h"
#include "runtime/base/trust.h"
#include "runtime/device_manager.h"
#include "runtime/program_cache.h"
#include "tensor/captured_program.h"
#include "tensor/captured_program_file.h"
#include "tensor/exception.h"

namespace bm {
namespace {

/// Positions of things in the tables of the image.
template <class Key>
class Positions {
 public:
  /// Position, and whether it is new.
  std::pair<uint32_t, bool> add(Key key) {
    const auto [it, is_new] = known_.emplace(key, static_cast<uint32_t>(known_.size()));
    return {it->second, is_new};
  }

 private:
  std::unordered_map<Key, uint32_t> known_;
};

class SizeCoder {
 public:
  explicit SizeCoder(std::vector<Var>* vars) : vars_(*vars) {}
  ProgramImage::Size size(const SymInt& s) {
    ProgramImage::Size out{s.constant(), {}};
    for (const SymInt::Term& t : s.terms()) out.terms.emplace_back(index(t.var), t.coefficient);
    return out;
  }
  ProgramImage::Sizes sizes(const std::vector<SymInt>& list) {
    ProgramImage::Sizes out;
    for (const SymInt& s : list) out.push_back(size(s));
    return out;
  }

 private:
  uint32_t index(const Var& v) {
    const auto it = std::find(vars_.begin(), vars_.end(), v);
    if (it != vars_.end()) return static_cast<uint32_t>(it - vars_.begin());
    vars_.push_back(v);
    return static_cast<uint32_t>(vars_.size() - 1);
  }
  std::vector<Var>& vars_;
};

std::vector<SymInt> decoded(const ProgramImage::Sizes& sizes, std::span<const Var> vars) {
  std::vector<SymInt> out;
  for (const ProgramImage::Size& s : sizes) {
    SymInt sum(s.constant);
    for (const auto& [var, coefficient] : s.terms) sum = sum + SymInt(vars[var]) * coefficient;
    out.push_back(std::move(sum));
  }
  return out;
}

/// Errors: kUnsupported naming what differs.
Status check_fits(const ProgramImage::Device& saved, const hal::Arch& here) {
  if (saved.arch.vendor != here.vendor || saved.arch.name != here.name)
    return fail(Code::kUnsupported, "made for {} ({}), this device is {}", saved.arch.name,
                saved.name, here.name);
  const std::string missing = compiler::missing_features(saved.arch.features, here.features);
  if (!missing.empty())
    return fail(Code::kUnsupported, "made for {}, this device ({}) lacks {}", saved.arch.cpu,
                here.cpu, missing);
  return {};
}

}  // namespace

ProgramImage CapturedProgram::image(std::vector<std::vector<std::byte>>* contents) {
  ProgramImage out;
  Positions<runtime::Device*> devices;
  const auto device = [&](runtime::Device* d) {
    const auto [at, is_new] = devices.add(d);
    if (is_new) out.devices.push_back({d->name(), d->hal().arch()});
    return at;
  };
  std::vector<Var> vars = vars_;
  SizeCoder coder(&vars);
  out.outputs_mode = static_cast<uint8_t>(options_.outputs);
  out.is_checked = options_.is_checked;
  out.num_slots = static_cast<uint32_t>(slots_.size());
  for (const InputKey& key : keys_) {
    ProgramImage::Input in{device(key.device),          key.slot, key.dtype, coder.sizes(key.shape),
                           coder.sizes(key.base_shape), {}};
    for (const auto& v : key.views)
      in.views.push_back({v->kind, coder.sizes(v->shape), coder.sizes(v->syms), v->ints});
    out.inputs.push_back(std::move(in));
  }

  // Memory: what the calls touch, and state that is an output.
  std::vector<Fixed> memory = fixed_;
  const auto find = [&](const runtime::Buffer& b) {
    return static_cast<uint32_t>(
        std::find_if(memory.begin(), memory.end(),
                     [&](const Fixed& f) { return f.bytes.storage == b.storage; }) -
        memory.begin());
  };
  const bool is_reused = options_.outputs == Outputs::kReuse;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].kind == Output::Kind::kPassed ||
        (outputs_[i].kind == Output::Kind::kOwn && !is_reused))
      continue;
    const runtime::Buffer& b = results_.tensors[i]->buffer();
    const uint32_t at = find(b);
    if (at == memory.size())
      memory.push_back({.bytes = b, .is_own = outputs_[i].kind == Output::Kind::kOwn});
    runtime::Buffer& range = memory[at].bytes;
    const uint64_t end = std::max(range.offset + range.size, b.offset + b.size);
    range.offset = std::min(range.offset, b.offset);
    range.size = end - range.offset;
  }
  contents->reserve(memory.size());
  for (const Fixed& f : memory) {
    ProgramImage::Memory m;
    m.device = device(&f.bytes.device());
    m.size = f.bytes.size;
    if (!f.is_own) {
      m.kind = ProgramImage::Memory::Kind::kContents;
      std::vector<std::byte>& copy = contents->emplace_back(f.bytes.size);
      unwrap(runtime::copy_out(copy, f.bytes));
      m.contents = copy;
    }
    out.memory.push_back(m);
  }

  Positions<const hal::Program*> codes;
  for (const runtime::Call& call : calls_) {
    ProgramImage::Call c;
    c.name = call.name;
    if (std::holds_alternative<runtime::HostCall>(call.what))
      raise(Code::kUnsupported, "save: '{}' runs on {}, which has no code to save", call.name,
            std::get<runtime::HostCall>(call.what).device->name());
    if (const auto* k = std::get_if<runtime::KernelCall>(&call.what)) {
      c.device = device(k->device);
      const auto [at, is_new] = codes.add(k->program.get());
      if (is_new) out.codes.push_back(k->program->code());
      c.code = at;
      c.vars = k->vars;
      c.constants = k->constants;
      c.flops = k->flops;
      c.bytes = k->bytes;
    } else {
      c.is_kernel = false;
    }
    for (const runtime::Arg& a : call.args) {
      ProgramImage::Arg arg{a.slot, 0, a.buffer.offset, a.buffer.size, a.is_written, a.is_read};
      if (a.slot < 0) {
        arg.memory = find(a.buffer);
        arg.offset -= memory[arg.memory].bytes.offset;
      }
      c.args.push_back(arg);
    }
    out.calls.push_back(std::move(c));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    ProgramImage::Output o;
    o.kind = static_cast<uint8_t>(outputs_[i].kind);
    o.index = outputs_[i].index;
    const Tensor& t = *results_.tensors[i];
    o.dtype = t.dtype();
    o.shape = coder.sizes(t.shape());
    if (outputs_[i].kind == Output::Kind::kState ||
        (outputs_[i].kind == Output::Kind::kOwn && is_reused)) {
      o.memory = find(t.buffer());
      o.offset = t.buffer().offset - memory[o.memory].bytes.offset;
    }
    out.outputs.push_back(std::move(o));
  }
  for (const NewStorage& n : new_) out.fresh.push_back({device(n.device), n.size, n.donor});
  for (const Var& v : vars) out.vars.push_back({v.name(), v.min(), v.max()});
  return out;
}

void CapturedProgram::save(const std::string& path) {
  guard_call(path, [&] {
    packed_.refresh();
    std::vector<std::vector<std::byte>> contents;
    const ProgramImage saved = image(&contents);
    unwrap(replace_file(path, write_image(saved), {.is_code = true}));
  });
}

std::unique_ptr<CapturedProgram> CapturedProgram::load(const std::string& path,
                                                       std::string_view device) {
  return guard_call(path, [&] {
    // What it holds is executed.
    const TrustedFile trusted = unwrap(open_trusted(unwrap(absolute_path(path))));
    const Mapping file = unwrap(Mapping::of(trusted.fd.get(), path));
    auto parsed = parse_image(file.bytes());
    if (!parsed) throw Exception(std::move(parsed.error()).within(path));
    const ProgramImage& image = *parsed;
    if (!device.empty() && image.devices.size() != 1)
      raise(Code::kInvalidArgument, "{}: runs on {} devices, so {} cannot stand for all", path,
            image.devices.size(), device);
    std::vector<runtime::Device*> devices;
    for (const ProgramImage::Device& d : image.devices) {
      devices.push_back(
          unwrap(runtime::open_device(device.empty() ? d.name : std::string(device))));
      if (Status fits = check_fits(d, devices.back()->hal().arch()); !fits)
        throw Exception(std::move(fits.error()).within(path));
    }
    std::unique_ptr<CapturedProgram> p(new CapturedProgram);
    p->options_.outputs = static_cast<Outputs>(image.outputs_mode);
    p->options_.is_checked = image.is_checked;
    p->arenas_ = std::make_shared<ArenaPool>();
    for (const ProgramImage::Variable& v : image.vars) p->vars_.emplace_back(v.name, v.min, v.max);
    p->values_.resize(p->vars_.size());
    p->seen_detached_ = num_detached();
    std::vector<runtime::Buffer> memory;
    p->load_memory(image, devices, &memory);
    p->load_calls(image, devices, memory);
    p->load_outputs(image, devices, memory);
    return p;
  });
}

void CapturedProgram::load_memory(const ProgramImage& image,
                                  std::span<runtime::Device* const> devices,
                                  std::vector<runtime::Buffer>* memory) {
  for (const ProgramImage::Memory& m : image.memory) {
    runtime::Buffer b =
        unwrap(runtime::allocate(*devices[m.device], {.size = std::max<uint64_t>(m.size, 1)}));
    if (!m.contents.empty()) {
      b.size = m.size;
      unwrap(runtime::copy_in(b, m.contents));
    }
    memory->push_back(std::move(b));
  }
  slots_.resize(image.num_slots);
  bound_.resize(image.num_slots);
  for (const ProgramImage::Input& in : image.inputs) {
    InputKey key{.shape = decoded(in.shape, vars_),
                 .dtype = in.dtype,
                 .device = devices[in.device],
                 .slot = in.slot,
                 .base_shape = decoded(in.base_shape, vars_),
                 .views = {}};
    for (const ProgramImage::View& view : in.views) {
      auto node = std::make_shared<Node>();
      node->kind = view.kind;
      node->dtype = in.dtype;
      node->device = key.device;
      node->shape = decoded(view.shape, vars_);
      node->syms = decoded(view.syms, vars_);
      node->ints = view.ints;
      key.views.push_back(std::move(node));
    }
    // Memory for the graph to be built with: later calls bring their own.
    const auto bytes = static_cast<uint64_t>(max_elements(key.base_shape) * item_size(key.dtype));
    if (!bound_[in.slot].has_storage())
      bound_[in.slot] =
          unwrap(runtime::allocate(*key.device, {.size = std::max<uint64_t>(bytes, 1)}));
    keys_.push_back(std::move(key));
  }
  for (const ProgramImage::New& n : image.fresh) {
    NewStorage storage;
    storage.device = devices[n.device];
    storage.size = n.size;
    storage.donor = n.donor;
    new_.push_back(std::move(storage));
    bound_.push_back(
        unwrap(runtime::allocate(*devices[n.device], {.size = std::max<uint64_t>(n.size, 1)})));
  }
}

void CapturedProgram::load_calls(const ProgramImage& image,
                                 std::span<runtime::Device* const> devices,
                                 std::span<const runtime::Buffer> memory) {
  for (const ProgramImage::Call& c : image.calls) {
    runtime::Call call{c.name, runtime::CopyCall{}, {}};
    if (c.is_kernel) {
      runtime::KernelCall kernel;
      kernel.device = devices[c.device];
      kernel.program = unwrap(runtime::load_program(*kernel.device, image.codes[c.code]));
      kernel.vars = c.vars;
      kernel.constants = c.constants;
      kernel.flops = c.flops;
      kernel.bytes = c.bytes;
      call.what = std::move(kernel);
    }
    for (const ProgramImage::Arg& a : c.args) {
      const runtime::Buffer& whole =
          a.slot < 0 ? memory[a.memory] : bound_[static_cast<size_t>(a.slot)];
      call.args.push_back({.buffer = {whole.storage, whole.offset + a.offset, a.size},
                           .slot = a.slot,
                           .is_written = a.is_written,
                           .is_read = a.is_read});
    }
    calls_.push_back(std::move(call));
  }
  note_slots();
  note_memory([&](const runtime::Storage* storage) {
    for (size_t i = 0; i < memory.size(); ++i)
      if (memory[i].storage.get() == storage)
        return image.memory[i].kind == ProgramImage::Memory::Kind::kWork;
    return false;
  });
  build_graph();
  for (runtime::Buffer& b : bound_) b.storage.reset();
}

void CapturedProgram::load_outputs(const ProgramImage& image, std::span<runtime::Device* const>,
                                   std::span<const runtime::Buffer> memory) {
  auto cell = std::make_shared<std::vector<Tensor>>(image.outputs.size());
  for (size_t i = 0; i < image.outputs.size(); ++i) {
    const ProgramImage::Output& o = image.outputs[i];
    const Output out{static_cast<Output::Kind>(o.kind), o.index};
    outputs_.push_back(out);
    results_.tensors.push_back(&(*cell)[i]);
    const Shape shape = decoded(o.shape, vars_);
    if (out.kind == Output::Kind::kPassed) {
      has_passed_outputs_ = true;
      continue;
    }
    if (out.kind == Output::Kind::kOwn && options_.outputs != Outputs::kReuse) {
      new_[o.index].shape = shape;
      new_[o.index].dtype = o.dtype;
      continue;
    }
    const auto bytes = static_cast<uint64_t>(max_elements(shape) * item_size(o.dtype));
    (*cell)[i] = Tensor::from_buffer({memory[o.memory].storage, memory[o.memory].offset + o.offset,
                                      std::max<uint64_t>(bytes, 1)},
                                     shape, o.dtype);
  }
  results_.owner = std::move(cell);
}

}  // namespace bm
