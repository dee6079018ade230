#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/delta/changed_blocks.h"
#include "engine/delta/delta.h"
#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// What a tensor of the new model is made of.
struct Recipe {
  // The tensor of the base that changes; null if the delta has the new one in whole.
  std::optional<std::uint32_t> base{};
  DType dtype = DType::UInt8;
  std::span<const std::int64_t> shape{};
  std::uint64_t data_size = 0;
  bool keeps = false;             // the base's digests: one tensor of all that change from it
  std::vector<Digest> digests{};  // of its blocks, when it has been read
};

// The tensors of the new model, which is written as the delta with other data.
class ApplyOrigin final : public Origin {
 public:
  ApplyOrigin(OpenFile& delta, OpenFile& base, DeltaEnds ends, std::size_t blocks, int threads,
              Cancel& cancel);

  bool reads(const FileIdentity& file) const override {
    return Origin::reads(file) || base_.source().reads(file);
  }
  void change(std::uint32_t name, Format format, TensorSpec& spec) override;
  std::span<const Digest> checked_chunks(std::uint32_t entry) const override {
    return recipes_[entry].digests;
  }
  std::unique_ptr<TensorReader> open_reader() override;
  void confirm() override;

  Recipe& recipe(std::uint32_t number) { return recipes_[entry_number(number)]; }
  std::size_t blocks() const noexcept { return blocks_; }
  const TensorFile& base_file() const noexcept { return base_file_; }
  DataDigests& base_digests() noexcept { return base_digests_; }
  using Origin::cancel;
  using Origin::entry_number;

  // Throws for a base that is not the one that the delta was made from.
  [[noreturn]] void refuse_base(const std::string& where) const {
    throw Error(ErrorKind::InvalidArgument,
                base_.source().label() + where +
                    ": it is not what the delta was made from, the model with the digest " +
                    to_text(ends_.base) + "; " + file().source.label() +
                    " cannot be applied to it");
  }

 private:
  Recipe changed(std::uint32_t number, std::string_view name);
  // Reads the tensors of the base that no other is made of.
  void digest_the_rest();

  OpenFile& delta_;
  OpenFile& base_;
  const DeltaEnds ends_;
  const std::size_t blocks_;
  const int threads_;
  const TensorFile base_file_;
  DataDigests base_digests_;
  const DeltaNames names_;
  std::vector<Recipe> recipes_;   // by the delta's entries
  std::vector<bool> is_changed_;  // by the base's entries
};

// Makes the new model's tensors, for one worker.
class ApplyReader final : public TensorReader {
 public:
  explicit ApplyReader(ApplyOrigin& origin)
      : origin_(origin),
        whole_(origin.file()),
        changes_(origin.file()),
        base_(origin.base_file()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    Recipe& recipe = origin_.recipe(tensor);
    if (!recipe.base) {
      if (position == 0) digests_.emplace(Hash::Sha256, kChangesBlock, recipe.digests);
      origin_.read(whole_, tensor, position, out);
      digests_->update(out);
      if (position + out.size() == recipe.data_size) digests_->finish();
      return;
    }
    if (position == 0) begin(tensor, recipe);
    while (!out.empty()) {
      if (position == window_.end()) make_more(recipe);
      const std::uint64_t inside = position - window_.position;
      const std::uint64_t size = std::min<std::uint64_t>(out.size(), window_.end() - position);
      std::copy_n(window_.bytes.begin() + static_cast<std::ptrdiff_t>(inside), size, out.begin());
      position += size;
      out = out.subspan(size);
    }
  }

 private:
  void begin(std::uint32_t tensor, Recipe& recipe) {
    changes_.open(origin_.entry_number(tensor), recipe.dtype, recipe.data_size, origin_.cancel());
    std::ranges::transform(changes_.table(), recipe.digests.begin(), &BlockChange::target);
    base_.open(*recipe.base, origin_.cancel());
    window_.restart();
  }

  void make_more(const Recipe& recipe) {
    window_.advance(recipe.data_size, origin_.blocks());
    base_.read_part(window_.position, window_.bytes, origin_.cancel());
    window_.digest();
    const std::size_t first = window_.position / kChangesBlock;
    if (recipe.keeps) origin_.base_digests().keep(*recipe.base, first, window_.digests);
    for (std::size_t i = 0; i < window_.count(); ++i) {
      if (window_.digests[i] == changes_.table()[first + i].base) continue;
      const Entry& entry = origin_.base_file().catalogue.entries()[*recipe.base];
      origin_.refuse_base(", " + describe(entry.name, *recipe.base) + ", bytes from " +
                          std::to_string(window_.position + i * kChangesBlock) + " on");
    }
    changes_.apply(window_, origin_.cancel());
  }

