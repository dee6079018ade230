// Parts of an upload: every byte of the file in its place, in whatever order the bytes arrive.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "io/upload/parts.h"

namespace tensorizer {
namespace {

std::vector<std::byte> file_of(std::size_t size) {
  std::mt19937 random(size);
  std::vector<std::byte> file(size);
  for (std::byte& byte : file) byte = static_cast<std::byte>(random());
  return file;
}

void put(const UploadPart& part, std::uint64_t part_size, std::vector<std::byte>& file) {
  std::uint64_t at = part.number * part_size;
  for (const ConstBytes piece : part.pieces) {
    ASSERT_LE(at + piece.size(), file.size());
    std::copy(piece.begin(), piece.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
    at += piece.size();
  }
  EXPECT_EQ(at, std::min<std::uint64_t>((part.number + 1) * part_size, file.size()));
}

// Writes the file in shuffled pieces, and overwrites the memory of those that do not stay.
void check(std::size_t size, std::uint64_t part_size, std::size_t largest, bool known) {
  const std::vector<std::byte> file = file_of(size);
  std::mt19937 random(static_cast<unsigned>(size + part_size));
  std::vector<std::pair<std::size_t, std::size_t>> writes;
  for (std::size_t at = 0; at < size;) {
    const std::size_t length = std::min<std::size_t>(1 + random() % largest, size - at);
    writes.emplace_back(at, length);
    at += length;
  }
  std::shuffle(writes.begin(), writes.end(), random);

  UploadParts parts(part_size, known ? std::optional<std::uint64_t>(size) : std::nullopt);
  std::vector<UploadPart> whole;
  for (const auto& [at, length] : writes) {
    const bool stays = random() % 2 == 0;
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<std::byte> fleeting(begin, begin + static_cast<std::ptrdiff_t>(length));
    const ConstBytes bytes = stays ? ConstBytes(file).subspan(at, length) : ConstBytes(fleeting);
    const std::array<ConstBytes, 2> pieces{bytes.first(length / 2), bytes.subspan(length / 2)};
    for (UploadPart& part : parts.add(at, pieces, stays)) whole.push_back(std::move(part));
    std::fill(fleeting.begin(), fleeting.end(), std::byte{0xEE});
  }
  for (UploadPart& part : parts.finish(size)) whole.push_back(std::move(part));
  std::vector<std::byte> put_together(size);
  for (const UploadPart& part : whole) put(part, part_size, put_together);
  EXPECT_EQ(whole.size(), (size + part_size - 1) / part_size);
  EXPECT_EQ(put_together, file);
}

TEST(UploadParts, HaveEveryByteInItsPlace) {
  for (const bool known : {false, true}) {
    check(1, 100, 10, known);
    check(100, 100, 30, known);
    check(101, 100, 101, known);
    check(5000, 64, 50, known);
    check(5000, 64, 1000, known);  // one write completes several parts
  }
}

// The first bytes turn out shorter, or longer, than the room that was left for them.
TEST(UploadParts, AreOneWhereAllFitsIntoIt) {
  const auto file = file_of(18);
  for (const std::size_t first : {3, 8}) {
    UploadParts parts(20, std::nullopt);
    const ConstBytes rest = ConstBytes(file).subspan(first);
    const std::array<ConstBytes, 2> pieces{rest.first(6), rest.subspan(6)};
    EXPECT_TRUE(parts.add(6, {pieces.data(), 1}, true).empty());
    EXPECT_TRUE(parts.add(12, {&pieces[1], 1}, false).empty());
    EXPECT_EQ(parts.held(), file.size() - first);
    const ConstBytes begin(file.data(), first);
    EXPECT_TRUE(parts.add(0, {&begin, 1}, true).empty());
    const std::vector<UploadPart> whole = parts.finish(file.size());
    ASSERT_EQ(whole.size(), 1U);
    std::vector<std::byte> put_together(file.size());
    put(whole.front(), 20, put_together);
    EXPECT_EQ(put_together, file);
  }
}

TEST(UploadParts, MissNoHole) {
  UploadParts parts(10, std::nullopt);
  const auto file = file_of(30);
  const ConstBytes first(file.data(), 5);
  EXPECT_TRUE(parts.add(0, {&first, 1}, true).empty());
  const ConstBytes last(file.data() + 10, 10);
  EXPECT_EQ(parts.add(10, {&last, 1}, true).size(), 1U);
  EXPECT_THROW(parts.finish(20), Error);
}

}  // namespace
}  // namespace tensorizer
