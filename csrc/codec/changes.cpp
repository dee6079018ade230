#include "codec/changes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "codec/changes_bits.h"
#include "codec/changes_lists.h"
#include "codec/changes_scan.h"
#include "codec/changes_words.h"

namespace tensorizer {

namespace {

const Scan& fastest_scan() {
  static const Scan scan = avx512_scan().classify != nullptr ? avx512_scan() : portable_scan();
  return scan;
}

// Numbers the elements of a kind so that those beside each other differ by 1: floating ones as
// their values are ordered. Is its own inverse.
template <typename Word>
Word ordered(Word word, bool floating) noexcept {
  constexpr int kSignBit = 8 * sizeof(Word) - 1;
  const Word negative = floating ? word >> kSignBit : 0;  // 0 or 1: signs cannot be predicted
  return word ^ static_cast<Word>(static_cast<Word>(-negative) >> 1);
}

// A change of an element: by how much its number grows or, if `down`, shrinks, less 1.
template <typename Word>
struct Step {
  Word size;
  bool down;
};

template <typename Word>
Step<Word> step_between(Word base, Word fresh) noexcept {
  const Word by = fresh - base;
  const Word down = by >> (8 * sizeof(Word) - 1);
  return {static_cast<Word>((by ^ static_cast<Word>(-down)) + down - 1), down != 0};
}

template <typename Word>
Word stepped(Word word, Step<Word> step) noexcept {
  const auto down = static_cast<Word>(step.down);
  const auto by = static_cast<Word>(step.size + 1);
  return static_cast<Word>(word + (by ^ static_cast<Word>(-down)) + down);
}

// How many elements of a block have each key, and how many of these have changed.
struct KeyCounts {
  std::array<double, kKeys> all{};
  std::array<double, kKeys> changed{};
};

double times_log(double count) { return count > 0 ? count * std::log2(count) : 0; }

// Returns the bits that it takes to say which of some elements have changed.
double bits_of(double all, double changed) {
  all = std::max(all, changed);
  return times_log(all) - times_log(changed) - times_log(all - changed);
}

// Divides the keys into classes: joins the two neighbours that are most alike, until a class costs
// less than its header.
Thresholds divide(const KeyCounts& counts) {
  struct Group {
    std::uint8_t first;
    double all;
    double changed;
    double bits;
  };
  constexpr double kHeaderBits = 80;
  std::vector<Group> groups;
  for (std::size_t key = 0; key < kKeys; ++key) {
    const double all = counts.all[key];
    const double changed = counts.changed[key];
    if (all + changed == 0) continue;
    groups.push_back({static_cast<std::uint8_t>(key), all, changed, bits_of(all, changed)});
  }
  while (groups.size() > 1) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::max();
    for (std::size_t i = 0; i + 1 < groups.size(); ++i) {
      const Group& a = groups[i];
      const Group& b = groups[i + 1];
      const double more = bits_of(a.all + b.all, a.changed + b.changed) - a.bits - b.bits;
      if (more < least) best = i;
      least = std::min(least, more);
    }
    if (groups.size() <= kMostClasses && least > kHeaderBits) break;
    Group& joined = groups[best];
    joined.all += groups[best + 1].all;
    joined.changed += groups[best + 1].changed;
    joined.bits = bits_of(joined.all, joined.changed);
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Thresholds thresholds;
  for (std::size_t i = 1; i < groups.size(); ++i) {
    thresholds.keys[thresholds.count++] = groups[i].first;
  }
  return thresholds;
}

// The changed elements of a class.
template <typename Word>
struct ClassChanges {
  std::vector<std::uint32_t> ranks;  // among the elements of the class
  std::vector<Step<Word>> steps;
  std::uint32_t seen = 0;  // how many elements of the class there are so far
};

template <typename Word>
void put_steps(BitWriter& out, std::span<const Step<Word>> steps) {
  std::vector<std::uint32_t> large;
  std::vector<Word> sizes;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    out.put(steps[i].down ? 1 : 0, 1);
    if (steps[i].size == 0) continue;
    large.push_back(static_cast<std::uint32_t>(i));
    sizes.push_back(static_cast<Word>(steps[i].size - 1));
  }
  put_chosen(out, std::move(large), static_cast<std::uint32_t>(steps.size()));
  put_numbers<Word>(out, sizes, 8 * sizeof(Word));
}

// Returns false if no steps are written like this.
template <typename Word>
bool take_steps(BitReader& in, std::span<Step<Word>> steps) {
  for (Step<Word>& step : steps) step = {0, in.take(1) != 0};
  const auto count = static_cast<std::uint32_t>(steps.size());
  const std::optional<Chosen> large = take_chosen(in, count);
  if (!large) return false;
  const std::vector<std::uint32_t> places =
      large->inverted ? complement(large->listed, count) : large->listed;
  std::vector<Word> sizes(large->size);
  if (places.size() != sizes.size() || !take_numbers<Word>(in, sizes, 8 * sizeof(Word))) {
    return false;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    steps[places[i]].size = static_cast<Word>(sizes[i] + 1);
  }
  return true;
}

// Calls `each` for all batches of so many elements, with the number of the first one, that of all
// and that of words.
template <typename Each>
void for_each_batch(std::size_t count, const Each& each) {
  for (std::size_t at = 0; at < count; at += kBatch) {
    const std::size_t here = std::min(kBatch, count - at);
    each(at, here, (here + kWordBits - 1) / kWordBits);
  }
}

// Returns the keys of the elements that have changed, and an estimate of those of all.
template <typename Word>
KeyCounts count_keys(const std::byte* base, std::span<const std::uint64_t> changed,
                     std::size_t count) {
  constexpr std::size_t kSampled = 16;  // one word of so many
  std::array<std::uint32_t, kKeys> all{};
  std::array<std::uint32_t, kKeys> with_change{};
  for (std::size_t i = 0; i < changed.size(); ++i) {
    const std::size_t first = i * kWordBits;
    for_each_bit(changed[i],
                 [&](std::size_t bit) { ++with_change[key_of(word_at<Word>(base, first + bit))]; });
    if (i % kSampled != 0) continue;
    const std::size_t end = std::min(first + kWordBits, count);
    for (std::size_t j = first; j < end; ++j) ++all[key_of(word_at<Word>(base, j))];
  }
  KeyCounts counts;
  for (std::size_t key = 0; key < kKeys; ++key) {
    counts.all[key] = std::max<double>(all[key] * kSampled, with_change[key]);
    counts.changed[key] = with_change[key];
  }
  return counts;
}

template <typename Word>
void encode(bool floating, const std::byte* base, const std::byte* fresh, std::size_t count,
            std::vector<std::byte>& out) {
  std::vector<std::uint64_t> changed((count + kWordBits - 1) / kWordBits);
  for_each_batch(count, [&](std::size_t at, std::size_t here, std::size_t) {
    fastest_scan().compare(sizeof(Word), base + at * sizeof(Word), fresh + at * sizeof(Word), here,
                           &changed[at / kWordBits]);
  });
  if (std::ranges::all_of(changed, [](std::uint64_t bits) { return bits == 0; })) return;
  const Thresholds thresholds =
      floating ? divide(count_keys<Word>(base, changed, count)) : Thresholds();

  std::array<ClassChanges<Word>, kMostClasses> classes;
  ClassMasks masks;
  Places places;
  for_each_batch(count, [&](std::size_t at, std::size_t here, std::size_t words) {
    fastest_scan().classify(sizeof(Word), base + at * sizeof(Word), here, thresholds, masks);
    for (std::size_t c = 0; c <= thresholds.count; ++c) {
      ClassChanges<Word>& changes = classes[c];
      if (masks.totals[c] == 0) continue;
      const std::size_t found =
          fastest_scan().rank(masks, c, &changed[at / kWordBits], words, changes.seen, places);
      changes.ranks.insert(changes.ranks.end(), places.ranks.begin(), places.ranks.begin() + found);
      const std::size_t first = changes.steps.size();
      changes.steps.resize(first + found);
      for (std::size_t i = 0; i < found; ++i) {
        const std::size_t number = at + places.positions[i];
        changes.steps[first + i] = step_between(ordered(word_at<Word>(base, number), floating),
                                                ordered(word_at<Word>(fresh, number), floating));
      }
      changes.seen += masks.totals[c];
    }
  });

  BitWriter bits(out);
  bits.put(thresholds.count, 3);
  for (std::size_t i = 0; i < thresholds.count; ++i) bits.put(thresholds.keys[i], 8);
  for (std::size_t c = 0; c <= thresholds.count; ++c) {
    put_chosen(bits, std::move(classes[c].ranks), classes[c].seen);
    put_steps<Word>(bits, classes[c].steps);
  }
  bits.finish();
}

// The changed elements of a class, while they are applied.
template <typename Word>
struct ClassCursor {
  Chosen chosen;
  std::vector<Step<Word>> steps;
  std::size_t listed = 0;   // how many of the listed elements have been passed
  std::size_t stepped = 0;  // how many steps have been made
  std::uint32_t seen = 0;   // how many elements of the class have been passed

