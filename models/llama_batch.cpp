#include "models/llama_batch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

#include "runtime/buffer.h"
#include "models/model_error.h"
#include "runtime/device.h"
#include "tensor/jit.h"

namespace bm::models {
namespace {

constexpr uint32_t kPage = LlamaBatch::kPageLength;

/// A run of a step with the variables that say where it lies.
struct Lane {
  Lane(uint32_t context, int64_t rows, int64_t slots, int64_t most, uint32_t page_count,
       uint32_t states, const Llama& model)
      : row("row", 0, rows - most),
        count("count", 1, most),
        position("position", 0, int64_t{context} - most),
        slot("slot", 0, slots - most),
        state("state", 0, states),
        table(page_count) {
    for (size_t i = 0; i < model.device_count(); ++i)
      pages.push_back(Tensor::from(table, {int64_t{page_count}}, model.device(i)));
  }

  Var row, count, position, slot, state;
  std::vector<Tensor> pages;   ///< on each device
  std::vector<int32_t> table;  ///< what they hold

  BatchRun run(bool is_single) const {
    return {row, is_single ? SymInt(1) : SymInt(count), position, slot, state, pages};
  }
};

/// Of all blocks together.
uint64_t bytes_of_page(const Llama& model, DType type) {
  uint64_t of_position = 0;
  for (size_t i = 0; i < model.device_count(); ++i) of_position += model.cache_bytes(i, type);
  return of_position * kPage;
}

/// Vectors of a position in a block with such heads, and their length.
std::pair<int64_t, int64_t> slot_shape(const LlamaConfig& c, const HeadKind& kind) {
  if (c.latent.rank > 0) return {1, int64_t{c.latent.rank} + c.rope_length};
  return {2 * int64_t{kind.count_kv}, kind.length};
}

/// Whether a cache of `pages` fits, before any of it is allocated.
Status check_memory(const Llama& model, const LlamaBatch::Options& o, uint64_t pages) {
  for (size_t i = 0; i < model.device_count(); ++i) {
    const uint64_t page = model.cache_bytes(i, o.cache_type) * kPage,
                   states = model.state_bytes(i) * (o.sequences + 1),
                   rope = model.rope_bytes() * model.context(),
                   needed = page * (pages + 1) + states + rope;
    const std::string& name = model.device(i);
    runtime::Device& device =
        *BM_TRY(name.empty() ? runtime::default_device() : runtime::open_device(name));
    const uint64_t free = free_memory(device), fixed = states + rope + page;
    if (needed <= free) continue;
    const uint64_t fit = free <= fixed || page == 0 ? 0 : (free - fixed) / page;
    return fail(
        Code::kOutOfMemory,
        "the cache of {} sequences of {} positions needs {} on {} ({} for keys and values, "
        "{} for states, {} for rotary tables), which has {} free: {} positions fit, one "
        "sequence may need {}; fewer positions (--ctx), sequences (--sequences), or a bound "
        "(--cache-memory) take less",
        o.sequences, model.context(), mib(needed), device.name(), mib(page * (pages + 1)),
        mib(states), mib(rope), mib(free), fit * kPage, model.context());
  }
  return {};
}

template <class T>
void write(const Tensor& into, std::span<const T> values) {
  runtime::Buffer to = into.buffer();
  to.size = values.size_bytes();
  unwrap(runtime::copy_in(to, std::as_bytes(values)));
}

}  // namespace

struct LlamaBatch::Impl {
  std::shared_ptr<const Llama> model;
  Options options;
  uint32_t num_pages;  ///< the first, which belongs to nobody, among them
  int64_t capacity;    ///< rows of a step
  PagedKvCache cache;
  Var rows, output_count;
  std::vector<std::unique_ptr<Lane>> lanes;  ///< of one token each
  std::unique_ptr<Lane> piece;               ///< of a prompt
  Tensor tokens, outputs;
  std::vector<BatchWorkspace> workspaces;
  std::vector<int32_t> host_tokens, host_positions, host_outputs;
  std::vector<float> logits, hidden;
  /// Rows of the program without a piece, by the logarithm of its lanes: 0 where only kernels for
  /// any number of rows give the bits that sequences get in company.
  std::array<std::optional<int64_t>, 7> fixed_rows;
  std::array<uint32_t, 7> steps_without{};  ///< while that was not known
  /// Rows that are tried now, 0 before, and how many tokens agreed.
  struct Trial {
    int64_t fixed = 0;
    size_t compared = 0;
  };
  std::array<Trial, 7> trials{};
  size_t prepared = 0;  ///< programs that prepare() has seen to
  bool is_prepared = false;

