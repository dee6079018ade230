// The engine's small parts: CPUs, workers, digests.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/cpus.h"
#include "codec/crc32.h"
#include "engine/move/move.h"
#include "engine/move/workers.h"
#include "support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using std::chrono::milliseconds;

// Returns what `ask` returns on a thread that may use `count` of this thread's CPUs.
int on_cpus(int count, int (*ask)()) {
  int answer = 0;
  std::thread([&] {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    cpu_set_t some;
    CPU_ZERO(&some);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&some) < count; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &some);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(some), &some), 0);
    answer = ask();
  }).join();
  return answer;
}

TEST(UsableCpus, FollowTheAffinity) {
  const int all = usable_cpus();
  EXPECT_GE(all, 1);
  EXPECT_LE(all, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(on_cpus(1, usable_cpus), 1);
  EXPECT_EQ(on_cpus(2, usable_cpus), std::min(2, all));
  EXPECT_EQ(usable_cpus(), all);
}

TEST(Workers, RunOnTheCallingThreadAndOthers) {
  for (const int count : {1, 2, 5}) {
    Cancel cancel;
    std::mutex mutex;
    std::set<std::thread::id> seen;
    std::atomic<int> waiting{0};
    run_workers(count, cancel, [&] {
      // Waits until all workers run at the same time.
      ++waiting;
      while (waiting < count) std::this_thread::yield();
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(count));
    EXPECT_TRUE(seen.contains(std::this_thread::get_id()));
    EXPECT_FALSE(cancel.requested());
  }
}

TEST(Workers, ThrowTheFirstErrorAndStopTheOthers) {
  for (int round = 0; round < 20; ++round) {
    Cancel cancel;
    std::atomic<int> number{0};
    std::atomic<int> stopped{0};
    const Error error = error_of([&] {
      run_workers(4, cancel, [&] {
        if (number++ == round % 4) throw Error(ErrorKind::NotFound, "the first");
        try {
          for (;;) {
            cancel.check();
            std::this_thread::yield();
          }
        } catch (const Error&) {
          ++stopped;
          throw;
        }
      });
    });
    EXPECT_EQ(error.kind(), ErrorKind::NotFound);
    EXPECT_EQ(error.message(), "the first");
    EXPECT_EQ(stopped, 3);
  }
}

TEST(Workers, CarryAnyException) {
  Cancel cancel;
  EXPECT_THROW(run_workers(1, cancel, [] { throw std::length_error("x"); }), std::length_error);
  Cancel other;
  const auto caller = std::this_thread::get_id();
  EXPECT_THROW(run_workers(3, other,
                           [&] {
                             if (std::this_thread::get_id() != caller) throw 42;
                           }),
               int);
  EXPECT_TRUE(other.requested());
}

TEST(Workers, AreFewerWhereThereAreNoMoreThreads) {
  pthread_attr_t usual;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  pthread_attr_t too_large = usual;
  pthread_attr_setstacksize(&too_large, std::size_t{1} << 48);
  ASSERT_EQ(pthread_setattr_default_np(&too_large), 0);
  Cancel cancel;
  std::atomic<int> ran{0};
  EXPECT_NO_THROW(run_workers(4, cancel, [&] { ++ran; }));
  pthread_setattr_default_np(&usual);
  EXPECT_EQ(ran, 1);
}

TEST(Workers, LeaveSignalsToTheProgram) {
  Cancel cancel;
  const auto caller = std::this_thread::get_id();
  std::atomic<int> blocked{0};
  const auto blocks = [](int signal) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&mask, signal) == 1;
  };
  run_workers(3, cancel, [&] {
    if (std::this_thread::get_id() == caller) return;
    if (blocks(SIGINT) && blocks(SIGTERM) && blocks(SIGUSR1) && !blocks(SIGSEGV)) ++blocked;
  });
  EXPECT_EQ(blocked, 2);
  EXPECT_FALSE(blocks(SIGINT));
}

TEST(ComputeSlots, LetOnlySoManyCompute) {
  ComputeSlots slots(2, 6);
  std::atomic<int> computing{0};
  std::atomic<int> most{0};
  Cancel cancel;
  run_workers(6, cancel, [&] {
    for (int i = 0; i < 20; ++i) {
      const ComputeSlots::Slot slot(slots, ComputeSlots::Work::Copy);
      const int now = ++computing;
      int before = most;
      while (now > before && !most.compare_exchange_weak(before, now)) {
      }
      while (most < 2) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(200));  // enough for a third to start
      --computing;
    }
  });
  EXPECT_EQ(most, 2);
}

Digests plain_digests(const DigestStart& start, ConstBytes data) {
  std::uint32_t crc = 0;
  Sha256 sha256;
  for (const ConstBytes part : {start.header[0], start.header[1], data}) {
    crc = crc32(crc, part);
    sha256.update(part);
  }
  Digests digests;
  if (start.hashes.has(Hash::Crc32)) {
    digests[Hash::Crc32] = digest_of(std::as_bytes(std::span(&crc, 1)));
  }
  if (start.hashes.has(Hash::Sha256)) digests[Hash::Sha256] = sha256.finish();
  return digests;
}

TEST(Digests, AreTheSameHoweverTheyAreTaken) {
  Dice dice(21);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<std::byte>> headers;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<DigestStart> starts;
    std::vector<ConstBytes> data;
    const std::uint64_t count = dice.below(9);
    for (std::uint64_t i = 0; i < count; ++i) {
      headers.push_back(pattern(dice.below(300), static_cast<std::uint32_t>(i)));
      bytes.push_back(
          pattern(dice.one_in(3) ? 0 : dice.below(5000), static_cast<std::uint32_t>(i)));
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t cut = dice.below(headers[i].size() + 1);
      starts.push_back({{ConstBytes(headers[i]).first(cut), ConstBytes(headers[i]).subspan(cut)},
                        HashKinds{dice.one_in(2), dice.one_in(2)}});
      data.push_back(bytes[i]);
    }
    const std::vector<Digests> all = digest_all(starts, data);
    ASSERT_EQ(all.size(), count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const Digests expected = plain_digests(starts[i], data[i]);
      EXPECT_TRUE(all[i] == expected);
      RunningDigests running(starts[i]);
      for (std::size_t at = 0; at < data[i].size();) {
        const std::size_t size = std::min<std::size_t>(dice.below(700), data[i].size() - at);
        running.update(data[i].subspan(at, size));
        at += size;
      }
      EXPECT_TRUE(running.finish() == expected);
    }
  }
}

}  // namespace
}  // namespace tensorizer
