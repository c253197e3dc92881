// Modules, functions, launches.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {
namespace {

constexpr int kStaticShared = 49152;

/// Newest PTX a driver of this CUDA version takes. Source: PTX ISA 9.0, release notes table.
struct PtxRow {
  int cuda;
  uint32_t ptx;
};
constexpr std::array kPtx{PtxRow{13000, 90}, PtxRow{12090, 88}, PtxRow{12080, 87},
                          PtxRow{12070, 86}, PtxRow{12050, 85}, PtxRow{12040, 84},
                          PtxRow{12030, 83}, PtxRow{12020, 82}, PtxRow{12010, 81},
                          PtxRow{12000, 80}, PtxRow{11080, 78}, PtxRow{11000, 70}};
uint32_t newest_ptx(int version) {
  for (const PtxRow& row : kPtx)
    if (version >= row.cuda) return row.ptx;
  return 65;
}

int shared_optin(unsigned sm) {
  if (sm == 75) return 65536;
  if (sm == 80 || sm == 87) return 166912;
  return sm == 90 || sm == 100 || sm == 103 ? 232448 : 101376;
}

/// Bytes of an ELF file or fat binary, from its own headers; 0 if it is neither.
size_t binary_size(const unsigned char* p) {
  if (std::memcmp(p, "\177ELF", 4) == 0) {
    uint64_t sections_at = 0;
    uint16_t each = 0, count = 0;
    std::memcpy(&sections_at, p + 40, 8);
    std::memcpy(&each, p + 58, 2);
    std::memcpy(&count, p + 60, 2);
    return sections_at + size_t{each} * count;
  }
  uint32_t magic = 0;
  uint64_t body = 0;
  std::memcpy(&magic, p, 4);
  if (magic != 0xba55ed50u) return 0;
  std::memcpy(&body, p + 8, 8);
  return body + 16;
}

/// The PTX text of an image: itself, or what a binary carries uncompressed. Empty: machine code
/// only.
std::string_view ptx_of(const void* image) {
  const auto* bytes = static_cast<const unsigned char*>(image);
  const auto* text = static_cast<const char*>(image);
  const bool is_binary = bytes[0] == 0x7f || bytes[0] == 0x50;
  if (!is_binary) return text;
  const std::string_view all(text, binary_size(bytes));
  for (size_t at = all.find(".version "); at != std::string_view::npos;
       at = all.find(".version ", at + 1)) {
    const std::string_view rest = all.substr(at);
    const std::string_view one = rest.substr(0, rest.find('\0'));
    if (one.find(".target") != std::string_view::npos) return one;
  }
  return {};
}

int parse_image(const Driver& d, const void* image, std::shared_ptr<const ptx::Module>& out,
                std::string& log) {
  if (!image) return kInvalidValue;
  const std::string_view text = ptx_of(image);
  if (text.empty()) {
    log = "the fake driver executes PTX, and this image carries none";
    return kInvalidImage;
  }
  auto module = ptx::parse(text);
  if (!module) {
    log = module.error().message;
    return module.error().code == bm::Code::kCorrupt ? kInvalidImage : kInvalidPtx;
  }
  if ((*module)->version() > newest_ptx(d.knobs.version)) {
    log = fmt::format("PTX {}.{} is newer than this driver", (*module)->version() / 10,
                      (*module)->version() % 10);
    return kUnsupportedPtxVersion;
  }
  if ((*module)->sm() > d.knobs.sm) {
    log = fmt::format("PTX for sm_{} on an sm_{}", (*module)->sm(), d.knobs.sm);
    return kInvalidPtx;
  }
  out = *module;
  return kSuccess;
}

int load(Driver& d, Context& c, const void* image, void** out, std::string& log) {
  if (!out) return kInvalidValue;
  std::shared_ptr<const ptx::Module> code;
  if (const int error = parse_image(d, image, code, log)) {
    if (!d.knobs.is_quiet) std::fprintf(stderr, "fake libcuda: module refused: %s\n", log.c_str());
    return error;
  }
  auto m = std::make_unique<Module>();
  m->context = &c;
  m->code = code;
  if (const uint64_t bytes = code->image_bytes()) {
    m->image = d.memory.allocate(Range::Kind::kDevice, bytes, &c, c.device, 0, d.knobs.memory);
    if (!m->image) return kOutOfMemory;
    const std::vector<std::byte> image_bytes = code->image(m->image);
    std::memcpy(d.memory.at(m->image, bytes), image_bytes.data(), bytes);
  }
  for (const ptx::KernelInfo& info : code->kernels()) {
    auto f = std::make_unique<Function>();
    f->module = m.get();
    f->info = info;
    f->max_dynamic_shared = std::max(0, kStaticShared - static_cast<int>(info.shared_bytes));
    d.functions.insert(f.get());
    m->functions[info.name] = std::move(f);
  }
  *out = m.get();
  d.modules.insert(m.release());
  return kSuccess;
}

Function* function_of(Driver& d, void* handle) {
  auto* f = static_cast<Function*>(handle);
  return d.functions.contains(f) ? f : nullptr;
}

int max_threads(const Function& f) {
  if (f.info.required_block) return static_cast<int>(f.info.required_block->volume());
  if (f.info.max_block) return static_cast<int>(f.info.max_block->volume());
  return 1024;
}

/// What a compiler would keep in registers; the text's count is of virtual ones.
int registers(const Function& f) {
  return static_cast<int>(std::clamp<uint32_t>(f.info.registers / 2, 16, 64));
}

int copy_params(const Function& f, void** params, void** extra, std::vector<std::byte>& out) {
  out.assign(f.info.param_bytes, std::byte{0});
  if (params && extra) return kInvalidValue;
  if (extra) {
    const void* data = nullptr;
    const size_t* bytes = nullptr;
    // Pairs of key and value up to a null key: 1 is the buffer, 2 the address of its size.
    for (size_t i = 0; extra[i]; i += 2) {
      if (i > 8) return kInvalidValue;
      const auto key = reinterpret_cast<uintptr_t>(extra[i]);
      if (key == 1)
        data = extra[i + 1];
      else if (key == 2)
        bytes = static_cast<const size_t*>(extra[i + 1]);
      else
        return kInvalidValue;
    }
    if (!data || !bytes || *bytes < out.size() || *bytes > 32764) return kInvalidValue;
    std::memcpy(out.data(), data, out.size());
    return kSuccess;
  }
  if (!params && !f.info.params.empty()) return kInvalidValue;
  for (size_t i = 0; i < f.info.params.size(); ++i) {
    const ptx::Param& p = f.info.params[i];
    if (!params[i]) return kInvalidValue;
    std::memcpy(out.data() + p.offset, params[i], p.bytes);
  }
  return kSuccess;
}

int code_of(ptx::Fault::Kind kind) {
  using enum ptx::Fault::Kind;
  switch (kind) {
    case kUnmapped:
    case kSharedOutOfRange:
    case kLocalOutOfRange:
    case kParamOutOfRange:
    case kUninitialisedShared:
    case kSharedRace: return kIllegalAddress;
    case kMisaligned: return kMisalignedAddress;
    case kIllegal: return kLaunchFailed;
    case kBarrierDeadlock:
    case kInstructionLimit:
    case kCancelled: return kLaunchTimeout;
    case kInvalidLaunch: return kInvalidValue;
  }
  return 999;
}

void report(Driver& d, Context& c, int code, const std::string& text) {
  c.fault(code);
  const std::lock_guard lock(d.fault_mutex);
  d.last_fault = text;
  if (!d.knobs.is_quiet) std::fprintf(stderr, "fake libcuda: %s\n", text.c_str());
}

}  // namespace

