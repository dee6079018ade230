// Sinks on streams: they write in order, and can be cancelled at any time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/sink.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST_F(IoTest, WritesAPipeInOrder) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const std::string data = text_pattern(1'000'000);
  std::string seen;
  std::thread reader([&] {
    char buffer[10'000];
    for (ssize_t count; (count = ::read(reading.get(), buffer, sizeof(buffer))) > 0;) {
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  });
  {
    const auto out = sink("fd:" + std::to_string(writing.get()));
    EXPECT_TRUE(out->sequential());
    out->begin(kBlock, std::nullopt);
    EXPECT_EQ(kind_of([&] { write(*out, 0, "x"); }), ErrorKind::Internal);
    out->write_head(as_bytes(head_), cancel_);
    write(*out, 0, data);
    write(*out, data.size() + 5, "end");
    EXPECT_EQ(kind_of([&] { write(*out, 0, "x"); }), ErrorKind::Internal);
    out->finish(data.size() + 10, cancel_);
    EXPECT_EQ(kind_of([&] { write(*out, data.size() + 10, "x"); }), ErrorKind::Internal);
  }
  EXPECT_EQ(fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0);
  writing.close();
  reader.join();
  EXPECT_TRUE(seen == head_ + data + std::string(5, '\0') + "end" + std::string(2, '\0'));
}

TEST_F(IoTest, AReaderThatGoesAwayIsAnErrorAndNoSignal) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  const auto out = sink("fd:" + std::to_string(writing.get()));
  reading.close();
  const Error error = error_of([&] { save(*out, head_, "data"); });
  EXPECT_EQ(error.kind(), ErrorKind::Unavailable);
  EXPECT_EQ(error.system_errno(), EPIPE);
  // A pipe without a reader cannot be opened again, so the descriptor itself is used.
  EXPECT_EQ(kind_of([&] { save(*sink("fd:" + std::to_string(writing.get())), head_, ""); }),
            ErrorKind::Unavailable);

  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor left(ends[0]);
  Descriptor right(ends[1]);
  const auto socket = sink("fd:" + std::to_string(left.get()));
  right.close();
  EXPECT_EQ(kind_of([&] { save(*socket, head_, "data"); }), ErrorKind::Unavailable);
}

TEST_F(IoTest, CancelsAPipeThatNobodyEmpties) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  const auto out = sink("fd:" + std::to_string(writing.get()));
  const std::string more_than_fits = text_pattern(1 << 20);
  expect_cancelled_soon([&] { save(*out, head_, more_than_fits); });
}

TEST_F(IoTest, CancelsASocketThatNobodyEmpties) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor left(ends[0]);
  const Descriptor right(ends[1]);
  const auto out = sink("fd:" + std::to_string(left.get()));
  const std::string more_than_fits = text_pattern(4 << 20);
  expect_cancelled_soon([&] { save(*out, head_, more_than_fits); });
}

TEST_F(IoTest, WaitsForTheReaderOfAFifo) {
  ASSERT_EQ(mkfifo((folder_ / "p").c_str(), 0600), 0);
  std::string seen;
  {
    const OnceItWaits reader([&] { seen = read_file(folder_ / "p"); });
    save(*sink(folder_ / "p"), head_, "data");
  }
  EXPECT_EQ(seen, head_ + "data");
  EXPECT_TRUE(fs::is_fifo(folder_ / "p"));
  expect_cancelled_soon([&] { sink(folder_ / "p"); });
}

}  // namespace
}  // namespace tensorizer
