// What is fetched from a server, shared among processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <future>
#include <semaphore>

#include "io/node/node_file.h"
#include "io/node/open.h"
#include "io_support.h"
#include "worlds.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::uint64_t kNodeBlock = NodeFile::kBlock;

// A file on a server.
class Served final : public Source {
 public:
  explicit Served(std::string text) : text_(std::move(text)), fetches_(text_.size()) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel&) override {
    before();
    for (const Bytes piece : pieces) {
      for (std::byte& byte : piece) {
        ++fetches_[offset];
        byte = static_cast<std::byte>(text_[offset++]);
      }
    }
  }
  std::size_t read_up_to(std::uint64_t, Bytes, Cancel&) override {
    throw std::logic_error("only whole blocks are fetched");
  }
  bool read_anew(std::uint64_t offset, Bytes out, Cancel&) override {
    std::ranges::fill(out, std::byte('!'));
    return offset > 0;
  }
  std::optional<std::uint64_t> size() const override { return claimed.value_or(text_.size()); }
  std::optional<std::string> version() const override { return version_now; }
  bool is_exact_version() const override { return is_exact; }
  bool sequential() const override { return is_sequential; }
  const std::string& label() const override { return label_; }

  // Returns how often the byte at an offset was fetched.
  int fetches(std::uint64_t offset) const { return fetches_[offset]; }

  std::optional<std::string> version_now = "1";
  std::optional<std::uint64_t> claimed;  // as its size
  bool is_exact = true;
  bool is_sequential = false;
  std::function<void()> before = [] {};

 private:
  const std::string text_;
  const std::string label_ = "'http://server/file'";
  std::vector<std::atomic<int>> fetches_;
};

class NodeTest : public IoTest {
 protected:
  // A process that has claimed the second block when the constructor returns.
  class Claimant {
   public:
    Claimant(NodeTest& test, std::function<void()> then) {
      int told[2];
      if (pipe2(told, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
      const Descriptor read_end(told[0]), write_end(told[1]);
      process_ = fork();
      if (process_ == 0) {
        test.served_->before = [&] {
          [[maybe_unused]] const ssize_t wrote = ::write(write_end.get(), "x", 1);
          then();
        };
        test.read(*test.open(), kNodeBlock, 10);
        _exit(0);
      }
      char byte;
      EXPECT_EQ(::read(read_end.get(), &byte, 1), 1);
    }
    ~Claimant() {
      end();
      waitpid(process_, nullptr, 0);
    }
    Claimant(const Claimant&) = delete;
    Claimant& operator=(const Claimant&) = delete;

    void end() const { kill(process_, SIGKILL); }

   private:
    pid_t process_;
  };

  std::unique_ptr<Source> open() { return node_source(served_, node_.string(), name_, cancel_); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(node_), {}));
  }

  std::string name_ = "http://server/file";
  const fs::path node_ = folder_ / "node";
  const std::string text_ = text_pattern(5 * kNodeBlock + 777);
  const std::shared_ptr<Served> served_ = std::make_shared<Served>(text_);
};

TEST_F(NodeTest, ReadersFetchEachBlockOnce) {
  constexpr std::size_t kReaders = 4;
  std::vector<std::unique_ptr<Source>> sources;
  for (std::size_t i = 0; i < kReaders / 2; ++i) sources.push_back(open());
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < kReaders; ++i) {
    threads.emplace_back([&, i] {
      Dice dice(i + 1);
      Cancel cancel;
      for (int round = 0; round < 40; ++round) {
        const std::uint64_t offset = dice.below(text_.size());
        std::string out(dice.below(2 * kNodeBlock), '\0');
        const Bytes all = std::as_writable_bytes(std::span(out));
        const std::size_t there = std::min<std::size_t>(out.size(), text_.size() - offset);
        if (dice.one_in(2)) {
          EXPECT_EQ(sources[i % 2]->read_up_to(offset, all, cancel), there);
        } else {
          const std::size_t cut = dice.below(there + 1);
          const Bytes pieces[] = {all.first(cut), {}, all.subspan(cut, there - cut)};
          sources[i % 2]->read(offset, pieces, cancel);
        }
        EXPECT_TRUE(out.substr(0, there) == text_.substr(offset, there));
      }
    });
  }
  threads.clear();
  for (std::uint64_t i = 0; i < text_.size(); ++i) ASSERT_EQ(served_->fetches(i), 1) << i;
}

