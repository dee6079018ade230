#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/delta/blocks.h"
#include "engine/delta/changes_table.h"
#include "engine/delta/delta.h"
#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// What a tensor of the new model is made of.
struct Recipe {
  std::optional<std::uint32_t>
      base{};  // the tensor that changes; null if the delta has it in whole
  DType dtype = DType::UInt8;
  std::span<const std::int64_t> shape{};
  std::uint64_t data_size = 0;
  std::vector<Digest> digests{};  // of its blocks, when it has been read
};

// The tensors of the new model, which is written as the delta with other data.
class ApplyOrigin final : public Origin {
 public:
  ApplyOrigin(OpenFile& delta, OpenFile& base, DeltaEnds ends, std::size_t blocks, int threads,
              Cancel& cancel);

  void change(std::uint32_t name, Format format, TensorSpec& spec) override;
  std::span<const Digest> checked_chunks(std::uint32_t entry) const override {
    return recipes_[entry].digests;
  }
  std::unique_ptr<TensorReader> open_reader() override;
  void confirm() override;

  Recipe& recipe(std::uint32_t number) { return recipes_[entry_number(number)]; }
  std::uint64_t stored_size(std::uint32_t number) const { return entry(number).data_size; }
  std::size_t blocks() const noexcept { return blocks_; }
  const TensorFile& base_file() const noexcept { return base_file_; }
  DataDigests& base_digests() noexcept { return base_digests_; }
  using Origin::cancel;

  [[noreturn]] void refuse_delta(std::uint32_t number, const std::string& why) const {
    const TensorLocation location{file().source, entry(number), entry_number(number)};
    fail(location, ErrorKind::InvalidFormat, why);
  }
  // Throws for a base that is not the one that the delta was made from.
  [[noreturn]] void refuse_base(const std::string& where) const {
    throw Error(ErrorKind::InvalidArgument,
                base_.source().label() + where +
                    ": it is not what the delta was made from, the model with the digest " +
                    to_text(ends_.base) + "; " + file().source.label() +
                    " cannot be applied to it");
  }

 private:
  // Removes the prefixes from the names.
  void set_names();
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
  std::vector<std::string> stored_names_;  // of the new model, by the delta's names
  std::vector<std::string_view> names_;    // the same without the dots of root modules
  std::vector<Recipe> recipes_;            // by the delta's entries
  std::vector<bool> is_changed_;           // by the base's entries
};

// Makes the new model's tensors, for one worker.
class ApplyReader final : public TensorReader {
 public:
  explicit ApplyReader(ApplyOrigin& origin)
      : origin_(origin), delta_(origin.file()), base_(origin.base_file()) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    Recipe& recipe = origin_.recipe(tensor);
    if (position == 0) begin(tensor, recipe);
    if (!recipe.base) {
      origin_.read(delta_, tensor, position, out);
      whole_->update(out);
      if (position + out.size() == recipe.data_size) whole_->finish();
      return;
    }
    while (!out.empty()) {
      if (position == window_.end()) make_more(tensor, recipe);
      const std::uint64_t inside = position - window_.position;
      const std::uint64_t size = std::min<std::uint64_t>(out.size(), window_.end() - position);
      std::copy_n(window_.bytes.begin() + static_cast<std::ptrdiff_t>(inside), size, out.begin());
      position += size;
      out = out.subspan(size);
    }
  }

 private:
  void begin(std::uint32_t tensor, Recipe& recipe) {
    window_.restart();
    whole_.reset();
    if (!recipe.base) {
      whole_.emplace(Hash::Sha256, kChangesBlock, recipe.digests);
      return;
    }
    std::vector<std::byte> bytes(recipe.digests.size() * kBlockChangeSize);
    origin_.read(delta_, tensor, 0, bytes);
    auto table = parse_table(bytes, recipe.data_size, origin_.stored_size(tensor) - bytes.size());
    if (!table) origin_.refuse_delta(tensor, "its table of blocks is malformed");
    table_ = *std::move(table);
    taken_ = bytes.size();
    base_.open(*recipe.base, origin_.cancel());
    for (std::size_t i = 0; i < table_.size(); ++i) recipe.digests[i] = table_[i].target;
  }

  void make_more(std::uint32_t tensor, const Recipe& recipe) {
    window_.advance(recipe.data_size, origin_.blocks());
    const std::size_t first = window_.position / kChangesBlock;
    base_.read_part(window_.position, window_.bytes, origin_.cancel());
    digest();
    origin_.base_digests().keep(*recipe.base, first, window_.digests);
    std::uint64_t size = 0;
    for (std::size_t i = 0; i < window_.count(); ++i) {
      if (window_.digests[i] != table_[first + i].base) {
        const Entry& entry = origin_.base_file().catalogue.entries()[*recipe.base];
        origin_.refuse_base(", " + describe(entry.name, *recipe.base) + ", bytes from " +
                            std::to_string(window_.position + i * kChangesBlock) + " on");
      }
      size += table_[first + i].code_size;
    }
    if (size == 0) return;
    codes_.resize(size);
    origin_.read(delta_, tensor, taken_, codes_);
    taken_ += size;
    ConstBytes codes = codes_;
    const ElementKind kind = element_kind(recipe.dtype);
    for (std::size_t i = 0; i < window_.count(); ++i) {
      origin_.cancel().check();
      const ConstBytes code = codes.first(table_[first + i].code_size);
      codes = codes.subspan(code.size());
      if (!apply_changes(kind, code, window_.block(i))) {
        origin_.refuse_delta(tensor, "block " + std::to_string(first + i) + " is malformed");
      }
    }
    digest();
    for (std::size_t i = 0; i < window_.count(); ++i) {
      if (window_.digests[i] == table_[first + i].target) continue;
      origin_.refuse_delta(tensor, "block " + std::to_string(first + i) +
                                       " does not become what it should: the delta is damaged");
    }
  }

  void digest() {
    const ChunkedBytes chunks = window_.to_digest();
    digest_chunks({&chunks, 1}, Hash::Sha256, kChangesBlock);
  }

  ApplyOrigin& origin_;
  TensorSource delta_;
  TensorSource base_;
  std::optional<RunningChunks> whole_;
  std::vector<BlockChange> table_;
  std::vector<std::byte> codes_;
  std::uint64_t taken_ = 0;  // how many bytes of the changes have been read
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
      is_changed_(base.catalogue().entries().size()) {
  set_names();
  const Catalogue& catalogue = delta.catalogue();
  for (std::uint32_t i = 0; i < catalogue.entries().size(); ++i) {
    const Entry& entry = catalogue.entries()[i];
    if (entry.name.starts_with(kChangesPrefix)) {
      recipes_.push_back(changed(i, names_[catalogue.number_of(i)]));
    } else {
      recipes_.push_back({{}, delta.dtype(catalogue.number_of(i)), entry.shape, entry.data_size});
    }
    recipes_.back().digests.resize(chunk_count(recipes_.back().data_size, kChangesBlock));
  }
}

