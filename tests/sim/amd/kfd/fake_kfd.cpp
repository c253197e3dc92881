#include "tests/sim/amd/kfd/fake_kfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/sim/amd/kfd/sysfs.h"

namespace bm::sim::amd {

FakeKfd::FakeKfd(Options options)
    : FakeKfd(std::make_shared<Machine>(std::move(options)), getpid()) {}

FakeKfd::FakeKfd(std::shared_ptr<Machine> machine, pid_t process)
    : machine_(std::move(machine)), process_(*machine_, notify::open_process(process)) {}

std::unique_ptr<FakeKfd> FakeKfd::next_process() const {
  return std::unique_ptr<FakeKfd>(new FakeKfd(machine_, getpid()));
}

FakeKfd::~FakeKfd() {
  for (const auto& [fd, file] : files_) ::close(fd);
}

int FakeKfd::open(const std::string& path, int flags) {
  if (path != "/dev/kfd" && !path.starts_with("/dev/dri/")) return System::open(path, flags);
  File file;
  if (const int refused = open_node(*machine_, path, &file); refused != 0) return refused;
  const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd < 0) return -errno;
  const std::lock_guard lock(mutex_);
  files_[fd] = file;
  return fd;
}

int FakeKfd::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    files_.erase(fd);
  }
  return System::close(fd);
}

int FakeKfd::read_file(const std::string& path, std::string* out) {
  const auto at = machine_->sysfs.find(path);
  if (at != machine_->sysfs.end()) {
    *out = at->second;
    return 0;
  }
  return path.starts_with("/sys/") ? -ENOENT : System::read_file(path, out);
}

int FakeKfd::list(const std::string& path, std::vector<std::string>* out) {
  if (!path.starts_with("/sys/")) return System::list(path, out);
  out->clear();
  const std::string prefix = path + "/";
  const auto& sysfs = machine_->sysfs;
  for (auto at = sysfs.lower_bound(prefix); at != sysfs.end() && at->first.starts_with(prefix);
       ++at) {
    std::string name = at->first.substr(prefix.size());
    name.resize(std::min(name.find('/'), name.size()));
    if (out->empty() || out->back() != name) out->push_back(name);
  }
  return out->empty() ? -ENOENT : 0;
}

int FakeKfd::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                  void** out) {
  File file;
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(fd);
    if (fd < 0 || found == files_.end())
      return System::mmap(address, bytes, protection, flags, fd, offset, out);
    file = found->second;
  }
  const auto at = static_cast<uint64_t>(offset);
  if (file.kind == File::Kind::kKfd) {
    constexpr uint64_t kBytes = Process::kDoorbellBytes;
    if (bytes != kBytes || at % kBytes != 0 || at / kBytes >= machine_->options.gpus)
      return -EINVAL;
    return System::mmap(address, bytes, protection, flags, process_.doorbell_descriptor(), offset,
                        out);
  }
  const uint32_t gpu_id = gpu_id_of(file.gpu);
  const auto object = memory().find_offset(gpu_id, at);
  if (!object || bytes != object->bytes) return -EINVAL;
  // AMDGPU_GEM_CREATE_NO_CPU_ACCESS: amdgpu_gem_object_mmap().
  constexpr uint32_t kVram = 1, kMmioRemap = 1u << 4, kPublic = 1u << 29;
  if ((object->flags & kVram) != 0 && (object->flags & kPublic) == 0) return -EPERM;
  // Registers are mapped by /dev/kfd, which no program here does.
  if ((object->flags & kMmioRemap) != 0) return -EINVAL;
  return System::mmap(address, bytes, protection, flags, memory().descriptor(gpu_id), offset, out);
}

int FakeKfd::ioctl(int fd, unsigned long request, void* argument) {
  {
    const std::lock_guard lock(mutex_);
    const auto file = files_.find(fd);
    if (file == files_.end()) return System::ioctl(fd, request, argument);
    if (file->second.kind != File::Kind::kKfd) return -ENOTTY;
  }
  const Caller caller{[this](int named) -> const File* {
                        const std::lock_guard lock(mutex_);
                        const auto file = files_.find(named);
                        return file == files_.end() ? nullptr : &file->second;
                      },
                      [this](int source, File file) {
                        const std::lock_guard lock(mutex_);
                        files_[source] = file;
                        return source;
                      }};
  return process_.call(request, reinterpret_cast<uint64_t>(argument), caller);
}

size_t FakeKfd::open_files() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [fd, file] : files_) count += file.kind == File::Kind::kRender ? 0 : 1;
  return count;
}

}  // namespace bm::sim::amd
