#include "engine/save/shared_save.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "codec/hmac.h"
#include "engine/digest/chunks.h"
#include "format/tensors/tensor_header.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

// The size of sections, unless the target or the memory ceiling demands another one.
constexpr std::uint64_t kSection = 8 << 20;
constexpr std::uint64_t kSmallestSection = 1 << 20;
// How many sections a process holds at a time: two that it receives and writes, and as many bytes
// on their way.
constexpr std::uint64_t kHeld = 4;

// Calls `use` with each hash that a section has a digest of for each of its ranges.
template <typename Use>
void for_each_joining(const Use& use) {
  for (const HashInfo& info : kHashes) {
    if (info.join != nullptr) use(info);
  }
}

[[noreturn]] void refuse_shared(const std::string& what) {
  throw Error(ErrorKind::InvalidArgument, "several processes cannot save " + what);
}

}  // namespace

SharedSave::SharedSave(std::string uri, std::unique_ptr<Layout> layout, const SaveOptions& options)
    : uri_(std::move(uri)),
      options_(options),
      layout_(std::move(layout)),
      prefix_size_(layout_->prefix_size()) {
  const FileKind& kind = layout_->kind();
  if (kind.header.encryption) refuse_shared("an encrypted file: leave out option 'key'");
  if (kind.share) refuse_shared("names that share data: leave out option 'share'");
  if (options_.max_shard_size > 0)
    refuse_shared("several files: leave out option 'max_shard_size'");
  if (!kind.header.hashes.in_order().empty() || kind.data_digests) {
    refuse_shared(
        "SHA-256 of whole tensors, which is computed in order: use 'chunked', 'crc32' or 'none' as "
        "hashes, and leave out option 'digests'");
  }
  layout_->check_names(cancel_);
}

SharedSave::~SharedSave() { abort(); }

std::vector<std::string_view> SharedSave::names() const {
  std::vector<std::string_view> names;
  for (const PlacedTensor& tensor : layout_->tensors()) names.push_back(tensor.spec.name);
  return names;
}

std::string SharedSave::start(const std::optional<std::string>& joined, std::string replaces) {
  joined_ = joined.has_value();
  SinkOptions options = options_.sink;
  options.replaces = std::move(replaces);
  sink_ = open_shared_sink(uri_, joined, options, cancel_);
  sink_->begin(prefix_size_, layout_->file_size());
  section_size_ = sink_->unit();
  if (section_size_ == 1) {
    section_size_ =
        std::clamp(std::bit_floor(options_.memory_ceiling / kHeld), kSmallestSection, kSection);
  }
  owned_.assign(section_count(), false);
  hashed_.assign(layout_->tensors().size(), {});
  missing_.clear();
  for (const PlacedTensor& tensor : layout_->tensors()) {
    missing_.push_back(tensor.spec.data_size());
  }
  incomplete_ = missing_.size();
  return joined ? *joined : sink_->share(cancel_);
}

std::string SharedSave::plan() const {
  return std::to_string(prefix_size_) + " " + std::to_string(layout_->file_size()) + " " +
         std::to_string(section_size_) + " " + std::to_string(layout_->kind().chunk_size) + " " +
         info_of(layout_->kind().chunk_hash).name + " " +
         std::to_string(layout_->kind().header.hashes.has(Hash::Crc32));
}

std::size_t SharedSave::section_count() const noexcept {
  return (file_size() + section_size_ - 1) / section_size_;
}

std::size_t SharedSave::head_sections() const noexcept {
  return (prefix_size_ + section_size_ - 1) / section_size_;
}

std::vector<SharedSave::SectionRange> SharedSave::ranges_in(std::size_t section) const {
  const std::span<const PlacedTensor> tensors = layout_->tensors();
  const std::uint64_t section_begin = section * section_size_;
  const std::uint64_t section_end = section_begin + section_size_;
  if (section_end <= prefix_size_) return {};
  const std::uint64_t begin = std::max(section_begin, prefix_size_) - prefix_size_;
  const std::uint64_t end = section_end - prefix_size_;
  const std::uint64_t chunk = layout_->kind().chunk_size;
  std::vector<SectionRange> found;
  auto tensor = std::partition_point(tensors.begin(), tensors.end(),
                                     [&](const PlacedTensor& each) { return each.end() <= begin; });
  for (; tensor != tensors.end() && tensor->data_offset() < end; ++tensor) {
    const std::uint64_t data = tensor->data_offset();
    const std::uint64_t size = tensor->spec.data_size();
    const std::uint64_t from = std::max(begin, data) - data;
    const std::uint64_t to = std::min(end - data, size);
    if (from >= to) continue;
    SectionRange range{
        static_cast<std::size_t>(tensor - tensors.begin()), from, to - from, 0, 0, to - from};
    if (chunk > 0) {
      range.first_chunk = chunk_count(from, chunk);
      range.chunks = chunk_count(to, chunk) - range.first_chunk;
      if (range.chunks > 0) {
        const std::uint64_t last = (range.first_chunk + range.chunks) * chunk;
        range.needed = std::min(last, size) - from;
      }
    }
    found.push_back(range);
  }
  return found;
}

std::vector<DataRange> SharedSave::ranges(std::size_t section) const {
  std::vector<DataRange> ranges;
  for (const SectionRange& range : ranges_in(section)) {
    ranges.push_back({range.tensor, range.start, range.needed});
  }
  return ranges;
}

std::pair<std::uint64_t, std::uint64_t> SharedSave::digest_sizes(std::size_t section) const {
  std::pair<std::uint64_t, std::uint64_t> sizes{0, 0};
  for (const SectionRange& range : ranges_in(section)) {
    for_each_joining([&](const HashInfo& info) { sizes.first += info.size; });
    sizes.second += range.chunks * sizeof(Digest);
  }
  return sizes;
}

