#include "tools/bellmetal/mpi_world.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tools/bellmetal/interrupt.h"

namespace bm::cli {
namespace {

using Clock = std::chrono::steady_clock;

// The binary interface of Open MPI's libmpi.so.40 (releases 4 and 5): handles are addresses of
// objects in the library. Source: mpi.h of Open MPI 4.1, OMPI_PREDEFINED_GLOBAL and ompi_status_t.
constexpr int kAnySource = -1, kSuccess = 0, kTag = 0xbe11;
constexpr const char* kLibraries[] = {"libmpi.so.40"};

bool is_failure(int code) { return code != kSuccess; }

}  // namespace

struct MpiWorld::Library {
  using Handle = void*;
  struct MpiStatus {
    int source = 0, tag = 0, error = 0, is_cancelled = 0;
    size_t count = 0;
  };
  int (*init)(int*, char***) = nullptr;
  int (*finalize)() = nullptr;
  int (*abort)(Handle, int) = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*set_errhandler)(Handle, Handle) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test)(Handle*, int*, MpiStatus*) = nullptr;
  int (*iprobe)(int, int, Handle, int*, MpiStatus*) = nullptr;
  int (*get_count)(const MpiStatus*, Handle, int*) = nullptr;
  int (*recv)(void*, int, Handle, int, int, Handle, MpiStatus*) = nullptr;
  Handle world = nullptr, bytes = nullptr, errors_return = nullptr;

  static Result<std::shared_ptr<const Library>> load() {
    void* handle = nullptr;
    std::string why;
    for (const char* name : kLibraries) {
      // Its components look for its symbols among the global ones.
      if ((handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL))) break;
      if (const char* said = dlerror()) why = said;
    }
    if (handle == nullptr)
      return fail(Code::kNotFound, "no Open MPI ({}): install libopenmpi3 and openmpi-bin", why);
    auto out = std::make_shared<Library>();
    const char* missing = nullptr;
    const auto find = [&]<class F>(F& into, const char* name) {
      into = reinterpret_cast<F>(dlsym(handle, name));
      if (into == nullptr && missing == nullptr) missing = name;
    };
    find(out->init, "MPI_Init");
    find(out->finalize, "MPI_Finalize");
    find(out->abort, "MPI_Abort");
    find(out->comm_rank, "MPI_Comm_rank");
    find(out->comm_size, "MPI_Comm_size");
    find(out->set_errhandler, "MPI_Comm_set_errhandler");
    find(out->isend, "MPI_Isend");
    find(out->test, "MPI_Test");
    find(out->iprobe, "MPI_Iprobe");
    find(out->get_count, "MPI_Get_count");
    find(out->recv, "MPI_Recv");
    find(out->world, "ompi_mpi_comm_world");
    find(out->bytes, "ompi_mpi_byte");
    find(out->errors_return, "ompi_mpi_errors_return");
    if (missing != nullptr)
      return fail(Code::kUnsupported, "libmpi lacks {}: Open MPI 4 or 5 is needed", missing);
    return std::shared_ptr<const Library>(std::move(out));
  }
};

bool MpiWorld::is_launched() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

Result<std::unique_ptr<MpiWorld>> MpiWorld::join(std::chrono::milliseconds limit) {
  std::unique_ptr<MpiWorld> world(new MpiWorld);
  auto library = BM_TRY(Library::load());
  if (is_failure(library->init(nullptr, nullptr)))
    return fail(Code::kIo, "MPI_Init failed; mpirun's own messages say why");
  world->library_ = std::move(library);
  world->limit_ = limit;
  const Library& l = *world->library_;
  int rank = 0, size = 1;
  if (is_failure(l.set_errhandler(l.world, l.errors_return)) ||
      is_failure(l.comm_rank(l.world, &rank)) || is_failure(l.comm_size(l.world, &size)))
    return fail(Code::kIo, "MPI does not say which rank this process is");
  world->rank_ = static_cast<uint32_t>(rank);
  world->size_ = static_cast<uint32_t>(size);
  return world;
}

MpiWorld::~MpiWorld() {
  if (!library_) return;
  // Nobody waits for a rank that hangs, nor for one that has lost the others.
  if (exit_code_ != 0) {
    std::fflush(nullptr);
    library_->abort(library_->world, exit_code_);
  } else {
    library_->finalize();
  }
}

template <class F>
Status MpiWorld::wait(const std::string& who, F is_done) {
  const Clock::time_point start = Clock::now();
  // A message is on its way for microseconds; who computes for longer wants the processor.
  constexpr std::chrono::microseconds kBusy{30}, kPause{50};
  for (;;) {
    if (BM_TRY(is_done())) return {};
    if (is_interrupted()) return fail(Code::kCancelled, "interrupted");
    const auto waited = Clock::now() - start;
    // TIMEOUT: what another rank computes or loads takes as long as it takes; limit_ is the time
    // after which it hangs.
    if (waited > limit_)
      return fail(Code::kTimeout, "{} has not answered for {} s (20 times BM_WAIT_TIMEOUT_MS)", who,
                  std::chrono::duration_cast<std::chrono::seconds>(limit_).count());
    if (waited > kBusy) std::this_thread::sleep_for(kPause);
  }
}

Status MpiWorld::send(uint32_t to, std::span<const std::byte> bytes) {
  Library::Handle request = nullptr;
  if (is_failure(library_->isend(bytes.data(), static_cast<int>(bytes.size()), library_->bytes,
                                 static_cast<int>(to), kTag, library_->world, &request)))
    return fail(Code::kIo, "MPI_Isend to rank {} failed", to);
  return wait(fmt::format("rank {} of {}", to, size_), [&]() -> Result<bool> {
    int is_done = 0;
    Library::MpiStatus status;
    if (is_failure(library_->test(&request, &is_done, &status)))
      return fail(Code::kIo, "rank {} of {} cannot be reached", to, size_);
    return is_done != 0;
  });
}

Result<MpiWorld::Message> MpiWorld::receive(const std::string& who) {
  Library::MpiStatus status;
  BM_TRY(wait(who, [&]() -> Result<bool> {
    int is_there = 0;
    if (is_failure(library_->iprobe(kAnySource, kTag, library_->world, &is_there, &status)))
      return fail(Code::kIo, "{} cannot be reached", who);
    return is_there != 0;
  }));
  int count = 0;
  if (is_failure(library_->get_count(&status, library_->bytes, &count)) || count < 0)
    return fail(Code::kIo, "a message of rank {} has no length", status.source);
  Message out;
  out.source = static_cast<uint32_t>(status.source);
  out.bytes.resize(static_cast<size_t>(count));
  if (is_failure(library_->recv(out.bytes.data(), count, library_->bytes, status.source, kTag,
                                library_->world, &status)))
    return fail(Code::kIo, "a message of rank {} cannot be received", out.source);
  return out;
}

}  // namespace bm::cli
