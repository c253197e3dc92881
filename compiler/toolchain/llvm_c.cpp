// The LLVM component. Built as a shared object of its own; nothing here may include our libraries.
#include <llvm-c/Analysis.h>
#include <llvm-c/Core.h>
#include <llvm-c/Disassembler.h>
#include <llvm-c/Error.h>
#include <llvm-c/ErrorHandling.h>
#include <llvm-c/IRReader.h>
#include <llvm-c/Object.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include <llvm/Support/ErrorHandling.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "compiler/toolchain/llvm_plugin.h"

#define BM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// Enough to clean up what vectors in registers and loops with known iterations need. Vectorisers
/// stay out: lanes and the order of float operations were decided before.
constexpr char kBranchProtection[] = "cf-protection-branch";
constexpr const char* kPasses =
    "function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(licm),gvn,"
    "instcombine<no-verify-fixpoint>,simplifycfg,loop(loop-deletion)),globaldce";

/// For targets where calls cost a stack: they are dissolved first.
constexpr const char* kInlinePasses =
    "always-inline,globaldce,function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg,"
    "loop-mssa(licm),gvn,instcombine<no-verify-fixpoint>,simplifycfg,loop(loop-deletion))";

/// LLVM is built without exceptions: what it held when memory ran out is neither released nor
/// consistent, so the process cannot go on. No destructors: they may wait for its locks.
[[noreturn]] void end_out_of_memory() {
  constexpr char kText[] =
      "bellmetal: out of memory: compiling a kernel in LLVM, which cannot continue\n";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(EXIT_FAILURE);
}

void on_bad_alloc(void* /*data*/, const char* /*reason*/, bool /*gen_crash_diag*/) {
  end_out_of_memory();
}

/// LLVM's own report_fatal_error: inputs it cannot handle and limits of the system (threads,
/// files).
void on_fatal(const char* reason) {
  (void)!write(STDERR_FILENO, "bellmetal: LLVM stopped: ", 25);
  (void)!write(STDERR_FILENO, reason, std::strlen(reason));
  (void)!write(STDERR_FILENO, "\n", 1);
  _exit(EXIT_FAILURE);
}

/// This thread is inside LLVM. Initial-exec: a first use must not allocate.
[[gnu::tls_model("initial-exec")]] thread_local bool is_inside_llvm = false;
std::new_handler& previous_new_handler() {
  static std::new_handler handler = nullptr;
  return handler;
}

/// Before operator new throws: unwinding through LLVM would dispose of modules and contexts in
/// whatever state the failure left them.
void on_failed_new() {
  if (is_inside_llvm) end_out_of_memory();
  if (previous_new_handler() == nullptr) throw std::bad_alloc();
  previous_new_handler()();
}

void install_handlers() {
  static const bool is_installed = [] {
    llvm::install_bad_alloc_error_handler(on_bad_alloc);
    LLVMInstallFatalErrorHandler(on_fatal);
    previous_new_handler() = std::set_new_handler(on_failed_new);
    return true;
  }();
  (void)is_installed;
}

/// Every entry: memory that runs out inside ends the process instead of the caller's trust in LLVM.
template <class F>
auto guarded(F&& f) noexcept {
  try {
    install_handlers();
    is_inside_llvm = true;
    const auto result = f();
    is_inside_llvm = false;
    return result;
  } catch (const std::bad_alloc&) {
    end_out_of_memory();
  } catch (const std::length_error&) {
    end_out_of_memory();
  }
}

void set(bm_llvm_buffer* buffer, const char* data, size_t size) {
  buffer->data = static_cast<char*>(std::malloc(size + 1));
  if (!buffer->data) end_out_of_memory();
  if (size) std::memcpy(buffer->data, data, size);
  buffer->data[size] = 0;
  buffer->size = size;
}

int fail(bm_llvm_buffer* error, const std::string& text, int code = 1) {
  set(error, text.data(), text.size());
  return code;
}

void initialize_targets() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeAllTargetInfos();
    LLVMInitializeAllTargets();
    LLVMInitializeAllTargetMCs();
    LLVMInitializeAllAsmPrinters();
    LLVMInitializeAllAsmParsers();
    LLVMInitializeAllDisassemblers();
  });
}

template <auto Fn>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Fn(p);
  }
};
using Context = std::unique_ptr<LLVMOpaqueContext, Deleter<LLVMContextDispose>>;
using Module = std::unique_ptr<LLVMOpaqueModule, Deleter<LLVMDisposeModule>>;
using Machine = std::unique_ptr<LLVMOpaqueTargetMachine, Deleter<LLVMDisposeTargetMachine>>;
using Buffer = std::unique_ptr<LLVMOpaqueMemoryBuffer, Deleter<LLVMDisposeMemoryBuffer>>;
using Options =
    std::unique_ptr<LLVMOpaquePassBuilderOptions, Deleter<LLVMDisposePassBuilderOptions>>;

