// Sinks on files: what replaces a file, when, and what is left behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/sink.h"
#include "io/source.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

TEST_F(IoTest, ReplacesAFileWholeAndKeepsItsMode) {
  const fs::path target = folder_ / "f";
  write_file(target, "old");
  chmod(target.c_str(), 0640);
  const auto out = sink(target);
  EXPECT_FALSE(out->sequential());
  EXPECT_EQ(out->start(), 0u);
  struct stat status{};
  ASSERT_EQ(stat(target.c_str(), &status), 0);
  EXPECT_FALSE(out->overwritten().has_value());
  out->begin(kBlock, std::nullopt);
  write(*out, 5, "world");
  write(*out, 0, "hello");
  EXPECT_EQ(read_file(target), "old");
  out->write_head(as_bytes(head_), cancel_);
  out->finish(10, cancel_);
  EXPECT_EQ(read_file(target), head_ + "helloworld");
  EXPECT_EQ(mode_of(target), 0640u);
  EXPECT_EQ(folder_.entries(), 1u);
  out->abort();
  EXPECT_EQ(read_file(target), head_ + "helloworld");
}

TEST_F(IoTest, ANewFileFollowsTheUmaskAndTheSizeGiven) {
  const mode_t before = umask(027);
  const auto out = sink(folder_ / "f", {.fsync = true});
  save(*out, head_, "data");
  umask(before);
  EXPECT_EQ(mode_of(folder_ / "f"), 0640u);
  EXPECT_EQ(read_file(folder_ / "f"), head_ + "data");
  const auto hole = sink(folder_ / "g");
  hole->begin(kBlock, std::nullopt);
  hole->write_head(as_bytes(head_), cancel_);
  hole->finish(3, cancel_);
  EXPECT_EQ(read_file(folder_ / "g"), head_ + std::string(3, '\0'));
}

TEST_F(IoTest, CreatesFoldersAndTakesThemBack) {
  const auto out = sink(folder_ / "a/b//c/f", {.fsync = true});
  EXPECT_TRUE(fs::is_directory(folder_ / "a/b/c"));
  save(*out, head_, "data");
  EXPECT_EQ(read_file(folder_ / "a/b/c/f"), head_ + "data");

  auto dropped = sink(folder_ / "x/y/f");
  dropped->begin(kBlock, std::nullopt);
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
  save(*plain, head_, "data");
  EXPECT_EQ(read_file(folder_ / "f"), head_ + "data");
  out.reset();
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, AbortLeavesTheOldFileAndNothingElse) {
  write_file(folder_ / "f", "old");
  {
    const auto out = sink(folder_ / "f");
    out->begin(kBlock, std::nullopt);
    write(*out, 0, "data");
    out->write_head(as_bytes(head_), cancel_);
    cancel_.request();
    EXPECT_EQ(kind_of([&] { out->finish(4, cancel_); }), ErrorKind::Cancelled);
  }
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, LeavesNothingBesideATargetThatBecameAFolder) {
  const auto out = sink(folder_ / "f");
  out->begin(kBlock, std::nullopt);
  out->write_head(as_bytes(head_), cancel_);
  fs::create_directory(folder_ / "f");
  EXPECT_THROW(out->finish(0, cancel_), Error);
  out->abort();
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, WritesNothingOnceCancelled) {
  const auto out = sink(folder_ / "f");
  out->begin(kBlock, std::nullopt);
  cancel_.request();
  EXPECT_EQ(kind_of([&] { write(*out, 0, "data"); }), ErrorKind::Cancelled);
}

TEST_F(IoTest, NoticesWhenAFileThatItMovesUpWasCut) {
  const fs::path other = folder_ / "g";
  const int file = ::open(other.c_str(), O_CREAT | O_RDWR, 0600);
  const auto in_place = sink("fd:" + std::to_string(file));
  in_place->begin(kBlock, std::nullopt);
  write(*in_place, 0, "data");
  fs::resize_file(other, kBlock);
  const std::string longer = head_ + head_;
  const Error error = error_of([&] { in_place->write_head(as_bytes(longer), cancel_); });
  EXPECT_TRUE(contains(error.what(), "was truncated by another process")) << error.what();
  ::close(file);
}

