#include "format/name_table.h"

#include <bit>
#include <limits>

#include "base/error.h"
#include "codec/keyed_hash.h"

namespace tensorizer {

namespace {

constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

std::uint32_t tag_of(std::uint64_t hash) noexcept { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

NameTable::NameTable(std::span<const std::string_view> names, Cancel& cancel) : names_(names) {
  // At most three quarters of the slots are taken, so that runs of taken ones stay short.
  slots_.assign(std::bit_ceil(names.size() + names.size() / 3 + 1), {kEmpty, 0});
  Pace pace(cancel);
  for (std::uint32_t number = 0; number < names.size(); ++number) {
    pace.step();
    const std::uint64_t hash = keyed_hash(names[number]);
    Slot& slot = slots_[slot_of(names[number], hash)];
    if (slot.number == kEmpty) {
      slot = {number, tag_of(hash)};
    } else if (!twice_) {
      twice_ = {slot.number, number};
    }
  }
}

std::optional<std::uint32_t> NameTable::find(std::string_view name) const {
  const std::uint32_t number = slots_[slot_of(name, keyed_hash(name))].number;
  return number == kEmpty ? std::nullopt : std::optional(number);
}

std::size_t NameTable::slot_of(std::string_view name, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const std::uint32_t tag = tag_of(hash);
  std::size_t place = hash & mask;
  while (slots_[place].number != kEmpty &&
         (slots_[place].tag != tag || names_[slots_[place].number] != name)) {
    place = (place + 1) & mask;
  }
  return place;
}

void check_saved_names(std::span<const std::string_view> names, Cancel& cancel) {
  if (const auto twice = NameTable(names, cancel).twice()) {
    throw Error(ErrorKind::InvalidArgument,
                "tensor " + quote(names[twice->second]) + " is to be saved twice");
  }
}

}  // namespace tensorizer