int check_launch(Driver& d, Context& c, void* function, const unsigned grid[3],
                 const unsigned block[3], unsigned shared_bytes, void** params, void** extra,
                 Launch& out) {
  Function* f = function_of(d, function);
  if (!f || f->module->context != &c) return kInvalidHandle;
  constexpr unsigned kGrid[3] = {0x7fffffff, 65535, 65535}, kBlock[3] = {1024, 1024, 64};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || block[i] == 0 || grid[i] > kGrid[i] || block[i] > kBlock[i])
      return kInvalidValue;
    threads *= block[i];
  }
  if (threads > 1024 || threads > static_cast<uint64_t>(max_threads(*f))) return kInvalidValue;
  out.grid = {grid[0], grid[1], grid[2]};
  out.block = {block[0], block[1], block[2]};
  if (f->info.required_block && !(out.block == *f->info.required_block)) return kInvalidValue;
  if (static_cast<int64_t>(shared_bytes) > f->max_dynamic_shared) return kInvalidValue;
  if (threads * static_cast<uint64_t>(registers(*f)) > 65536) return kLaunchOutOfResources;
  out.function = f;
  out.code = f->module->code;
  out.kernel = f->info.name;
  out.image = f->module->image;
  out.shared_bytes = shared_bytes;
  return copy_params(*f, params, extra, out.params);
}

