#include "serve/page_pool.h"

#include "runtime/base/check.h"

namespace bm::serve {

PagePool::PagePool(uint32_t count, uint32_t page_length)
    : page_length_(page_length), pages_(count + 1) {
  reset();
}

void PagePool::reset() {
  contents_.clear();
  idle_.clear();
  free_.clear();
  used_ = reserved_ = 0;
  for (auto page = static_cast<uint32_t>(pages_.size()) - 1; page > 0; --page) {
    pages_[page] = {};
    free_.push_back(page);
  }
}

bool PagePool::reserve(uint32_t pages) {
  if (pages > count() - reserved_) return false;
  reserved_ += pages;
  return true;
}

void PagePool::cancel_reservation(uint32_t pages) {
  BM_CHECK(pages <= reserved_);
  reserved_ -= pages;
}

void PagePool::forget(uint32_t page) {
  contents_.erase(pages_[page].key);
  pages_[page].key.clear();
  pages_[page].serial = 0;
}

uint32_t PagePool::take() {
  uint32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    BM_CHECK(!idle_.empty());
    page = idle_.begin()->second;
    idle_.erase(idle_.begin());
    forget(page);
  }
  pages_[page].users = 1;
  ++used_;
  return page;
}

void PagePool::release(uint32_t page) {
  Page& p = pages_.at(page);
  BM_CHECK(p.users > 0);
  if (--p.users > 0) return;
  --used_;
  if (p.serial == 0) {
    free_.push_back(page);
    return;
  }
  p.idle_since = ++now_;
  idle_.emplace(p.idle_since, page);
}

std::string PagePool::key_of(uint64_t parent, std::span<const int32_t> prompt, size_t index) const {
  const auto tokens = std::as_bytes(prompt.subspan(index * page_length_, page_length_));
  std::string key(reinterpret_cast<const char*>(&parent), sizeof parent);
  key.append(reinterpret_cast<const char*>(tokens.data()), tokens.size());
  return key;
}

std::vector<uint32_t> PagePool::match(std::span<const int32_t> prompt, size_t most) {
  std::vector<uint32_t> found;
  uint64_t parent = 0;
  while (found.size() < most && (found.size() + 1) * page_length_ <= prompt.size()) {
    const auto at = contents_.find(key_of(parent, prompt, found.size()));
    if (at == contents_.end()) break;
    Page& p = pages_[at->second];
    if (p.users++ == 0) {
      idle_.erase(p.idle_since);
      ++used_;
    }
    parent = p.serial;
    found.push_back(at->second);
  }
  return found;
}

void PagePool::publish(std::span<const int32_t> prompt, std::span<const uint32_t> pages) {
  BM_CHECK(!pages.empty() && pages.size() * page_length_ <= prompt.size());
  const uint64_t parent = pages.size() == 1 ? 0 : pages_[pages[pages.size() - 2]].serial;
  // The page before was computed at the same time by somebody else, who published his.
  if (pages.size() > 1 && parent == 0) return;
  std::string key = key_of(parent, prompt, pages.size() - 1);
  Page& p = pages_[pages.back()];
  if (p.serial != 0 || !contents_.emplace(key, pages.back()).second) return;
  p.key = std::move(key);
  p.serial = ++last_serial_;
}

}  // namespace bm::serve