TEST_F(NodeTest, FetchesAroundABlockThatAnotherOneFetches) {
  const auto other = open();
  const auto source = open();
  std::binary_semaphore begun(0), ends(0);
  std::atomic<int> fetches = 0;
  served_->before = [&] {
    if (fetches++ == 0) {
      begun.release();
      ends.acquire();
    } else if (fetches == 3) {  // what is in front of that block, and what is behind it
      ends.release();
    }
  };
  std::jthread thread([&] {
    Cancel cancel;
    std::byte byte;
    const Bytes piece(&byte, 1);
    other->read(2 * kNodeBlock, {&piece, 1}, cancel);
  });
  begun.acquire();
  EXPECT_TRUE(read(*source, 0, text_.size()) == text_);
  EXPECT_EQ(fetches, 3);
}

TEST_F(NodeTest, FetchesOnlyBlocksThatAreRead) {
  const auto source = open();
  EXPECT_EQ(read(*source, 2 * kNodeBlock - 1, 2), text_.substr(2 * kNodeBlock - 1, 2));
  EXPECT_EQ(served_->fetches(kNodeBlock - 1), 0);
  EXPECT_EQ(served_->fetches(kNodeBlock), 1);
  EXPECT_EQ(served_->fetches(3 * kNodeBlock - 1), 1);
  EXPECT_EQ(served_->fetches(3 * kNodeBlock), 0);
}

TEST_F(NodeTest, SaysWhereTheFileEnds) {
  const auto source = open();
  EXPECT_TRUE(contains(message_of([&] { read(*source, text_.size() - 3, 5); }), "expected 2 more"));
  EXPECT_EQ(read_up_to(*source, text_.size() - 3, 5), text_.substr(text_.size() - 3));
  EXPECT_EQ(read_up_to(*source, text_.size() + 3, 5), "");
  EXPECT_EQ(read_up_to(*source, text_.size() + 3 * kNodeBlock, 5), "");
  EXPECT_EQ(read_up_to(*source, ~std::uint64_t{0}, 5), "");
}

TEST_F(NodeTest, FetchesNothingForReadsOfNothing) {
  const auto source = open();
  EXPECT_EQ(read(*source, kNodeBlock + 7, 0), "");
  EXPECT_EQ(read_up_to(*source, kNodeBlock + 7, 0), "");
  EXPECT_EQ(served_->fetches(kNodeBlock), 0);
}

TEST_F(NodeTest, AReaderGoesOnWhenAnotherOneFails) {
  const auto source = open();
  served_->before = [] { throw Error(ErrorKind::Unavailable, "away"); };
  EXPECT_EQ(kind_of([&] { read(*source, 0, 10); }), ErrorKind::Unavailable);
  served_->before = [] {};
  EXPECT_EQ(read(*source, 0, 10), text_.substr(0, 10));
}

