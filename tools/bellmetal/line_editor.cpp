#include "tools/bellmetal/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>

#include <histedit.h>

#include "runtime/base/check.h"
#include "tools/bellmetal/interrupt.h"

namespace bm::cli {
namespace {

constexpr int kHistoryEntries = 1000;
constexpr int kLookMs = 100;  ///< between two looks at Ctrl-C

}  // namespace

struct LineEditor::Impl {
  ::EditLine* editor = nullptr;
  ::History* history = nullptr;
  std::string prompt;

  static char* prompt_of(::EditLine* editor) {
    void* self = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self)->prompt.data();
  }

  /// As libedit's own, but a Ctrl-C that comes before the wait ends it too: no read() is left
  /// waiting for a signal that was there already.
  static int read_character(::EditLine* /*editor*/, wchar_t* character) {
    std::mbstate_t state{};
    for (;;) {
      if (is_interrupted()) {
        errno = EINTR;
        return -1;
      }
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::poll(&input, 1, kLookMs) <= 0) continue;
      char byte = 0;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got == 0) return 0;
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0) return -1;
      const size_t used = std::mbrtowc(character, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // a part of a character
      if (used != static_cast<size_t>(-1)) return 1;
      state = {};  // none at all: dropped
    }
  }
};

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {
  // libedit reads characters by the locale; without one it would take no letter but ASCII.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1)
    (void)std::setlocale(LC_CTYPE, "C.UTF-8");
  impl_->editor = ::el_init("bellmetal", stdin, stderr, stderr);
  BM_CHECK(impl_->editor != nullptr);
  ::el_set(impl_->editor, EL_CLIENTDATA, impl_.get());
  ::el_set(impl_->editor, EL_PROMPT, &Impl::prompt_of);
  ::el_set(impl_->editor, EL_EDITOR, "emacs");
  ::el_set(impl_->editor, EL_SIGNAL, 0);  // SIGINT is the InterruptScope's
  ::el_set(impl_->editor, EL_GETCFN, &Impl::read_character);
  impl_->history = ::history_init();
  BM_CHECK(impl_->history != nullptr);
  HistEvent event{};
  ::history(impl_->history, &event, H_SETSIZE, kHistoryEntries);
  ::history(impl_->history, &event, H_SETUNIQUE, 1);
  ::el_set(impl_->editor, EL_HIST, ::history, impl_->history);
  ::el_source(impl_->editor, nullptr);  // ~/.editrc, as every program with libedit does
}

LineEditor::~LineEditor() {
  ::el_end(impl_->editor);
  ::history_end(impl_->history);
}

LineEditor::Event LineEditor::read(const std::string& prompt, std::string& line) {
  impl_->prompt = prompt;
  // Before the prompt is shown: libedit would do so after, and a Ctrl-D typed in between be lost.
  ::el_set(impl_->editor, EL_PREP_TERM, 1);
  int length = 0;
  errno = 0;
  const char* const text = ::el_gets(impl_->editor, &length);
  if (text == nullptr || length <= 0) return is_interrupted() ? Event::kInterrupted : Event::kEnd;
  line.assign(text, static_cast<size_t>(length));
  if (line.ends_with('\n')) line.pop_back();
  return Event::kLine;
}

void LineEditor::remember(const std::string& entry) {
  HistEvent event{};
  ::history(impl_->history, &event, H_ENTER, entry.c_str());
}

}  // namespace bm::cli
