#include "codec/changes_lists.h"

#include "codec/changes.h"

namespace tensorizer {

namespace {

constexpr std::uint32_t kCountBits = 21;  // of the number of elements in a block
static_assert(kChangesBlock < 1 << kCountBits);

}  // namespace

std::vector<std::uint32_t> complement(std::span<const std::uint32_t> listed, std::uint32_t count) {
  std::vector<std::uint32_t> others;
  others.reserve(count - listed.size());
  std::uint32_t next = 0;
  for (const std::uint32_t number : listed) {
    for (; next < number; ++next) others.push_back(next);
    ++next;
  }
  for (; next < count; ++next) others.push_back(next);
  return others;
}

void put_chosen(BitWriter& out, std::vector<std::uint32_t> chosen, std::uint32_t count) {
  out.put(chosen.size(), kCountBits);
  if (chosen.empty()) return;
  const bool inverted = 2 * chosen.size() > count;
  out.put(inverted ? 1 : 0, 1);
  if (inverted) {
    chosen = complement(chosen, count);
    out.put(chosen.size(), kCountBits);
  }
  for (std::size_t i = chosen.size(); i-- > 1;) chosen[i] -= chosen[i - 1] + 1;
  put_numbers<std::uint32_t>(out, chosen, kCountBits);
}

std::optional<Chosen> take_chosen(BitReader& in, std::uint32_t count) {
  Chosen chosen;
  chosen.size = static_cast<std::uint32_t>(in.take(kCountBits));
  if (chosen.size == 0) return chosen;
  chosen.inverted = in.take(1) != 0;
  const auto listed =
      chosen.inverted ? static_cast<std::uint32_t>(in.take(kCountBits)) : chosen.size;
  if (chosen.size > count || listed > count) return std::nullopt;
  chosen.listed.resize(listed);
  if (!take_numbers<std::uint32_t>(in, chosen.listed, kCountBits)) return std::nullopt;
  std::uint64_t next = 0;
  for (std::uint32_t& number : chosen.listed) {
    next += number;
    number = static_cast<std::uint32_t>(next++);
  }
  if (next > count) return std::nullopt;
  return chosen;
}

}  // namespace tensorizer
