#include "compiler/toolchain/ptxas.h"

#include <sys/wait.h>

#include <string>

#include <fmt/format.h>

#include "compiler/toolchain/process.h"
#include "runtime/base/env.h"

namespace bm::compiler {
namespace {

Result<std::string> find_ptxas() {
  std::vector<std::string> folders;
  if (const std::string& root = settings().cuda_path; !root.empty())
    folders.push_back(root + "/bin/");
  folders.insert(folders.end(), {"/usr/local/cuda/bin/", ""});
  for (const std::string& folder : folders) {
    auto found = find_program(folder + "ptxas");
    if (found || found.error().code != Code::kNotFound) return found;
  }
  return fail(Code::kNotFound,
              "no ptxas in CUDA_PATH, /usr/local/cuda/bin and PATH; install the CUDA toolkit's "
              "cuda-nvcc package");
}

}  // namespace

Result<std::vector<std::byte>> ptxas_assemble(std::string_view ptx, std::string_view target) {
  const std::string program = BM_TRY(find_ptxas());
  const MemoryFile text = BM_TRY(MemoryFile::create("k.ptx", std::as_bytes(std::span(ptx))));
  const MemoryFile cubin = BM_TRY(MemoryFile::create("k.cubin"));
  const MemoryFile log = BM_TRY(MemoryFile::create("log"));
  const int status =
      BM_TRY(run_program({program, fmt::format("-arch={}", target), "-o", kThird, "/dev/stdin"},
                         {.output = log, .errors = log, .input = &text, .third = &cubin}));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fail(Code::kCompile, "{}: {}", program, as_text(BM_TRY(log.contents())));
  return cubin.contents();
}

}  // namespace bm::compiler
