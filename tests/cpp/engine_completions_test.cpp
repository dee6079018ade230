// Reads and writes that complete in orders that a seed decides on, and of which one may fail.
#include <condition_variable>
#include <thread>

#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Holds every call until it is its turn. A thread gives the turns: it lets others arrive for a
// while, and chooses among those that wait.
class Turnstile {
 public:
  explicit Turnstile(std::uint32_t seed) : dice_(seed) {}
  ~Turnstile() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    keeper_.join();
  }

  void pass() {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = next_++;
    waiting_.push_back(ticket);
    changed_.notify_all();
    changed_.wait(lock, [&] { return std::ranges::find(waiting_, ticket) == waiting_.end(); });
  }

 private:
  void keep() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
      if (over_) return;
      const std::uint64_t patience = dice_.below(4);
      lock.unlock();
      for (std::uint64_t i = 0; i < patience; ++i) std::this_thread::yield();
      lock.lock();
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(dice_.below(waiting_.size())));
      lock.unlock();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Dice dice_;
  std::vector<std::uint64_t> waiting_;
  std::uint64_t next_ = 0;
  bool over_ = false;
  std::thread keeper_{[this] { keep(); }};  // the last member: it uses the others
};

// Throws at one call.
class Failure {
 public:
  explicit Failure(std::uint64_t at) : left_(at) {}
  void count() {
    if (--left_ == 0) throw Error(ErrorKind::Unavailable, "the planned failure");
  }

 private:
  std::atomic<std::uint64_t> left_;
};
constexpr std::uint64_t kNever = 1 << 30;

class HoldingSource final : public ForwardingSource {
 public:
  HoldingSource(ConstBytes bytes, Turnstile& turnstile, std::uint64_t failure)
      : ForwardingSource(memory_source(bytes, nullptr)), turnstile_(turnstile), failure_(failure) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    turnstile_.pass();
    failure_.count();
    file_->read(offset, pieces, cancel);
    turnstile_.pass();
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    turnstile_.pass();
    failure_.count();
    const std::size_t count = file_->read_up_to(offset, out, cancel);
    turnstile_.pass();
    return count;
  }

 private:
  Turnstile& turnstile_;
  Failure failure_;
};

class HoldingSink final : public Sink {
 public:
  HoldingSink(Turnstile& turnstile, std::uint64_t failure)
      : turnstile_(turnstile), failure_(failure) {}

  bool sequential() const override { return false; }
  void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) override {
    file.begin(head_size, body_size);
  }
  void announce(std::span<const NamedRange> parts) override { file.announce(parts); }
  void write_head(ConstBytes head, Cancel& cancel) override { file.write_head(head, cancel); }
  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
             Cancel& cancel) override {
    turnstile_.pass();
    failure_.count();
    file.write(offset, pieces, kept, cancel);
    turnstile_.pass();
  }
  void finish(std::uint64_t size, Cancel& cancel) override { file.finish(size, cancel); }
  void abort() noexcept override { file.abort(); }
  const std::string& label() const override { return file.label(); }

  MemorySink file;

 private:
  Turnstile& turnstile_;
  Failure failure_;
};

std::vector<Sample> samples_for(Dice& dice) {
  std::vector<Sample> samples;
  for (std::uint32_t i = 0; i < 12; ++i) {
    samples.push_back(
        sample("t" + std::to_string(i), dice.below(dice.one_in(4) ? 600000 : 5000), i));
  }
  return samples;
}

FileKind kind_for(Dice& dice) {
  const HashKinds hashes{dice.one_in(2), dice.one_in(2)};
  return {{hashes, {}}, false};
}

TEST(Completions, OfReadsComeInAnyOrder) {
  int failures = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    const std::vector<Sample> samples = samples_for(dice);
    const std::vector<std::byte> file = saved_as(samples, kind_for(dice));
    const bool fails = dice.one_in(3);
    Turnstile turnstile(seed);
    // The index is read first, by one or two reads.
    HoldingSource source(file, turnstile, fails ? 4 + dice.below(4) : kNever);
    Index index = index_of(source);
    LoadSettings settings;
    settings.threads = static_cast<int>(2 + dice.below(3));
    settings.memory_ceiling = dice.one_in(2) ? 0 : 64 << 20;
    const Into into = dice.pick(std::vector<Into>{Into::Memory, Into::Staged, Into::Mixed});
    try {
      expect_loaded(source, index, samples, all_of(samples), into, settings);
    } catch (const Error& error) {
      ++failures;
      EXPECT_TRUE(fails) << seed;
      EXPECT_EQ(error.kind(), ErrorKind::Unavailable) << seed << ": " << error.what();
    }
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(failures, 10);
}

TEST(Completions, OfWritesComeInAnyOrder) {
  int failures = 0;
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    const std::vector<Sample> samples = samples_for(dice);
    const FileKind kind = kind_for(dice);
    const std::vector<std::byte> expected = saved_as(samples, kind);
    const bool fails = dice.one_in(3);
    Turnstile turnstile(seed);
    HoldingSink sink(turnstile, fails ? 1 + dice.below(6) : kNever);
    SaveSettings settings;
    settings.threads = static_cast<int>(2 + dice.below(3));
    settings.memory_stays = dice.one_in(2);
    try {
      TensorsLayout layout = layout_as(samples, kind);
      std::vector<SaveItem> items;
      for (const Sample& each : samples) items.push_back({each.data, {}});
      Progress progress;
      Cancel cancel;
      save_file(sink, layout, items, settings, progress, cancel);
      EXPECT_TRUE(same(sink.file.bytes, expected)) << seed;
    } catch (const Error& error) {
      ++failures;
      EXPECT_TRUE(fails) << seed;
      EXPECT_EQ(error.kind(), ErrorKind::Unavailable) << seed << ": " << error.what();
      EXPECT_FALSE(sink.file.finished) << seed;
    }
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(failures, 10);
}

}  // namespace
}  // namespace tensorizer
