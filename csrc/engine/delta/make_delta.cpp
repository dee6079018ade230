#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/delta/blocks.h"
#include "engine/delta/changes_table.h"
#include "engine/delta/delta.h"
#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// One of the two models, all of whose data is read and checked.
struct Model {
  explicit Model(OpenFile& opened)
      : open(opened),
        file{opened.source(), opened.catalogue(), opened.keys(), nullptr,
             compares_chunks(opened.catalogue(), Verify::All, nullptr)},
        digests(opened.catalogue(), DigestVersion::Chunks,
                DataDigests::are_listed(opened.catalogue(), DigestVersion::Chunks),
                opened.source().label()) {
    check_wants(opened.source(), Wants::AnyOrder);
    check_key(opened.source(), opened.catalogue(), opened.keys());
    const std::optional<ModelDigest>& pinned = opened.options().digest;
    if (pinned && pinned->version == DigestVersion::Tensors &&
        !DataDigests::are_listed(opened.catalogue(), pinned->version)) {
      throw Error(ErrorKind::InvalidArgument,
                  opened.source().label() +
                      ": option 'digest' is one of version 1, which the file does not list: give "
                      "one of version 2");
    }
  }

  // Returns its digest, once all of its data has been read.
  ModelDigest digest(Cancel& cancel) const {
    const std::optional<ModelDigest>& pinned = open.options().digest;
    if (pinned && pinned->version == DigestVersion::Chunks && !digests.listed()) {
      open.check_digest(digests, cancel);
    }
    open.source().confirm(cancel);
    return digests.model_digest(cancel);
  }

  OpenFile& open;
  const TensorFile file;
  DataDigests digests;
};

// A tensor of the newer model, and the one of the base that it has changed from.
struct Pair {
  std::uint32_t base = 0;
  std::uint32_t fresh = 0;
  std::vector<BlockChange> table{};
  std::uint64_t codes_size = 0;
  bool kept = true;  // whether `codes` has them all
  std::vector<std::byte> codes{};
  bool whole = false;  // whether the tensor itself is shorter

  std::uint64_t size() const { return table.size() * kBlockChangeSize + codes_size; }
};

// Reads one tensor of one model, or of both, window by window.
class PairReader {
 public:
  PairReader(Model& base, Model& fresh, std::size_t blocks)
      : base_(base, blocks), fresh_(fresh, blocks) {}

  // Reads the next blocks of both, and calls `each` with the number of a block, and both.
  template <typename Each>
  void next(const Pair& pair, const Each& each, Cancel& cancel) {
    base_.read(pair.base, cancel);
    fresh_.read(pair.fresh, cancel);
    digest({base_.to_digest(), fresh_.to_digest()});
    base_.keep(pair.base);
    fresh_.keep(pair.fresh);
    const std::size_t first = base_.window.position / kChangesBlock;
    for (std::size_t i = 0; i < base_.window.count(); ++i) {
      cancel.check();
      each(first + i, base_.window.block(i), fresh_.window.block(i));
    }
  }
  bool at_end(const Pair& pair) const { return base_.at_end(pair.base); }
  void restart() {
    base_.window.restart();
    fresh_.window.restart();
  }

  // Reads all of a tensor that only one of the models has.
  void read_alone(bool of_base, std::uint32_t entry, Cancel& cancel) {
    Side& side = of_base ? base_ : fresh_;
    for (side.window.restart(); !side.at_end(entry);) {
      side.read(entry, cancel);
      digest({side.to_digest()});
      side.keep(entry);
    }
  }

 private:
  struct Side {
    Side(Model& of, std::size_t at_once) : model(of), source(of.file), blocks(at_once) {}