std::string take(char* message) {
  std::string text = message ? message : "";
  LLVMDisposeMessage(message);
  return text;
}

/// Target machines are costly to make and may serve one thread at a time: one is kept per thread.
struct MachineSlot {
  std::string key;
  Machine machine;
};

LLVMTargetMachineRef machine_for(const bm_llvm_request& r, std::string* error) {
  thread_local MachineSlot slot;
  const std::string key =
      std::string(r.triple) + '\n' + r.cpu + '\n' + r.features + (r.optimize ? "\n1" : "\n0");
  if (slot.machine && slot.key == key) return slot.machine.get();
  LLVMTargetRef target = nullptr;
  char* message = nullptr;
  if (LLVMGetTargetFromTriple(r.triple, &target, &message)) {
    *error = take(message);
    return nullptr;
  }
  slot.machine.reset(
      LLVMCreateTargetMachine(target, r.triple, r.cpu, r.features,
                              r.optimize ? LLVMCodeGenLevelDefault : LLVMCodeGenLevelNone,
                              LLVMRelocPIC, LLVMCodeModelSmall));
  if (!slot.machine) *error = std::string("no target machine for ") + r.triple;
  slot.key = key;
  return slot.machine.get();
}

void keep_first_error(LLVMDiagnosticInfoRef info, void* where) {
  auto* text = static_cast<std::string*>(where);
  if (LLVMGetDiagInfoSeverity(info) != LLVMDSError || !text->empty()) return;
  *text = take(LLVMGetDiagInfoDescription(info));
}

struct Disassembly {
  std::string text;
  LLVMDisasmContextRef context = nullptr;
};

void disassemble_section(Disassembly& d, uint8_t* bytes, uint64_t size,
                         const std::vector<std::pair<uint64_t, std::string>>& symbols) {
  char line[256];
  for (uint64_t at = 0; at < size;) {
    for (const auto& [address, name] : symbols)
      if (address == at && !name.empty()) d.text += name + ":\n";
    const size_t length =
        LLVMDisasmInstruction(d.context, bytes + at, size - at, at, line, sizeof line);
    char prefix[24];
    std::snprintf(prefix, sizeof prefix, "%6llx:", static_cast<unsigned long long>(at));
    d.text += prefix;
    d.text += length ? line : "\t.byte";
    d.text += '\n';
    at += length ? length : 1;
  }
}

}  // namespace

BM_EXPORT int bm_llvm_abi(void) { return BM_LLVM_ABI; }

BM_EXPORT const char* bm_llvm_version(void) {
  static const std::string kText = [] {
    unsigned major = 0, minor = 0, patch = 0;
    LLVMGetVersion(&major, &minor, &patch);
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  }();
  return kText.c_str();
}

BM_EXPORT void bm_llvm_free(bm_llvm_buffer* buffer) {
  std::free(buffer->data);
  *buffer = {nullptr, 0};
}

