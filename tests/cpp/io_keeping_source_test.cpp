// Pieces that share memory.
#include "io/keeping_source.h"
#include "signed_files.h"

namespace tensorizer {
namespace {

using namespace testing_support;

// Keeps the bytes that pass, as they are in the pieces after the read.
class Recorder final : public KeepingSource {
 public:
  using KeepingSource::KeepingSource;

  std::string passed;

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    file_->read(offset, pieces, cancel);
    for (const Bytes piece : pieces) passed += as_text(piece);
  }
};

TEST(KeepingSource, GetsPiecesThatShareNoMemory) {
  const std::string text = text_pattern(4 * kShard, 3);
  const auto file = std::shared_ptr<Source>(memory_source(as_bytes(text), nullptr));
  const auto digests = digests_of(text, kShard);
  Cancel cancel;
  for (std::uint32_t seed = 0; seed < 3000; ++seed) {
    Dice dice(seed);
    std::string memory(200, '#');
    const Bytes all = std::as_writable_bytes(std::span(memory));
    std::vector<Bytes> pieces;
    std::uint64_t size = 0;
    for (std::uint64_t left = dice.below(7); left > 0; --left) {
      // Some begin where another one begins.
      const std::uint64_t begin =
          pieces.empty() || dice.below(3) > 0
              ? dice.below(all.size() + 1)
              : static_cast<std::uint64_t>(dice.pick(pieces).data() - all.data());
      const std::uint64_t most = std::min<std::uint64_t>(all.size() - begin, 30);
      pieces.push_back(all.subspan(begin, dice.one_in(5) ? 0 : dice.below(most + 1)));
      size += pieces.back().size();
    }
    const std::uint64_t offset = dice.below(text.size() - size + 1);
    // What a plain source gives: right where no other piece has the memory.
    std::string expected(memory.size(), '#');
    std::vector<int> owners(memory.size());
    std::uint64_t at = offset;
    for (const Bytes piece : pieces) {
      const auto begin = static_cast<std::size_t>(piece.data() - all.data());
      for (std::size_t i = 0; i < piece.size(); ++i) {
        expected[begin + i] = text[at++];
        ++owners[begin + i];
      }
    }
    std::vector<bool> is_alone(memory.size(), true);
    for (const Bytes piece : pieces) {
      const auto begin = static_cast<std::size_t>(piece.data() - all.data());
      const auto end = begin + piece.size();
      if (std::ranges::any_of(owners.begin() + static_cast<std::ptrdiff_t>(begin),
                              owners.begin() + static_cast<std::ptrdiff_t>(end),
                              [](int count) { return count > 1; })) {
        std::fill(is_alone.begin() + static_cast<std::ptrdiff_t>(begin),
                  is_alone.begin() + static_cast<std::ptrdiff_t>(end), false);
      }
    }
    const auto check = [&] {
      for (std::size_t i = 0; i < memory.size(); ++i) {
        if (is_alone[i]) ASSERT_EQ(memory[i], expected[i]) << i << " with seed " << seed;
      }
    };
    Recorder recorder(file);
    recorder.read(offset, pieces, cancel);
    EXPECT_EQ(recorder.passed, text.substr(offset, size)) << "seed " << seed;
    check();
    memory.assign(memory.size(), '#');
    SignedSource source(file,
                        {text.size(), kShard, std::as_bytes(std::span(digests)), nullptr, ""});
    source.read(offset, pieces, cancel);
    check();
  }
}

}  // namespace
}  // namespace tensorizer