    std::uint64_t size(std::uint32_t entry) const {
      return model.open.catalogue().entries()[entry].data_size;
    }
    bool at_end(std::uint32_t entry) const { return window.end() == size(entry); }
    void read(std::uint32_t entry, Cancel& cancel) {
      window.advance(size(entry), blocks);
      source.read(entry, window.position, window.bytes, cancel);
    }
    // Blocks whose digests the file lists have been compared with them.
    ChunkedBytes to_digest() {
      return model.digests.listed() ? ChunkedBytes{} : window.to_digest();
    }
    void keep(std::uint32_t entry) {
      model.digests.keep(entry, window.position / kChangesBlock, window.digests);
    }

    Model& model;
    TensorSource source;
    const std::size_t blocks;
    Window window;
  };

  static void digest(std::initializer_list<ChunkedBytes> chunks) {
    digest_chunks({chunks.begin(), chunks.size()}, Hash::Sha256, kChangesBlock);
  }

  Side base_;
  Side fresh_;
};

// The tensors of a delta, which is written as the newer file with other data.
class DeltaOrigin final : public Origin {
 public:
  DeltaOrigin(Model& base, Model& fresh, std::size_t blocks, std::uint64_t memory, Cancel& cancel)
      : Origin(fresh.open, fresh.open.source(), cancel),
        base_(base),
        fresh_(fresh),
        blocks_(blocks),
        memory_(memory) {}

  // Reads all data of both models, and encodes the changes.
  void encode(int threads, Progress& progress);

  bool reads(const FileIdentity& file) const override {
    return Origin::reads(file) || base_.open.source().reads(file);
  }
  void change(std::uint32_t name, Format format, TensorSpec& spec) override;
  std::unique_ptr<TensorReader> open_reader() override;
  void confirm() override { fresh_.open.source().confirm(cancel()); }

  const Pair* pair_of(std::uint32_t number) const {
    const auto found = by_entry_.find(entry_number(number));
    return found == by_entry_.end() || pairs_[found->second].whole ? nullptr
                                                                   : &pairs_[found->second];
  }
  PairReader pair_reader() { return {base_, fresh_, blocks_}; }
  using Origin::cancel;

 private:
  void find_pairs();
  void encode(Pair& pair, PairReader& reader, Progress& progress);

  Model& base_;
  Model& fresh_;
  const std::size_t blocks_;
  const std::uint64_t memory_;  // for codes that are kept
  std::vector<Pair> pairs_;
  std::unordered_map<std::uint32_t, std::size_t> by_entry_;  // of the newer file
  std::atomic<std::uint64_t> kept_ = 0;
};

// Gives the bytes of the delta's tensors to one worker. Codes that were not kept are made again.
class DeltaReader final : public TensorReader {
 public:
  explicit DeltaReader(DeltaOrigin& origin)
      : origin_(origin), whole_(origin.file()), pairs_(origin.pair_reader()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    const Pair* const pair = origin_.pair_of(tensor);
    if (pair == nullptr) {
      origin_.read(whole_, tensor, position, out);
      return;
    }
    if (position == 0) {
      pairs_.restart();
      ready_ = to_bytes(pair->table);
      given_ = 0;
      if (pair->kept) ready_.insert(ready_.end(), pair->codes.begin(), pair->codes.end());
    }
    while (!out.empty()) {
      if (given_ == ready_.size()) make_more(*pair);
      const std::size_t size = std::min(out.size(), ready_.size() - given_);
      std::copy_n(ready_.begin() + static_cast<std::ptrdiff_t>(given_), size, out.begin());
      given_ += size;
      out = out.subspan(size);
    }
  }

 private:
  void make_more(const Pair& pair) {
    ready_.clear();
    given_ = 0;
    const auto refuse = [&] {
      throw Error(ErrorKind::Unavailable,
                  origin_.file().source.label() + ": the files have changed while they were read");
    };
    if (pairs_.at_end(pair)) refuse();
    const Entry& entry = origin_.file().catalogue.entries()[pair.fresh];
    const ElementKind kind = element_kind(*entry.dtype);
    pairs_.next(
        pair,
        [&](std::size_t block, ConstBytes base, ConstBytes fresh) {
          const std::size_t before = ready_.size();
          encode_changes(kind, base, fresh, ready_);
          if (ready_.size() - before != pair.table[block].code_size) refuse();
        },
        origin_.cancel());
  }

