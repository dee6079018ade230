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
#include "codec/changes_scan.h"

namespace tensorizer {

namespace {

constexpr std::uint32_t kCountBits = 21;  // of the number of elements in a block
constexpr std::uint32_t kLowBits = 6;     // of NumberCode::low
constexpr std::size_t kKeys = 256;
static_assert(kChangesBlock < 1 << kCountBits);

const Scan& fastest_scan() {
  static const Scan scan = avx512_scan().classify != nullptr ? avx512_scan() : portable_scan();
  return scan;
}

template <typename Word>
Word word_at(const std::byte* elements, std::size_t i) noexcept {
  Word word;
  std::memcpy(&word, elements + i * sizeof(Word), sizeof(Word));
  return word;
}

template <typename Word>
void set_word(std::byte* elements, std::size_t i, Word word) noexcept {
  std::memcpy(elements + i * sizeof(Word), &word, sizeof(Word));
}

template <typename Word>
std::uint8_t key_of(Word word) noexcept {
  constexpr int kBits = 8 * sizeof(Word);
  if constexpr (kBits == 8) {
    return word & 0x7f;
  } else {
    return static_cast<std::uint8_t>(word >> (kBits - 9));
  }
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

template <typename Number>
void put_numbers(BitWriter& out, std::span<const Number> numbers, std::uint32_t wide) {
  if (numbers.empty()) return;
  const NumberCode code = best_code(numbers, wide);
  out.put(code.low, kLowBits);
  for (const Number number : numbers) out.put_number(number, code);
}

// Returns false if no numbers are written like this.
template <typename Number>
bool take_numbers(BitReader& in, std::span<Number> numbers, std::uint32_t wide) {
  if (numbers.empty()) return true;
  const NumberCode code{static_cast<std::uint32_t>(in.take(kLowBits)), wide};
  if (code.low > NumberCode::kMostLow) return false;
  for (Number& number : numbers) {
    const std::uint64_t taken = in.take_number(code);
    number = static_cast<Number>(taken);
    if (number != taken) return false;
  }
  return !in.is_behind_end();
}

// Returns the numbers below `count` that are not listed. Both lists are in ascending order.
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

// Some of the numbers below a count.
struct Chosen {
  std::uint32_t size = 0;             // how many they are
  bool inverted = false;              // whether the others are listed
  std::vector<std::uint32_t> listed;  // in ascending order
};

// Writes the numbers `chosen`, in ascending order, of those below `count`.
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

// Returns null if none of the numbers below `count` are written like this.
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

template <typename Each>
void for_each_bit(std::uint64_t bits, const Each& each) {
  for (; bits != 0; bits &= bits - 1) each(static_cast<std::size_t>(std::countr_zero(bits)));
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

// Calls `action` with an unsigned number of this size.
template <typename Action>
auto with_word(std::uint32_t size, const Action& action) {
  if (size == 1) return action(std::uint8_t{});
  if (size == 2) return action(std::uint16_t{});
  if (size == 4) return action(std::uint32_t{});
  return action(std::uint64_t{});
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

// For processors without a scan of their own.
namespace {

template <typename Word>
void classify_batch(const std::byte* elements, std::size_t count, const Thresholds& thresholds,
                    ClassMasks& masks) {
  std::array<std::uint8_t, kKeys> classes{};
  for (std::size_t i = 0; i < thresholds.count; ++i) {
    for (std::size_t key = thresholds.keys[i]; key < kKeys; ++key) ++classes[key];
  }
  masks.totals.fill(0);
  for (std::size_t at = 0, word = 0; at < count; at += kWordBits, ++word) {
    std::array<std::uint64_t, kMostClasses> bits{};
    const std::size_t here = std::min(kWordBits, count - at);
    for (std::size_t i = 0; i < here; ++i) {
      bits[classes[key_of(word_at<Word>(elements, at + i))]] |= 1ULL << i;
    }
    for (std::size_t c = 0; c <= thresholds.count; ++c) {
      masks.bits[c][word] = bits[c];
      masks.counts[c][word] = static_cast<std::uint8_t>(std::popcount(bits[c]));
      masks.totals[c] += masks.counts[c][word];
    }
  }
}

template <typename Word>
void compare_batch(const std::byte* base, const std::byte* fresh, std::size_t count,
                   std::uint64_t* changed) {
  for (std::size_t at = 0, word = 0; at < count; at += kWordBits, ++word) {
    const std::size_t here = std::min(kWordBits, count - at);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < here; ++i) {
      const bool differs = word_at<Word>(base, at + i) != word_at<Word>(fresh, at + i);
      bits |= std::uint64_t{differs} << i;
    }
    changed[word] = bits;
  }
}

std::size_t rank(const ClassMasks& masks, std::size_t of_class, const std::uint64_t* changed,
                 std::size_t words, std::uint32_t before, Places& places) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t all = masks.bits[of_class][i];
    for_each_bit(all & changed[i], [&](std::size_t bit) {
      const std::uint64_t below = all & ((1ULL << bit) - 1);
      places.ranks[found] = before + static_cast<std::uint32_t>(std::popcount(below));
      places.positions[found++] = static_cast<std::uint16_t>(i * kWordBits + bit);
    });
    before += masks.counts[of_class][i];
  }
  return found;
}

std::size_t place(const ClassMasks& masks, std::size_t of_class, const std::uint32_t* ranks,
                  std::size_t count, std::size_t words, std::uint32_t before,
                  Places& places) noexcept {
  std::size_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint32_t end = before + masks.counts[of_class][i];
    std::uint64_t left = masks.bits[of_class][i];
    std::uint32_t passed = before;
    for (; found < count && ranks[found] < end; ++found) {
      for (; passed < ranks[found]; ++passed) left &= left - 1;
      const auto bit = static_cast<std::size_t>(std::countr_zero(left));
      places.positions[found] = static_cast<std::uint16_t>(i * kWordBits + bit);
    }
    before = end;
  }
  return found;
}

}  // namespace

Scan portable_scan() noexcept {
  return {[](std::uint32_t size, const std::byte* elements, std::size_t count,
             const Thresholds& thresholds, ClassMasks& masks) noexcept {
            with_word(size, [&](auto word) {
              classify_batch<decltype(word)>(elements, count, thresholds, masks);
            });
          },
          [](std::uint32_t size, const std::byte* base, const std::byte* fresh, std::size_t count,
             std::uint64_t* changed) noexcept {
            with_word(size, [&](auto word) {
              compare_batch<decltype(word)>(base, fresh, count, changed);
            });
          },
          rank, place};
}

}  // namespace tensorizer
