// How jobs are cut into tasks, and that these are moved: every byte once, and digested in order.
#include <algorithm>
#include <atomic>
#include <thread>

#include "codec/crc32.h"
#include "engine/move/move.h"
#include "engine/move/plan.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr PlanLimits kLimits{
    .strip_size = 4096, .bundle_size = 16384, .largest_gap = 512, .strips_follow_file = true};

std::vector<Extent> random_extents(Dice& dice, const PlanLimits& limits) {
  std::vector<Extent> extents;
  std::uint64_t offset = dice.below(10000);
  for (std::uint64_t left = dice.below(40); left > 0; --left) {
    Extent extent{};
    offset += dice.one_in(3) ? dice.below(2 * limits.largest_gap + 2) : 0;
    extent.offset = offset;
    extent.header_size = dice.one_in(3) ? 0 : dice.below(300);
    extent.data_size = dice.pick(std::vector<std::uint64_t>{
        0, dice.below(500), dice.below(2 * limits.strip_size), dice.below(10 * limits.strip_size),
        limits.strip_size - 1 + dice.below(3)});
    extent.whole = dice.one_in(6);
    if (dice.one_in(6)) {
      extent.cost = 1 + dice.below(100);
      extent.alone = true;
      if (!limits.strips_follow_file) extent.run = 4 * dice.below(300);
    }
    offset += extent.header_size + extent.data_size;
    extents.push_back(extent);
  }
  return extents;
}

// Returns the largest strip of an extent: as many bytes as one strip may cost.
std::uint64_t largest_strip(const Extent& extent, const PlanLimits& limits) {
  const std::uint64_t most = limits.strip_size / extent.cost;
  if (extent.run > 0 && extent.run <= most) return most / extent.run * extent.run;
  return std::max(most / kStripUnit, std::uint64_t{1}) * kStripUnit;
}

// Expects every tensor once, whole or in consecutive strips, none larger than allowed.
void check_plan(const Plan& plan, std::span<const Extent> extents, const PlanLimits& limits,
                bool in_order) {
  std::vector<int> moved(extents.size(), 0);
  std::vector<std::uint64_t> position(extents.size(), 0);
  std::vector<std::uint32_t> strips(extents.size(), 0);
  std::uint32_t last = 0;
  for (const Task& task : plan.tasks) {
    if (in_order) {
      EXPECT_GE(task.first, last);
      last = task.first;
    }
    const Extent& extent = extents[task.first];
    if (task.is_strip()) {
      ASSERT_LT(task.large, plan.large.size());
      EXPECT_EQ(plan.large[task.large].extent, task.first);
      EXPECT_EQ(plan.large[task.large].size, extent.data_size);
      EXPECT_FALSE(extent.whole);
      EXPECT_EQ(task.position, position[task.first]);
      EXPECT_GT(task.size, 0U);
      const std::uint64_t largest = largest_strip(extent, limits);
      EXPECT_LE(task.size, largest);
      position[task.first] += task.size;
      EXPECT_EQ(task.strip, strips[task.first]++);
      // All strips but the last end where strips may end, at whole elements.
      if (position[task.first] < extent.data_size) {
        const std::uint64_t begin =
            limits.strips_follow_file ? extent.offset + extent.header_size : 0;
        if (extent.run == 0) {
          EXPECT_EQ(position[task.first] % kStripUnit, 0U);
          EXPECT_LT((begin + position[task.first]) % largest, kStripUnit);
        } else {
          EXPECT_EQ(position[task.first] % largest, 0U);
        }
      } else {
        EXPECT_EQ(plan.large[task.large].strips, strips[task.first]);
      }
      if (position[task.first] == extent.data_size) ++moved[task.first];
      continue;
    }
    for (std::uint32_t i = task.first; i < task.first + task.count; ++i) {
      ASSERT_LT(i, extents.size());
      ++moved[i];
      if (task.count > 1) {
        EXPECT_LE(extents[i].header_size + extents[i].data_size, limits.strip_size);
        EXPECT_FALSE(extents[i].alone);
      }
      if (i == task.first) continue;
      const std::uint64_t end =
          extents[i - 1].offset + extents[i - 1].header_size + extents[i - 1].data_size;
      EXPECT_GE(extents[i].offset, end);
      EXPECT_LE(extents[i].offset - end, limits.largest_gap);
    }
    const Extent& back = extents[task.first + task.count - 1];
    const std::uint64_t length = back.offset + back.header_size + back.data_size - extent.offset;
    EXPECT_TRUE(task.count == 1 || length <= limits.bundle_size) << length;
    EXPECT_TRUE(task.count > 1 || extent.whole ||
                extent.data_size <= largest_strip(extent, limits));
  }
  EXPECT_EQ(std::count(moved.begin(), moved.end(), 1), static_cast<std::ptrdiff_t>(extents.size()));
}