  bool at_end() const { return listed == chosen.listed.size() && stepped == steps.size(); }
};

// Replaces some elements of a class by all others of it, and returns how many these are.
std::size_t leave_others(std::array<std::uint64_t, kBatchWords> bits, std::size_t words,
                         Places& places, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    bits[places.positions[i] / kWordBits] ^= 1ULL << places.positions[i] % kWordBits;
  }
  std::size_t others = 0;
  for (std::size_t i = 0; i < words; ++i) {
    for_each_bit(bits[i], [&](std::size_t bit) {
      places.positions[others++] = static_cast<std::uint16_t>(i * kWordBits + bit);
    });
  }
  return others;
}

template <typename Word>
bool apply(bool floating, ConstBytes code, std::byte* block, std::size_t count) {
  BitReader in(code);
  Thresholds thresholds;
  thresholds.count = in.take(3);
  if (!floating && thresholds.count > 0) return false;
  for (std::size_t i = 0; i < thresholds.count; ++i) {
    thresholds.keys[i] = static_cast<std::uint8_t>(in.take(8));
    if (i > 0 && thresholds.keys[i] <= thresholds.keys[i - 1]) return false;
  }
  std::array<ClassCursor<Word>, kMostClasses> classes;
  auto left = static_cast<std::uint32_t>(count);  // elements that no class has
  for (std::size_t c = 0; c <= thresholds.count; ++c) {
    std::optional<Chosen> chosen = take_chosen(in, left);
    if (!chosen) return false;
    left -=
        std::max<std::uint32_t>(chosen->size, static_cast<std::uint32_t>(chosen->listed.size()));
    classes[c].steps.resize(chosen->size);
    classes[c].chosen = *std::move(chosen);
    if (!take_steps<Word>(in, classes[c].steps)) return false;
  }
  if (!in.at_end()) return false;

  ClassMasks masks;
  Places places;
  bool fits = true;
  for_each_batch(count, [&](std::size_t at, std::size_t here, std::size_t words) {
    std::byte* const elements = block + at * sizeof(Word);
    fastest_scan().classify(sizeof(Word), elements, here, thresholds, masks);
    for (std::size_t c = 0; c <= thresholds.count; ++c) {
      ClassCursor<Word>& cursor = classes[c];
      if (masks.totals[c] == 0 || cursor.at_end()) continue;
      const std::span<const std::uint32_t> left =
          std::span(cursor.chosen.listed).subspan(cursor.listed);
      std::size_t found =
          fastest_scan().place(masks, c, left.data(), left.size(), words, cursor.seen, places);
      cursor.listed += found;
      cursor.seen += masks.totals[c];
      if (cursor.chosen.inverted) found = leave_others(masks.bits[c], words, places, found);
      fits = fits && found <= cursor.steps.size() - cursor.stepped;
      if (!fits) return;
      for (std::size_t i = 0; i < found; ++i) {
        const Word word = ordered(word_at<Word>(elements, places.positions[i]), floating);
        const Step<Word> step = cursor.steps[cursor.stepped++];
        set_word(elements, places.positions[i], ordered(stepped(word, step), floating));
      }
    }
  });
  return fits && std::ranges::all_of(classes, &ClassCursor<Word>::at_end);
}
}  // namespace

void encode_changes(ElementKind kind, ConstBytes base, ConstBytes fresh,
                    std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  with_word(kind.size, [&](auto word) {
    encode<decltype(word)>(kind.floating, base.data(), fresh.data(), base.size() / kind.size, out);
  });
  if (out.size() - begin < base.size()) return;
  out.resize(begin);
  out.insert(out.end(), fresh.begin(), fresh.end());
}

bool apply_changes(ElementKind kind, ConstBytes code, Bytes block) {
  if (code.empty()) return true;
  if (code.size() == block.size()) {
    std::ranges::copy(code, block.begin());
    return true;
  }
  return with_word(kind.size, [&](auto word) {
    return apply<decltype(word)>(kind.floating, code, block.data(), block.size() / kind.size);
  });
}

}  // namespace tensorizer
