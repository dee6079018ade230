#include "base/number.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "base/text.h"

namespace tensorizer {

namespace {

constexpr std::pair<std::string_view, std::uint64_t> kByteUnits[] = {
    {"", 1},
    {"b", 1},
    {"kb", 1000},
    {"mb", 1000 * 1000},
    {"gb", 1000 * 1000 * 1000},
    {"tb", std::uint64_t{1000} * 1000 * 1000 * 1000},
    {"kib", 1 << 10},
    {"mib", 1 << 20},
    {"gib", 1 << 30},
    {"tib", std::uint64_t{1} << 40},
};
constexpr std::pair<std::string_view, double> kTimeUnits[] = {
    {"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400},
};
// More digits behind a point are those of no whole number of bytes.
constexpr std::size_t kMostDecimals = 12;

// Returns the factor of a unit; null if there is no such unit.
template <typename Factor, std::size_t kCount>
std::optional<Factor> factor_of(std::string_view unit,
                                const std::pair<std::string_view, Factor> (&units)[kCount]) {
  const std::string wanted = lower_case(trimmed(unit));
  for (const auto& [name, factor] : units) {
    if (name == wanted) return factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, end);
  const auto factor = factor_of(text.substr(end), kByteUnits);
  const std::size_t point = std::min(number.find('.'), number.size());
  const auto whole = parse_number(number.substr(0, point));
  std::uint64_t bytes = 0;
  if (!factor || !whole || __builtin_mul_overflow(*whole, *factor, &bytes)) return std::nullopt;
  if (point == number.size()) return bytes;
  const std::string_view decimals = number.substr(point + 1);
  const auto part = parse_number(decimals);
  if (!part || decimals.size() > kMostDecimals) return std::nullopt;
  std::uint64_t divisor = 1;
  for (std::size_t i = 0; i < decimals.size(); ++i) divisor *= 10;
  std::uint64_t more = 0;
  if (__builtin_mul_overflow(*part, *factor, &more) || more % divisor != 0 ||
      __builtin_add_overflow(bytes, more / divisor, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

std::optional<double> parse_seconds(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  const auto factor =
      factor_of(std::string_view(stopped, static_cast<std::size_t>(end - stopped)), kTimeUnits);
  if (error != std::errc() || !factor) return std::nullopt;
  return number * *factor;
}

}  // namespace tensorizer
