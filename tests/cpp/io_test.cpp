// The io room: URIs, sources and sinks over files, streams and memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/sink.h"
#include "io/source.h"
#include "io/uri.h"
#include "support.h"

namespace tensorizer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kBlock = 4096;

using testing_support::error_of;
using testing_support::kind_of;
using testing_support::message_of;

// Bytes that differ from place to place.
std::string pattern(std::size_t size, unsigned seed = 1) {
  std::string text(size, '\0');
  for (char& c : text) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return text;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

mode_t mode_of(const fs::path& path) {
  struct stat status{};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

class Folder {
 public:
  explicit Folder(const std::string& parent) {
    std::string text = parent + "/io_test_XXXXXX";
    if (mkdtemp(text.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = text;
  }
  ~Folder() { fs::remove_all(path_); }

  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

class IoTest : public testing::Test {
 protected:
  std::unique_ptr<Source> source(const std::string& uri) { return open_source(uri, {}, cancel_); }
  std::unique_ptr<Sink> sink(const std::string& uri, SinkOptions options = {}) {
    return open_sink(uri, options, cancel_);
  }

  std::string read(Source& source, std::uint64_t offset, std::size_t size) {
    std::string text(size, '\0');
    const Bytes bytes = std::as_writable_bytes(std::span(text));
    source.read(offset, {&bytes, 1}, cancel_);
    return text;
  }

  std::string read_up_to(Source& source, std::uint64_t offset, std::size_t size) {
    std::string text(size, '\0');
    text.resize(source.read_up_to(offset, std::as_writable_bytes(std::span(text)), cancel_));
    return text;
  }

  // `offset` counts from the end of a prefix of `prefix` bytes.
  void write(Sink& sink, std::uint64_t offset, std::string_view text) {
    const ConstBytes piece = as_bytes(text);
    const Section section{SectionKind::Data, "t", offset, text.size()};
    sink.write({&section, 1}, offset, {&piece, 1}, cancel_);
  }

  // Prefix first, then `data`.
  void save(Sink& sink, std::string_view prefix, std::string_view data) {
    sink.reserve(prefix.size());
    sink.write_prefix(as_bytes(prefix), cancel_);
    write(sink, 0, data);
    sink.finish(data.size(), cancel_);
  }

  void expect_cancelled_soon(const std::function<void()>& action) {
    std::thread other([this] {
      std::this_thread::sleep_for(milliseconds(100));
      cancel_.request();
    });
    const auto start = Clock::now();
    EXPECT_EQ(kind_of(action), ErrorKind::Cancelled);
    EXPECT_LT(Clock::now() - start, milliseconds(300));
    other.join();
  }

  Folder folder_{testing::TempDir()};
  Cancel cancel_;
  const std::string prefix_ = pattern(kBlock, 7);
};

// URIs

TEST(UriTest, SplitsOnlyALeadingScheme) {
  EXPECT_EQ(split_uri("FILE:///x").scheme, "file");
  EXPECT_EQ(split_uri("s3+v.2-a://b//c").scheme, "s3+v.2-a");
  EXPECT_EQ(split_uri("s3://b//c").rest, "b//c");
  EXPECT_EQ(split_uri("fd:12").rest, "12");
  for (const char* path : {"a:b", "C:/x", "./a://b", "a b://c", "1a://b", "://x", "/a//b:c", "fd",
                           "file:/x", "FD:1"}) {
    EXPECT_EQ(split_uri(path).scheme, "") << path;
    EXPECT_EQ(split_uri(path).rest, path);
  }
  EXPECT_EQ(kind_of([] { split_uri(""); }), ErrorKind::InvalidArgument);
  for (const std::string_view uri :
       {std::string_view("a\0b", 3), std::string_view("file:///\0", 9)}) {
    EXPECT_EQ(kind_of([&] { split_uri(uri); }), ErrorKind::InvalidArgument);
  }
  EXPECT_EQ(
      message_of([] { split_uri(std::string_view("s3://user:secret@h/\0", 20)); }).find("secret"),
      std::string::npos);
}

TEST(UriTest, DecodesFileUris) {
  EXPECT_EQ(decode_file_uri("/a%20b/%e4%F6?x#y"), "/a b/\xe4\xf6?x#y");
  EXPECT_EQ(decode_file_uri("LocalHost/x"), "/x");
  for (const char* rest : {"", "host/x", "x", "localhost", "user:secret@localhost/x", "/%", "/%4",
                           "/%4g", "/%g4", "/a%00b"}) {
    const Error error = error_of([&] { decode_file_uri(rest); });
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << rest;
    EXPECT_EQ(std::string_view(error.what()).find("secret"), std::string_view::npos);
  }
}

TEST(UriTest, ExpandsHomes) {
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  setenv("HOME", "/some/home", 1);
  EXPECT_EQ(expand_home("~"), "/some/home");
  EXPECT_EQ(expand_home("~/a/~"), "/some/home/a/~");
  EXPECT_EQ(expand_home("a/~"), "a/~");
  EXPECT_EQ(expand_home("~root/x"), "/root/x");
  EXPECT_EQ(expand_home("~nobody-has-this-name/x"), "~nobody-has-this-name/x");
  unsetenv("HOME");
  EXPECT_NE(expand_home("~/x"), "~/x");
  if (home != nullptr) setenv("HOME", before.c_str(), 1);
}

TEST(UriTest, ParsesDescriptors) {
  EXPECT_EQ(parse_descriptor("07"), 7);
  for (const char* rest : {"", "-1", "+1", "1x", " 1", "99999999999", "x"}) {
    EXPECT_EQ(kind_of([&] { parse_descriptor(rest); }), ErrorKind::InvalidArgument) << rest;
  }
  EXPECT_EQ(descriptor_alias("/dev/stdin"), 0);
  EXPECT_EQ(descriptor_alias("/dev/fd/5"), 5);
  EXPECT_EQ(descriptor_alias("/proc/self/fd/12"), 12);
  for (const char* path : {"/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/full", "/dev/fd/1/x"}) {
    EXPECT_EQ(descriptor_alias(path), -1) << path;
  }
}

TEST_F(IoTest, UnknownSchemesListTheKnownOnesAndNoSecret) {
  for (const std::function<void()>& open :
       {std::function<void()>([&] { source("ftp://user:secret@host/x"); }),
        std::function<void()>([&] { sink("ftp://user:secret@host/x"); })}) {
    const Error error = error_of(open);
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument);
    EXPECT_NE(message.find("'ftp'"), std::string::npos);
    EXPECT_NE(message.find("file://"), std::string::npos);
    EXPECT_EQ(message.find("secret"), std::string::npos);
  }
}

// Sources

TEST_F(IoTest, ReadsFiles) {
  const std::string text = pattern(100'000);
  write_file(folder_ / "f", text);
  for (const std::string& uri : {(folder_ / "f").string(), "file://" + (folder_ / "f").string(),
                                 "file://localhost" + folder_.path().string() + "/%66"}) {
    const auto file = source(uri);
    EXPECT_EQ(file->size(), text.size());
    EXPECT_EQ(file->start(), 0u);
    EXPECT_FALSE(file->sequential());
    EXPECT_GE(file->descriptor(), 0);
    EXPECT_EQ(read(*file, 99'990, 10), text.substr(99'990));
    EXPECT_EQ(read_up_to(*file, 99'990, 100), text.substr(99'990));
    EXPECT_EQ(read_up_to(*file, 200'000, 100), "");
    // Warm, wherever the samples stand, as it was written a moment ago.
    EXPECT_EQ(file->hints(0, text.size()).reads_in_flight, 0);
    EXPECT_EQ(file->hints(200'000, 5).reads_in_flight, 0);
    EXPECT_EQ(file->hints(0, 1).reads_in_flight, 0);
  }
}

TEST_F(IoTest, ReadsScatteredPieces) {
  const std::string text = pattern(50'000);
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
  const std::string text = pattern(3 * kBlock);
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
  // Only the second page lies inside whole.
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
  EXPECT_EQ(memory->descriptor(), -1);
  EXPECT_EQ(read(*memory, 3, 4), "3456");
  EXPECT_EQ(read_up_to(*memory, 8, 4), "89");
  EXPECT_EQ(read_up_to(*memory, 10, 4), "");
  EXPECT_EQ(read_up_to(*memory, ~std::uint64_t{0}, 4), "");
  EXPECT_NE(message_of([&] { read(*memory, 8, 4); }).find("ends at byte 10, expected 2 more"),
            std::string::npos);
  EXPECT_EQ(kind_of([&] { read(*memory, ~std::uint64_t{0} - 1, 4); }), ErrorKind::InvalidFormat);
}

TEST_F(IoTest, ReadsAFifoInOrder) {
  const std::string text = pattern(1'000'000);
  ASSERT_EQ(mkfifo((folder_ / "p").c_str(), 0600), 0);
  const auto fifo = source(folder_ / "p");
  EXPECT_TRUE(fifo->sequential());
  EXPECT_EQ(fifo->size(), std::nullopt);
  std::thread writer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    write_file(folder_ / "p", text);
  });
  EXPECT_EQ(read(*fifo, 0, 10), text.substr(0, 10));
  EXPECT_EQ(read(*fifo, 500'000, 100'000), text.substr(500'000, 100'000));
  EXPECT_EQ(kind_of([&] { read(*fifo, 0, 1); }), ErrorKind::Internal);
  EXPECT_EQ(read_up_to(*fifo, 900'000, 200'000), text.substr(900'000));
  EXPECT_EQ(read_up_to(*fifo, 1'000'000, 10), "");
  EXPECT_NE(
      message_of([&] { read(*fifo, 1'000'010, 5); }).find("ends at byte 1000000, expected 15 more"),
      std::string::npos);
  writer.join();
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

// Sinks on files

TEST_F(IoTest, ReplacesAFileWholeAndKeepsItsMode) {
  const fs::path target = folder_ / "f";
  write_file(target, "old");
  chmod(target.c_str(), 0640);
  const auto out = sink(target);
  EXPECT_FALSE(out->ascending());
  EXPECT_EQ(out->start(), 0u);
  struct stat status{};
  ASSERT_EQ(stat(target.c_str(), &status), 0);
  EXPECT_FALSE(out->overwritten().has_value());
  out->reserve(kBlock);
  write(*out, 5, "world");
  write(*out, 0, "hello");
  EXPECT_EQ(read_file(target), "old");
  out->write_prefix(as_bytes(prefix_), cancel_);
  out->finish(10, cancel_);
  EXPECT_EQ(read_file(target), prefix_ + "helloworld");
  EXPECT_EQ(mode_of(target), 0640u);
  EXPECT_EQ(folder_.entries(), 1u);
  out->abort();
  EXPECT_EQ(read_file(target), prefix_ + "helloworld");
}

TEST_F(IoTest, ANewFileFollowsTheUmaskAndTheSizeGiven) {
  const mode_t before = umask(027);
  const auto out = sink(folder_ / "f", {.fsync = true});
  save(*out, prefix_, "data");
  umask(before);
  EXPECT_EQ(mode_of(folder_ / "f"), 0640u);
  EXPECT_EQ(read_file(folder_ / "f"), prefix_ + "data");
  const auto hole = sink(folder_ / "g");
  hole->reserve(kBlock);
  hole->write_prefix(as_bytes(prefix_), cancel_);
  hole->finish(3, cancel_);
  EXPECT_EQ(read_file(folder_ / "g"), prefix_ + std::string(3, '\0'));
}

TEST_F(IoTest, CreatesFoldersAndTakesThemBack) {
  const auto out = sink(folder_ / "a/b//c/f", {.fsync = true});
  EXPECT_TRUE(fs::is_directory(folder_ / "a/b/c"));
  save(*out, prefix_, "data");
  EXPECT_EQ(read_file(folder_ / "a/b/c/f"), prefix_ + "data");

  auto dropped = sink(folder_ / "x/y/f");
  dropped->reserve(kBlock);
  write(*dropped, 0, "data");
  dropped.reset();
  EXPECT_FALSE(fs::exists(folder_ / "x"));
  const auto aborted = sink(folder_ / "x/y/f");
  write_file(folder_ / "x/other", "");
  aborted->abort();
  aborted->abort();
  EXPECT_FALSE(fs::exists(folder_ / "x/y"));
  EXPECT_TRUE(fs::exists(folder_ / "x/other"));
}

TEST_F(IoTest, CreatesRelativeFolders) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  auto out = sink("a/b/f");
  auto plain = sink("f");
  fs::current_path(before);
  save(*plain, prefix_, "data");
  EXPECT_EQ(read_file(folder_ / "f"), prefix_ + "data");
  out.reset();
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, AbortLeavesTheOldFileAndNothingElse) {
  write_file(folder_ / "f", "old");
  {
    const auto out = sink(folder_ / "f");
    out->reserve(kBlock);
    write(*out, 0, "data");
    out->write_prefix(as_bytes(prefix_), cancel_);
    cancel_.request();
    EXPECT_EQ(kind_of([&] { out->finish(4, cancel_); }), ErrorKind::Cancelled);
  }
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, FollowsLinks) {
  fs::create_directory(folder_ / "sub");
  write_file(folder_ / "sub/real", "old");
  fs::create_symlink("sub/middle", folder_ / "link");
  fs::create_symlink("real", folder_ / "sub/middle");
  save(*sink(folder_ / "link"), prefix_, "data");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "sub/middle"));
  EXPECT_EQ(read_file(folder_ / "sub/real"), prefix_ + "data");

  fs::create_symlink("sub/none", folder_ / "dangling");
  save(*sink(folder_ / "dangling"), prefix_, "data");
  EXPECT_EQ(read_file(folder_ / "sub/none"), prefix_ + "data");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(error_of([&] { sink(folder_ / "loop"); }).system_errno(), ELOOP);
}

TEST_F(IoTest, RefusesFoldersAsTargets) {
  EXPECT_EQ(error_of([&] { sink(folder_.path()); }).system_errno(), EISDIR);
  EXPECT_EQ(error_of([&] { sink((folder_ / "new/").string()); }).system_errno(), EISDIR);
  EXPECT_EQ(error_of([&] { sink((folder_ / "new/.").string()); }).system_errno(), EISDIR);
  EXPECT_EQ(kind_of([&] { sink(""); }), ErrorKind::InvalidArgument);
  write_file(folder_ / "f", "old");
  EXPECT_EQ(kind_of([&] { sink(folder_ / "f/g"); }), ErrorKind::NotFound);
  EXPECT_EQ(folder_.entries(), 1u);
}

// What only an ordinary user is refused, run in a process of such a one.
void as_ordinary_user(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(3);
    try {
      action();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(IoTest, RespectsPermissions) {
  fs::create_directory(folder_ / "shut");
  write_file(folder_ / "shut/open", pattern(3 * kBlock));
  write_file(folder_ / "protected", "old");
  chmod((folder_ / "shut/open").c_str(), 0666);
  chmod((folder_ / "protected").c_str(), 0444);
  chmod((folder_ / "shut").c_str(), 0555);
  chmod(folder_.path().c_str(), 0777);
  as_ordinary_user([&] {
    EXPECT_EQ(kind_of([&] { sink(folder_ / "protected"); }), ErrorKind::PermissionDenied);
    EXPECT_EQ(kind_of([&] { sink(folder_ / "shut/new"); }), ErrorKind::PermissionDenied);
    // In place, as no file can be put beside it.
    const auto out = sink(folder_ / "shut/open");
    struct stat status{};
    ASSERT_EQ(stat((folder_ / "shut/open").c_str(), &status), 0);
    EXPECT_EQ(out->overwritten(), (FileIdentity{status.st_dev, status.st_ino}));
    save(*out, prefix_, "data");
    EXPECT_EQ(read_file(folder_ / "shut/open"), prefix_ + "data");
  });
  // A sticky folder lets nobody replace another user's file.
  write_file(folder_ / "f", "old");
  chmod((folder_ / "f").c_str(), 0666);
  chmod(folder_.path().c_str(), 01777);
  if (geteuid() == 0) {
    as_ordinary_user([&] { save(*sink(folder_ / "f"), prefix_, "data"); });
    EXPECT_EQ(read_file(folder_ / "f"), prefix_ + "data");
  }
  EXPECT_EQ(read_file(folder_ / "protected"), "old");
  chmod((folder_ / "shut").c_str(), 0755);
}

// On ext4 the system inserts the room, on tmpfs the bytes are copied.
class GrowthTest : public IoTest, public testing::WithParamInterface<std::string> {};

TEST_P(GrowthTest, AGrownPrefixMovesTheDataUp) {
  const Folder folder(GetParam() == "TempDir" ? testing::TempDir() : GetParam());
  const std::string data = pattern((9 << 20) + 123);
  const std::string longer = pattern(5 * kBlock, 9);
  const auto out = sink(folder / "f");
  out->reserve(kBlock);
  write(*out, 0, data);
  out->write_prefix(as_bytes(longer), cancel_);
  write(*out, data.size(), "more");
  out->finish(data.size() + 4, cancel_);
  EXPECT_TRUE(read_file(folder / "f") == longer + data + "more");
  EXPECT_EQ(folder.entries(), 1u);

  const auto empty = sink(folder / "f");
  empty->reserve(kBlock);
  empty->write_prefix(as_bytes(longer), cancel_);
  empty->finish(0, cancel_);
  EXPECT_EQ(read_file(folder / "f"), longer);
}

INSTANTIATE_TEST_SUITE_P(Folders, GrowthTest, testing::Values("TempDir", "/dev/shm"));

TEST_F(IoTest, WritesADescriptorInPlaceFromItsPosition) {
  for (const int access : {O_RDWR, O_WRONLY}) {
    const std::string old = pattern(10 * kBlock, 3);
    write_file(folder_ / "f", old);
    const Descriptor file(open((folder_ / "f").c_str(), access | O_CLOEXEC));
    lseek(file.get(), 100, SEEK_SET);
    const auto out = sink("fd:" + std::to_string(file.get()));
    EXPECT_EQ(out->start(), 100u);
    out->reserve(kBlock);
    write(*out, 0, "data");
    const std::string longer = pattern(2 * kBlock, 9);
    out->write_prefix(as_bytes(longer), cancel_);
    struct stat status{};
    ASSERT_EQ(fstat(file.get(), &status), 0);
    EXPECT_EQ(out->overwritten(), (FileIdentity{status.st_dev, status.st_ino}));
    out->finish(4, cancel_);
    const std::size_t end = 100 + longer.size() + 4;
    EXPECT_EQ(lseek(file.get(), 0, SEEK_CUR), static_cast<off_t>(end));
    EXPECT_TRUE(read_file(folder_ / "f") == old.substr(0, 100) + longer + "data" + old.substr(end));
  }
}

TEST_F(IoTest, RefusesDescriptorsThatCannotBeWritten) {
  write_file(folder_ / "f", "old");
  const Descriptor reading(open((folder_ / "f").c_str(), O_RDONLY | O_CLOEXEC));
  const Descriptor appending(open((folder_ / "f").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  const Descriptor polling(epoll_create1(EPOLL_CLOEXEC));
  for (const Descriptor* file : {&reading, &appending, &polling}) {
    EXPECT_EQ(kind_of([&] { sink("fd:" + std::to_string(file->get())); }),
              ErrorKind::InvalidArgument);
  }
}

TEST_F(IoTest, ALinkInProcLeadsToTheFileItself) {
  write_file(folder_ / "f", "old and longer than what comes");
  const Descriptor file(open((folder_ / "f").c_str(), O_RDWR | O_CLOEXEC));
  fs::remove(folder_ / "f");
  const std::string link =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.get());
  save(*sink(link), prefix_, "data");
  EXPECT_EQ(read(*source(link), kBlock, 4), "data");
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(IoTest, FullDevicesAndLimitsAreOutOfSpace) {
  const auto full = sink("/dev/full");
  EXPECT_TRUE(full->ascending());
  const Error error = error_of([&] { save(*full, prefix_, "data"); });
  EXPECT_EQ(error.kind(), ErrorKind::OutOfSpace);
  EXPECT_EQ(error.system_errno(), ENOSPC);
  save(*sink("/dev/null"), prefix_, "data");

  write_file(folder_ / "f", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2 * kBlock, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Error limited = error_of([&] { save(*sink(folder_ / "f"), prefix_, pattern(4 * kBlock)); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(limited.kind(), ErrorKind::OutOfSpace);
  EXPECT_EQ(limited.system_errno(), EFBIG);
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, MemoryThatCannotBeReadIsAnError) {
  write_file(folder_ / "source", pattern(4 * kBlock));
  const auto mapping = source(folder_ / "source")->map();
  fs::resize_file(folder_ / "source", kBlock);
  const auto out = sink(folder_ / "f");
  out->reserve(kBlock);
  const Error error = error_of([&] { write(*out, 0, as_text(mapping->bytes())); });
  EXPECT_EQ(error.kind(), ErrorKind::SystemError);
  EXPECT_EQ(error.system_errno(), EFAULT);
}

TEST_F(IoTest, AFinishedFileHoldsNoSpaceBeyondItsEnd) {
  const std::string data = pattern(17 << 20);
  const auto out = sink(folder_ / "f");
  save(*out, prefix_, data);
  struct stat status{};
  ASSERT_EQ(stat((folder_ / "f").c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), kBlock + data.size());
  EXPECT_LT(status.st_blocks * 512, status.st_size + (1 << 20));
}

TEST_F(IoTest, WritesManyPiecesFromManyThreads) {
  const std::string data = pattern(8 << 20);
  const auto out = sink(folder_ / "f");
  out->reserve(kBlock);
  std::vector<std::thread> threads;
  const std::size_t share = data.size() / 4;
  for (std::size_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      std::vector<ConstBytes> pieces;
      for (std::size_t at = 0; at < share; at += 1024) {
        pieces.push_back(as_bytes(std::string_view(data).substr(part * share + at, 1024)));
      }
      out->write({}, part * share, pieces, cancel_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  out->write_prefix(as_bytes(prefix_), cancel_);
  out->finish(data.size(), cancel_);
  EXPECT_TRUE(read_file(folder_ / "f") == prefix_ + data);
}

TEST_F(IoTest, MovesMoreThanOneSystemCallCan) {
  // A hole in memory takes none of it to read.
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

// Sinks on streams

TEST_F(IoTest, WritesAPipeInOrder) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const std::string data = pattern(1'000'000);
  std::string seen;
  std::thread reader([&] {
    char buffer[10'000];
    for (ssize_t count; (count = ::read(reading.get(), buffer, sizeof(buffer))) > 0;) {
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  });
  {
    const auto out = sink("fd:" + std::to_string(writing.get()));
    EXPECT_TRUE(out->ascending());
    out->reserve(kBlock);
    EXPECT_EQ(kind_of([&] { write(*out, 0, "x"); }), ErrorKind::Internal);
    out->write_prefix(as_bytes(prefix_), cancel_);
    write(*out, 0, data);
    write(*out, data.size() + 5, "end");
    EXPECT_EQ(kind_of([&] { write(*out, 0, "x"); }), ErrorKind::Internal);
    out->finish(data.size() + 10, cancel_);
    EXPECT_EQ(kind_of([&] { write(*out, data.size() + 10, "x"); }), ErrorKind::Internal);
  }
  EXPECT_EQ(fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0);
  writing.close();
  reader.join();
  EXPECT_TRUE(seen == prefix_ + data + std::string(5, '\0') + "end" + std::string(2, '\0'));
}

TEST_F(IoTest, AReaderThatGoesAwayIsAnErrorAndNoSignal) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  const auto out = sink("fd:" + std::to_string(writing.get()));
  reading.close();
  const Error error = error_of([&] { save(*out, prefix_, "data"); });
  EXPECT_EQ(error.kind(), ErrorKind::Unavailable);
  EXPECT_EQ(error.system_errno(), EPIPE);
  // Nobody to open it for: the descriptor itself is used.
  EXPECT_EQ(kind_of([&] { save(*sink("fd:" + std::to_string(writing.get())), prefix_, ""); }),
            ErrorKind::Unavailable);

  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor left(ends[0]);
  Descriptor right(ends[1]);
  const auto socket = sink("fd:" + std::to_string(left.get()));
  right.close();
  EXPECT_EQ(kind_of([&] { save(*socket, prefix_, "data"); }), ErrorKind::Unavailable);
}

TEST_F(IoTest, CancelsAPipeThatNobodyEmpties) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor reading(ends[0]);
  const Descriptor writing(ends[1]);
  const auto out = sink("fd:" + std::to_string(writing.get()));
  expect_cancelled_soon([&] { save(*out, prefix_, pattern(1 << 20)); });
}

TEST_F(IoTest, CancelsASocketThatNobodyEmpties) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor left(ends[0]);
  const Descriptor right(ends[1]);
  const auto out = sink("fd:" + std::to_string(left.get()));
  expect_cancelled_soon([&] { save(*out, prefix_, pattern(4 << 20)); });
}

TEST_F(IoTest, WaitsForTheReaderOfAFifo) {
  ASSERT_EQ(mkfifo((folder_ / "p").c_str(), 0600), 0);
  std::string seen;
  std::thread reader([&] {
    std::this_thread::sleep_for(milliseconds(30));
    seen = read_file(folder_ / "p");
  });
  save(*sink(folder_ / "p"), prefix_, "data");
  reader.join();
  EXPECT_EQ(seen, prefix_ + "data");
  EXPECT_TRUE(fs::is_fifo(folder_ / "p"));
  expect_cancelled_soon([&] { sink(folder_ / "p"); });
}

}  // namespace
}  // namespace tensorizer
