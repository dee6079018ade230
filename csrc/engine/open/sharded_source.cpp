#include "engine/open/sharded_source.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "base/redaction.h"
#include "engine/move/workers.h"

namespace tensorizer {

namespace {

// Between the end of a shard and the beginning of the next one: more than any source reads along
// with the bytes that are wanted, so that no read spans two shards.
constexpr std::uint64_t kLeastGap = 4 << 20;

std::uint64_t end_of(const Source& shard, std::uint64_t begin) {
  const std::optional<std::uint64_t> size = shard.size();
  if (shard.sequential() || !size) {
    throw Error(ErrorKind::Unavailable,
                shard.label() +
                    ": its bytes come only in order (a pipe, or a server without "
                    "ranges), and the shards of a model are read at any offset");
  }
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (*size > kMost - 2 * kLeastGap - begin) {
    throw Error(ErrorKind::InvalidFormat,
                shard.label() + ": with this file, the shards have 2^63 bytes or more");
  }
  return begin + *size;
}

}  // namespace

ShardedSource::ShardedSource(const Source& index_file, ShardIndex index,
                             std::vector<std::unique_ptr<Source>> shards)
    : index_(std::move(index)),
      label_(index_file.label()),
      index_version_(index_file.version()),
      index_stats_(index_file.stats()),
      headers_(index_file.headers()) {
  std::uint64_t begin = 0;
  for (std::unique_ptr<Source>& source : shards) {
    const std::uint64_t end = end_of(*source, begin);
    shards_.push_back({std::move(source), begin, end});
    begin = align_up(end + kLeastGap, kMappingUnit);
  }
  signed_as_ = common_signed_as();
}

std::vector<ShardedSource::Shard>::const_iterator ShardedSource::find(std::uint64_t offset) const {
  return std::ranges::upper_bound(shards_, offset, {}, &Shard::end);
}

void ShardedSource::read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  const auto shard = find(offset);
  const bool inside =
      shard != shards_.end() && offset >= shard->begin && total_size(pieces) <= shard->end - offset;
  if (!inside) return Source::read(offset, pieces, cancel);
  shard->source->read(offset - shard->begin, pieces, cancel);
}

std::size_t ShardedSource::read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) {
  std::size_t done = 0;
  for (auto shard = find(offset); shard != shards_.end() && done < out.size(); ++shard) {
    if (offset < shard->begin) {
      const Bytes gap =
          out.subspan(done, std::min<std::uint64_t>(shard->begin - offset, out.size() - done));
      std::ranges::fill(gap, std::byte{0});
      done += gap.size();
      offset += gap.size();
    }
    const Bytes piece =
        out.subspan(done, std::min<std::uint64_t>(shard->end - offset, out.size() - done));
    if (piece.empty()) break;
    shard->source->read(offset - shard->begin, {&piece, 1}, cancel);
    done += piece.size();
    offset += piece.size();
  }
  return done;
}

std::optional<std::string> ShardedSource::version() const {
  std::optional<std::string> all = index_version_;
  for (const Shard& shard : shards_) {
    const std::optional<std::string> version = shard.source->version();
    if (!all || !version) return std::nullopt;
    *all += "; " + *version;
  }
  return all;
}

void ShardedSource::confirm(Cancel& cancel) {
  for_each_number(shards_.size(), waiting_workers(hints(0, 1)), cancel,
                  [&](std::size_t i) { shards_[i].source->confirm(cancel); });
}

std::shared_ptr<Mapping> ShardedSource::map() {
  if (!identity()) return nullptr;
  std::shared_ptr<Mapping> mapping;
  try {
    mapping = std::make_shared<Mapping>(shards_.back().end, label_);
  } catch (const Error& error) {
    if (error.system_errno() == ENOMEM) return nullptr;  // reading still works
    throw;
  }
  for (const Shard& shard : shards_) {
    if (!shard.source->map_into(*mapping, shard.begin)) return nullptr;
  }
  return mapping;
}

std::optional<FileIdentity> ShardedSource::identity() const {
  const bool local = std::ranges::all_of(
      shards_, [](const Shard& shard) { return shard.source->identity().has_value(); });
  return local ? shards_.front().source->identity() : std::nullopt;
}

bool ShardedSource::reads(const FileIdentity& file) const {
  return std::ranges::any_of(shards_,
                             [&](const Shard& shard) { return shard.source->reads(file); });
}

bool ShardedSource::remote() const {
  return std::ranges::any_of(shards_, [](const Shard& shard) { return shard.source->remote(); });
}

bool ShardedSource::cache(std::uint64_t offset, std::uint64_t size, Cancel& cancel) {
  for (auto shard = find(offset); shard != shards_.end() && shard->begin < offset + size; ++shard) {
    const std::uint64_t begin = std::max(offset, shard->begin);
    const std::uint64_t end = std::min(offset + size, shard->end);
    if (!shard->source->cache(begin - shard->begin, end - begin, cancel)) return false;
  }
  return true;
}

ReadHints ShardedSource::hints(std::uint64_t offset, std::uint64_t length) {
  std::optional<ReadHints> all;
  for (auto shard = find(offset); shard != shards_.end() && shard->begin < offset + length;
       ++shard) {
    const std::uint64_t begin = std::max(offset, shard->begin);
    const std::uint64_t end = std::min(offset + length, shard->end);
    const ReadHints hints = shard->source->hints(begin - shard->begin, end - begin);
    if (!all) all = hints;
    if (hints.unit != all->unit || kMappingUnit % hints.unit != 0) all->unit = 1;
    all->reads_in_flight = std::max(all->reads_in_flight, hints.reads_in_flight);
    all->most_reads = std::min(all->most_reads, hints.most_reads);
    all->read_size = std::min(all->read_size, hints.read_size);
    all->cached_size = std::min(all->cached_size, hints.cached_size);
    all->read_cost = std::max(all->read_cost, hints.read_cost);
  }
  return all.value_or(ReadHints{});
}

std::optional<std::string> ShardedSource::common_signed_as() const {
  const auto root_of = [](const std::string& identity) {
    return identity.substr(0, identity.find('\n'));
  };
  std::optional<std::string> all;
  for (const Shard& shard : shards_) {
    const std::optional<std::string> own = shard.source->signed_as();
    if (!own || (all && root_of(*all) != root_of(*own))) return std::nullopt;
    all = all ? *all + own->substr(own->find('\n')) : *own;
  }
  return all;
}

std::uint64_t ShardedSource::end_of_file(std::uint64_t offset) const {
  const auto shard = find(offset);
  return shard == shards_.end() ? shards_.back().end : shard->end;
}

bool ShardedSource::checks_at_end() const {
  return std::ranges::any_of(shards_,
                             [](const Shard& shard) { return shard.source->checks_at_end(); });
}

void ShardedSource::redact(Redaction& text) const {
  for (const Shard& shard : shards_) shard.source->redact(text);
}

std::string ShardedSource::describe_offset(std::uint64_t offset) const {
  // An empty tensor may be where its shard ends.
  const auto shard = std::prev(std::ranges::upper_bound(shards_, offset, {}, &Shard::begin));
  return shard->source->describe_offset(offset - shard->begin) + " of " + shard->source->label();
}

SourceStats ShardedSource::stats() const {
  SourceStats all = index_stats_;
  for (const Shard& shard : shards_) all = all + shard.source->stats();
  return all;
}

}  // namespace tensorizer