void run_launch(Driver& d, Context& c, const Launch& l) {
  const uint64_t nth = ++d.kernels;
  const Knobs& k = d.knobs;
  if (k.ecc && nth == k.ecc)
    return report(d, c, kEccUncorrectable, "uncorrectable ECC error in kernel '" + l.kernel + "'");
  if (!k.hang.empty() && l.kernel.find(k.hang) != std::string::npos)
    return wait_until([&] { return c.cancel.load(); });
  ptx::Launch launch;
  launch.kernel = l.kernel;
  launch.grid = l.grid;
  launch.block = l.block;
  launch.dynamic_shared = l.shared_bytes;
  launch.params = l.params;
  launch.image = l.image;
  launch.max_instructions = k.max_steps;
  launch.cancel = &c.cancel;
  launch.threads = k.threads;
  launch.checks = k.checks;
  KernelView view(d.memory, c);
  const auto result = ptx::run(*l.code, launch, view);
  if (!result) report(d, c, code_of(result.error().kind), result.error().text());
}

BM_FAKE_CUDA cuModuleLoadDataEx(void** out, const void* image, unsigned count, const int* options,
                                void** values) {
  return in_context("cuModuleLoadDataEx", [&](Driver& d, Context& c) -> int {
    std::string log;
    const int code = load(d, c, image, out, log);
    // CUjit_option: 5 error log, 6 its size, in and out.
    char* buffer = nullptr;
    size_t room = 0;
    void** room_at = nullptr;
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == 5) buffer = static_cast<char*>(values[i]);
      if (options[i] == 6) room_at = &values[i];
    }
    if (room_at) room = reinterpret_cast<uintptr_t>(*room_at) & 0xffffffff;
    if (buffer && room) {
      const size_t n = std::min(log.size(), room - 1);
      std::memcpy(buffer, log.data(), n);
      buffer[n] = '\0';
      *room_at = reinterpret_cast<void*>(n);
    }
    return code;
  });
}
BM_FAKE_CUDA cuModuleLoadData(void** out, const void* image) {
  return in_context("cuModuleLoadData", [&](Driver& d, Context& c) -> int {
    std::string log;
    return load(d, c, image, out, log);
  });
}
BM_FAKE_CUDA cuModuleLoadFatBinary(void** out, const void* image) {
  return in_context("cuModuleLoadFatBinary", [&](Driver& d, Context& c) -> int {
    std::string log;
    return load(d, c, image, out, log);
  });
}
/// Work in flight keeps the code; the module's variables are freed only after it.
BM_FAKE_CUDA cuModuleUnload(void* module) {
  Context* context = nullptr;
  const int code = in_context("cuModuleUnload", [&](Driver& d, Context& c) -> int {
    context = &c;
    return d.modules.contains(static_cast<Module*>(module)) ? kSuccess : kInvalidHandle;
  });
  if (code) return code;
  drain(*context);
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  auto* m = static_cast<Module*>(module);
  if (!d.modules.erase(m)) return kInvalidHandle;
  for (const auto& [name, f] : m->functions) d.functions.erase(f.get());
  if (m->image) d.memory.remove(m->image, Range::Kind::kDevice);
  delete m;
  return kSuccess;
}
BM_FAKE_CUDA cuModuleGetFunction(void** out, void* module, const char* name) {
  return in_context("cuModuleGetFunction", [&](Driver& d, Context&) -> int {
    auto* m = static_cast<Module*>(module);
    if (!out || !name) return kInvalidValue;
    if (!d.modules.contains(m)) return kInvalidHandle;
    const auto at = m->functions.find(name);
    if (at == m->functions.end()) return kNotFound;
    *out = at->second.get();
    return kSuccess;
  });
}
BM_FAKE_CUDA cuModuleGetGlobal_v2(uint64_t* address, size_t* bytes, void* module,
                                  const char* name) {
  return in_context("cuModuleGetGlobal_v2", [&](Driver& d, Context&) -> int {
    const auto* m = static_cast<Module*>(module);
    if (!name || (!address && !bytes)) return kInvalidValue;
    if (!d.modules.contains(static_cast<Module*>(module))) return kInvalidHandle;
    for (const ptx::Variable& v : m->code->variables()) {
      if (v.name != name) continue;
      if (address) *address = m->image + v.offset;
      if (bytes) *bytes = v.bytes;
      return kSuccess;
    }
    return kNotFound;
  });
}
BM_FAKE_CUDA cuModuleGetLoadingMode(int* mode) {
  if (!mode) return kInvalidValue;
  *mode = 1;  // eager
  return kSuccess;
}

