// Files that are written in place must not be read at the same time.
#include <fcntl.h>

#include "chunked_file.h"
#include "engine/delta/delta.h"
#include "engine/rewrite/update.h"
#include "io/descriptor.h"
#include "io/places/open.h"
#include "io_support.h"
#include "memory_file.h"

namespace tensorizer {
namespace {

using namespace testing_support;

class InPlace : public testing::Test {
 protected:
  InPlace() {
    write(base_, 1);
    write(fresh_, 2);
    Progress progress;
    make_delta(*opened(base_), *opened(fresh_), {delta_, kUsualHashes, 1, {}}, progress, cancel_);
  }

  static void write(const std::string& path, std::uint32_t seed) {
    const std::vector<Sample> samples{sample("a", 3000, seed), sample("b", 200000)};
    write_file(path, as_text(saved_as(samples, chunked())));
  }

  std::unique_ptr<OpenFile> opened(const std::string& path) {
    return std::make_unique<OpenFile>(open_source(path, {}, cancel_), LoadOptions(), cancel_);
  }

  // Expects that a job refuses to write this file, which stays as it is. Gives the job a name of a
  // descriptor of the file.
  template <typename Job>
  void expect_refusal(const std::string& path, const Job& job) {
    const std::string before = read_file(path);
    const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    try {
      job("fd:" + std::to_string(file.get()));
      ADD_FAILURE() << "it is overwritten";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::InvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find("is written in place, and"), std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(read_file(path) == before) << "it has been changed";
  }

  Cancel cancel_;
  Progress progress_;
  const Folder folder_{std::filesystem::temp_directory_path()};
  const std::string base_ = folder_ / "base", fresh_ = folder_ / "fresh",
                    delta_ = folder_ / "delta";
};

TEST_F(InPlace, DeltaIsNotAppliedOverItsBaseOrItself) {
  for (const std::string& path : {base_, delta_}) {
    expect_refusal(path, [&](const std::string& to) {
      apply_delta(*opened(delta_), *opened(base_), {to, kUsualHashes, 1, {}}, progress_, cancel_);
    });
  }
}

TEST_F(InPlace, DeltaIsNotWrittenOverAModel) {
  for (const std::string& path : {base_, fresh_}) {
    expect_refusal(path, [&](const std::string& to) {
      make_delta(*opened(base_), *opened(fresh_), {to, kUsualHashes, 1, {}}, progress_, cancel_);
    });
  }
}

TEST_F(InPlace, UpdateIsNotWrittenOverTheOlderFile) {
  expect_refusal(
      base_, [&](const std::string& to) { update(*opened(fresh_), to, 1, progress_, cancel_); });
}

}  // namespace
}  // namespace tensorizer