void ApplyOrigin::set_names() {
  const std::vector<NamedEntry> given = all_names(delta_.catalogue());
  std::vector<NamedEntry> named;
  stored_names_.reserve(given.size());
  for (std::uint32_t i = 0; i < given.size(); ++i) {
    const std::string_view own = delta_.catalogue().entries()[given[i].entry].name;
    const std::string_view prefix = own.starts_with(kWholePrefix) ? kWholePrefix : kChangesPrefix;
    if (!given[i].name.starts_with(prefix)) {
      throw Error(ErrorKind::InvalidFormat,
                  delta_.describe_entry(i) + " has a name that no tensor of a delta has");
    }
    stored_names_.emplace_back(given[i].name.substr(prefix.size()));
    named.push_back({stored_names_.back(), given[i].type, given[i].entry});
  }
  names_ = clean_names(named);
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
  const std::uint64_t table_size = chunk_count(entry.data_size, kChangesBlock) * kBlockChangeSize;
  const Entry& changes = delta_.catalogue().entries()[number];
  if (is_changed_[base] || table_size == 0 || changes.data_size < table_size ||
      changes.dtype != DType::UInt8) {
    fail({delta_.source(), changes, number}, ErrorKind::InvalidFormat,
         "it is malformed, or the base is another model");
  }
  is_changed_[base] = true;
  return {base, *entry.dtype, entry.shape, entry.data_size};
}

void ApplyOrigin::change(std::uint32_t name, Format format, TensorSpec& spec) {
  const Recipe& recipe = recipes_[delta_.entry_number(name)];
  spec.name = format == Format::Tensors ? stored_names_[name] : std::string(names_[name]);
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
      const ChunkedBytes chunks = window.to_digest();
      digest_chunks({&chunks, 1}, Hash::Sha256, kChangesBlock);
      base_digests_.keep(rest[i], window.position / kChangesBlock, window.digests);
    }
  });
}

void ApplyOrigin::confirm() {
  digest_the_rest();
  if (base_digests_.model_digest(cancel()) != ends_.base) refuse_base("");
  std::vector<DigestedTensor> tensors;
  for (std::uint32_t i = 0; i < names_.size(); ++i) {
    const Recipe& recipe = recipes_[delta_.entry_number(i)];
    tensors.push_back({names_[i], recipe.dtype, recipe.shape, recipe.data_size,
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
  for (OpenFile* const file : {&delta, &base}) refuse_stream(*file);
  const std::optional<DeltaEnds> ends = delta_ends(delta);
  if (!ends) {
    throw Error(ErrorKind::InvalidArgument, delta.source().label() + ": it is no delta");
  }
  const std::uint64_t memory = request.options.memory_ceiling;
  const std::size_t blocks = blocks_at_once(memory / 2, request.threads);
  ApplyOrigin origin(delta, base, *ends, blocks, request.threads, cancel);
  request.metadata = without_delta(delta.metadata());
  request.options.memory_ceiling = memory / 2;
  rewrite(delta, origin, request, progress, cancel);
}

}  // namespace tensorizer