TEST(Plan, MovesEveryByteOnce) {
  Dice dice(31);
  for (int round = 0; round < 2000; ++round) {
    PlanLimits limits = kLimits;
    limits.strips_follow_file = dice.one_in(2);
    const std::vector<Extent> extents = random_extents(dice, limits);
    Plan plan = plan_in_order(extents, limits);
    check_plan(plan, extents, limits, true);
    const std::size_t tasks = plan.tasks.size();
    interleave(plan, static_cast<int>(1 + dice.below(9)));
    EXPECT_EQ(plan.tasks.size(), tasks);
    check_plan(plan, extents, limits, false);
  }
}

TEST(Plan, TiesNeighboursTogether) {
  std::vector<Extent> extents;
  for (std::uint64_t i = 0; i < 100; ++i) extents.push_back({i * 1000, 100, 900, false});
  const Plan plan = plan_in_order(extents, kLimits);
  EXPECT_EQ(plan.tasks.size(), 7U);
  EXPECT_TRUE(plan.large.empty());
  EXPECT_EQ(plan.tasks[0].count, 16U);
}

TEST(Plan, DoesNotMindWhatItHasNoPlaceFor) {
  EXPECT_TRUE(plan_in_order({}, kLimits).tasks.empty());
  Plan empty = plan_in_order({}, kLimits);
  interleave(empty, 4);
  EXPECT_TRUE(empty.tasks.empty());
  // The same bytes twice, and an offset that goes backwards.
  const std::vector<Extent> extents{
      {5000, 10, 10, false}, {5000, 10, 10, false}, {0, 10, 10, false}};
  EXPECT_EQ(plan_in_order(extents, kLimits).tasks.size(), 3U);
}

TEST(Interleave, EndsItsTensorsTogether) {
  // One large tensor and four of a quarter of its size, two at a time.
  std::vector<Extent> extents{{0, 0, 40 * 4096, false}};
  for (int i = 0; i < 4; ++i)
    extents.push_back({extents.back().offset + 40 * 4096, 0, 10 * 4096, false});
  Plan plan = plan_in_order(extents, kLimits);
  interleave(plan, 2);
  ASSERT_EQ(plan.tasks.size(), 80U);
  // The large tensor gets every other turn until the end.
  std::uint64_t large = 0;
  for (std::size_t i = 0; i < plan.tasks.size(); ++i) {
    large += plan.tasks[i].first == 0 ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(large), static_cast<double>(i + 1) / 2, 1.0);
  }
}

TEST(Interleave, PutsBundlesLast) {
  const std::vector<Extent> extents{
      {0, 10, 10, false}, {4096, 0, 9000, false}, {14000, 10, 10, false}};
  Plan plan = plan_in_order(extents, kLimits);
  interleave(plan, 3);
  ASSERT_EQ(plan.tasks.size(), 5U);
  EXPECT_EQ(plan.tasks[2].position, 8192U);
  EXPECT_EQ(plan.tasks[3].count, 1U);
  EXPECT_EQ(plan.tasks[4].count, 1U);
}

TEST(SideBySide, MovesFilesInTheirOrderAndEndsThemTogether) {
  // Two files: one of 40 strips, one of 10 and a bundle.
  const std::vector<Extent> extents{{0, 0, 10 * 4096, false},
                                    {10 * 4096, 0, 30 * 4096, false},
                                    {1 << 20, 10, 4086, false},
                                    {(1 << 20) + 4096, 0, 9 * 4096, false}};
  Plan plan = plan_in_order(extents, kLimits);
  put_side_by_side(plan, extents, [](std::uint64_t offset) {
    return offset < 1 << 20 ? std::uint64_t{1} << 20 : std::uint64_t{2} << 20;
  });
  ASSERT_EQ(plan.tasks.size(), 50U);
  std::uint64_t last[2] = {0, 0};
  int moved[2] = {0, 0};
  for (const Task& task : plan.tasks) {
    const std::uint64_t offset = extents[task.first].offset + task.position;
    const int file = offset < 1 << 20 ? 0 : 1;
    EXPECT_GE(offset, last[file]);
    last[file] = offset;
    ++moved[file];
    EXPECT_NEAR(moved[0] / 40.0, moved[1] / 10.0, 0.15);
  }
}

