#pragma once
// Settings handed from one thread to another.

#include "runtime/base/env.h"

namespace bm {

/// Settings of another thread on this one, until destroyed. Nests with ScopedSetting.
class ScopedSettings {
 public:
  explicit ScopedSettings(const Settings& same);
  ~ScopedSettings();
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;

 private:
  Settings mine_;
  const Settings* previous_;
};

}  // namespace bm
