// Small reads that become few large ones: what is requested from the source, and that the bytes are
// right.
#include "engine/open/read_ahead.h"
#include "engine/open/reopening_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
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

// Shared by all sources of one file.
struct File {
  std::vector<std::byte> bytes;
  bool sequential = false;
  std::uint64_t fails_at = UINT64_MAX;
  int opened = 0;
  std::function<void()> meanwhile;  // called by the next read, once it is counted
  std::mutex mutex;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reads;

  std::uint64_t asked() {
    std::uint64_t all = 0;
    for (const auto& [offset, size] : reads) all += size;
    return all;
  }
};

class FileSource final : public Source {
 public:
  explicit FileSource(File& file) : file_(file) { ++file.opened; }

  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    cancel.check();
    std::unique_lock lock(file_.mutex);
    EXPECT_TRUE(!file_.sequential || offset >= position_);
    file_.reads.emplace_back(offset, out.size());
    if (offset + out.size() > file_.fails_at) {
      // Some bytes have arrived before the failure.
      std::fill_n(out.begin(), out.size() / 2, std::byte{0xA5});
      position_ = offset + out.size() / 2;
      throw Error(ErrorKind::Unavailable, "the cable is broken");
    }
    const std::size_t size = std::min<std::size_t>(out.size(), file_.bytes.size() - offset);
    std::copy_n(file_.bytes.begin() + static_cast<std::ptrdiff_t>(offset), size, out.begin());
    position_ = offset + size;
    const std::function<void()> meanwhile = std::exchange(file_.meanwhile, nullptr);
    lock.unlock();
    if (meanwhile) meanwhile();
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
    const auto open = [this](Cancel&) { return std::make_unique<FileSource>(file_); };
    return {reopening_source(open, cancel_), end, most};
  }

  void expect_read(ReadAhead& ahead, std::uint64_t offset, std::size_t size) {
    std::vector<std::byte> out(size);
    const ConstBytes file(file_.bytes);
    const ConstBytes left = file.subspan(std::min<std::size_t>(offset, file.size()));
    const std::size_t there = std::min(size, left.size());
    ASSERT_EQ(ahead.read(offset, out, cancel_), there);
    ASSERT_TRUE(same(ConstBytes(out).first(there), left.first(there)));
  }

  // Reads as a load reads a tensor. Returns the source that it was read from.
  std::shared_ptr<Source> load(ReadAhead& ahead, std::uint64_t begin, std::uint64_t end) {
    Cancel cancel;
    std::shared_ptr<Source> source = ahead.source_for(begin, end, true, cancel);
    std::vector<std::byte> out(end - begin);
    const Bytes piece(out);
    source->read(begin, {&piece, 1}, cancel);
    EXPECT_TRUE(same(out, ConstBytes(file_.bytes).subspan(begin, out.size())));
    return source;
  }

  File file_;
  Cancel cancel_;
};

TEST_F(ReadsAhead, AndReadsWhatWasNotAnnouncedFromTheFile) {
  for (const bool sequential : {false, true}) {
    file_.sequential = sequential;
    ReadAhead ahead = open(4 * kMiB);
    load(ahead, 0, 10000);
    Cancel cancel;
    const std::shared_ptr<Source> window = ahead.source_for(10000, 20000, true, cancel);
    ASSERT_NE(window.get(), ahead.source().get());
    EXPECT_EQ(window->sequential(), sequential);
    const std::uint64_t begin = sequential ? 15000 : 5000;
    std::vector<std::byte> out(2 * kMiB);
    const Bytes piece(out);
    window->read(begin, {&piece, 1}, cancel);
    EXPECT_TRUE(same(out, ConstBytes(file_.bytes).subspan(begin, out.size())));
  }
}

TEST_F(ReadsAhead, InOrderWithMoreAndMoreAtATime) {
  ReadAhead ahead = open(4 * kMiB);
  for (std::uint64_t at = 0; at < file_.bytes.size(); at += 10000) expect_read(ahead, at, 10000);
  expect_read(ahead, file_.bytes.size(), 10);
  for (const auto& [offset, size] : file_.reads) EXPECT_LE(size, 4 * kMiB);
  EXPECT_EQ(file_.asked(), file_.bytes.size());
  EXPECT_LE(file_.reads.size(), 14U);
}

TEST_F(ReadsAhead, NothingButWhatIsAskedForElsewhere) {
  ReadAhead ahead = open(4 * kMiB);
  for (const std::uint64_t at : {15 * kMiB, 2 * kMiB, 9 * kMiB}) expect_read(ahead, at, 100);
  for (const auto& [offset, size] : file_.reads) EXPECT_EQ(size, 100U);
  EXPECT_EQ(file_.reads.size(), 3U);
}

TEST_F(ReadsAhead, OverSmallGaps) {
  ReadAhead ahead = open(4 * kMiB);
  for (std::uint64_t at = 0; at + 10000 < file_.bytes.size(); at += 50000) {
    load(ahead, at, at + 10000);
  }
  EXPECT_LE(file_.reads.size(), 14U);
  file_.reads.clear();
  for (std::uint64_t at = 0; at + 10000 < file_.bytes.size(); at += kMiB) {
    load(ahead, at, at + 10000);
  }
  EXPECT_EQ(file_.reads.size(), 20U);
  EXPECT_EQ(file_.asked(), 200000U);
}

TEST_F(ReadsAhead, Backwards) {
  ReadAhead ahead = open(4 * kMiB);
  for (std::uint64_t at = file_.bytes.size(); at >= 10000; at -= 10000) {
    load(ahead, at - 10000, at);
    // The first step after a jump may be a coincidence, so nothing is read ahead for it.
    if (file_.reads.size() == 2) {
      EXPECT_EQ(file_.asked(), 20000U);
    }
  }
  EXPECT_LE(file_.reads.size(), 14U);
  EXPECT_LE(file_.asked(), file_.bytes.size());
}

