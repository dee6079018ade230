// Spans of bytes, and a cursor that reads little-endian fields from one.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tensorizer {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

inline std::string_view as_text(ConstBytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline ConstBytes as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

constexpr std::uint64_t total_size(std::span<const Bytes> pieces) noexcept {
  std::uint64_t total = 0;
  for (const Bytes piece : pieces) total += piece.size();
  return total;
}
constexpr std::uint64_t total_size(std::span<const ConstBytes> pieces) noexcept {
  std::uint64_t total = 0;
  for (const ConstBytes piece : pieces) total += piece.size();
  return total;
}

// Returns the bytes from `begin` to `end` of the pieces.
inline std::vector<Bytes> part_of(std::span<const Bytes> pieces, std::uint64_t begin,
                                  std::uint64_t end) {
  std::vector<Bytes> part;
  std::uint64_t at = 0;
  for (const Bytes piece : pieces) {
    const std::uint64_t from = std::clamp(begin, at, at + piece.size());
    const std::uint64_t to = std::clamp(end, from, at + piece.size());
    if (to > from) part.push_back(piece.subspan(from - at, to - from));
    at += piece.size();
  }
  return part;
}

// Returns the smallest multiple of `alignment` that is at least `value`. The caller guarantees that
// it fits.
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) noexcept {
  return (value + alignment - 1) / alignment * alignment;
}

// Takes fields off the front. A field that does not fit makes the cursor bad for good, and every
// later take returns zero or an empty span. So a parser takes a group of fields and checks ok()
// once.
class Cursor {
 public:
  explicit Cursor(ConstBytes bytes) noexcept : bytes_(bytes) {}

  bool ok() const noexcept { return ok_; }
  std::size_t position() const noexcept { return position_; }
  std::size_t left() const noexcept { return ok_ ? bytes_.size() - position_ : 0; }

  template <std::integral T>
  T take() noexcept {
    T value{};
    const ConstBytes field = take_bytes(sizeof(T));
    if (ok_) std::memcpy(&value, field.data(), sizeof(T));
    return value;
  }

  ConstBytes take_bytes(std::uint64_t size) noexcept {
    if (size > left()) {
      ok_ = false;
      return {};
    }
    const ConstBytes field = bytes_.subspan(position_, size);
    position_ += size;
    return field;
  }

  // Takes a length of type Length, then that many bytes of text.
  template <std::integral Length>
  std::string_view take_text() noexcept {
    return as_text(take_bytes(take<Length>()));
  }

 private:
  ConstBytes bytes_;
  std::size_t position_ = 0;
  bool ok_ = true;
};

// Appends little-endian fields to a vector. The inverse of Cursor.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) noexcept : out_(out) {}

  template <std::integral T>
  void put(T value) {
    put_bytes({reinterpret_cast<const std::byte*>(&value), sizeof(T)});
  }

  void put_bytes(ConstBytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

  // The caller has checked that the text's size fits Length.
  template <std::integral Length>
  void put_text(std::string_view text) {
    put(static_cast<Length>(text.size()));
    put_bytes(as_bytes(text));
  }

 private:
  std::vector<std::byte>& out_;
};

}  // namespace tensorizer
