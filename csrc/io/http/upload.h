// The body of an upload, and a receiver of its short response.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "io/http/connection.h"

namespace tensorizer {

// A body of pieces in memory, which the caller keeps.
class MemoryBody final : public HttpBody {
 public:
  explicit MemoryBody(std::span<const ConstBytes> pieces) : pieces_(pieces) {
    for (const ConstBytes piece : pieces) size_ += piece.size();
  }

  std::uint64_t size() const override { return size_; }
  std::optional<std::size_t> give(Bytes out) override {
    std::size_t given = 0;
    while (given < out.size() && piece_ < pieces_.size()) {
      const ConstBytes rest = pieces_[piece_].subspan(position_);
      const std::size_t count = std::min(rest.size(), out.size() - given);
      std::memcpy(out.data() + given, rest.data(), count);
      given += count;
      position_ += count;
      if (count == rest.size()) {
        ++piece_;
        position_ = 0;
      }
    }
    return given;
  }
  bool rewind() override {
    piece_ = position_ = 0;
    return true;
  }

 private:
  std::span<const ConstBytes> pieces_;
  std::uint64_t size_ = 0;
  std::size_t piece_ = 0;
  std::size_t position_ = 0;
};

inline constexpr std::uint64_t kLongestText = 64 << 10;

// Keeps the body of a successful response, up to a limit.
class TextReceiver : public HttpReceiver {
 public:
  bool head(const HttpAnswer& answer) override {
    return answer.status >= 200 && answer.status < 300;
  }
  bool body(ConstBytes bytes) override {
    text += as_text(bytes);
    return true;
  }
  std::uint64_t longest() const override { return kLongestText; }

  std::string text;
};

}  // namespace tensorizer