  using Step = std::function<Tensor(const Tensor&, int64_t, int64_t, int64_t)>;
  Jit<Step> step;

  Impl(std::shared_ptr<const Llama> m, const Options& o, uint32_t pages)
      : model(std::move(m)),
        options(o),
        num_pages(pages),
        capacity(int64_t{std::bit_ceil(o.sequences)} + o.piece),
        rows("rows", 1, capacity),
        output_count("outputs", 1, int64_t{o.sequences} + 1),
        host_tokens(static_cast<size_t>(capacity)),
        host_positions(static_cast<size_t>(capacity)),
        host_outputs(std::max<size_t>(4, std::bit_ceil(o.sequences)) + 1),
        step([this](const Tensor& t, int64_t count, int64_t has_piece,
                    int64_t fixed) { return forward(t, count, has_piece != 0, fixed); },
             JitOptions{.capacity = 64}) {
    const LlamaConfig& c = model->config();
    const RecurrentConfig& r = c.recurrent;
    const int64_t slots = int64_t{num_pages} * kPage;
    cache.page_length = kPage;
    cache.rope = model->make_rope_tables(model->context());
    for (auto* list : {&cache.inputs, &cache.states}) list->resize(c.block_count);
    for (uint32_t i = 0; i < c.block_count; ++i) {
      const std::string& device = model->device(model->device_of(i));
      const auto [vectors, width] = slot_shape(c, c.heads_of(i));
      cache.slots.push_back(c.has_own_kv(i) ? KvRows(slots, vectors, width, o.cache_type, device)
                                            : KvRows());
      cache.index_slots.push_back(model->has_indexer(i)
                                      ? KvRows(slots, 1, c.indexer.length, o.cache_type, device)
                                      : KvRows());
      if (!c.blocks[i].is_recurrent) continue;
      // The last is nobody's: lanes without a sequence have it.
      const int64_t count = int64_t{o.sequences} + 1;
      cache.inputs[i] = zeros({count, r.channels, r.kernel - 1}, device);
      if (r.heads > 0) cache.states[i] = zeros({count, r.heads, r.length, r.keys}, device);
    }
    const uint32_t table = (model->context() + kPage - 1) / kPage;
    // Padded to whole pieces, so that every piece lies within bounds that are known now.
    for (uint32_t i = 0; i < std::bit_ceil(o.sequences); ++i) {
      lanes.push_back(
          std::make_unique<Lane>(model->context(), capacity, slots, 1, table, o.sequences, *model));
      lanes.back()->row.set(i);
    }
    piece =
        std::make_unique<Lane>(table * kPage, capacity, slots, o.piece, table, o.sequences, *model);
    const auto integers = [&](size_t n, const std::string& device) {
      return Tensor::from(std::vector<int32_t>(n), {static_cast<int64_t>(n)}, device);
    };
    tokens = integers(host_tokens.size(), model->device());
    outputs = integers(host_outputs.size(), model->device(model->device_count() - 1));
    for (size_t i = 0; i < model->device_count(); ++i) {
      const auto floats = [&](const Shape& shape) { return zeros(shape, model->device(i)); };
      const bool is_latent = c.latent.rank > 0;
      BatchWorkspace space{.positions = integers(host_positions.size(), model->device(i)),
                           .heads = {},
                           .inputs = {},
                           .mixed = {},
                           .index_queries = {},
                           .index_keys = {},
                           .index_weights = {}};
      if (c.indexer.heads > 0) {
        space.index_queries = floats({capacity, c.indexer.heads, c.indexer.length});
        space.index_keys = floats({capacity, 1, c.indexer.length});
        space.index_weights = floats({capacity, c.indexer.heads});
      }
      for (const HeadKind& kind : c.head_kinds) {
        const int64_t width = slot_shape(c, kind).second, kv = kind.count_kv;
        space.heads.push_back(
            {.queries = floats({capacity, kind.count, width}),
             .pairs = floats(is_latent ? Shape{capacity, 1, width} : Shape{capacity, 2, kv, width}),
             .joined = floats(
                 {capacity, kind.count * (is_latent ? int64_t{c.latent.value_length} : width)})});
      }
      if (has_states()) {
        space.inputs = floats({capacity, static_cast<int64_t>(r.row_length())});
        space.mixed =
            floats({capacity, r.heads > 0 ? static_cast<int64_t>(r.inner()) : r.channels});
      }
      workspaces.push_back(std::move(space));
    }
  }