  DeltaOrigin& origin_;
  TensorSource whole_;
  PairReader pairs_;
  std::vector<std::byte> ready_;
  std::size_t given_ = 0;  // how many of them have been read
};

void DeltaOrigin::find_pairs() {
  const auto names_of = [](OpenFile& file) {
    std::unordered_map<std::string_view, std::uint32_t> entries;
    for (std::uint32_t i = 0; i < file.names().size(); ++i) {
      entries.emplace(file.names()[i], file.entry_number(i));
    }
    return entries;
  };
  const auto base_entries = names_of(base_.open);
  // By entry of the newer file: that of the base which has all of its names; null without one. What
  // becomes of a tied tensor is applied to each of its names.
  std::vector<std::optional<std::uint32_t>> bases(fresh_.open.catalogue().entries().size());
  std::vector<bool> seen(bases.size());
  const std::span<const std::string_view> names = fresh_.open.names();
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    const std::uint32_t number = fresh_.open.entry_number(i);
    const auto found = base_entries.find(names[i]);
    const std::optional<std::uint32_t> base =
        found == base_entries.end() ? std::nullopt : std::optional(found->second);
    if (!seen[number]) {
      bases[number] = base;
    } else if (bases[number] != base) {
      bases[number].reset();
    }
    seen[number] = true;
  }
  std::vector<bool> taken(base_.open.catalogue().entries().size());  // one thread reads each
  for (std::uint32_t number = 0; number < bases.size(); ++number) {
    if (!bases[number] || taken[*bases[number]]) continue;
    const Entry& base = base_.open.catalogue().entries()[*bases[number]];
    const Entry& fresh = fresh_.open.catalogue().entries()[number];
    if (fresh.data_size == 0 || base.data_size != fresh.data_size || base.dtype != fresh.dtype ||
        !std::ranges::equal(base.shape, fresh.shape)) {
      continue;
    }
    taken[*bases[number]] = true;
    by_entry_.emplace(number, pairs_.size());
    pairs_.push_back({.base = *bases[number], .fresh = number});
  }
}

void DeltaOrigin::encode(int threads, Progress& progress) {
  find_pairs();
  // The rest of both models, for their digests.
  struct Alone {
    bool of_base;
    std::uint32_t entry;
  };
  std::vector<Alone> alone;
  std::vector<bool> paired(base_.open.catalogue().entries().size());
  for (const Pair& pair : pairs_) paired[pair.base] = true;
  const auto add_alone = [&](Model& model, bool of_base, const auto& is_paired) {
    if (model.digests.listed()) return;
    const std::span<const Entry> entries = model.open.catalogue().entries();
    for (std::uint32_t i = 0; i < entries.size(); ++i) {
      if (entries[i].data_size > 0 && !is_paired(i)) alone.push_back({of_base, i});
    }
  };
  add_alone(base_, true, [&](std::uint32_t entry) { return paired[entry]; });
  add_alone(fresh_, false, [&](std::uint32_t entry) { return by_entry_.contains(entry); });

  for (const Pair& pair : pairs_) {
    progress.total += fresh_.open.catalogue().entries()[pair.fresh].data_size;
  }
  run_workers(threads, cancel(), [&, next = std::make_shared<std::atomic<std::size_t>>(0)] {
    PairReader reader = pair_reader();
    for (std::size_t i = (*next)++; i < pairs_.size() + alone.size(); i = (*next)++) {
      if (i < pairs_.size()) {
        encode(pairs_[i], reader, progress);
      } else {
        const Alone& each = alone[i - pairs_.size()];
        reader.read_alone(each.of_base, each.entry, cancel());
      }
    }
  });
}

