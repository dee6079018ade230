// Kills a process that applies a delta in place, at random moments: kill_apply [TIMES [SEED]]
//
// Whatever moment that is, the file is then the old model or the new one, and at most one hidden
// file is beside it. Ends with the first broken promise, and prints the command that replays it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "engine/delta/delta.h"
#include "engine/rewrite/file_digest.h"
#include "engine/save/new_layout.h"
#include "engine/save/save.h"
#include "format/model_digest.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

using Elapsed = std::chrono::duration<double>;

void require(bool kept, const std::string& promise) {
  if (!kept) throw std::logic_error(promise);
}

std::unique_ptr<OpenFile> opened(const std::string& path, Cancel& cancel) {
  return std::make_unique<OpenFile>(open_source(path, {}, cancel), LoadOptions(), cancel);
}

// A file, and a delta that makes the newer one of it. The folder is removed at the end.
class Files {
 public:
  explicit Files(std::mt19937_64& random) : random_(random) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "model");
    std::vector<std::string> tensors{std::string(1100000, 'a'), std::string(200000, 'b'), "c"};
    save(old_, tensors);
    for (int i = 0; i < 5000; ++i) tensors[i % 2][random_() % tensors[i % 2].size()] = 'd';
    tensors.push_back("new");
    save(new_, tensors);
    Cancel cancel;
    Progress progress;
    make_delta(*opened(old_, cancel), *opened(new_, cancel), {delta_, kUsualHashes, 2, {}},
               progress, cancel);
    old_digest_ = digest_of(old_);
    new_digest_ = digest_of(new_);
    restore();
  }
  ~Files() { std::filesystem::remove_all(folder_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  // Applies the delta in another process. Returns its number.
  pid_t start(bool fsync) const {
    const pid_t child = fork();
    if (child != 0) return child;
    try {
      Cancel cancel;
      Progress progress;
      RewriteRequest request{target_, kUsualHashes, 2, {}};
      request.options.sink.fsync = fsync;
      apply_delta(*opened(delta_, cancel), *opened(target_, cancel), request, progress, cancel);
      std::_Exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(1);
    }
  }

  // Returns how long it usually takes.
  Elapsed time(bool fsync) {
    std::array<Elapsed, 5> times{};
    for (Elapsed& time : times) {
      restore();
      const auto begin = std::chrono::steady_clock::now();
      int status = 0;
      waitpid(start(fsync), &status, 0);
      time = std::chrono::steady_clock::now() - begin;
      require(status == 0, "a delta is not applied");
      require(check() == Found{.is_new = true}, "a delta is applied, and the file is another one");
    }
    std::ranges::sort(times);
    return times[2];
  }

  struct Found {
    bool is_new = false;
    bool has_hidden = false;

    friend bool operator==(const Found&, const Found&) = default;
  };

  // Checks what is there, and removes the hidden file.
  Found check() {
    Found found;
    for (const auto& each : std::filesystem::directory_iterator(folder_ / "model")) {
      if (each.path() == target_) continue;
      const std::string name = each.path().filename();
      require(name.starts_with(".tensorizer-"), "a file " + name + " is left");
      require(!found.has_hidden, "two hidden files are left");
      found.has_hidden = true;
      std::filesystem::remove(each.path());
    }
    const std::string digest = digest_of(target_);
    require(digest == old_digest_ || digest == new_digest_, "the file is another model");
    found.is_new = digest == new_digest_;
    if (found.is_new) restore();
    return found;
  }

 private:
  static void save(const std::string& to, const std::vector<std::string>& tensors) {
    Cancel cancel;
    Progress progress;
    FileKind kind{.header = {kUsualHashes, {}}};
    kind.chunk_size = 64 << 10;
    const std::unique_ptr<Sink> sink = open_sink(to, {}, cancel);
    const std::unique_ptr<Layout> layout =
        new_layout(Format::Tensors, std::move(kind), sink->start());
    std::vector<SaveItem> items;
    for (const std::string& tensor : tensors) {
      TensorSpec spec;
      spec.name = "t" + std::to_string(items.size());
      spec.shape = {static_cast<std::int64_t>(tensor.size())};
      layout->add(std::move(spec));
      items.push_back({as_bytes(tensor)});
    }
    save_file(*sink, *layout, items, {}, progress, cancel);
  }

  // Returns the digest of all data, which is compared with that in the file as well.
  static std::string digest_of(const std::string& path) {
    Cancel cancel;
    Progress progress;
    const std::unique_ptr<OpenFile> file = opened(path, cancel);
    return file_digest(*file, {.version = DigestVersion::Chunks}, progress, cancel);
  }

  void restore() const {
    std::filesystem::copy_file(old_, target_, std::filesystem::copy_options::overwrite_existing);
  }

  std::mt19937_64& random_;
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tensorizer-kills-" + std::to_string(getpid()));
  const std::string old_ = folder_ / "old", new_ = folder_ / "new", delta_ = folder_ / "delta",
                    target_ = folder_ / "model" / "model";
  std::string old_digest_, new_digest_;
};

void kill_often(std::uint64_t times, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Files files(random);
  const Elapsed usual[] = {files.time(/*fsync=*/false), files.time(/*fsync=*/true)};
  std::uint64_t fresh = 0, hidden = 0, killed = 0;
  for (std::uint64_t i = 0; i < times; ++i) {
    const bool fsync = random() % 2 == 0;
    const pid_t child = files.start(fsync);
    const double part = std::uniform_real_distribution(0.0, 1.2)(random);
    std::this_thread::sleep_for(part * usual[fsync]);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    require(WIFSIGNALED(status) || status == 0, "a delta is not applied");
    const Files::Found found = files.check();
    require(WIFSIGNALED(status) || found.is_new, "a delta is applied, and the file is the old one");
    killed += WIFSIGNALED(status);
    fresh += found.is_new;
    hidden += found.has_hidden;
  }
  std::printf("%llu of %llu killed: %llu times the new model, %llu hidden files\n",
              static_cast<unsigned long long>(killed), static_cast<unsigned long long>(times),
              static_cast<unsigned long long>(fresh), static_cast<unsigned long long>(hidden));
}

}  // namespace

}  // namespace tensorizer

int main(int count, char** words) {
  using tensorizer::parse_number;
  const auto times = parse_number(count > 1 ? words[1] : "500");
  const auto seed = count > 2 ? parse_number(words[2]) : std::random_device()();
  if (!times || !seed || count > 3) {
    std::fprintf(stderr, "kill_apply [TIMES [SEED]]\n");
    return 2;
  }
  try {
    tensorizer::kill_often(*times, *seed);
  } catch (const std::exception& error) {
    const auto number = static_cast<unsigned long long>(*seed);
    std::printf("seed %llu: %s\n  kill_apply %s %llu\n", number, error.what(),
                count > 1 ? words[1] : "500", number);
    return 1;
  }
  return 0;
}
