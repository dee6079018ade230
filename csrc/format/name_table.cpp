#include "format/name_table.h"

#include <bit>
#include <limits>

#include "base/error.h"
#include "codec/keyed_hash.h"

namespace tensorizer {

namespace {

constexpr std::uint32_t kEmpty = std::numeric_limits<std::uint32_t>::max();

}  // namespace

NameTable::NameTable(std::span<const std::string_view> names, Cancel& cancel) : names_(names) {
  // At most three quarters of the slots are taken, so that runs of taken ones stay short.
  slots_.assign(std::bit_ceil(names.size() + names.size() / 3 + 1), kEmpty);
  Pace pace(cancel);
  for (std::uint32_t number = 0; number < names.size(); ++number) {
    pace.step();
    std::uint32_t& slot = slots_[slot_of(names[number])];
    if (slot == kEmpty) {
      slot = number;
    } else if (!twice_) {
      twice_ = {slot, number};
    }
  }
}

std::optional<std::uint32_t> NameTable::find(std::string_view name) const {
  const std::uint32_t number = slots_[slot_of(name)];
  return number == kEmpty ? std::nullopt : std::optional(number);
}

std::size_t NameTable::slot_of(std::string_view name) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = keyed_hash(name) & mask;
  while (slots_[slot] != kEmpty && names_[slots_[slot]] != name) slot = (slot + 1) & mask;
  return slot;
}

void check_saved_names(std::span<const std::string_view> names, Cancel& cancel) {
  if (const auto twice = NameTable(names, cancel).twice()) {
    throw Error(ErrorKind::InvalidArgument,
                "tensor " + quote(names[twice->second]) + " is to be saved twice");
  }
}

}  // namespace tensorizer
