#include "tests/sim/amd/kfd/remote_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/sim/notify/give_up.h"

namespace bm::sim::amd {
namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

RemotePages::RemotePages(std::shared_ptr<notify::Process> process, uint64_t address, uint64_t bytes)
    : process_(std::move(process)), address_(address), bytes_(bytes), is_loaded_(bytes / kPage) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) sim::give_up_errno("pages of the program");
  now_ = static_cast<std::byte*>(at);
}

RemotePages::~RemotePages() { munmap(now_, bytes_); }

std::byte* RemotePages::at(uint64_t offset, uint64_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset || bytes == 0) return nullptr;
  const uint64_t last = (offset + bytes - 1) / kPage;
  for (uint64_t page = offset / kPage; page <= last; ++page) {
    if (is_loaded_[page]) continue;
    uint64_t end = page + 1;
    while (end <= last && !is_loaded_[end]) ++end;
    std::vector<std::byte> run((end - page) * kPage);
    if (!process_->read(address_ + page * kPage, run.data(), run.size())) return nullptr;
    std::memcpy(now_ + page * kPage, run.data(), run.size());
    was_[page * kPage] = std::move(run);
    std::fill(is_loaded_.begin() + static_cast<ptrdiff_t>(page),
              is_loaded_.begin() + static_cast<ptrdiff_t>(end), true);
  }
  return now_ + offset;
}

void RemotePages::flush() {
  for (const auto& [offset, was] : was_) {
    const std::byte* const now = now_ + offset;
    for (uint64_t i = 0; i < was.size();) {
      if (i % kPage == 0 && std::memcmp(now + i, was.data() + i, kPage) == 0) {
        i += kPage;
        continue;
      }
      if (now[i] == was[i]) {
        ++i;
        continue;
      }
      uint64_t end = i;
      while (end < was.size() && now[end] != was[end]) ++end;
      process_->write(address_ + offset + i, now + i, end - i);
      i = end;
    }
    std::fill_n(is_loaded_.begin() + static_cast<ptrdiff_t>(offset / kPage), was.size() / kPage,
                false);
  }
  was_.clear();
}

}  // namespace bm::sim::amd
