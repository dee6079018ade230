// Saves of models in several files, and what is left when one fails.
#include "base/log.h"
#include "engine/open/open_model.h"
#include "engine/save/save_shards.h"
#include "io_support.h"
#include "round_trip.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer {
namespace {

using namespace testing_support;

class SavesShards : public testing::Test {
 protected:
  // Saves tensors of 8 bytes each, all with this value in every byte, two in each file.
  void save(int count, char value, const std::function<void()>& confirm = {}) {
    const std::vector<std::byte> data(8, static_cast<std::byte>(value));
    SavedModel model{.sorted = true};
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
    save_in_shards(folder_ / "m.safetensors", std::move(model), options, settings, progress,
                   cancel);
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

// A folder takes the place of a shard between the choice of its name and the end of the save.
TEST_F(SavesShards, WhichDisappearIfOneCannotAppear) {
  const auto block = [&] { fs::create_directory(folder_ / "m-00002-of-00003.safetensors"); };
  EXPECT_EQ(error_of([&] { save(6, 'a', block); }).system_errno(), EISDIR);
  EXPECT_EQ(files(), std::vector<std::string>{"m-00002-of-00003.safetensors"});
}

TEST_F(SavesShards, WithNamesThatTheOlderModelDoesNotUse) {
  save(5, 'a');
  const std::vector<std::string> before = files();
  const auto count_new = [&] {
    return std::ranges::count_if(files(), [&](const std::string& name) {
      return std::ranges::find(before, name) == before.end();
    });
  };
  save(5, 'b');
  EXPECT_EQ(count_new(), 3);
  EXPECT_EQ(files().size(), 4U);
  save(5, 'c');
  EXPECT_EQ(files(), before) << "these are free again";
  write_file(folder_ / "m-00003-of-00003.safetensors", "of a user");
  fs::remove(folder_ / "m.safetensors.index.json");
  save(5, 'd');
  EXPECT_EQ(count_new(), 3);
  EXPECT_EQ(read_file(folder_ / "m-00003-of-00003.safetensors"), "of a user");
  EXPECT_EQ(load(), std::vector<char>(5, 'd'));
}

TEST_F(SavesShards, BesideAnotherSaveOfTheSameName) {
  save(4, 'b', [&] { save(4, 'a'); });
  EXPECT_EQ(load(), std::vector<char>(4, 'b'));
  EXPECT_EQ(files().size(), 3U) << "what the other save has added is gone";
}

TEST_F(SavesShards, WhoseOlderFilesAreKeptForAnotherIndex) {
  save(4, 'a');
  fs::copy(folder_ / "m.safetensors.index.json", folder_ / "best.safetensors.index.json");
  save(4, 'b');
  fs::remove(folder_ / "m.safetensors.index.json");
  EXPECT_EQ(load(), std::vector<char>(4, 'a'));
}

// A file in the record of a killed save is removed only if that save can have written it.
TEST_F(SavesShards, AfterOneThatWasKilled) {
  const std::string record = folder_ / ".m.saving-7f3a91c2";
  const auto put = [&](const std::string& name, std::size_t size) {
    write_file(folder_ / name, std::string(size, 'x'));
    return std::to_string(size) + " " + name + "\n";
  };
  std::string text =
      put("m-00001-of-00003.safetensors", 10) + put("m-7f3a91c2-00002-of-00003.safetensors", 11);
  std::vector<std::string> kept;
  const auto keep = [&](const std::string& name) {
    kept.push_back(name);
    return put(name, 10);
  };
  text += keep("m-00001.safetensors") + keep("n-00001-of-00003.safetensors") +
          keep("m-7f3a91cg-00001-of-00003.safetensors") + keep("m.safetensors");
  text += "9 " + keep("m-00002-of-00003.safetensors").substr(3);  // another size
  const Folder outside(testing::TempDir());
  write_file(outside / "m-00001-of-00003.safetensors", std::string(10, 'x'));
  text += "10 ../" + outside.path().filename().string() + "/m-00001-of-00003.safetensors\n";
  text += "10 " + (outside / "m-00001-of-00003.safetensors").string() + "\n";
  text += "x m-00001-of-00003.safetensors\n\n10\n10 ";
  const auto later = keep("m-00003-of-00003.safetensors");
  write_file(record, text + "\n" + later);
  for (const std::string& name : files()) {
    fs::last_write_time(folder_ / name, fs::last_write_time(record));
  }
  fs::last_write_time(folder_ / "m-00003-of-00003.safetensors",
                      fs::last_write_time(record) + std::chrono::seconds(1));
  write_file(folder_ / ".m.saving-of-a-user", "10 m-00002-of-00003.safetensors");
  kept.push_back(".m.saving-of-a-user");
  save(2, 'a');  // one file
  EXPECT_TRUE(fs::exists(outside / "m-00001-of-00003.safetensors"));
  std::ranges::sort(kept);
  EXPECT_EQ(files(), kept);
}

TEST_F(SavesShards, WithTheAccessRightsOfTheOlderFiles) {
  save(2, 'a');
  fs::permissions(folder_ / "m.safetensors", fs::perms(0600));
  save(6, 'b');
  for (const std::string& name : files()) {
    if (name.ends_with(".json")) continue;
    EXPECT_EQ(mode_of(folder_ / name), 0600U) << name;
    fs::permissions(folder_ / name, fs::perms(0640));
  }
  save(10, 'c');
  for (const std::string& name : files()) {
    if (name.ends_with(".json")) continue;
    EXPECT_EQ(mode_of(folder_ / name), 0640U) << name;
  }
  save(2, 'd');
  EXPECT_EQ(mode_of(folder_ / "m.safetensors"), 0640U);
}

// Another thread saves models of such sizes in turn, again and again, and waits for a load after
// each save.
class SavesShardsOften : public SavesShards,
                         public testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(SavesShardsOften, ThatAreNeverMixed) {
  constexpr int kLoads = 200;
  const auto count = [sizes = GetParam()](char value) {
    return value % 2 == 0 ? sizes.first : sizes.second;
  };
  save(count('a'), 'a');
  std::atomic<int> loads = 0;
  const std::jthread writer([&] {
    for (char value = 'a'; loads < kLoads; value = value == 'z' ? 'a' : value + 1) {
      save(count(value), value);
      const int before = loads;
      if (before < kLoads) loads.wait(before);
    }
  });
  while (loads < kLoads) {
    std::vector<char> values;
    EXPECT_NO_THROW(values = load());
    const char value = values.empty() ? '?' : values.front();
    EXPECT_EQ(values, std::vector<char>(static_cast<std::size_t>(count(value)), value));
    ++loads;
    loads.notify_one();
  }
}

// Of two tensors, a model is one file.
INSTANTIATE_TEST_SUITE_P(Sizes, SavesShardsOften,
                         testing::Values(std::pair(64, 64), std::pair(2, 16)));

// The record of a killed save says which of two models is the older one.
TEST_F(SavesShards, InPlaceOfOneFileAndBack) {
  save(2, 'a');
  const std::string single = read_file(folder_ / "m.safetensors");
  save(4, 'b');
  const std::vector<std::string> several = files();
  const std::string record = folder_ / ".m.saving-7f3a91c2";
  write_file(folder_ / "m.safetensors", single);
  const auto list = [&](std::initializer_list<std::string> older) {
    std::string text;
    for (const std::string& name : older) {
      text += std::to_string(fs::file_size(folder_ / name)) + " " + name + "\n";
    }
    write_file(record, text);
    for (const std::string& name : files()) {
      fs::last_write_time(folder_ / name, fs::last_write_time(record));
    }
  };
  list({"m.safetensors"});
  EXPECT_EQ(load(), std::vector<char>(4, 'b'));
  // A file that a user has saved since is not the one that the record lists.
  fs::last_write_time(folder_ / "m.safetensors",
                      fs::last_write_time(record) + std::chrono::seconds(1));
  EXPECT_EQ(kind_of([&] { load(); }), ErrorKind::InvalidArgument);
  list({several[0], several[1], several[2]});
  EXPECT_EQ(load(), std::vector<char>(2, 'a'));
  const auto refuse = [] { throw Error(ErrorKind::HashMismatch, "refused"); };
  EXPECT_EQ(kind_of([&] { save(4, 'c', refuse); }), ErrorKind::HashMismatch);
  EXPECT_EQ(files(), std::vector<std::string>{"m.safetensors"}) << "the save has removed the rest";
  save(4, 'd');
  EXPECT_EQ(files(), several);
  EXPECT_EQ(load(), std::vector<char>(4, 'd'));
}

// Nobody knows which of them is newer, so the save removes neither before it has ended.
TEST_F(SavesShards, WhoseFailureLeavesBothOlderModels) {
  save(2, 'a');
  const std::string single = read_file(folder_ / "m.safetensors");
  save(4, 'b');
  write_file(folder_ / "m.safetensors", single);
  const std::vector<std::string> before = files();
  const auto block = [&] { fs::create_directory(folder_ / "m-00002-of-00003.safetensors"); };
  EXPECT_EQ(error_of([&] { save(6, 'c', block); }).system_errno(), EISDIR);
  fs::remove(folder_ / "m-00002-of-00003.safetensors");
  EXPECT_EQ(files(), before);
  EXPECT_EQ(kind_of([&] { load(); }), ErrorKind::InvalidArgument);
  save(6, 'd');
  EXPECT_EQ(load(), std::vector<char>(6, 'd'));
}

TEST_F(SavesShards, WhoseFailureLeavesTheOlderIndex) {
  save(4, 'a');
  const std::vector<std::string> before = files();
  const auto block = [&] { fs::create_directory(folder_ / "m.safetensors"); };
  EXPECT_EQ(error_of([&] { save(2, 'b', block); }).system_errno(), EISDIR);
  fs::remove(folder_ / "m.safetensors");
  EXPECT_EQ(files(), before);
  EXPECT_EQ(load(), std::vector<char>(4, 'a'));
}

// Old shards stay if an index of another model cannot be read, which may name them.
TEST_F(SavesShards, WhoseOlderFilesMayBeOfAnIndexThatCannotBeRead) {
  static std::string logged;
  logged.clear();
  save(4, 'a');
  fs::create_directory(folder_ / "n.safetensors.index.json");
  set_log_hook([](const std::string& text) { logged += text; });
  save(4, 'b');
  set_log_hook(nullptr);
  EXPECT_TRUE(contains(logged, "n.safetensors.index.json")) << logged;
  EXPECT_TRUE(fs::exists(folder_ / "m-00001-of-00002.safetensors"));
  fs::remove(folder_ / "n.safetensors.index.json");
  save(4, 'c');
  EXPECT_EQ(files().size(), 3U);
  EXPECT_EQ(load(), std::vector<char>(4, 'c'));
}

}  // namespace
}  // namespace tensorizer