  static Tensor zeros(const Shape& shape, const std::string& device) {
    return Tensor::zeros(shape, DType::kF32, device).contiguous().realize();
  }

  bool has_states() const { return model->config().recurrent.kernel > 0; }

  Status check(std::span<const BatchItem> items) const;

  /// `fixed`: the number of rows, and of logits; 0: as the variables say; kHidden: hidden states.
  static constexpr int64_t kHidden = -1;
  Tensor forward(const Tensor& t, int64_t count, bool has_piece, int64_t fixed) {
    BatchStep s{t, outputs, rows, output_count, {}, workspaces};
    if (fixed > 0) s.rows = s.output_count = SymInt(fixed);
    for (int64_t i = 0; i < count; ++i) s.runs.push_back(lanes[static_cast<size_t>(i)]->run(true));
    if (has_piece) s.runs.push_back(piece->run(false));
    return fixed == kHidden ? model->hidden_batch(s, cache) : model->forward_batch(s, cache);
  }

  static void write_table(const Lane& lane) {
    for (const Tensor& pages : lane.pages) write<int32_t>(pages, lane.table);
  }
  void write_positions(size_t count) {
    for (const BatchWorkspace& w : workspaces)
      write<int32_t>(w.positions, std::span(host_positions).first(count));
  }

  void place(Lane& lane, const BatchItem& item) {
    lane.position.set(item.position);
    lane.slot.set(int64_t{item.pages[item.position / kPage]} * kPage + item.position % kPage);
    lane.state.set(item.state);
    const size_t used = (item.position + item.tokens.size() + kPage - 1) / kPage;
    bool is_changed = false;
    for (size_t i = 0; i < used; ++i) {
      const auto page = static_cast<int32_t>(item.pages[i]);
      is_changed |= lane.table[i] != page;
      lane.table[i] = page;
    }
    if (is_changed) write_table(lane);
  }

  /// A lane of the program that has no sequence in this step.
  void park(size_t i) {
    lanes[i]->position.set(0);
    lanes[i]->slot.set(static_cast<int64_t>(i));
    lanes[i]->state.set(options.sequences);
    host_tokens[i] = host_positions[i] = 0;
    if (std::exchange(lanes[i]->table[0], 0) != 0) write_table(*lanes[i]);
  }

  /// Runs the program over the rows that are on the host, and reads the logits asked for.
  void execute(size_t count, bool has_piece, size_t total, size_t wanted, int64_t fixed) {
    const auto padded = std::max(total, static_cast<size_t>(fixed));
    std::fill(host_tokens.begin() + static_cast<ptrdiff_t>(total),
              host_tokens.begin() + static_cast<ptrdiff_t>(padded), 0);
    std::fill(host_positions.begin() + static_cast<ptrdiff_t>(total),
              host_positions.begin() + static_cast<ptrdiff_t>(padded), 0);
    for (auto i = static_cast<int64_t>(wanted); i < fixed; ++i)
      host_outputs[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    rows.set(static_cast<int64_t>(total));
    output_count.set(static_cast<int64_t>(wanted));
    write<int32_t>(tokens, std::span(host_tokens).first(padded));
    write_positions(padded);
    write<int32_t>(outputs,
                   std::span(host_outputs).first(std::max(wanted, static_cast<size_t>(fixed))));
    const Tensor out =
        step.capture(tokens, static_cast<int64_t>(count), static_cast<int64_t>(has_piece), fixed);
    logits.resize(wanted * model->config().vocab_size);
    runtime::Buffer from = out.buffer();
    from.size = logits.size() * sizeof(float);
    unwrap(runtime::copy_out(std::as_writable_bytes(std::span(logits)), from));
  }

  /// Kernels for one number of rows are faster, and most give the same bits as those for any
  /// number. Which do depends on shapes, formats and the device: it is tried once for every number
  /// of lanes, when nobody waits (prepare), or when so many steps have had no such moment.
  int64_t rows_of(size_t count) {
    constexpr uint32_t kPatience = 32;
    const auto at = static_cast<size_t>(std::countr_zero(count));
    if (!fixed_rows[at] && ++steps_without[at] > kPatience)
      while (!fixed_rows[at]) try_rows(count);
    return fixed_rows[at].value_or(0);
  }

  void park_all(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      park(i);
      host_tokens[i] = static_cast<int32_t>((7 * i + 3) % model->config().vocab_size);
      host_outputs[i] = static_cast<int32_t>(i);
    }
  }

