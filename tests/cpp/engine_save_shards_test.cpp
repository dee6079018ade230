// Saves of models in several files, and what is left when one fails.
#include "engine/open_model.h"
#include "engine/save_shards.h"
#include "io_support.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

class SavesShards : public testing::Test {
 protected:
  // Saves tensors of 8 bytes each, all with this value in every byte, two in each file.
  void save(int count, char value, const std::function<void()>& confirm = {}) {
    const std::vector<std::byte> data(8, static_cast<std::byte>(value));
    SavedModel model;
    for (int i = 0; i < count; ++i) {
      TensorSpec& spec = model.specs.emplace_back();
      spec.name = std::to_string(i);
      spec.shape = {8};
      model.items.push_back({data});
    }
    SaveOptions options;
    options.max_shard_size = 16;
    SaveSettings settings;
    settings.confirm = confirm;
    Progress progress;
    Cancel cancel;
    save_in_shards(folder_ / "m.safetensors", {}, std::move(model), true, options, settings,
                   progress, cancel);
    EXPECT_EQ(progress.done, 8U * static_cast<unsigned>(count));
    EXPECT_EQ(progress.total, progress.done);
  }

  // Returns the values of all tensors.
  std::vector<char> load() {
    Cancel cancel;
    const auto source = open_model(folder_.path(), {}, cancel);
    const auto catalogue = read_catalogue(*source, nullptr, cancel);
    std::vector<char> values;
    for (const Entry& entry : catalogue->entries()) {
      std::array<std::byte, 8> data{};
      EXPECT_EQ(source->read_up_to(entry.data_offset, data, cancel), data.size());
      values.push_back(static_cast<char>(data[0]));
    }
    return values;
  }

  std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_.path())) {
      names.push_back(file.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  Folder folder_{testing::TempDir()};
};

TEST_F(SavesShards, ThatLoad) {
  save(5, 'a');
  EXPECT_EQ(load(), std::vector<char>(5, 'a'));
  EXPECT_EQ(files(), (std::vector<std::string>{
                         "m-00001-of-00003.safetensors", "m-00002-of-00003.safetensors",
                         "m-00003-of-00003.safetensors", "m.safetensors.index.json"}));
  save(2, 'b');
  EXPECT_EQ(load(), std::vector<char>(2, 'b'));
  EXPECT_EQ(files(), std::vector<std::string>{"m.safetensors"}) << "the old model is gone";
  save(6, 'c');
  EXPECT_EQ(load(), std::vector<char>(6, 'c'));
  EXPECT_EQ(files().size(), 4U);
  EXPECT_FALSE(fs::exists(folder_ / "m.safetensors"));
  // Files that the old index names, but that no save of this name writes, stay.
  write_file(folder_ / "m-00001-of-00002.safetensors", "not listed");
  write_file(folder_ / "other-00001-of-00001.safetensors", "another name");
  write_file(folder_ / "m.safetensors.index.json",
             R"({"weight_map":{"x":"other-00001-of-00001.safetensors",
                               "y":"m-00009-of-00009.safetensors"}})");
  write_file(folder_ / "m-00009-of-00009.safetensors", "old");
  save(8, 'd');
  EXPECT_EQ(load(), std::vector<char>(8, 'd'));
  EXPECT_FALSE(fs::exists(folder_ / "m-00009-of-00009.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "m-00001-of-00002.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "other-00001-of-00001.safetensors"));
  write_file(folder_ / "m.safetensors.index.json", "not an index");
  save(8, 'e');
  EXPECT_EQ(load(), std::vector<char>(8, 'e'));
}

TEST_F(SavesShards, NothingOfWhichAppearsEarly) {
  save(4, 'a');
  const std::vector<std::string> before = files();
  bool confirmed = false;
  const auto refuse = [&] {
    EXPECT_EQ(load(), std::vector<char>(4, 'a'));
    confirmed = true;
    throw Error(ErrorKind::HashMismatch, "refused");
  };
  EXPECT_EQ(kind_of([&] { save(4, 'b', refuse); }), ErrorKind::HashMismatch);
  EXPECT_TRUE(confirmed);
  EXPECT_EQ(files(), before);
  EXPECT_EQ(load(), std::vector<char>(4, 'a'));
}

TEST_F(SavesShards, WhichDisappearIfOneCannotAppear) {
  const auto block = [&] { fs::create_directory(folder_ / "m-00002-of-00003.safetensors"); };
  EXPECT_EQ(error_of([&] { save(6, 'a', block); }).system_errno(), EISDIR);
  EXPECT_EQ(files(), std::vector<std::string>{"m-00002-of-00003.safetensors"});
}

// Another thread saves a model of the same names and shapes again and again, and waits for a load
// after each save: a slow machine needs that time.
TEST_F(SavesShards, ThatAreNeverMixed) {
  constexpr int kCount = 64;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  save(kCount, 'a');
  std::atomic<int> loads = 0;
  {
    const std::jthread writer([&](const std::stop_token& stop) {
      for (char value = 'a'; !stop.stop_requested(); value = value == 'z' ? 'a' : value + 1) {
        save(kCount, value);
        const int before = loads;
        while (loads == before && !stop.stop_requested()) std::this_thread::yield();
      }
    });
    while (loads < 2 || std::chrono::steady_clock::now() < end) {
      try {
        const std::vector<char> values = load();
        EXPECT_EQ(values, std::vector<char>(kCount, values.front()));
        ++loads;
      } catch (const Error& error) {
        // The index is not there for a moment, or was replaced.
        const bool expected =
            error.kind() == ErrorKind::Unavailable || error.kind() == ErrorKind::NotFound ||
            error.system_errno() == EISDIR || error.kind() == ErrorKind::InvalidArgument;
        ASSERT_TRUE(expected) << error.what();
      }
    }
  }
  EXPECT_EQ(load().size(), kCount);
}

}  // namespace
}  // namespace tensorizer