// ---- moving by a plan

void raise(std::atomic<int>& most, int now) {
  int before = most;
  while (now > before && !most.compare_exchange_weak(before, now)) {
  }
}

// A mover that moves nothing and records what it was asked for.
class RecordingMover final : public Mover {
 public:
  explicit RecordingMover(std::span<const Extent> extents)
      : extents_(extents), states_(extents.size()) {
    for (std::size_t i = 0; i < extents.size(); ++i) {
      states_[i].data = pattern(extents[i].data_size, static_cast<std::uint32_t>(i));
      states_[i].header = pattern(extents[i].header_size, static_cast<std::uint32_t>(i) + 77);
    }
  }

  void move_bundle(const Task& task, Worker&) override {
    const Moving moving(*this);
    for (std::uint32_t i = task.first; i < task.first + task.count; ++i) ++states_[i].finished;
  }

  ConstBytes move_strip(const Task& task, StripDigest& digest, Worker&) override {
    const Moving moving(*this);
    if (fail_on == "strip" && task.position > 0) throw Error(ErrorKind::Internal, "strip");
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(50));
    raise(most_held_, ++held_);
    State& state = states_[task.first];
    state.moved += task.size;
    const ConstBytes bytes = ConstBytes(state.data).subspan(task.position, task.size);
    digest.update(bytes.first(bytes.size() / 3));
    digest.update(bytes.subspan(bytes.size() / 3));
    return bytes;
  }

  void let_go(std::uint32_t, ConstBytes) override { --held_; }

  DigestStart digest_start(std::uint32_t tensor) override {
    if (fail_on == "start") throw Error(ErrorKind::Internal, "start");
    State& state = states_[tensor];
    ++state.started;
    return {{state.header, {}}, HashKinds{wants_crc32(tensor), wants_sha256(tensor)}};
  }

  void finish(std::uint32_t tensor, const Digests& digests, Worker&) override {
    if (fail_on == "finish") throw Error(ErrorKind::Internal, "finish");
    if (first_finishes_slowly && tensor == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    State& state = states_[tensor];
    EXPECT_EQ(state.moved, extents_[tensor].data_size);
    EXPECT_EQ(state.started, 1);
    if (wants_crc32(tensor)) {
      EXPECT_EQ(crc32_of(*digests[Hash::Crc32]), crc32(crc32(0, state.header), state.data));
    }
    if (wants_sha256(tensor)) {
      Sha256 sha256;
      sha256.update(state.header);
      sha256.update(state.data);
      EXPECT_EQ(digests[Hash::Sha256], sha256.finish());
    }
    ++state.finished;
  }

  void expect_all() const {
    for (const State& state : states_) EXPECT_EQ(state.finished, 1);
  }
  int most_moving() const { return most_moving_; }
  // Returns how many strips moved or waited to be hashed at a time.
  int most_held() const { return most_held_; }

  bool crc32_wanted = false;
  bool sha256_wanted = false;
  bool mixed = false;  // only some of the tensors want them
  bool slow = false;
  bool first_finishes_slowly = false;
  std::string fail_on;

 private:
  struct State {
    std::vector<std::byte> data;
    std::vector<std::byte> header;
    std::atomic<std::uint64_t> moved{0};
    std::atomic<int> started{0};
    std::atomic<int> finished{0};
  };

  class Moving {
   public:
    explicit Moving(RecordingMover& mover) : mover_(mover) {
      raise(mover_.most_moving_, ++mover_.moving_);
    }
    ~Moving() { --mover_.moving_; }
    Moving(const Moving&) = delete;
    Moving& operator=(const Moving&) = delete;

   private:
    RecordingMover& mover_;
  };

  bool wants_crc32(std::uint32_t tensor) const {
    return crc32_wanted && !(mixed && tensor % 3 == 0);
  }
  bool wants_sha256(std::uint32_t tensor) const {
    return sha256_wanted && !(mixed && tensor % 2 == 0);
  }

  std::span<const Extent> extents_;
  std::vector<State> states_;
  std::atomic<int> moving_{0};
  std::atomic<int> most_moving_{0};
  std::atomic<int> held_{0};
  std::atomic<int> most_held_{0};
};

