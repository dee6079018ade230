// Deltas: what they make, and files whose change is killed at any moment. KILLS says how many kills
// are tried: `make kills` tries 10,000.
#include "engine/delta/delta.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>

#include "engine/open/open_model.h"
#include "engine/rewrite/file_digest.h"
#include "engine/save/new_layout.h"
#include "engine/save/save.h"
#include "io/places/open.h"
#include "io_support.h"

namespace tensorizer {
namespace {

using namespace testing_support;
using Microseconds = std::chrono::microseconds;

constexpr std::size_t kTensors = 3;

class DeltaTest : public testing::Test {
 protected:
  DeltaTest() {
    save("older", 0);
    save("newer", 1);
    run([&](Progress& progress, Cancel& cancel) {
      OpenFile older(open_model(path("older"), {}, cancel), {}, cancel);
      OpenFile newer(open_model(path("newer"), {}, cancel), {}, cancel);
      make_delta(older, newer, {path("delta"), kUsualHashes, 1, {}}, progress, cancel);
    });
  }

  std::string path(const std::string& name) const { return folder_ / (name + ".tensors"); }

  static void run(const std::function<void(Progress&, Cancel&)>& job) {
    Progress progress;
    Cancel cancel;
    job(progress, cancel);
  }

  // Saves a model. Of the newer one, some bytes differ.
  void save(const std::string& name, int step) {
    std::vector<std::vector<std::byte>> data(kTensors, std::vector<std::byte>(70'000));
    std::mt19937 random(1);
    for (std::vector<std::byte>& bytes : data) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      for (std::size_t i = 0; step > 0 && i < bytes.size(); i += 1000) bytes[i] ^= std::byte{1};
    }
    run([&](Progress& progress, Cancel& cancel) {
      const std::unique_ptr<Sink> sink = open_sink(path(name), {}, cancel);
      FileKind kind;
      kind.chunk_size = kUsualChunk;
      const auto layout = new_layout(Format::Tensors, std::move(kind), sink->start());
      std::vector<SaveItem> items;
      for (std::size_t i = 0; i < kTensors; ++i) {
        TensorSpec spec;
        spec.name = "t" + std::to_string(i);
        spec.shape = {static_cast<std::int64_t>(data[i].size())};
        layout->add(std::move(spec));
        items.push_back({data[i]});
      }
      save_file(*sink, *layout, items, {}, progress, cancel);
    });
  }

  void apply(const std::string& base, const std::string& target, bool fsync) const {
    run([&](Progress& progress, Cancel& cancel) {
      OpenFile delta(open_model(path("delta"), {}, cancel), {}, cancel);
      OpenFile older(open_model(path(base), {}, cancel), {}, cancel);
      RewriteRequest request{path(target), kUsualHashes, 1, {}};
      request.options.sink.fsync = fsync;
      apply_delta(delta, older, std::move(request), progress, cancel);
    });
  }

  // Returns the digest of a file, all of whose data is read and verified.
  std::string digest(const std::string& name) const {
    std::string digest;
    run([&](Progress& progress, Cancel& cancel) {
      OpenFile file(open_model(path(name), {}, cancel), {}, cancel);
      verify_file(file, Verify::All, 1, progress, cancel);
      digest = file_digest(file, {DigestVersion::Chunks, false, 1}, progress, cancel);
    });
    return digest;
  }

  // Removes what a killed save has left, and returns how many files it were.
  int remove_left() const {
    int left = 0;
    for (const auto& file : fs::directory_iterator(folder_.path())) {
      if (file.path().filename().string().starts_with(".tensorizer-")) {
        ++left;
        fs::remove(file.path());
      }
    }
    return left;
  }

  Folder folder_{fs::temp_directory_path()};
};

TEST_F(DeltaTest, MakesTheNewerModel) {
  apply("older", "made", false);
  EXPECT_EQ(digest("made"), digest("newer"));
  EXPECT_NE(digest("older"), digest("newer"));
  EXPECT_THROW(apply("newer", "made", false), Error);
}

TEST_F(DeltaTest, AKilledChangeLeavesOneOfTheTwoModels) {
  const char* const given = std::getenv("KILLS");
  const int kills = given != nullptr ? std::atoi(given) : 200;
  const std::string older = digest("older");
  const std::string newer = digest("newer");
  std::mt19937_64 random(std::random_device{}());
  Microseconds longest{2000};
  int killed = 0;
  int changed = 0;
  for (int i = 0; i < kills; ++i) {
    fs::copy_file(path("older"), path("base"), fs::copy_options::overwrite_existing);
    const Microseconds after(random() % static_cast<std::uint64_t>(longest.count()));
    const pid_t child = fork();
    if (child == 0) {
      apply("base", "base", i % 2 == 0);
      _exit(0);
    }
    std::this_thread::sleep_for(after);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      // So that about one in five ends before it is killed.
      longest = std::max(Microseconds(500), longest - longest / 20);
    } else {
      ++killed;
      longest += longest / 80;
    }
    const std::string found = digest("base");
    ASSERT_TRUE(found == older || found == newer) << "killed after " << after.count() << " us";
    changed += found == newer ? 1 : 0;
    ASSERT_LE(remove_left(), 1);
  }
  EXPECT_GT(killed, kills / 4);
  EXPECT_GT(changed, 0);
  RecordProperty("killed", killed);
}

}  // namespace
}  // namespace tensorizer