// Libraries: modules here, of the context that is current.
BM_FAKE_CUDA cuLibraryLoadData(void** out, const void* image, int*, void**, unsigned, int*, void**,
                               unsigned) {
  return in_context("cuLibraryLoadData", [&](Driver& d, Context& c) -> int {
    std::string log;
    const int code = load(d, c, image, out, log);
    if (!code) static_cast<Module*>(*out)->is_library = true;
    return code;
  });
}
BM_FAKE_CUDA cuLibraryUnload(void* library) { return cuModuleUnload(library); }
BM_FAKE_CUDA cuLibraryGetKernel(void** out, void* library, const char* name) {
  return cuModuleGetFunction(out, library, name);
}
BM_FAKE_CUDA cuLibraryGetModule(void** out, void* library) {
  if (!out) return kInvalidValue;
  *out = library;
  return kSuccess;
}
BM_FAKE_CUDA cuKernelGetFunction(void** out, void* kernel) {
  if (!out) return kInvalidValue;
  *out = kernel;
  return kSuccess;
}

/// CUfunction_attribute: 0 threads, 1 shared, 2 const, 3 local, 4 registers, 5 PTX, 6 binary, 8
/// dynamic shared, 9 carve-out.
BM_FAKE_CUDA cuFuncGetAttribute(int* value, int attribute, void* function) {
  return in_context("cuFuncGetAttribute", [&](Driver& d, Context&) -> int {
    const Function* f = function_of(d, function);
    if (!value) return kInvalidValue;
    if (!f) return kInvalidHandle;
    switch (attribute) {
      case 0: *value = max_threads(*f); return kSuccess;
      case 1: *value = static_cast<int>(f->info.shared_bytes); return kSuccess;
      case 2: *value = 0; return kSuccess;
      case 3: *value = static_cast<int>(f->info.local_bytes); return kSuccess;
      case 4: *value = registers(*f); return kSuccess;
      case 5: *value = static_cast<int>(f->module->code->sm()); return kSuccess;
      case 6: *value = static_cast<int>(d.knobs.sm); return kSuccess;
      case 7: *value = 0; return kSuccess;
      case 8: *value = f->max_dynamic_shared; return kSuccess;
      case 9: *value = -1; return kSuccess;
      default: return kInvalidValue;
    }
  });
}
BM_FAKE_CUDA cuFuncSetAttribute(void* function, int attribute, int value) {
  return in_context("cuFuncSetAttribute", [&](Driver& d, Context&) -> int {
    Function* f = function_of(d, function);
    if (!f) return kInvalidHandle;
    if (attribute == 9) return value >= -1 && value <= 100 ? kSuccess : kInvalidValue;
    if (attribute != 8) return kInvalidValue;
    if (value < 0 || value + static_cast<int>(f->info.shared_bytes) > shared_optin(d.knobs.sm))
      return kInvalidValue;
    f->max_dynamic_shared = value;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuFuncSetCacheConfig(void* function, int) {
  return in_context("cuFuncSetCacheConfig", [&](Driver& d, Context&) -> int {
    return function_of(d, function) ? kSuccess : kInvalidHandle;
  });
}
BM_FAKE_CUDA cuFuncGetModule(void** out, void* function) {
  return in_context("cuFuncGetModule", [&](Driver& d, Context&) -> int {
    const Function* f = function_of(d, function);
    if (!f || !out) return f ? kInvalidValue : kInvalidHandle;
    *out = f->module;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuFuncGetName(const char** name, void* function) {
  return in_context("cuFuncGetName", [&](Driver& d, Context&) -> int {
    const Function* f = function_of(d, function);
    if (!f || !name) return f ? kInvalidValue : kInvalidHandle;
    *name = f->info.name.c_str();
    return kSuccess;
  });
}
BM_FAKE_CUDA cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  return in_context("cuFuncGetParamInfo", [&](Driver& d, Context&) -> int {
    const Function* f = function_of(d, function);
    if (!f) return kInvalidHandle;
    if (!offset || index >= f->info.params.size()) return kInvalidValue;
    *offset = f->info.params[index].offset;
    if (bytes) *bytes = f->info.params[index].bytes;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                         size_t dynamic_shared) {
  return in_context("cuOccupancyMaxActiveBlocksPerMultiprocessor", [&](Driver& d, Context&) -> int {
    const Function* f = function_of(d, function);
    if (!f) return kInvalidHandle;
    if (!blocks || threads <= 0 || threads > 1024) return kInvalidValue;
    const size_t shared = f->info.shared_bytes + dynamic_shared + 1024;
    const int by_shared =
        static_cast<int>(static_cast<size_t>(shared_optin(d.knobs.sm) + 1024) / shared);
    const int by_registers = 65536 / (registers(*f) * ((threads + 31) / 32 * 32));
    *blocks = std::min({2048 / threads, by_shared, by_registers, 32});
    return kSuccess;
  });
}

BM_FAKE_CUDA cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared_bytes, void* stream,
                            void** params, void** extra) {
  return in_context("cuLaunchKernel", [&](Driver& d, Context& c) -> int {
    Stream* s = stream_of(d, c, stream);
    if (!s) return kInvalidHandle;
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    auto launch = std::make_shared<Launch>();
    if (const int code =
            check_launch(d, c, function, grid, block, shared_bytes, params, extra, *launch))
      return code;
    submit(c, *s, [&d, &c, launch] { run_launch(d, c, *launch); });
    return kSuccess;
  });
}
/// One attribute of a launch: id, padding, value. Source: cuda.h 13.0, CUlaunchAttributeID_enum
/// ("Valid for …" says which a launch takes: 3 and 13 are not among them, 15 and what follows 16
/// does not exist) and cuLaunchKernelEx(), whose documented results have no better one than
/// INVALID_VALUE. Clusters and programmatic launch begin with compute capability 9.0 (CUDA C++
/// Programming Guide, "Programmatic Dependent Launch and Synchronization").
static int check_attribute(const unsigned (&words)[5], unsigned sm) {
  constexpr unsigned kSynchronization = 3, kCluster = 4, kSerialization = 6, kEvent = 7,
                     kGraphOnly = 13, kMissing = 15, kLast = 16, kFirstCapability = 90;
  const unsigned id = words[0];
  if (id == kSynchronization || id == kGraphOnly || id == kMissing || id > kLast)
    return kInvalidValue;
  const bool is_new = id == kCluster || id == kSerialization || id == kEvent;
  if (is_new && sm < kFirstCapability && words[2] != 0) return kInvalidValue;
  // A block is a cluster of its own here, and no event is recorded in the middle of a kernel.
  if (id == kCluster && uint64_t{words[2]} * words[3] * words[4] > 1) return kNotSupported;
  if (id == kEvent) return kNotSupported;
  return kSuccess;
}
BM_FAKE_CUDA cuLaunchKernelEx(const LaunchConfig* config, void* function, void** params,
                              void** extra) {
  if (!config || (config->attribute_count && !config->attributes)) return kInvalidValue;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    unsigned words[5];
    std::memcpy(words, static_cast<const char*>(config->attributes) + 72 * size_t{i}, sizeof words);
    if (const int code = check_attribute(words, Driver::get().knobs.sm)) return code;
  }
  return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2],
                        config->block[0], config->block[1], config->block[2], config->shared_bytes,
                        config->stream, params, extra);
}
BM_FAKE_CUDA cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz,
                                       unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes,
                                       void* stream, void** params) {
  // Blocks run one after another, so they cannot wait for each other.
  if (uint64_t{gx} * gy * gz > 1) return kNotSupported;
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, nullptr);
}

}  // namespace bm::sim::cuda
