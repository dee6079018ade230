#include "base/suggest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace tensorizer {

namespace {

constexpr std::size_t kLongest = 128;
constexpr std::size_t kMostCompared = 1 << 16;
constexpr std::size_t kMostRows = 1 << 21;  // of edits()
constexpr std::size_t kMostEdits = 3;
constexpr std::size_t kMostNames = 3;
constexpr std::size_t kLeastStart = 4;

// Removes what both texts begin with.
void remove_common_start(std::string_view& a, std::string_view& b) {
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  a.remove_prefix(same);
  b.remove_prefix(same);
}

// Returns how many letters of `a` must be inserted, removed, replaced, or swapped with the next one
// to make `b`; `limit` + 1 if that is more than `limit`. Neither is longer than kLongest. Adds to
// `work` how many rows of the table of all such numbers were computed.
std::size_t edits(std::string_view a, std::string_view b, std::size_t limit, std::size_t& work) {
  const std::size_t far = limit + 1;
  remove_common_start(a, b);
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return far;
  // rows[i % 3][j] belongs to the first i letters of `a` and the first j of `b`. Only those with a
  // difference of i and j up to `limit` count, so those beside them are far.
  std::array<std::array<std::uint8_t, kLongest + 1>, 3> rows;
  for (std::size_t i = 0; i <= a.size(); ++i) {
    ++work;
    auto& row = rows[i % 3];
    const auto& above = rows[(i + 2) % 3];
    const auto& two_above = rows[(i + 1) % 3];
    row.fill(static_cast<std::uint8_t>(far));
    std::size_t nearest = far;
    for (std::size_t j = i - std::min(i, limit); j <= std::min(b.size(), i + limit); ++j) {
      std::size_t fewest = i == 0 ? j : far;
      if (i > 0) fewest = std::min<std::size_t>(fewest, above[j] + 1);
      if (j > 0) fewest = std::min<std::size_t>(fewest, row[j - 1] + 1);
      if (i > 0 && j > 0) {
        fewest = std::min<std::size_t>(fewest, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1));
      }
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        fewest = std::min<std::size_t>(fewest, two_above[j - 2] + 1);
      }
      row[j] = static_cast<std::uint8_t>(std::min(fewest, far));
      nearest = std::min(nearest, fewest);
    }
    if (nearest > limit) return far;
  }
  return rows[a.size() % 3][b.size()];
}

bool is_end_of(std::string_view end, std::string_view name) {
  return !end.empty() && name.size() > end.size() && name.ends_with(end) &&
         name[name.size() - end.size() - 1] == '.';
}

bool is_start_of(std::string_view start, std::string_view name) {
  return start.size() >= kLeastStart && name.starts_with(start) &&
         name.find('.', start.size()) == std::string_view::npos;
}

}  // namespace

std::string did_you_mean(std::string_view given, std::span<const std::string_view> known) {
  if (given.size() > kLongest) return {};
  const std::string wanted = lower_case(given);
  std::size_t fewest = kMostEdits;
  std::vector<std::string_view> nearest;
  std::size_t work = 0;
  for (const std::string_view name : known.first(std::min(known.size(), kMostCompared))) {
    if (work > kMostRows) break;
    if (name.size() > kLongest) continue;
    const std::string lower = lower_case(name);
    const std::size_t limit = std::min(fewest, std::max(wanted.size(), lower.size()) / 3);
    std::size_t count = is_end_of(wanted, lower) || is_end_of(lower, wanted)
                            ? 0
                            : edits(wanted, lower, limit, work);
    if (count > limit) {
      if (fewest < kMostEdits || !is_start_of(wanted, lower)) continue;
      count = kMostEdits;
    }
    if (count < fewest) nearest.clear();
    fewest = count;
    if (nearest.size() < kMostNames) nearest.push_back(name);
  }
  std::string question;
  for (std::size_t i = 0; i < nearest.size(); ++i) {
    question += i == 0 ? ": did you mean " : i + 1 == nearest.size() ? " or " : ", ";
    question += quote(nearest[i]);
  }
  return question.empty() ? question : question + "?";
}

std::string did_you_mean(std::string_view given, std::string_view quoted_names) {
  std::vector<std::string_view> known;
  for (std::size_t begin = quoted_names.find('\''); begin != std::string_view::npos;) {
    const std::size_t end = quoted_names.find('\'', begin + 1);
    if (end == std::string_view::npos) break;
    known.push_back(quoted_names.substr(begin + 1, end - begin - 1));
    begin = quoted_names.find('\'', end + 1);
  }
  return did_you_mean(given, known);
}

}  // namespace tensorizer