void SharedSave::own(std::span<const std::size_t> sections) {
  for (const std::size_t section : sections) owned_.at(section) = true;
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    if (missing_[i] == 0) complete(i);
  }
  const ConstBytes terminator = layout_->terminator();
  if (!terminator.empty()) write_own(layout_->end(), terminator);
}

std::vector<std::byte> SharedSave::write(std::size_t section, ConstBytes data) {
  cancel_.check();
  const std::vector<SectionRange> found = ranges_in(section);
  std::uint64_t needed = 0;
  for (const SectionRange& range : found) needed += range.needed;
  if (!owned_.at(section) || data.size() != needed) {
    throw Error(ErrorKind::Internal,
                "section " + std::to_string(section) + " of " + sink_->label() + " has other data");
  }
  std::vector<std::byte> digests;
  std::vector<std::byte> of_chunks;
  for (const SectionRange& range : found) {
    const ConstBytes mine = data.first(range.size);
    RunningDigests running(layout_->kind().header.hashes);
    running.update(mine);
    const Digests own = running.finish();
    for_each_joining([&](const HashInfo& info) {
      const Digest digest = own[info.hash].value_or(Digest{});
      digests.insert(digests.end(), digest.begin(), digest.begin() + info.size);
    });
    if (range.chunks > 0) {
      const std::uint64_t chunk = layout_->kind().chunk_size;
      const std::uint64_t before = range.first_chunk * chunk - range.start;
      const auto listed =
          layout_->chunk_digests(range.tensor).subspan(range.first_chunk, range.chunks);
      const ChunkedBytes chunks{data.subspan(before, range.needed - before), listed};
      digest_chunks({&chunks, 1}, layout_->kind().chunk_hash, chunk);
      const auto bytes = std::as_bytes(listed);
      of_chunks.insert(of_chunks.end(), bytes.begin(), bytes.end());
    }
    const std::uint64_t offset = layout_->tensors()[range.tensor].data_offset() + range.start;
    sink_->write(offset, {&mine, 1}, KeptUntil::Return, cancel_);
    data = data.subspan(range.needed);
  }
  digests.insert(digests.end(), of_chunks.begin(), of_chunks.end());
  return digests;
}

void SharedSave::take(std::size_t section, ConstBytes digests) {
  const std::vector<SectionRange> found = ranges_in(section);
  const auto [joined, chunks] = digest_sizes(section);
  if (digests.size() != joined && digests.size() != joined + chunks) {
    throw Error(ErrorKind::Internal, "the digests of section " + std::to_string(section) + " of " +
                                         sink_->label() + " have another size");
  }
  ConstBytes of_chunks = digests.subspan(joined);
  const bool with_chunks = !of_chunks.empty();
  for (const SectionRange& range : found) {
    HashedRange hashed{range.start, range.size, {}};
    for_each_joining([&](const HashInfo& info) {
      hashed.digests[info.hash] = digest_of(digests.first(info.size));
      digests = digests.subspan(info.size);
    });
    if (with_chunks && !owned_[section]) {
      const auto listed =
          layout_->chunk_digests(range.tensor).subspan(range.first_chunk, range.chunks);
      std::memcpy(listed.data(), of_chunks.data(), listed.size_bytes());
      of_chunks = of_chunks.subspan(listed.size_bytes());
    }
    hashed_[range.tensor].push_back(hashed);
    missing_[range.tensor] -= range.size;
    if (missing_[range.tensor] == 0) complete(range.tensor);
  }
}

void SharedSave::complete(std::size_t tensor) {
  --incomplete_;
  const PlacedTensor& placed = layout_->tensors()[tensor];
  if (placed.header_size == 0) return;
  TensorHeaderImage header(placed.spec, layout_->kind().header, placed.header_size);
  std::vector<HashedRange> hashed = std::move(hashed_[tensor]);
  std::ranges::sort(hashed, {}, &HashedRange::start);
  Digests digests = RunningDigests({header.hashed(), layout_->kind().header.hashes}).finish();
  for (const HashedRange& range : hashed) digests = join(digests, range.digests, range.size);
  header.set_digests(digests);
  if (layout_->kind().chunk_size > 0) {
    layout_->set_header_digest(tensor, sha256(header.bytes()));
  }
  write_own(placed.header_offset, header.bytes());
}

void SharedSave::write_own(std::uint64_t offset, ConstBytes bytes) {
  while (!bytes.empty()) {
    const std::uint64_t in_file = prefix_size_ + offset;
    const std::size_t section = in_file / section_size_;
    const std::uint64_t left = (section + 1) * section_size_ - in_file;
    const ConstBytes part = bytes.first(std::min<std::uint64_t>(left, bytes.size()));
    if (owned_[section]) sink_->write(offset, {&part, 1}, KeptUntil::Return, cancel_);
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
}

std::string SharedSave::hand_in() {
  if (incomplete_ > 0) {
    throw Error(ErrorKind::Internal, sink_->label() + " lacks the digests of " +
                                         std::to_string(incomplete_) + " tensors");
  }
  if (!joined_) sink_->write_head(layout_->prefix(0, prefix_size_), cancel_);
  return sink_->hand_in(layout_->file_size(), cancel_);
}

void SharedSave::take_in(const std::string& handed_in) { sink_->take_in(handed_in); }

void SharedSave::finish() {
  sink_->finish(layout_->file_size(), cancel_);
  sink_.reset();
}

void SharedSave::leave() {
  sink_->leave();
  sink_.reset();
}

UnpublishedFile SharedSave::release(std::string name) {
  return {std::move(name), std::move(sink_), *layout_};
}

void SharedSave::abort() noexcept {
  if (sink_) sink_->abort();
  sink_.reset();
}

}  // namespace tensorizer
