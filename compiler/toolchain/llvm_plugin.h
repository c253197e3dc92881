#pragma once
// C interface of the LLVM component (libbellmetal_llvm.so): the only code that links LLVM. Every
// function is safe to call from any thread; each call has an LLVM context of its own.

#include <cstddef>

extern "C" {

/// Bytes owned by the plugin until bm_llvm_free.
struct bm_llvm_buffer {
  char* data;
  size_t size;
};

struct bm_llvm_request {
  const char* text;  ///< IR text or object bytes
  size_t text_size;
  const char* triple;
  const char* cpu;
  const char* features;
  int optimize;     ///< 0: none, 1: usual
  int is_assembly;  ///< compile: 1: text of an assembler instead of an object
  int is_inlined;   ///< compile: 1: calls of alwaysinline functions are dissolved before all else
};

#define BM_LLVM_ABI 3

typedef int bm_llvm_abi_fn(void);
/// "19.1.7".
typedef const char* bm_llvm_version_fn(void);
/// IR text → relocatable object or assembly. 0: `out` holds it; otherwise `error` holds a message.
/// 2: this LLVM was built without the target.
typedef int bm_llvm_compile_fn(const bm_llvm_request* request, bm_llvm_buffer* out,
                               bm_llvm_buffer* error);
/// Object → text of its code sections.
typedef int bm_llvm_disassemble_fn(const bm_llvm_request* request, bm_llvm_buffer* out,
                                   bm_llvm_buffer* error);
typedef void bm_llvm_free_fn(bm_llvm_buffer* buffer);
}
