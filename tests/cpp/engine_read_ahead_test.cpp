// Small reads that become few large ones: what is asked of the source, and that the bytes are
// right.
#include "engine/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support.h"

namespace tensorizer {
namespace {

using testing_support::pattern;
using testing_support::same;

constexpr std::size_t kMiB = 1 << 20;

// What all sources of one file share.
struct File {
  std::vector<std::byte> bytes;
  bool sequential = false;
  std::uint64_t fails_at = UINT64_MAX;
  int opened = 0;
  std::mutex mutex;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reads;
};

class FileSource final : public Source {
 public:
  explicit FileSource(File& file) : file_(file) { ++file.opened; }

  void read(std::uint64_t, std::span<const Bytes>, Cancel&) override { FAIL(); }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    cancel.check();
    const std::lock_guard lock(file_.mutex);
    EXPECT_TRUE(!file_.sequential || offset >= position_);
    file_.reads.emplace_back(offset, out.size());
    if (offset + out.size() > file_.fails_at) {
      // Something has come before.
      std::fill_n(out.begin(), out.size() / 2, std::byte{0xA5});
      position_ = offset + out.size() / 2;
      throw Error(ErrorKind::Unavailable, "the cable is broken");
    }
    const std::size_t size = std::min<std::size_t>(out.size(), file_.bytes.size() - offset);
    std::copy_n(file_.bytes.begin() + static_cast<std::ptrdiff_t>(offset), size, out.begin());
    position_ = offset + size;
    return size;
  }
  std::optional<std::uint64_t> size() const override {
    if (file_.sequential) return std::nullopt;
    return file_.bytes.size();
  }
  bool sequential() const override { return file_.sequential; }
  ReadHints hints(std::uint64_t, std::uint64_t) override { return {8, 4 * kMiB}; }
  const std::string& label() const override { return label_; }

 private:
  File& file_;
  std::uint64_t position_ = 0;
  const std::string label_ = "'a file'";
};

class ReadsAhead : public testing::Test {
 protected:
  ReadsAhead() { file_.bytes = pattern(20 * kMiB + 7, 3); }

  ReadAhead open(std::uint64_t most, std::uint64_t end = UINT64_MAX) {
    return {[this](Cancel&) { return std::make_unique<FileSource>(file_); }, end, most, cancel_};
  }

  void expect_read(ReadAhead& ahead, std::uint64_t offset, std::size_t size) {
    std::vector<std::byte> out(size);
    const ConstBytes file(file_.bytes);
    const ConstBytes left = file.subspan(std::min<std::size_t>(offset, file.size()));
    const std::size_t there = std::min(size, left.size());
    ASSERT_EQ(ahead.read(offset, out, cancel_), there);
    ASSERT_TRUE(same(ConstBytes(out).first(there), left.first(there)));
  }

  File file_;
  Cancel cancel_;
};

TEST_F(ReadsAhead, InOrderWithMoreAndMoreAtATime) {
  ReadAhead ahead = open(4 * kMiB);
  for (std::uint64_t at = 0; at < file_.bytes.size(); at += 10000) expect_read(ahead, at, 10000);
  expect_read(ahead, file_.bytes.size(), 10);
  std::uint64_t all = 0;
  for (const auto& [offset, size] : file_.reads) {
    EXPECT_LE(size, 4 * kMiB);
    all += size;
  }
  EXPECT_EQ(all, file_.bytes.size());
  EXPECT_LE(file_.reads.size(), 30U);
}

TEST_F(ReadsAhead, LittleElsewhere) {
  ReadAhead ahead = open(4 * kMiB);
  for (const std::uint64_t at : {15 * kMiB, 2 * kMiB, 9 * kMiB}) expect_read(ahead, at, 100);
  for (const auto& [offset, size] : file_.reads) EXPECT_LE(size, 64U << 10);
}

TEST_F(ReadsAhead, WhatIsLargeInPiecesAtOnce) {
  ReadAhead ahead = open(1 * kMiB);
  expect_read(ahead, 5, 20 * kMiB);
  EXPECT_EQ(file_.reads.size(), 8U);
}

TEST_F(ReadsAhead, NothingBehindTheEnd) {
  ReadAhead ahead = open(4 * kMiB, 3000);
  std::vector<std::byte> out(5000);
  EXPECT_EQ(ahead.read(0, out, cancel_), 3000U);
  EXPECT_EQ(ahead.read(3000, out, cancel_), 0U);
  for (const auto& [offset, size] : file_.reads) EXPECT_LE(offset + size, 3000U);
}

TEST_F(ReadsAhead, BackwardsOpensAStreamAgain) {
  file_.sequential = true;
  ReadAhead ahead = open(1 * kMiB);
  expect_read(ahead, 3 * kMiB, 100);
  expect_read(ahead, 4 * kMiB, 100);
  EXPECT_EQ(file_.opened, 1);
  expect_read(ahead, 10, 100);
  EXPECT_EQ(file_.opened, 2);
  expect_read(ahead, 20 * kMiB, 100);
}

TEST_F(ReadsAhead, AnErrorLeavesNoWrongBytes) {
  for (const bool sequential : {false, true}) {
    file_.sequential = sequential;
    ReadAhead ahead = open(4 * kMiB);
    expect_read(ahead, 0, 1000);
    file_.fails_at = 6 * kMiB;
    std::vector<std::byte> out(9 * kMiB);
    Cancel cancel;
    EXPECT_THROW(ahead.read(1000, out, cancel), Error);
    file_.fails_at = UINT64_MAX;
    expect_read(ahead, 1000, 9 * kMiB);
    expect_read(ahead, 500, 100);
    file_.fails_at = 6 * kMiB;
    EXPECT_THROW(ahead.read(12 * kMiB, Bytes(out).first(100), cancel), Error);
    file_.fails_at = UINT64_MAX;
    expect_read(ahead, 500, 100);
  }
}

TEST_F(ReadsAhead, AnywhereAsTheFileHasIt) {
  std::mt19937 random(7);
  ReadAhead ahead = open(300000);
  std::uint64_t at = 0;
  for (int i = 0; i < 500; ++i) {
    if (random() % 3 == 0) at = random() % (file_.bytes.size() + 100);
    const std::size_t size = random() % (random() % 5 == 0 ? 3 * kMiB : 5000);
    expect_read(ahead, at, size);
    at += size;
  }
}

// As a signal handler does that reads from the stream that it interrupts.
TEST_F(ReadsAhead, RefusesAReadInsideAnother) {
  static ReadAhead* stream;
  static std::optional<ErrorKind> refused;
  ReadAhead ahead = open(kMiB);
  stream = &ahead;
  refused.reset();
  set_interrupt_hook([] {
    std::byte byte{};
    Cancel cancel;
    try {
      stream->read(7, {&byte, 1}, cancel);
    } catch (const Error& error) {
      refused = error.kind();
    }
  });
  Cancel cancel;
  std::vector<std::byte> out(100);
  EXPECT_EQ(ahead.read(0, out, cancel), 100U);
  set_interrupt_hook(nullptr);
  EXPECT_EQ(refused, ErrorKind::InvalidArgument);
  EXPECT_TRUE(same(out, ConstBytes(file_.bytes).first(100)));
  expect_read(ahead, 7, 1000);
}

}  // namespace
}  // namespace tensorizer
