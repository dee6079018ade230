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

std::vector<std::string_view> stored_names(std::span<const Entry> entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.name);
  return names;
}

std::vector<std::string_view> clean_names(std::span<const Entry> entries) {
  const auto dotted = [](const Entry& entry) {
    return entry.type != TensorType::StateDictEntry && entry.name.size() > 1 &&
           entry.name.front() == '.';
  };
  std::vector<std::string_view> names = stored_names(entries);
  if (std::none_of(entries.begin(), entries.end(), dotted)) return names;
  const std::unordered_set<std::string_view> stored(names.begin(), names.end());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view shorter = entries[i].name.substr(1);
    if (dotted(entries[i]) && !stored.contains(shorter)) names[i] = shorter;
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