  /// Logits of a token at position `at`, on the page and the place that belong to nobody. At
  /// position 0 attention has one key to weigh and states are zeroes, of which any order of a sum
  /// makes the same; the last one sees many keys, those of the page again and again.
  std::vector<float> trial(size_t count, int64_t fixed, int64_t at) {
    const size_t asked = std::min<size_t>(count, options.sequences);
    park_all(count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t lane = static_cast<int64_t>(i);
      lanes[i]->position.set(at);
      lanes[i]->slot.set((lane + at) % kPage);
      host_positions[i] = static_cast<int32_t>(at);
      host_tokens[i] =
          static_cast<int32_t>((7 * lane + 11 * at + 3) % int64_t{model->config().vocab_size});
    }
    execute(count, false, count, asked, fixed);
    return logits;
  }

  /// Compares some tokens more of the program of `count` lanes for one number of rows with the one
  /// for any number, bit by bit. A step of each at a time, so that nobody waits for long: both see
  /// the same page then, whatever others have left on it. States go from token to token: all of
  /// theirs at once, for one program and then for the other.
  void try_rows(size_t count) {
    const auto lane = static_cast<size_t>(std::countr_zero(count));
    Trial& now = trials[lane];
    if (now.fixed == 0) now.fixed = static_cast<int64_t>(count);
    // Of plain elements on CPUs a trial tells too little: bits differ for one token in ten.
    const bool is_plain =
        model->has_plain_matrices() && tokens.device().hal().arch().vendor == hal::Vendor::kCpu;
    if (is_plain || now.fixed > static_cast<int64_t>(std::min(4 * count, host_outputs.size()))) {
      fixed_rows[lane] = 0;
      return;
    }
    const int64_t last = std::min<int64_t>(int64_t{model->context()} - 1, 4 * kPage + 37);
    const std::array<int64_t, 5> positions{0, 1, 2, 3, last};
    const size_t end = has_states() ? positions.size() : now.compared + 1;
    std::vector<float> expected, got;
    for (auto [fixed, to] : {std::pair{int64_t{0}, &expected}, {now.fixed, &got}})
      for (size_t i = now.compared; i < end; ++i) {
        const std::vector<float> more = trial(count, fixed, std::min(positions[i], last));
        to->insert(to->end(), more.begin(), more.end());
      }
    now.compared = end;
    if (std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0)
      now = {2 * now.fixed, 0};
    else if (now.compared == positions.size())
      fixed_rows[lane] = now.fixed;
  }

  /// The next program that sequences will ask for: alone and with a piece of a prompt, for ever
  /// more lanes.
  void prepare() {
    const size_t lane = prepared / 2, count = size_t{1} << lane;
    if (prepared % 2 == 0 && !fixed_rows[lane]) {
      try_rows(count);
      if (!fixed_rows[lane]) return;
    }
    if (prepared++ % 2 == 1 && model->takes_pieces()) {
      park_all(count);
      const int32_t token = 0;
      const uint32_t page = 0;
      const size_t total =
          place_piece({{&token, 1}, 0, {&page, 1}, true, options.sequences}, count);
      host_outputs[count] = static_cast<int32_t>(total - 1);
      execute(count, true, total, std::min<size_t>(count, options.sequences) + 1, 0);
    }
    if (lane + 1 == static_cast<size_t>(std::bit_width(lanes.size())) && prepared % 2 == 0)
      is_prepared = true;
  }

