#include "format/catalogue.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_set>

#include "base/error.h"

namespace tensorizer {

std::uint64_t Entry::memory_size() const noexcept {
  std::uint64_t size = element_size;
  for (const std::int64_t dimension : shape) size *= static_cast<std::uint64_t>(dimension);
  return size;
}

std::vector<std::uint64_t> first_chunks(std::span<const Entry> entries, std::uint64_t chunk_size) {
  std::vector<std::uint64_t> first;
  first.reserve(entries.size() + 1);
  first.push_back(0);
  for (const Entry& entry : entries) {
    std::uint64_t sum = 0;
    const std::uint64_t chunks = chunk_count(entry.data_size, chunk_size);
    const bool too_many = __builtin_add_overflow(first.back(), chunks, &sum);
    first.push_back(too_many ? std::numeric_limits<std::uint64_t>::max() : sum);
  }
  return first;
}

std::vector<std::string_view> stored_names(std::span<const Entry> entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  return names;
}

std::vector<Tie>::const_iterator Catalogue::first_tie(std::uint32_t number) const noexcept {
  return std::lower_bound(ties_.begin(), ties_.end(), number,
                          [](const Tie& tie, std::uint32_t wanted) { return tie.number < wanted; });
}

const Tie* Catalogue::tie(std::uint32_t number) const noexcept {
  const auto found = first_tie(number);
  return found != ties_.end() && found->number == number ? &*found : nullptr;
}

NamedEntry Catalogue::named(std::uint32_t number) const noexcept {
  const auto found = first_tie(number);
  if (found != ties_.end() && found->number == number) {
    return {found->name, found->type, found->entry};
  }
  const std::uint32_t entry = number - static_cast<std::uint32_t>(found - ties_.begin());
  return {entries_[entry].name, entries_[entry].type, entry};
}

std::uint32_t Catalogue::number_of(std::uint32_t entry) const noexcept {
  // A tie comes before the entry if no more than `entry` names of entries come before the tie.
  const auto before = [&](const Tie& tie) {
    return tie.number - static_cast<std::uint32_t>(&tie - ties_.data()) <= entry;
  };
  const auto behind = std::partition_point(ties_.begin(), ties_.end(), before);
  return entry + static_cast<std::uint32_t>(behind - ties_.begin());
}

std::vector<NamedEntry> all_names(const Catalogue& catalogue) {
  std::vector<NamedEntry> names;
  names.reserve(catalogue.name_count());
  const std::span<const Tie> ties = catalogue.ties();
  auto tie = ties.begin();
  std::uint32_t entry = 0;
  while (names.size() < catalogue.name_count()) {
    if (tie != ties.end() && tie->number == names.size()) {
      names.push_back({tie->name, tie->type, tie->entry});
      ++tie;
    } else {
      const Entry& own = catalogue.entries()[entry];
      names.push_back({own.name, own.type, entry++});
    }
  }
  return names;
}

std::vector<std::string_view> clean_names(std::span<const NamedEntry> stored) {
  const auto dotted = [](const NamedEntry& named) {
    return named.type != TensorType::StateDictEntry && named.name.size() > 1 &&
           named.name.front() == '.';
  };
  std::vector<std::string_view> names;
  names.reserve(stored.size());
  for (const NamedEntry& named : stored) names.push_back(named.name);
  if (std::none_of(stored.begin(), stored.end(), dotted)) return names;
  const std::unordered_set<std::string_view> taken(names.begin(), names.end());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::string_view shorter = stored[i].name.substr(1);
    if (dotted(stored[i]) && !taken.contains(shorter)) names[i] = shorter;
  }
  return names;
}

std::vector<std::uint32_t> stored_order(std::span<const Entry> entries, Cancel& cancel) {
  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(entries[a].header_offset, entries[a].end(), a) <
           std::tuple(entries[b].header_offset, entries[b].end(), b);
  };
  if (std::is_sorted(order.begin(), order.end(), before)) return order;
  Pace pace(cancel);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    pace.step();
    return before(a, b);
  });
  return order;
}

std::string describe(std::string_view name, std::size_t entry) {
  return "tensor " + quote(name) + " (index entry " + std::to_string(entry) + ")";
}

}  // namespace tensorizer
