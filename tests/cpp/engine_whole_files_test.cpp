// Loads that hash whole files in order, whatever the order in which their reads end.
#include <thread>

#include "codec/hmac.h"
#include "engine/open/whole_files.h"
#include "memory_file.h"

namespace tensorizer {
namespace {

using namespace testing_support;

constexpr std::size_t kSize = 1000;

class WholeFiles : public testing::Test {
 protected:
  WholeFiles() {
    for (std::size_t i = 0; i < kSize; ++i) bytes_[i] = static_cast<std::byte>(i * 7);
  }

  // Returns the source of a file that begins at `begin` in it, and of which a head was read.
  std::unique_ptr<WholeFilesSource> source(std::string hex, std::size_t head = 100) {
    WholeHash hash(WholeDigest::Hash::Sha256, kSize);
    hash.update(ConstBytes(bytes_).first(head));
    const WholeDigest digest{WholeDigest::Hash::Sha256, std::move(hex)};
    return std::make_unique<WholeFilesSource>(
        memory_source(bytes_, nullptr),
        std::vector<WholeFile>{{0, kSize, "'file'", digest, hash, head}});
  }
  std::string right() const { return to_hex(sha256(bytes_)); }

  void read(WholeFilesSource& source, std::size_t offset, std::size_t size) {
    std::vector<std::byte> out(size);
    const Bytes piece(out);
    source.read(offset, {&piece, 1}, cancel_);
    EXPECT_TRUE(same(piece, ConstBytes(bytes_).subspan(offset, size)));
  }

  std::array<std::byte, kSize> bytes_{};
  Cancel cancel_{Cancel::Unattended{}};
};

TEST_F(WholeFiles, ReadsThatComeEarlyWaitForTheirTurn) {
  const auto file = source(right());
  std::thread last([&] { read(*file, 700, 200); });
  std::thread middle([&] { read(*file, 300, 400); });
  read(*file, 100, 200);
  last.join();
  middle.join();
  file->check(cancel_);  // reads what is left
}

TEST_F(WholeFiles, AnotherDigestIsAnError) {
  const auto file = source(std::string(64, '0'));
  const Error error = error_of([&] { file->check(cancel_); });
  EXPECT_EQ(error.kind(), ErrorKind::HashMismatch);
  EXPECT_TRUE(contains(error.what(), right())) << error.what();
}

TEST_F(WholeFiles, ACancelledLoadDoesNotWait) {
  const auto file = source(right());
  Cancel cancel{Cancel::Unattended{}};
  std::thread early([&] {
    std::array<std::byte, 10> out{};
    const std::array pieces{Bytes(out)};
    EXPECT_EQ(kind_of([&] { file->read(500, pieces, cancel); }), ErrorKind::Cancelled);
  });
  cancel.request();
  early.join();
}

TEST_F(WholeFiles, BytesAreNotHashedTwice) {
  const auto file = source(right());
  read(*file, 100, 200);
  EXPECT_EQ(error_of([&] { read(*file, 250, 100); }).kind(), ErrorKind::Internal);
}

TEST(WholeHash, IsGitsForSmallFiles) {
  WholeHash hash(WholeDigest::Hash::GitBlob, 6);
  hash.update(as_bytes("hello\n"));
  EXPECT_EQ(hash.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

}  // namespace
}  // namespace tensorizer