  ApplyOrigin& origin_;
  TensorSource whole_;
  ChangedBlocks changes_;
  TensorSource base_;
  std::optional<RunningChunks> digests_;  // of a tensor that the delta has in whole
  Window window_;
};

ApplyOrigin::ApplyOrigin(OpenFile& delta, OpenFile& base, DeltaEnds ends, std::size_t blocks,
                         int threads, Cancel& cancel)
    : Origin(delta, delta.source(), cancel),
      delta_(delta),
      base_(base),
      ends_(ends),
      blocks_(blocks),
      threads_(threads),
      base_file_{base.source(), base.catalogue(), base.keys()},
      base_digests_(base.catalogue(), DigestVersion::Chunks, false, base.source().label()),
      names_(delta),
      is_changed_(base.catalogue().entries().size()) {
  const Catalogue& catalogue = delta.catalogue();
  for (std::uint32_t i = 0; i < catalogue.entries().size(); ++i) {
    const Entry& entry = catalogue.entries()[i];
    if (entry.name.starts_with(kChangesPrefix)) {
      recipes_.push_back(changed(i, names_.clean[catalogue.number_of(i)]));
    } else {
      recipes_.push_back({{}, delta.dtype(catalogue.number_of(i)), entry.shape, entry.data_size});
    }
    recipes_.back().digests.resize(chunk_count(recipes_.back().data_size, kChangesBlock));
  }
}

Recipe ApplyOrigin::changed(std::uint32_t number, std::string_view name) {
  const std::uint32_t base = [&] {
    try {
      return base_.entry_number(base_.find(name));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::NoSuchTensor) throw;
      refuse_base(": no tensor " + quote(name));
    }
  }();
  const Entry& entry = base_.catalogue().entries()[base];
  require_data(delta_, number, entry.data_size);
  const bool keeps = !is_changed_[base];
  is_changed_[base] = true;
  return {base, *entry.dtype, entry.shape, entry.data_size, keeps};
}

void ApplyOrigin::change(std::uint32_t name, Format format, TensorSpec& spec) {
  const Recipe& recipe = recipes_[delta_.entry_number(name)];
  spec.name = format == Format::Tensors ? names_.stored[name] : std::string(names_.clean[name]);
  spec.dtype = recipe.dtype;
  spec.shape.assign(recipe.shape.begin(), recipe.shape.end());
}

std::unique_ptr<TensorReader> ApplyOrigin::open_reader() {
  return std::make_unique<ApplyReader>(*this);
}

void ApplyOrigin::digest_the_rest() {
  std::vector<std::uint32_t> rest;
  const std::span<const Entry> entries = base_.catalogue().entries();
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    if (!is_changed_[i] && entries[i].data_size > 0) rest.push_back(i);
  }
  for_each_number(rest.size(), threads_, cancel(), [&](std::size_t i) {
    TensorSource source(base_file_);
    source.open(rest[i], cancel());
    Window window;
    while (window.end() < entries[rest[i]].data_size) {
      window.advance(entries[rest[i]].data_size, blocks_);
      source.read_part(window.position, window.bytes, cancel());
      window.digest();
      base_digests_.keep(rest[i], window.position / kChangesBlock, window.digests);
    }
  });
}

void ApplyOrigin::confirm() {
  digest_the_rest();
  if (base_digests_.model_digest(cancel()) != ends_.base) refuse_base("");
  std::vector<DigestedTensor> tensors;
  for (std::uint32_t i = 0; i < names_.clean.size(); ++i) {
    const Recipe& recipe = recipes_[delta_.entry_number(i)];
    tensors.push_back({names_.clean[i], recipe.dtype, recipe.shape, recipe.data_size,
                       std::as_bytes(std::span(recipe.digests))});
  }
  if (model_digest(std::move(tensors), cancel()) != ends_.target) {
    throw Error(ErrorKind::HashMismatch,
                delta_.source().label() +
                    ": what it makes of the base is not the model with the digest " +
                    to_text(ends_.target) + ": the delta is damaged, or was changed");
  }
  Origin::confirm();
  base_.source().confirm(cancel());
}

}  // namespace

void apply_delta(OpenFile& delta, OpenFile& base, RewriteRequest request, Progress& progress,
                 Cancel& cancel) {
  const DeltaEnds ends = need_delta(delta);
  check_wants(base.source(), Wants::AnyOrder);
  const std::uint64_t memory = request.options.memory_ceiling;
  const std::size_t blocks = blocks_at_once(memory / 2, request.threads);
  ApplyOrigin origin(delta, base, ends, blocks, request.threads, cancel);
  request.metadata = without_delta(delta.metadata());
  request.options.memory_ceiling = memory / 2;
  rewrite(delta, origin, request, progress, cancel);
}

}  // namespace tensorizer