TEST_F(IoTest, FollowsLinks) {
  fs::create_directory(folder_ / "sub");
  write_file(folder_ / "sub/real", "old");
  fs::create_symlink("sub/middle", folder_ / "link");
  fs::create_symlink("real", folder_ / "sub/middle");
  save(*sink(folder_ / "link"), head_, "data");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "sub/middle"));
  EXPECT_EQ(read_file(folder_ / "sub/real"), head_ + "data");

  fs::create_symlink("sub/none", folder_ / "dangling");
  save(*sink(folder_ / "dangling"), head_, "data");
  EXPECT_EQ(read_file(folder_ / "sub/none"), head_ + "data");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(error_of([&] { sink(folder_ / "loop"); }).system_errno(), ELOOP);
}

TEST_F(IoTest, ReplacesLinks) {
  const auto replacing = [&](const std::string& name) {
    return sink(folder_ / name, {.replace_links = true});
  };
  write_file(folder_ / "real", "old");
  fs::permissions(folder_ / "real", fs::perms::owner_read);
  fs::create_symlink("real", folder_ / "link");
  fs::create_symlink("none", folder_ / "dangling");
  fs::create_symlink("loop", folder_ / "loop");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  for (const char* const name : {"link", "dangling", "loop", "fifo", "new"}) {
    save(*replacing(name), head_, "data");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / name))) << name;
    EXPECT_EQ(read_file(folder_ / name), head_ + "data");
  }
  EXPECT_EQ(read_file(folder_ / "real"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "none"));
  EXPECT_EQ(mode_of(folder_ / "link"), mode_of(folder_ / "new"));
  fs::create_directory(folder_ / "folder");
  EXPECT_EQ(error_of([&] { replacing("folder"); }).system_errno(), EISDIR);
  if (mknod((folder_ / "device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // as root
    save(*replacing("device"), head_, "data");
    EXPECT_TRUE(fs::is_character_file(folder_ / "device"));
  }
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

// Runs an action in a child process as an ordinary user, because root is refused nothing.
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
  write_file(folder_ / "shut/open", text_pattern(3 * kBlock));
  write_file(folder_ / "protected", "old");
  chmod((folder_ / "shut/open").c_str(), 0666);
  chmod((folder_ / "protected").c_str(), 0444);
  chmod((folder_ / "shut").c_str(), 0555);
  chmod(folder_.path().c_str(), 0777);
  as_ordinary_user([&] {
    EXPECT_EQ(kind_of([&] { sink(folder_ / "protected"); }), ErrorKind::PermissionDenied);
    EXPECT_EQ(kind_of([&] { sink(folder_ / "shut/new"); }), ErrorKind::PermissionDenied);
    // Written in place, because no file can be created beside it.
    const auto out = sink(folder_ / "shut/open");
    struct stat status{};
    ASSERT_EQ(stat((folder_ / "shut/open").c_str(), &status), 0);
    EXPECT_EQ(out->overwritten(), (FileIdentity{status.st_dev, status.st_ino}));
    save(*out, head_, "data");
    EXPECT_EQ(read_file(folder_ / "shut/open"), head_ + "data");
  });
  // In a sticky folder, a user cannot replace another user's file.
  write_file(folder_ / "f", "old");
  chmod((folder_ / "f").c_str(), 0666);
  chmod(folder_.path().c_str(), 01777);
  if (geteuid() == 0) {
    as_ordinary_user([&] { save(*sink(folder_ / "f"), head_, "data"); });
    EXPECT_EQ(read_file(folder_ / "f"), head_ + "data");
    // That of a third one is not written in place either.
    ASSERT_EQ(chown((folder_ / "f").c_str(), 12345, 12345), 0);
    as_ordinary_user(
        [&] { EXPECT_EQ(kind_of([&] { sink(folder_ / "f"); }), ErrorKind::PermissionDenied); });
    save(*sink(folder_ / "f"), head_, "new");
    struct stat status{};
    ASSERT_EQ(stat((folder_ / "f").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 0u);
    EXPECT_EQ(status.st_mode & 022, 0u);
    // Nor is a link followed.
    fs::create_symlink("elsewhere", folder_ / "link");
    ASSERT_EQ(lchown((folder_ / "link").c_str(), 12345, 12345), 0);
    EXPECT_EQ(kind_of([&] { sink(folder_ / "link"); }), ErrorKind::PermissionDenied);
    ASSERT_EQ(lchown((folder_ / "link").c_str(), 0, 0), 0);
    save(*sink(folder_ / "link"), head_, "data");
    EXPECT_EQ(read_file(folder_ / "elsewhere"), head_ + "data");
    // Nor does such a file give its owner and mode to one of another name.
    ASSERT_EQ(chmod((folder_ / "f").c_str(), 0666), 0);
    for (const unsigned owner : {0u, 12345u}) {
      ASSERT_EQ(chown((folder_ / "f").c_str(), owner, owner), 0);
      save(*sink(folder_ / std::to_string(owner), {.replaces = folder_ / "f"}), head_, "new");
      ASSERT_EQ(stat((folder_ / std::to_string(owner)).c_str(), &status), 0);
      EXPECT_EQ(status.st_uid, 0u);
      EXPECT_EQ(status.st_mode & 022, owner == 0 ? 022u : 0u);
    }
  }
  EXPECT_EQ(read_file(folder_ / "protected"), "old");
  chmod((folder_ / "shut").c_str(), 0755);
}

TEST_F(IoTest, CanBeStoppedWhileItWaitsForALease) {
  fs::create_directory(folder_ / "shut");
  write_file(folder_ / "shut/open", "old");
  chmod((folder_ / "shut/open").c_str(), 0666);
  chmod((folder_ / "shut").c_str(), 0555);
  chmod(folder_.path().c_str(), 0777);
  const Lease lease(folder_ / "shut/open");
  as_ordinary_user([&] {
    const Polls polls([&](int) {
      if (lease.is_waited_for()) throw Error(ErrorKind::Cancelled, "stopped");
    });
    if (lease.is_taken()) {
      EXPECT_EQ(kind_of([&] { sink(folder_ / "shut/open"); }), ErrorKind::Cancelled);
    }
  });
  chmod((folder_ / "shut").c_str(), 0755);
}

// On ext4 the system inserts room for the head; on tmpfs the bytes are copied.
class GrowthTest : public IoTest, public testing::WithParamInterface<std::string> {};

TEST_P(GrowthTest, AGrownHeadMovesTheBodyUp) {
  const Folder folder(GetParam() == "TempDir" ? testing::TempDir() : GetParam());
  const std::string data = text_pattern((9 << 20) + 123);
  const std::string longer = text_pattern(5 * kBlock, 9);
  const auto out = sink(folder / "f");
  out->begin(kBlock, std::nullopt);
  write(*out, 0, data);
  out->write_head(as_bytes(longer), cancel_);
  write(*out, data.size(), "more");
  out->finish(data.size() + 4, cancel_);
  EXPECT_TRUE(read_file(folder / "f") == longer + data + "more");
  EXPECT_EQ(folder.entries(), 1u);

  const auto empty = sink(folder / "f");
  empty->begin(kBlock, std::nullopt);
  empty->write_head(as_bytes(longer), cancel_);
  empty->finish(0, cancel_);
  EXPECT_EQ(read_file(folder / "f"), longer);
}

// The caller chooses the alignment, because file systems insert only whole blocks.
TEST_P(GrowthTest, AHeadGrowsByAnyNumberOfBytes) {
  const Folder folder(GetParam() == "TempDir" ? testing::TempDir() : GetParam());
  const std::string data = text_pattern(100'000);
  const std::string longer = text_pattern(kBlock + 8, 9);
  const auto out = sink(folder / "f");
  out->begin(100, std::nullopt);
  EXPECT_FALSE(out->can_resize_head(99, 7));
  EXPECT_TRUE(out->can_resize_head(100, 7));
  EXPECT_TRUE(out->can_resize_head(longer.size(), 7));
  write(*out, 0, data);
  out->write_head(as_bytes(longer), cancel_);
  EXPECT_EQ(kind_of([&] { out->write_head(as_bytes("short"), cancel_); }), ErrorKind::Internal);
  out->finish(data.size(), cancel_);
  EXPECT_TRUE(read_file(folder / "f") == longer + data);
}

INSTANTIATE_TEST_SUITE_P(Folders, GrowthTest, testing::Values("TempDir", "/dev/shm"));

TEST_F(IoTest, WritesADescriptorInPlaceFromItsPosition) {
  for (const int access : {O_RDWR, O_WRONLY}) {
    const std::string old = text_pattern(10 * kBlock, 3);
    write_file(folder_ / "f", old);
    const Descriptor file(open((folder_ / "f").c_str(), access | O_CLOEXEC));
    lseek(file.get(), 100, SEEK_SET);
    const auto out = sink("fd:" + std::to_string(file.get()));
    EXPECT_EQ(out->start(), 100u);
    out->begin(kBlock, std::nullopt);
    write(*out, 0, "data");
    const std::string longer = text_pattern(2 * kBlock, 9);
    out->write_head(as_bytes(longer), cancel_);
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
  save(*sink(link), head_, "data");
  EXPECT_EQ(read(*source(link), kBlock, 4), "data");
  EXPECT_EQ(folder_.entries(), 0u);
}

TEST_F(IoTest, FullDevicesAndLimitsAreOutOfSpace) {
  const auto full = sink("/dev/full");
  EXPECT_TRUE(full->sequential());
  const Error error = error_of([&] { save(*full, head_, "data"); });
  EXPECT_EQ(error.kind(), ErrorKind::OutOfSpace);
  EXPECT_EQ(error.system_errno(), ENOSPC);
  save(*sink("/dev/null"), head_, "data");

  write_file(folder_ / "f", "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2 * kBlock, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Error limited =
      error_of([&] { save(*sink(folder_ / "f"), head_, text_pattern(4 * kBlock)); });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(limited.kind(), ErrorKind::OutOfSpace);
  EXPECT_EQ(limited.system_errno(), EFBIG);
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(IoTest, MemoryThatCannotBeReadIsAnError) {
  write_file(folder_ / "source", text_pattern(4 * kBlock));
  const auto mapping = source(folder_ / "source")->map();
  fs::resize_file(folder_ / "source", kBlock);
  const auto out = sink(folder_ / "f");
  out->begin(kBlock, std::nullopt);
  const Error error = error_of([&] { write(*out, 0, as_text(mapping->bytes())); });
  EXPECT_EQ(error.kind(), ErrorKind::SystemError);
  EXPECT_EQ(error.system_errno(), EFAULT);
  EXPECT_TRUE(contains(error.what(), "may have been truncated")) << error.what();
}

TEST_F(IoTest, AFinishedFileHoldsNoSpaceBeyondItsEnd) {
  const std::string data = text_pattern(17 << 20);
  const auto out = sink(folder_ / "f");
  save(*out, head_, data);
  struct stat status{};
  ASSERT_EQ(stat((folder_ / "f").c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), kBlock + data.size());
  EXPECT_LT(status.st_blocks * 512, status.st_size + (1 << 20));
}

TEST_F(IoTest, WritesManyPiecesFromManyThreads) {
  const std::string data = text_pattern(8 << 20);
  const auto out = sink(folder_ / "f");
  out->begin(kBlock, std::nullopt);
  std::vector<std::thread> threads;
  const std::size_t share = data.size() / 4;
  for (std::size_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      std::vector<ConstBytes> pieces;
      for (std::size_t at = 0; at < share; at += 1024) {
        pieces.push_back(as_bytes(std::string_view(data).substr(part * share + at, 1024)));
      }
      out->write(part * share, pieces, KeptUntil::Return, cancel_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  out->write_head(as_bytes(head_), cancel_);
  out->finish(data.size(), cancel_);
  EXPECT_TRUE(read_file(folder_ / "f") == head_ + data);
}

}  // namespace
}  // namespace tensorizer
