// Reads around the page cache: any offset, any size, any memory, as read through it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "io/descriptor.h"
#include "io/local/direct_file.h"
#include "support.h"

namespace tensorizer {
namespace {

class DirectFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "direct-test-XXXXXX";
    file_ = Descriptor(mkstemp(path));
    ASSERT_TRUE(file_);
    unlink(path);
    std::mt19937_64 random(1);
    content_.resize((3 << 20) + 777);
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random());
    ASSERT_EQ(write(file_.get(), content_.data(), content_.size()),
              static_cast<ssize_t>(content_.size()));
    fsync(file_.get());
    direct_ = DirectFile::open(file_.get(), "file");
    if (!direct_) GTEST_SKIP() << "this file system cannot be read around the page cache";
  }

  // Reads into pieces of these sizes, the first of which begins `shift` bytes behind a block.
  void check(std::uint64_t offset, const std::vector<std::size_t>& sizes, std::size_t shift) {
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size + 1;  // a byte between them
    std::vector<std::byte> memory(total + shift + 2 * kAligned, std::byte{0x5a});
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* at = memory.data() + (align_up(address, kAligned) - address) + shift;
    std::vector<Bytes> pieces;
    for (const std::size_t size : sizes) {
      pieces.emplace_back(at, size);
      at += size + 1;
    }
    const std::uint64_t left = offset < content_.size() ? content_.size() - offset : 0;
    const std::uint64_t expected = std::min<std::uint64_t>(total - sizes.size(), left);
    Cancel cancel;
    ASSERT_EQ(direct_->read_at(offset, pieces, cancel), expected);
    std::uint64_t done = 0;
    for (const Bytes piece : pieces) {
      const std::uint64_t size = std::min<std::uint64_t>(piece.size(), expected - done);
      ASSERT_TRUE(size == 0 || std::memcmp(piece.data(), &content_[offset + done], size) == 0);
      ASSERT_EQ(*(piece.data() + piece.size()), std::byte{0x5a}) << "wrote behind a piece";
      done += size;
    }
  }

  static constexpr std::size_t kAligned = 4096;
  Descriptor file_;
  std::vector<std::byte> content_;
  std::unique_ptr<DirectFile> direct_;
};

TEST_F(DirectFileTest, AnyRangeIsReadIntoAnyMemory) {
  std::mt19937_64 random(2);
  const auto below = [&](std::size_t limit) {
    return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
  };
  const std::vector<std::size_t> near{0, 1, 511, 512, 513, 4095, 4096, 4097};
  for (int i = 0; i < 100; ++i) {
    std::vector<std::size_t> sizes;
    for (std::size_t count = 1 + below(5); count > 0; --count) {
      const std::size_t kind = below(4);
      sizes.push_back(kind == 0   ? near[below(near.size())]
                      : kind == 1 ? below(10'000)
                      : kind == 2 ? (64 << 10) * (1 + below(4)) + near[below(near.size())]
                                  : below(2 << 20));
    }
    std::uint64_t offset = below(content_.size());
    if (i % 3 == 0) offset = offset / kAligned * kAligned;
    // In every second case, the memory begins as the file does.
    const std::size_t shift = i % 2 == 0 ? offset % kAligned : below(kAligned);
    check(offset, sizes, shift);
  }
}

TEST_F(DirectFileTest, TheFileEnds) {
  const std::size_t size = content_.size();
  for (const std::size_t before : {0, 1, 776, 777, 778, 4096, 70'000}) {
    check(size - before, {before + 5000}, (size - before) % kAligned);
    check(size - before, {before, 1}, 0);
    check(size - before, {200'000}, (size - before) % kAligned);
  }
  check(size + 1, {10}, 0);
  check(size + 100'000, {200'000}, 0);
}

TEST_F(DirectFileTest, ACancelEndsIt) {
  std::vector<std::byte> memory(1 << 20);
  const Bytes piece(memory);
  Cancel cancel;
  cancel.request();
  EXPECT_THROW(direct_->read_at(0, {&piece, 1}, cancel), Error);
}

TEST_F(DirectFileTest, AFileThatShrinksEndsThere) {
  ASSERT_EQ(ftruncate(file_.get(), 5000), 0);
  content_.resize(5000);
  check(4000, {100'000}, 4000);
  check(0, {3000, 100'000}, 0);
}

}  // namespace
}  // namespace tensorizer
