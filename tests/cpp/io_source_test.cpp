// Sources: files, memory, and streams that are read in order.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "io/copy.h"
#include "io/descriptor.h"
#include "io/sink.h"
#include "io/source.h"
#include "io_support.h"
#include "worlds.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST_F(IoTest, ReadsFiles) {
  const std::string text = text_pattern(100'000);
  write_file(folder_ / "f", text);
  for (const std::string& uri : {(folder_ / "f").string(), "file://" + (folder_ / "f").string(),
                                 "file://localhost" + folder_.path().string() + "/%66"}) {
    const auto file = source(uri);
    EXPECT_EQ(file->size(), text.size());
    EXPECT_EQ(file->start(), 0u);
    EXPECT_FALSE(file->sequential());
    EXPECT_TRUE(file->identity().has_value());
    EXPECT_EQ(read(*file, 99'990, 10), text.substr(99'990));
    EXPECT_EQ(read_up_to(*file, 99'990, 100), text.substr(99'990));
    EXPECT_EQ(read_up_to(*file, 200'000, 100), "");
    // The file was just written, so its pages are in the cache wherever they are sampled.
    EXPECT_EQ(file->hints(0, text.size()).reads_in_flight, 0);
    EXPECT_EQ(file->hints(200'000, 5).reads_in_flight, 0);
    EXPECT_EQ(file->hints(0, 1).reads_in_flight, 0);
  }
}

TEST_F(IoTest, ReadsScatteredPieces) {
  const std::string text = text_pattern(50'000);
  write_file(folder_ / "f", text);
  const auto file = source(folder_ / "f");
  // More pieces than one system call takes, some of them empty.
  std::string out(30'000, '\0');
  std::vector<Bytes> pieces;
  const Bytes all = std::as_writable_bytes(std::span(out));
  for (std::size_t at = 0; at < out.size(); at += 10) {
    pieces.push_back(all.subspan(at, 10));
    pieces.push_back({});
  }
  file->read(777, pieces, cancel_);
  EXPECT_EQ(out, text.substr(777, out.size()));
}

TEST_F(IoTest, SaysWhereAFileEnds) {
  write_file(folder_ / "f", "0123456789");
  const auto file = source(folder_ / "f");
  const Error error = error_of([&] { read(*file, 7, 10); });
  EXPECT_EQ(error.kind(), ErrorKind::InvalidFormat);
  EXPECT_NE(std::string(error.what()).find("/f' ends at byte 10, expected 7 more"),
            std::string::npos);
}

TEST_F(IoTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(kind_of([&] { source(folder_ / "none"); }), ErrorKind::NotFound);
  const Error error = error_of([&] { source(folder_.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::SystemError);
  EXPECT_EQ(error.system_errno(), EISDIR);
  EXPECT_EQ(error.path(), folder_.path());
  EXPECT_EQ(error_of([&] { source("fd:12345"); }).system_errno(), EBADF);
  EXPECT_EQ(error_of([&] { sink("fd:12345"); }).system_errno(), EBADF);
}

TEST_F(IoTest, WaitsForALeaseAndCanBeStopped) {
  write_file(folder_ / "f", "data");
  for (const bool is_released : {true, false}) {
    const Lease lease(folder_ / "f");
    if (!lease.is_taken()) GTEST_SKIP() << "this file system has no leases";
    const Polls polls([&](int) {
      if (!lease.is_waited_for()) return;
      if (!is_released) throw Error(ErrorKind::Cancelled, "stopped");
      lease.release();
    });
    if (is_released) {
      EXPECT_EQ(read(*source(folder_ / "f"), 0, 4), "data");
    } else {
      EXPECT_EQ(kind_of([&] { source(folder_ / "f"); }), ErrorKind::Cancelled);
    }
  }
}

TEST_F(IoTest, WaitsAMinuteForALease) {
  write_file(folder_ / "f", "data");
  const Lease lease(folder_ / "f");
  if (!lease.is_taken()) GTEST_SKIP() << "this file system has no leases";
  const testing_support::RecordedPauses world;
  const Clock::time_point begun = Clock::now();
  const Error error = error_of([&] { source(folder_ / "f"); });
  EXPECT_EQ(error.kind(), ErrorKind::TimedOut);
  EXPECT_EQ(error.path(), folder_ / "f");
  EXPECT_GE(Clock::now() - begun, std::chrono::minutes(1));
}

TEST_F(IoTest, ReadsADescriptorFromItsPosition) {
  write_file(folder_ / "f", "0123456789");
  const Descriptor file(open((folder_ / "f").c_str(), O_RDONLY | O_CLOEXEC));
  lseek(file.get(), 4, SEEK_SET);
  const auto from = source("fd:" + std::to_string(file.get()));
  EXPECT_EQ(from->start(), 4u);
  EXPECT_EQ(from->size(), 10u);
  EXPECT_EQ(read(*from, 4, 6), "456789");
  EXPECT_EQ(lseek(file.get(), 0, SEEK_CUR), 4);
  const Descriptor write_only(open((folder_ / "f").c_str(), O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(kind_of([&] { source("fd:" + std::to_string(write_only.get())); }),
            ErrorKind::InvalidArgument);
}

TEST_F(IoTest, ReadsBeyondFourGiB) {
  const std::uint64_t far = (std::uint64_t{5} << 30) + 3;
  const Descriptor file(open((folder_ / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(pwrite(file.get(), "far", 3, static_cast<off_t>(far)), 3);
  const auto from = source(folder_ / "f");
  EXPECT_EQ(from->size(), far + 3);
  EXPECT_EQ(read(*from, far, 3), "far");
  EXPECT_EQ(as_text(from->map()->bytes().subspan(far)), "far");
}

TEST_F(IoTest, MapsCopyOnWriteAndOutlivesTheFile) {
  const std::string text = text_pattern(3 * kBlock);
  write_file(folder_ / "f", text);
  auto file = source(folder_ / "f");
  const std::shared_ptr<Mapping> mapping = file->map();
  file.reset();
  write_file(folder_ / "g", "other");
  fs::rename(folder_ / "g", folder_ / "f");
  EXPECT_EQ(as_text(mapping->bytes()), text);
  mapping->bytes()[0] = std::byte{0x55};
  fs::remove(folder_ / "f");
  EXPECT_EQ(mapping->bytes()[0], std::byte{0x55});
  // Only the second page lies entirely inside the range.
  mapping->bytes()[kBlock] = mapping->bytes()[2 * kBlock] = std::byte{0x55};
  mapping->discard(mapping->bytes().subspan(1, 2 * kBlock));
  EXPECT_EQ(mapping->bytes()[0], std::byte{0x55});
  EXPECT_EQ(mapping->bytes()[kBlock], static_cast<std::byte>(text[kBlock]));
  EXPECT_EQ(mapping->bytes()[2 * kBlock], std::byte{0x55});
}

TEST_F(IoTest, WritingToAMappingLeavesTheFileAlone) {
  write_file(folder_ / "f", "0123456789");
  source(folder_ / "f")->map()->bytes()[3] = std::byte{'x'};
  EXPECT_EQ(read_file(folder_ / "f"), "0123456789");
  write_file(folder_ / "empty", "");
  EXPECT_EQ(source(folder_ / "empty")->map(), nullptr);
}

TEST_F(IoTest, ReadsMemoryWithinBounds) {
  const auto text = std::make_shared<std::string>("0123456789");
  const auto memory = memory_source(as_bytes(*text), text);
  EXPECT_EQ(text.use_count(), 2);
  EXPECT_EQ(memory->size(), 10u);
  EXPECT_EQ(memory->map(), nullptr);
  EXPECT_FALSE(memory->identity().has_value());
  EXPECT_EQ(read(*memory, 3, 4), "3456");
  EXPECT_EQ(read_up_to(*memory, 8, 4), "89");
  EXPECT_EQ(read_up_to(*memory, 10, 4), "");
  EXPECT_EQ(read_up_to(*memory, ~std::uint64_t{0}, 4), "");
  EXPECT_NE(message_of([&] { read(*memory, 8, 4); }).find("ends at byte 10, expected 2 more"),
            std::string::npos);
  EXPECT_EQ(kind_of([&] { read(*memory, ~std::uint64_t{0} - 1, 4); }), ErrorKind::InvalidFormat);
}

TEST_F(IoTest, ReadsNothingOnceCancelled) {
  write_file(folder_ / "f", "0123456789");
  const auto file = source(folder_ / "f");
  const auto memory = memory_source(as_bytes("0123456789"), nullptr);
  cancel_.request();
  for (Source* const each : {file.get(), memory.get()}) {
    EXPECT_EQ(kind_of([&] { read(*each, 0, 5); }), ErrorKind::Cancelled);
  }
}

TEST_F(IoTest, HasNoMappingOfWhatCannotBeMapped) {
  const std::string path = "/sys/devices/system/cpu/online";
  if (!fs::exists(path)) GTEST_SKIP() << "there is no " << path;
  const auto file = source(path);
  EXPECT_GT(file->size().value_or(0), 0U);
  EXPECT_EQ(file->map(), nullptr);
}

TEST_F(IoTest, CopiesNoFileThatGotShorter) {
  write_file(folder_ / "f", "0123456789");
  const auto file = source(folder_ / "f");
  fs::resize_file(folder_ / "f", 5);
  const auto out = sink(folder_ / "g");
  const Error error = error_of([&] { copy(*file, *out, cancel_); });
  EXPECT_TRUE(contains(error.what(), "got shorter while it was copied")) << error.what();
}

TEST_F(IoTest, ReadsAFifoInOrder) {
  const std::string text = text_pattern(1'000'000);
  ASSERT_EQ(mkfifo((folder_ / "p").c_str(), 0600), 0);
  const auto fifo = source(folder_ / "p");
  EXPECT_TRUE(fifo->sequential());
  EXPECT_EQ(fifo->size(), std::nullopt);
  const OnceItWaits writer([&] { write_file(folder_ / "p", text); });
  EXPECT_EQ(read(*fifo, 0, 10), text.substr(0, 10));
  EXPECT_EQ(read(*fifo, 500'000, 100'000), text.substr(500'000, 100'000));
  EXPECT_EQ(kind_of([&] { read(*fifo, 0, 1); }), ErrorKind::InvalidArgument);
  EXPECT_EQ(read_up_to(*fifo, 900'000, 200'000), text.substr(900'000));
  EXPECT_EQ(read_up_to(*fifo, 1'000'000, 10), "");
  EXPECT_NE(
      message_of([&] { read(*fifo, 1'000'010, 5); }).find("ends at byte 1000000, expected 15 more"),
      std::string::npos);
}

TEST_F(IoTest, CancelsAFifoWithoutAWriter) {
  ASSERT_EQ(mkfifo((folder_ / "p").c_str(), 0600), 0);
  const auto fifo = source(folder_ / "p");
  expect_cancelled_soon([&] { read(*fifo, 0, 1); });
}

TEST_F(IoTest, ReadsPipesSocketsAndDevices) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const auto from = source("fd:" + std::to_string(ends[0]));
  ASSERT_EQ(::write(writing.get(), "abc", 3), 3);
  writing.close();
  EXPECT_EQ(read(*from, 1, 2), "bc");
  EXPECT_EQ(read_up_to(*from, 3, 1), "");

  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor left(ends[0]);
  const Descriptor right(ends[1]);
  const auto socket = source("/dev/fd/" + std::to_string(ends[0]));
  ASSERT_EQ(::write(right.get(), "abc", 3), 3);
  EXPECT_EQ(read(*socket, 0, 3), "abc");
  expect_cancelled_soon([&] { read(*socket, 3, 1); });

  Cancel fresh;
  const auto zero = open_source("/dev/zero", {}, fresh);
  std::string out = "xxx";
  EXPECT_EQ(zero->read_up_to(1 << 20, std::as_writable_bytes(std::span(out)), fresh), 3u);
  EXPECT_EQ(out, std::string(3, '\0'));
}

TEST_F(IoTest, MovesMoreThanOneSystemCallCan) {
  // Reading a hole in a file in memory takes no memory.
  const Folder folder("/dev/shm");
  const std::uint64_t size = (std::uint64_t{2} << 30) + kBlock;
  write_file(folder / "hole", "");
  fs::resize_file(folder / "hole", size + 3);
  const Descriptor file(open((folder / "hole").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(pwrite(file.get(), "end", 3, static_cast<off_t>(size)), 3);
  const auto hole = source(folder / "hole");
  std::string scratch(1 << 20, 'x');
  const Bytes bytes = std::as_writable_bytes(std::span(scratch));
  std::vector<Bytes> pieces;
  for (std::uint64_t at = 0; at < size; at += bytes.size()) {
    pieces.push_back(bytes.first(std::min<std::uint64_t>(bytes.size(), size - at)));
  }
  std::string end = "...";
  pieces.push_back(std::as_writable_bytes(std::span(end)));
  hole->read(0, pieces, cancel_);
  EXPECT_EQ(scratch, std::string(1 << 20, '\0'));
  EXPECT_EQ(end, "end");
  EXPECT_EQ(hole->hints(0, size).reads_in_flight, 0);
}

}  // namespace
}  // namespace tensorizer