MoveSettings random_settings(Dice& dice) {
  MoveSettings settings;
  settings.threads = static_cast<int>(1 + dice.below(4));
  settings.moves_in_flight = static_cast<int>(1 + dice.below(6));
  settings.hashes = HashKinds{dice.one_in(2), dice.one_in(2)};
  settings.lanes = static_cast<int>(1 + dice.below(4));
  return settings;
}

// Short rounds, because only the last release of a round could leave a worker asleep for ever.
TEST(ComputeSlots, LetSoManyWorkersComputeAtATime) {
  for (int round = 0; round < 500; ++round) {
    ComputeSlots slots(2, 4);
    std::atomic<int> now{0};
    std::atomic<int> most{0};
    std::vector<std::jthread> workers;
    for (int i = 0; i < 4; ++i) {
      workers.emplace_back([&] {
        for (int turn = 0; turn < 20; ++turn) {
          const ComputeSlots::Slot slot(slots, ComputeSlots::Work::Digest);
          raise(most, ++now);
          std::this_thread::yield();
          --now;
        }
      });
    }
    workers.clear();
    ASSERT_LE(most, 2);
  }
}

TEST(Move, MovesAndDigestsEverything) {
  Dice dice(41);
  for (int round = 0; round < 150; ++round) {
    const std::vector<Extent> extents = random_extents(dice, kLimits);
    const MoveSettings settings = random_settings(dice);
    Plan plan = plan_in_order(extents, kLimits);
    if (dice.one_in(2)) interleave(plan, settings.threads * settings.lanes);
    RecordingMover mover(extents);
    mover.crc32_wanted = settings.hashes.has(Hash::Crc32);
    mover.sha256_wanted = settings.hashes.has(Hash::Sha256);
    mover.mixed = dice.one_in(3);
    mover.slow = dice.one_in(4);
    Cancel cancel;
    move(plan, mover, settings, cancel);
    mover.expect_all();
    EXPECT_LE(mover.most_moving(), settings.moves_in_flight);
    EXPECT_FALSE(cancel.requested());
  }
}

// One lane hashes while all others move.
TEST(Move, HoldsNoMoreStripsThanItMay) {
  const std::vector<Extent> extents{{0, 0, 40 * kLimits.strip_size}};
  const Plan plan = plan_in_order(extents, kLimits);
  for (const std::size_t most : {1, 2, 3}) {
    const MoveSettings settings{
        .threads = 4, .moves_in_flight = 4, .hashes = {Hash::Sha256}, .most_strips = most};
    RecordingMover mover(extents);
    mover.sha256_wanted = mover.slow = true;
    Cancel cancel;
    move(plan, mover, settings, cancel);
    mover.expect_all();
    EXPECT_LE(mover.most_held(), static_cast<int>(most));
  }
}

// While a worker finishes the first of two tensors that it hashed side by side, the other worker
// hashes the rest of the second one, and finishes it.
TEST(Move, FinishesEachTensorOnce) {
  std::vector<Extent> extents{{0, 0, 2 * kLimits.strip_size}};
  for (std::uint64_t i = 1; i < 10; ++i) {
    extents.push_back({i * 3 * kLimits.strip_size, 0, kLimits.strip_size - kStripUnit});
    extents.back().cost = 3;
  }
  for (int round = 0; round < 20; ++round) {
    const MoveSettings settings{
        .threads = 2, .moves_in_flight = 2, .hashes = {Hash::Sha256}, .lanes = 2};
    const Plan plan = plan_in_order(extents, kLimits);
    RecordingMover mover(extents);
    mover.sha256_wanted = true;
    mover.first_finishes_slowly = true;
    Cancel cancel;
    move(plan, mover, settings, cancel);
    mover.expect_all();
  }
}

TEST(Move, EndsWithTheFirstError) {
  Dice dice(42);
  std::vector<Extent> extents;
  for (std::uint64_t i = 0; i < 8; ++i) extents.push_back({i * 50000, 100, 49900, false});
  for (int round = 0; round < 30; ++round) {
    MoveSettings settings = random_settings(dice);
    Plan plan = plan_in_order(extents, kLimits);
    if (dice.one_in(2)) interleave(plan, 4);
    RecordingMover mover(extents);
    mover.crc32_wanted = settings.hashes.has(Hash::Crc32);
    mover.sha256_wanted = settings.hashes.has(Hash::Sha256);
    mover.fail_on = dice.pick(std::vector<std::string>{"strip", "start", "finish"});
    Cancel cancel;
    EXPECT_EQ(error_of([&] { move(plan, mover, settings, cancel); }).message(), mover.fail_on);
  }
}

}  // namespace
}  // namespace tensorizer