  /// A piece of a prompt into rows `total` on of the host's arrays; the row behind it.
  size_t place_piece(const BatchItem& item, size_t total) {
    place(*piece, item);
    piece->row.set(static_cast<int64_t>(total));
    piece->count.set(static_cast<int64_t>(item.tokens.size()));
    for (size_t i = 0; i < item.tokens.size(); ++i, ++total) {
      host_tokens[total] = item.tokens[i];
      host_positions[total] = static_cast<int32_t>(item.position + i);
    }
    return total;
  }

  /// A token of a sequence that decodes, into the row of its lane.
  void place_single(size_t i, const BatchItem& item) {
    place(*lanes[i], item);
    host_tokens[i] = item.tokens[0];
    host_positions[i] = static_cast<int32_t>(item.position);
  }

  void embed(const BatchItem& item) {
    size_t total = 1;
    if (model->takes_pieces())
      total = place_piece(item, 0);
    else
      place_single(0, item);
    rows.set(static_cast<int64_t>(total));
    write<int32_t>(tokens, std::span(host_tokens).first(total));
    write_positions(total);
    const Tensor out = model->takes_pieces() ? step.capture(tokens, 0, 1, kHidden)
                                             : step.capture(tokens, 1, 0, kHidden);
    hidden.resize(total * model->config().embedding_length);
    runtime::Buffer from = out.buffer();
    from.size = hidden.size() * sizeof(float);
    unwrap(runtime::copy_out(std::as_writable_bytes(std::span(hidden)), from));
  }

  void run(std::span<const BatchItem> items, bool has_piece) {
    const size_t single = items.size() - (has_piece ? 1 : 0);
    const size_t count = single == 0 ? 0 : std::bit_ceil(single);
    const int64_t fixed = has_piece ? 0 : rows_of(count);
    for (size_t i = 0; i < count; ++i) {
      if (i < single)
        place_single(i, items[i]);
      else
        park(i);
    }
    size_t total = count;
    if (has_piece) total = place_piece(items.back(), count);
    for (size_t i = 0; i < items.size(); ++i)
      host_outputs[i] = static_cast<int32_t>(i < single ? i : total - 1);
    execute(count, has_piece, total, items.size(), fixed);
  }
};

LlamaBatch::LlamaBatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaBatch::~LlamaBatch() = default;

Result<std::unique_ptr<LlamaBatch>> LlamaBatch::create(std::shared_ptr<const Llama> model,
                                                       const Options& options) {
  if (options.sequences == 0 || options.sequences > kMostSequences)
    return fail(Code::kInvalidArgument, "{} sequences: 1 to {} go together", options.sequences,
                kMostSequences);
  if (options.piece == 0 || kPage % options.piece != 0)
    return fail(Code::kInvalidArgument, "pieces of {} tokens do not divide a page of {}",
                options.piece, kPage);
  const LlamaConfig& c = model->config();
  if (!c.is_causal)
    return fail(Code::kUnsupported, "{}: this model makes embeddings and writes no text",
                c.architecture);
  if (c.encoder_block_count > 0)
    return fail(Code::kUnsupported,
                "{}: this model encodes a text and writes another, which is not done in batches "
                "(`bellmetal generate` runs it)",
                c.architecture);
  const uint64_t context_pages = (uint64_t{model->context()} + kPage - 1) / kPage;
  const uint64_t page_bytes = bytes_of_page(*model, options.cache_type);
  uint64_t pages = context_pages * options.sequences;
  if (options.cache_bytes != 0 && page_bytes != 0)
    pages = std::min(pages, options.cache_bytes / page_bytes);
  if (pages < context_pages)
    return fail(Code::kInvalidArgument,
                "{} bytes for keys and values hold {} positions; one context of {} needs {} bytes",
                options.cache_bytes, pages * kPage, model->context(), context_pages * page_bytes);
  BM_TRY(check_memory(*model, options, pages));
  try {
    auto impl = std::make_unique<Impl>(model, options, static_cast<uint32_t>(pages + 1));
    return std::unique_ptr<LlamaBatch>(new LlamaBatch(std::move(impl)));
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception("making a cache"));
  }
}