void DeltaOrigin::encode(Pair& pair, PairReader& reader, Progress& progress) {
  const Entry& entry = fresh_.open.catalogue().entries()[pair.fresh];
  const ElementKind kind = element_kind(*entry.dtype);
  pair.table.resize(chunk_count(entry.data_size, kChangesBlock));
  std::vector<std::byte> codes;
  reader.restart();
  while (!reader.at_end(pair)) {
    const std::size_t before = codes.size();
    reader.next(
        pair,
        [&](std::size_t block, ConstBytes base, ConstBytes fresh) {
          const std::size_t begin = codes.size();
          encode_changes(kind, base, fresh, codes);
          pair.table[block].code_size = static_cast<std::uint32_t>(codes.size() - begin);
          progress.done += fresh.size();
        },
        cancel());
    const std::uint64_t more = codes.size() - before;
    pair.codes_size += more;
    if (pair.kept && kept_.fetch_add(more) + more > memory_) {
      kept_ -= codes.size();
      pair.kept = false;
    }
    if (!pair.kept) codes.clear();
  }
  const ConstBytes base = base_.digests.chunks_of(pair.base);
  const ConstBytes target = fresh_.digests.chunks_of(pair.fresh);
  for (std::size_t i = 0; i < pair.table.size(); ++i) {
    pair.table[i].base = digest_of(base.subspan(i * kSha256Size, kSha256Size));
    pair.table[i].target = digest_of(target.subspan(i * kSha256Size, kSha256Size));
  }
  pair.whole = pair.size() >= entry.data_size;
  if (pair.kept && pair.whole) kept_ -= codes.size();
  if (pair.kept && !pair.whole) pair.codes = std::move(codes);
}

void DeltaOrigin::change(std::uint32_t name, Format /*format*/, TensorSpec& spec) {
  const auto found = by_entry_.find(fresh_.open.entry_number(name));
  if (found == by_entry_.end() || pairs_[found->second].whole) {
    spec.name.insert(0, kWholePrefix);
    return;
  }
  spec.name.insert(0, kChangesPrefix);
  spec.dtype = DType::UInt8;
  spec.shape = {static_cast<std::int64_t>(pairs_[found->second].size())};
}

std::unique_ptr<TensorReader> DeltaOrigin::open_reader() {
  return std::make_unique<DeltaReader>(*this);
}

}  // namespace

std::optional<Metadata> without_delta(std::optional<Metadata> metadata) {
  if (metadata) std::erase_if(*metadata, [](const auto& pair) { return is_delta_key(pair.first); });
  return metadata;
}

void make_delta(OpenFile& base, OpenFile& fresh, RewriteRequest request, Progress& progress,
                Cancel& cancel) {
  for (OpenFile* const file : {&base, &fresh}) {
    if (!delta_ends(*file)) continue;
    throw Error(ErrorKind::InvalidArgument,
                file->source().label() + ": it is a delta, and no model: apply it first");
  }
  Model older(base);
  Model newer(fresh);
  // Half for the windows of both models, a quarter for codes, the rest for the save.
  const std::uint64_t memory = request.options.memory_ceiling;
  const std::size_t blocks = blocks_at_once(memory / 4, request.threads);
  DeltaOrigin origin(older, newer, blocks, memory / 4, cancel);
  origin.encode(request.threads, progress);
  Metadata metadata = without_delta(fresh.metadata()).value_or(Metadata());
  metadata.emplace_back(kDeltaKey, "1");
  metadata.emplace_back(kBaseKey, to_text(older.digest(cancel)));
  metadata.emplace_back(kTargetKey, to_text(newer.digest(cancel)));
  std::uint64_t size = 0;
  for (const Entry& entry : fresh.catalogue().entries()) size += entry.data_size;
  metadata.emplace_back(kTargetSizeKey, std::to_string(size));
  request.metadata = std::move(metadata);
  request.options.memory_ceiling = memory / 4;
  rewrite(fresh, origin, request, progress, cancel);
}

}  // namespace tensorizer
