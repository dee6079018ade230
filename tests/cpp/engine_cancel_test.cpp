// Cancelled and interrupted jobs: every kind of job ends soon.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "format/tensors/tensor_header.h"
#include "memory_file.h"
#include "support.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;

// A file with one tensor of zeros, far larger than a test can move in its time. Every read and
// write takes a while, and does not check for a cancel.
class SlowFile final : public Source, public Sink {
 public:
  SlowFile(std::int64_t size, milliseconds pause, HashKinds hashes = {true, true})
      : layout_({{hashes, {}}, false}, 0), pause_(pause) {
    TensorSpec spec;
    spec.name = "large";
    spec.shape = {size};
    layout_.add(spec);
    const PlacedTensor& tensor = layout_.tensors()[0];
    head_ = layout_.prefix(0, layout_.prefix_size());
    const TensorHeaderImage header(tensor.spec, {hashes, {}}, tensor.header_size);
    head_.insert(head_.end(), header.bytes().begin(), header.bytes().end());
  }

  Layout& layout() { return layout_; }

  // The number of reads and writes that have begun, and the function that is called for each.
  int moves() const { return moves_; }
  void moves(std::function<void(int)> told) { told_ = std::move(told); }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    move();
    for (const Bytes piece : pieces) offset += read_up_to(offset, piece, cancel);
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel&) override {
    for (std::size_t i = 0; i < out.size() && offset + i < head_.size(); ++i) {
      out[i] = head_[offset + i];
    }
    return out.size();
  }
  std::optional<std::uint64_t> size() const override {
    return layout_.prefix_size() + layout_.file_size();
  }
  const std::string& label() const override { return label_; }

  bool sequential() const override { return is_sequential; }
  std::uint64_t start() const override { return 0; }
  void begin(std::uint64_t, std::optional<std::uint64_t>) override {}
  void write_head(ConstBytes, Cancel&) override {}
  void write(std::uint64_t, std::span<const ConstBytes>, KeptUntil, Cancel&) override { move(); }
  void finish(std::uint64_t, Cancel&) override {}
  void abort() noexcept override {}

  bool is_sequential = false;

 private:
  void move() {
    const int count = ++moves_;
    if (told_) told_(count);
    std::this_thread::sleep_for(pause_);
  }

  TensorsLayout layout_;
  milliseconds pause_;
  std::atomic<int> moves_{0};
  std::function<void(int)> told_;
  std::vector<std::byte> head_;
  std::string label_ = "'slow'";
};

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kHuge = std::int64_t{1} << 34;
constexpr std::int64_t kLarge = 32 * kMiB;

struct JobKind {
  bool saves;
  bool staged;  // a huge, staged tensor; otherwise strips of real memory
  bool sequential;
  Verify verify;
  int threads;
};

std::vector<JobKind> all_kinds() {
  std::vector<JobKind> kinds;
  for (const bool saves : {false, true}) {
    for (const bool staged : {false, true}) {
      for (const Verify verify : {Verify::None, Verify::Crc32, Verify::All}) {
        for (const int threads : {1, 3}) kinds.push_back({saves, staged, false, verify, threads});
      }
      if (saves) kinds.push_back({saves, staged, true, Verify::None, 1});
    }
  }
  return kinds;
}

// A job on the slow file that would take many seconds.
class Job {
 public:
  explicit Job(const JobKind& kind)
      : kind_(kind),
        file_(kind.staged ? kHuge : kLarge, milliseconds(kind.staged ? 3 : 20),
              {kind.verify != Verify::None, kind.verify == Verify::All}),
        memory_(kind.staged ? 0 : kLarge) {
    file_.is_sequential = kind.sequential;
  }

  SlowFile& file() { return file_; }

  void run(Cancel& cancel) {
    Progress progress;
    // 0 is raised to the minimum, for which there are many strips.
    const std::uint64_t ceiling = kind_.staged ? 8 * kMiB : 0;
    if (kind_.saves) {
      SaveItem item{memory_, {}};
      if (kind_.staged) item.staged = 0;
      save_file(file_, file_.layout(), {&item, 1},
                {.threads = kind_.threads, .memory_ceiling = ceiling}, progress, cancel);
      return;
    }
    Index index = read_index(file_, nullptr, cancel);
    LoadSettings settings;
    settings.verify = kind_.verify;
    settings.threads = kind_.threads;
    settings.memory_ceiling = ceiling;
    const LoadItem item =
        kind_.staged ? staged_item(index, 0, 0) : item_into(index, 0, Bytes(memory_));
    load(file_, index, {item}, settings, progress, cancel);
  }

 private:
  JobKind kind_;
  SlowFile file_;
  std::vector<std::byte> memory_;
};

// After a cancel, each thread at most completes the move that it has begun.
TEST(Cancel, EndsAJobSoon) {
  for (const JobKind& kind : all_kinds()) {
    Job job(kind);
    Cancel cancel;
    std::atomic<int> requested_after{};
    job.file().moves([&](int count) {
      if (count != 3) return;
      cancel.request();
      requested_after = job.file().moves();
    });
    EXPECT_EQ(kind_of([&] { job.run(cancel); }), ErrorKind::Cancelled);
    EXPECT_LE(job.file().moves(), requested_after + kind.threads);
  }
}

std::atomic<int> interrupted_after{};
const SlowFile* interrupted = nullptr;

TEST(Interrupt, EndsAJobSoonWithWhatTheHostThrows) {
  for (const JobKind& kind : all_kinds()) {
    Job job(kind);
    interrupted_after = 0;
    interrupted = &job.file();
    set_interrupt_hook([] {
      if (interrupted->moves() < 3) return;
      interrupted_after = interrupted->moves();
      throw 42;
    });
    Cancel cancel;
    EXPECT_THROW(job.run(cancel), int);
    EXPECT_LE(job.file().moves(), interrupted_after + kind.threads);
    set_interrupt_hook(nullptr);
  }
}

}  // namespace
}  // namespace tensorizer
