// Saves of one file by several processes, here by several objects.
#include "engine/save/shared_save.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "chunked_file.h"
#include "io_support.h"
#include "round_trip.h"

namespace tensorizer {
namespace {

using namespace testing_support;

void expect_error(ErrorKind kind, std::string_view text, const std::function<void()>& action) {
  const Error error = error_of(action);
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(contains(error.what(), text)) << error.what();
}

class SavesTogether : public testing::Test {
 protected:
  void SetUp() override { options_.memory_ceiling = 1 << 20; }

  std::unique_ptr<SharedSave> make(const FileKind& kind) {
    return std::make_unique<SharedSave>(folder_ / "m.tensors",
                                        std::make_unique<TensorsLayout>(layout_as(samples_, kind)),
                                        options_);
  }

  // Makes as many objects, which have started.
  std::vector<std::unique_ptr<SharedSave>> started(std::size_t count, const FileKind& kind) {
    std::vector<std::unique_ptr<SharedSave>> all;
    std::optional<std::string> joined;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(make(kind));
      const std::string text = all.back()->start(joined);
      if (!joined) joined = text;
      EXPECT_EQ(all.back()->plan(), all.front()->plan());
    }
    return all;
  }

  // Returns what write() takes for a section.
  std::vector<std::byte> data_of(const SharedSave& save, std::size_t section) {
    std::vector<std::byte> data;
    for (const DataRange& range : save.ranges(section)) {
      const ConstBytes bytes = ConstBytes(samples_[range.tensor].data);
      const ConstBytes part = bytes.subspan(range.start, range.size);
      data.insert(data.end(), part.begin(), part.end());
    }
    return data;
  }

  // Writes all sections, each in one of the objects, and hands in.
  void write(std::vector<std::unique_ptr<SharedSave>>& all, Dice& dice) {
    SharedSave& first = *all.front();
    std::vector<std::vector<std::size_t>> owned(all.size());
    std::vector<std::size_t> owner(first.section_count());
    for (std::size_t section = 0; section < owner.size(); ++section) {
      if (section >= first.head_sections()) {
        owner[section] = dice.below(all.size());
      }
      owned[owner[section]].push_back(section);
    }
    std::vector<std::vector<std::byte>> digests(owner.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        all[i]->own(owned[i]);
        for (const std::size_t section : owned[i]) {
          digests[section] = all[i]->write(section, data_of(*all[i], section));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::vector<std::size_t> order(owner.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(i)));
      for (const std::size_t section : order) {
        const std::uint64_t common = all[i]->digest_sizes(section).first;
        const ConstBytes told = digests[section];
        all[i]->take(section, i == 0 ? told : told.first(common));
      }
    }
    for (auto& each : all) first.take_in(each->hand_in());
  }

  std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(folder_.path())) {
      names.push_back(file.path().filename());
    }
    return names;
  }

  SaveOptions options_;
  std::vector<Sample> samples_;
  Folder folder_{testing::TempDir()};
};

TEST_F(SavesTogether, WhatOneProcessSaves) {
  Dice dice(401);
  for (const std::uint64_t chunk : {std::uint64_t{0}, kChunk, std::uint64_t{4} << 20}) {
    samples_ = samples_of_all_sizes(dice);
    const FileKind kind = chunked(chunk);
    const std::vector<std::byte> one = saved_as(samples_, kind);
    for (const std::size_t count :
         chunk == kChunk ? std::vector<std::size_t>{1, 4} : std::vector<std::size_t>{2}) {
      auto all = started(count, kind);
      write(all, dice);
      EXPECT_EQ(files().size(), 1U) << "the new one has a hidden name";
      all.front()->finish();
      for (std::size_t i = 1; i < count; ++i) all[i]->leave();
      all.clear();
      EXPECT_TRUE(same(as_bytes(read_file(folder_ / "m.tensors")), one)) << count << " " << chunk;
      EXPECT_EQ(files(), std::vector<std::string>{"m.tensors"});
      fs::remove(folder_ / "m.tensors");
    }
  }
}

TEST_F(SavesTogether, NothingIfOneGivesUp) {
  Dice dice(402);
  samples_ = samples_of_all_sizes(dice);
  for (const std::size_t victim : {0U, 1U}) {
    auto all = started(3, chunked());
    write(all, dice);
    all[victim]->abort();
    if (victim > 0) {
      expect_error(ErrorKind::NotFound, "cannot replace", [&] { all.front()->finish(); });
    }
    all.clear();
    EXPECT_TRUE(files().empty());
  }
}

TEST_F(SavesTogether, AfterACancelNoMore) {
  samples_ = {sample("a", 100, 1)};
  auto all = started(1, chunked());
  const std::vector<std::size_t> sections{0};
  all.front()->own(sections);
  all.front()->cancel();
  expect_error(ErrorKind::Cancelled, "", [&] { all.front()->write(0, data_of(*all.front(), 0)); });
}

TEST_F(SavesTogether, OnlyWhatBelongsTogether) {
  samples_ = {sample("a", 3 << 20, 1)};
  auto all = started(2, chunked());
  SharedSave& first = *all.front();
  const std::vector<std::byte> data = data_of(first, 1);
  expect_error(ErrorKind::Internal, "section 1", [&] { first.write(1, data); });
  const std::vector<std::size_t> sections{1};
  first.own(sections);
  expect_error(ErrorKind::Internal, "section 1",
               [&] { first.write(1, ConstBytes(data).first(5)); });
  expect_error(ErrorKind::Internal, "digests of section 1",
               [&] { first.take(1, ConstBytes(data).first(5)); });
  expect_error(ErrorKind::Internal, "lacks the digests of 1 tensors", [&] { first.hand_in(); });
  expect_error(ErrorKind::InvalidArgument, "no file that is being saved",
               [&] { make(chunked())->start("m.tensors"); });
  expect_error(ErrorKind::InvalidArgument, "no file that is being saved",
               [&] { make(chunked())->start(".tensorizer-1/../../x"); });
  expect_error(ErrorKind::NotFound, "does not see",
               [&] { make(chunked())->start(".tensorizer-1-00000000ffffffff"); });
}

}  // namespace
}  // namespace tensorizer