const Llama& LlamaBatch::model() const { return *impl_->model; }
uint32_t LlamaBatch::page_count() const { return impl_->num_pages - 1; }
uint64_t LlamaBatch::page_bytes() const {
  return bytes_of_page(*impl_->model, impl_->options.cache_type);
}
bool LlamaBatch::has_states() const { return impl_->has_states(); }
bool LlamaBatch::takes_pieces() const { return impl_->model->takes_pieces(); }

std::span<const float> LlamaBatch::logits(size_t item) const {
  const size_t vocabulary = impl_->model->config().vocab_size;
  return std::span(impl_->logits).subspan(item * vocabulary, vocabulary);
}

Status LlamaBatch::Impl::check(std::span<const BatchItem> items) const {
  if (items.empty()) return fail(Code::kInvalidArgument, "a step without tokens");
  const bool has_piece = items.back().is_prompt;
  const size_t single = items.size() - (has_piece ? 1 : 0);
  if (single > options.sequences)
    return fail(Code::kInvalidArgument, "{} sequences in a step of at most {}", single,
                options.sequences);
  for (size_t i = 0; i < items.size(); ++i) {
    const BatchItem& item = items[i];
    const size_t n = item.tokens.size();
    const bool is_aligned = item.position % options.piece == 0;
    if (has_states() && item.state >= options.sequences)
      return fail(Code::kInvalidArgument, "items of a model with states have a place below {}",
                  options.sequences);
    if (item.is_prompt && !model->takes_pieces())
      return fail(Code::kInvalidArgument, "tokens of this model come one at a time");
    if (n == 0 || n > options.piece || (i >= single && !is_aligned) || (i < single && n != 1) ||
        item.position % kPage + n > kPage || item.position + n > model->context())
      return fail(Code::kInvalidArgument, "{} tokens at position {} do not fit into a step", n,
                  item.position);
    const size_t used = (item.position + n + kPage - 1) / kPage;
    if (item.pages.size() < used)
      return fail(Code::kInvalidArgument, "{} pages for {} positions", item.pages.size(),
                  item.position + n);
    for (const uint32_t page : item.pages.first(used))
      if (page == 0 || page >= num_pages)
        return fail(Code::kInvalidArgument, "there is no page {}", page);
    for (const int32_t t : item.tokens)
      if (t < 0 || static_cast<uint32_t>(t) >= model->config().vocab_size)
        return fail(Code::kInvalidArgument, "token {} is outside the vocabulary of {}", t,
                    model->config().vocab_size);
  }
  return {};
}

namespace {

template <class F>
Status guarded(const char* what, F&& body) {
  try {
    body();
  } catch (const Exception& e) {
    return tl::unexpected<Error>(e.error());
  } catch (const std::exception&) {
    return tl::unexpected<Error>(error_of_exception(what));
  }
  return {};
}

}  // namespace

Status LlamaBatch::run(std::span<const BatchItem> items) {
  BM_TRY(impl_->check(items));
  return guarded("computing tokens", [&] { impl_->run(items, items.back().is_prompt); });
}

bool LlamaBatch::is_prepared() const { return impl_->is_prepared; }

Status LlamaBatch::prepare() {
  // Whoever waits for something this slow is in the way of everybody else.
  constexpr std::chrono::seconds kSlow{5};
  const auto start = std::chrono::steady_clock::now();
  const Status done = guarded("computing tokens", [&] { impl_->prepare(); });
  if (!done || std::chrono::steady_clock::now() - start > kSlow) impl_->is_prepared = true;
  return done;
}

Status LlamaBatch::embed(const BatchItem& piece) {
  if (!piece.is_prompt && takes_pieces())
    return fail(Code::kInvalidArgument, "only prompts are embedded");
  BM_TRY(impl_->check({&piece, 1}));
  return guarded("computing an embedding", [&] { impl_->embed(piece); });
}

std::span<const float> LlamaBatch::hidden() const { return impl_->hidden; }

}  // namespace bm::models