namespace {

int compile(const bm_llvm_request* request, bm_llvm_buffer* out, bm_llvm_buffer* error) {
  initialize_targets();
  std::string problem;
  LLVMTargetRef known = nullptr;
  char* unknown = nullptr;
  if (LLVMGetTargetFromTriple(request->triple, &known, &unknown))
    return fail(error, take(unknown), 2);
  LLVMTargetMachineRef machine = machine_for(*request, &problem);
  if (!machine) return fail(error, problem);
  Context context(LLVMContextCreate());
  LLVMContextSetDiagnosticHandler(context.get(), keep_first_error, &problem);
  // The parser takes ownership of the buffer; it wants a terminating zero after the text.
  LLVMMemoryBufferRef text =
      LLVMCreateMemoryBufferWithMemoryRangeCopy(request->text, request->text_size, "kernel");
  if (text == nullptr) end_out_of_memory();
  LLVMModuleRef parsed = nullptr;
  char* message = nullptr;
  if (LLVMParseIRInContext(context.get(), text, &parsed, &message))
    return fail(error, take(message));
  Module module(parsed);
  LLVMSetTarget(module.get(), request->triple);
  LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
  LLVMSetModuleDataLayout(module.get(), layout);
  LLVMDisposeTargetData(layout);
  // The program carries the mark of indirect branch tracking, and kernels are called through
  // pointers: each entry starts with endbr64 (LLVM 19, X86IndirectBranchTracking.cpp).
  if (std::strncmp(request->triple, "x86_64", 6) == 0)
    LLVMAddModuleFlag(
        module.get(), LLVMModuleFlagBehaviorOverride, kBranchProtection,
        sizeof kBranchProtection - 1,
        LLVMValueAsMetadata(LLVMConstInt(LLVMInt32TypeInContext(context.get()), 1, 0)));
  if (LLVMVerifyModule(module.get(), LLVMReturnStatusAction, &message))
    return fail(error, take(message));
  LLVMDisposeMessage(message);
  message = nullptr;
  if (request->optimize) {
    Options options(LLVMCreatePassBuilderOptions());
    const char* passes = request->is_inlined ? kInlinePasses : kPasses;
    LLVMPassBuilderOptionsSetLoopVectorization(options.get(), 0);
    LLVMPassBuilderOptionsSetSLPVectorization(options.get(), 0);
    if (LLVMErrorRef failed = LLVMRunPasses(module.get(), passes, machine, options.get())) {
      char* why = LLVMGetErrorMessage(failed);
      const std::string copy = why;
      LLVMDisposeErrorMessage(why);
      return fail(error, copy);
    }
  }
  LLVMMemoryBufferRef object = nullptr;
  const LLVMCodeGenFileType kind = request->is_assembly ? LLVMAssemblyFile : LLVMObjectFile;
  if (LLVMTargetMachineEmitToMemoryBuffer(machine, module.get(), kind, &message, &object))
    return fail(error, take(message));
  if (object == nullptr) end_out_of_memory();
  Buffer owned(object);
  if (!problem.empty()) return fail(error, problem);
  set(out, LLVMGetBufferStart(object), LLVMGetBufferSize(object));
  return 0;
}

int disassemble(const bm_llvm_request* request, bm_llvm_buffer* out, bm_llvm_buffer* error) {
  initialize_targets();
  Buffer bytes(
      LLVMCreateMemoryBufferWithMemoryRangeCopy(request->text, request->text_size, "object"));
  if (!bytes) end_out_of_memory();
  Context context(LLVMContextCreate());
  char* message = nullptr;
  LLVMBinaryRef binary = LLVMCreateBinary(bytes.get(), context.get(), &message);
  if (!binary) return fail(error, take(message));
  Disassembly d;
  d.context = LLVMCreateDisasmCPUFeatures(request->triple, request->cpu, request->features, nullptr,
                                          0, nullptr, nullptr);
  if (!d.context) {
    LLVMDisposeBinary(binary);
    return fail(error, std::string("no disassembler for ") + request->triple);
  }
  LLVMSetDisasmOptions(
      d.context, LLVMDisassembler_Option_PrintImmHex | LLVMDisassembler_Option_AsmPrinterVariant);
  LLVMSectionIteratorRef section = LLVMObjectFileCopySectionIterator(binary);
  for (; section && !LLVMObjectFileIsSectionIteratorAtEnd(binary, section);
       LLVMMoveToNextSection(section)) {
    const char* name = LLVMGetSectionName(section);
    if (!name || std::strncmp(name, ".text", 5) != 0 || LLVMGetSectionSize(section) == 0) continue;
    std::vector<std::pair<uint64_t, std::string>> symbols;
    LLVMSymbolIteratorRef symbol = LLVMObjectFileCopySymbolIterator(binary);
    for (; symbol && !LLVMObjectFileIsSymbolIteratorAtEnd(binary, symbol);
         LLVMMoveToNextSymbol(symbol))
      if (LLVMGetSectionContainsSymbol(section, symbol))
        symbols.emplace_back(LLVMGetSymbolAddress(symbol), LLVMGetSymbolName(symbol));
    LLVMDisposeSymbolIterator(symbol);
    std::vector<uint8_t> code(LLVMGetSectionSize(section));
    std::memcpy(code.data(), LLVMGetSectionContents(section), code.size());
    disassemble_section(d, code.data(), code.size(), symbols);
  }
  LLVMDisposeSectionIterator(section);
  LLVMDisasmDispose(d.context);
  LLVMDisposeBinary(binary);
  set(out, d.text.data(), d.text.size());
  return 0;
}

}  // namespace

BM_EXPORT int bm_llvm_compile(const bm_llvm_request* request, bm_llvm_buffer* out,
                              bm_llvm_buffer* error) {
  return guarded([&] { return compile(request, out, error); });
}

BM_EXPORT int bm_llvm_disassemble(const bm_llvm_request* request, bm_llvm_buffer* out,
                                  bm_llvm_buffer* error) {
  return guarded([&] { return disassemble(request, out, error); });
}