// A process that has claimed a block and is killed. The other one waits for it, and then fetches.
TEST_F(NodeTest, AReaderGoesOnWhenAnotherOneIsKilled) {
  const auto source = open();
  const Claimant other(*this, [] { pause(); });
  EXPECT_EQ(read(*source, 0, 10), text_.substr(0, 10));
  auto waiting = std::async(std::launch::async, [&] { return read(*source, kNodeBlock, 10); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  other.end();
  EXPECT_EQ(waiting.get(), text_.substr(kNodeBlock, 10));
}

TEST_F(NodeTest, AReaderDoesNotWaitForOneThatIsStopped) {
  const auto source = open();
  const Claimant other(*this, [] { raise(SIGSTOP); });
  const RecordedPauses world;
  EXPECT_TRUE(read(*source, 0, 3 * kNodeBlock) == text_.substr(0, 3 * kNodeBlock));
  EXPECT_GT(world.so_far().size(), 1000U);
}

TEST_F(NodeTest, TheLastReaderRemovesTheFile) {
  auto first = open();
  auto second = open();
  EXPECT_EQ(files(), 1U);
  first.reset();
  EXPECT_EQ(files(), 1U);
  EXPECT_EQ(read(*second, 0, 10), text_.substr(0, 10));
  second.reset();
  EXPECT_EQ(files(), 0U);
}

// A killed process leaves its file, and the next load of the same goes on with it.
TEST_F(NodeTest, KeepsWhatAKilledReaderHasFetched) {
  const pid_t child = fork();
  if (child == 0) {
    const auto source = open();
    read(*source, 0, 10);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(files(), 1U);
  auto source = open();
  EXPECT_EQ(read(*source, 0, kNodeBlock + 1), text_.substr(0, kNodeBlock + 1));
  EXPECT_EQ(served_->fetches(0), 0);
  EXPECT_EQ(served_->fetches(kNodeBlock), 1);
}

TEST_F(NodeTest, AnotherVersionIsAnotherFile) {
  auto old = open();
  served_->version_now = "2";
  const auto now = open();
  EXPECT_EQ(files(), 2U);  // nobody removes what others use
  read(*old, 0, 10);
  read(*now, 0, 10);
  EXPECT_EQ(served_->fetches(0), 2);
}

TEST_F(NodeTest, AnotherNameIsAnotherFile) {
  const auto one = open();
  name_ += "?other";
  const auto other = open();
  EXPECT_EQ(files(), 2U);
}

TEST_F(NodeTest, RefusesSizesThatNoFileHas) {
  for (const int bits : {60, 63, 64}) {
    served_->claimed = bits == 64 ? ~std::uint64_t{0} : std::uint64_t{1} << bits;
    EXPECT_EQ(error_of([&] { open(); }).system_errno(), EFBIG);
  }
  EXPECT_FALSE(fs::exists(node_));
}

TEST_F(NodeTest, RemovesWhatKilledReadersOfOtherFilesHaveLeft) {
  const pid_t child = fork();
  if (child == 0) {
    const auto source = open();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  write_file(node_ / "other", "stays");
  ASSERT_EQ(files(), 2U);
  served_->version_now = "2";
  const auto source = open();
  EXPECT_EQ(files(), 2U);
  EXPECT_EQ(read(*source, 0, 10), text_.substr(0, 10));
  EXPECT_EQ(served_->fetches(0), 1);
}

TEST_F(NodeTest, BytesThatAreFetchedAnewAreForAll) {
  const auto source = open();
  read(*source, 0, 100);
  std::string out(10, '\0');
  EXPECT_FALSE(source->read_anew(0, std::as_writable_bytes(std::span(out)), cancel_));
  EXPECT_TRUE(source->read_anew(20, std::as_writable_bytes(std::span(out)), cancel_));
  EXPECT_EQ(read(*open(), 19, 12), text_[19] + std::string(10, '!') + text_[30]);
}

TEST_F(NodeTest, RefusesWhatOthersCouldWrite) {
  auto source = open();
  const fs::path file = fs::directory_iterator(node_)->path();
  fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
  const Error error = error_of([&] { open(); });
  EXPECT_EQ(error.kind(), ErrorKind::PermissionDenied);
  EXPECT_TRUE(contains(error.what(), file.string()));
  source.reset();
  fs::create_symlink(folder_ / "elsewhere", file);
  EXPECT_EQ(error_of([&] { open(); }).system_errno(), ELOOP);
  fs::remove(file);
  const fs::path other = folder_ / "other";
  std::ofstream(other) << "text";
  fs::permissions(other, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_hard_link(other, file);
  EXPECT_EQ(error_of([&] { open(); }).kind(), ErrorKind::PermissionDenied);
  EXPECT_EQ(fs::file_size(other), 4);
}

TEST_F(NodeTest, LeavesNoFileThatCannotGrow) {
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(error_of([&] { open(); }).system_errno(), EFBIG);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(files(), 0);
}

TEST_F(NodeTest, TheFileGoesWhenAllCloseItAtOnce) {
  for (int round = 0; round < 300; ++round) {
    std::vector<std::unique_ptr<Source>> sources;
    for (int i = 0; i < 3; ++i) sources.push_back(open());
    std::barrier<> all(3);
    std::vector<std::jthread> threads;
    for (std::unique_ptr<Source>& source : sources) {
      threads.emplace_back([&] {
        all.arrive_and_wait();
        source.reset();
      });
    }
    threads.clear();
    ASSERT_EQ(files(), 0) << round;
  }
}

TEST_F(NodeTest, RefusesServersThatDoNotTellTheVersion) {
  served_->is_sequential = true;
  EXPECT_EQ(kind_of([&] { open(); }), ErrorKind::InvalidArgument);
  served_->is_sequential = false;
  served_->is_exact = false;
  EXPECT_EQ(kind_of([&] { open(); }), ErrorKind::InvalidArgument);
  served_->is_exact = true;
  served_->version_now = std::nullopt;
  EXPECT_TRUE(contains(message_of([&] { open(); }), "'http://server/file': option 'node_folder'"));
}

}  // namespace
}  // namespace tensorizer