TEST_F(ReadsAhead, HoldsNothingThatWasPassedOrLeft) {
  ReadAhead ahead = open(4 * kMiB);
  load(ahead, 0, 1000);
  std::weak_ptr<Source> held = load(ahead, 1000, 2000);
  EXPECT_FALSE(held.expired());
  load(ahead, 9 * kMiB, 9 * kMiB + 1000);
  EXPECT_TRUE(held.expired());

  held = load(ahead, 9 * kMiB + 1000, 9 * kMiB + 2000);
  const std::uint64_t end = file_.reads.back().first + file_.reads.back().second;
  EXPECT_FALSE(held.expired());
  load(ahead, end - 1000, end);
  EXPECT_TRUE(held.expired());
}

TEST_F(ReadsAhead, WhatIsLargeIsNotCopied) {
  ReadAhead ahead = open(4 * kMiB);
  for (std::uint64_t at = 0; at < 15 * kMiB; at += 3 * kMiB) {
    EXPECT_EQ(load(ahead, at, at + 3 * kMiB), ahead.source());
  }
  EXPECT_EQ(file_.asked(), 15 * kMiB);
}

// Of small and large tensors in the order of the file, each byte is read once.
TEST_F(ReadsAhead, WhatIsLargeAfterWhatIsSmall) {
  constexpr std::uint64_t kSizes[] = {kMiB, kMiB / 2, 4 * kMiB, kMiB / 2, 5 * kMiB, kMiB};
  constexpr std::uint64_t kAll = 12 * kMiB;
  for (const bool as_stream : {false, true}) {
    file_.reads.clear();
    ReadAhead ahead = open(4 * kMiB, kAll);
    std::uint64_t at = 0;
    for (const std::uint64_t size : kSizes) {
      if (as_stream) {
        expect_read(ahead, at, size);
      } else {
        load(ahead, at, at + size);
      }
      at += size;
    }
    EXPECT_EQ(at, kAll);
    EXPECT_EQ(file_.asked(), kAll);
  }
}

TEST_F(ReadsAhead, WhatIsLargeInPiecesAtOnce) {
  ReadAhead ahead = open(1 * kMiB);
  expect_read(ahead, 5, 20 * kMiB);
  EXPECT_EQ(file_.reads.size(), 8U);
}

TEST_F(ReadsAhead, NothingBehindTheEnd) {
  ReadAhead ahead = open(4 * kMiB, 3000);
  std::vector<std::byte> out(5000);
  EXPECT_EQ(ahead.read(0, Bytes(out).first(1000), cancel_), 1000U);
  EXPECT_EQ(ahead.read(1000, Bytes(out).first(1000), cancel_), 1000U);
  EXPECT_EQ(ahead.read(2000, out, cancel_), 1000U);
  EXPECT_EQ(ahead.read(3000, out, cancel_), 0U);
  for (const auto& [offset, size] : file_.reads) EXPECT_LE(offset + size, 3000U);
}

TEST_F(ReadsAhead, WhoeverComesMeanwhileWaitsForWhatIsComing) {
  ReadAhead ahead = open(4 * kMiB);
  load(ahead, 0, 1000);
  std::future<std::shared_ptr<Source>> second;
  file_.meanwhile = [&] {
    second = std::async(std::launch::async, [&] { return load(ahead, 2000, 3000); });
    // A read elsewhere does not wait.
    EXPECT_EQ(
        std::async(std::launch::async, [&] { return load(ahead, 9 * kMiB, 10 * kMiB); }).get(),
        ahead.source());
  };
  const std::shared_ptr<Source> first = load(ahead, 1000, 2000);
  EXPECT_EQ(second.get(), first);
  EXPECT_EQ(file_.reads.size(), 3U);
}

TEST_F(ReadsAhead, AHandlerThatReadsDoesNotWaitForWhatItInterrupts) {
  for (const bool sequential : {false, true}) {
    file_.sequential = sequential;
    file_.reads.clear();
    ReadAhead ahead = open(4 * kMiB);
    expect_read(ahead, 0, 1000);
    bool called = false;
    file_.meanwhile = [&] {
      called = true;
      if (sequential) {
        EXPECT_THROW(load(ahead, 2000, 3000), Error);
      } else {
        EXPECT_EQ(load(ahead, 2000, 3000), ahead.source());
      }
    };
    expect_read(ahead, 1000, 1000);
    EXPECT_TRUE(called);
    expect_read(ahead, 2000, 1000);
  }
}

TEST_F(ReadsAhead, AFetchThatFailedIsInNobodysWay) {
  ReadAhead ahead = open(4 * kMiB);
  load(ahead, 0, 1000);
  file_.fails_at = 50000;
  Cancel cancel;
  EXPECT_THROW(ahead.source_for(1000, 2000, true, cancel), Error);
  file_.fails_at = UINT64_MAX;
  EXPECT_NE(load(ahead, 2000, 3000), ahead.source());
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
    if (random() % 9 == 0) at = random() % (file_.bytes.size() + 100);
    const std::size_t size = random() % (random() % 9 == 0 ? 3 * kMiB : 5000);
    const bool backwards = i / 50 % 2 == 1;
    if (backwards) at -= std::min<std::uint64_t>(at, size + random() % 2000);
    expect_read(ahead, at, size);
    if (!backwards) at += size + random() % 2000;
  }
}

}  // namespace
}  // namespace tensorizer
