// Shared by the tests of several layers.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace tensorizer::testing_support {

// Returns the Error that `action` throws. If it throws none, fails the test and returns an Internal
// error, which no test expects.
template <std::invocable Action>
Error error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::Internal, "nothing was thrown");
}

template <std::invocable Action>
ErrorKind kind_of(Action&& action) {
  return error_of(action).kind();
}

template <std::invocable Action>
std::string message_of(Action&& action) {
  return error_of(action).what();
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns pseudo-random bytes, which depend on the seed.
inline std::vector<std::byte> pattern(std::size_t size, std::uint32_t seed = 1) {
  std::vector<std::byte> bytes(size);
  // Through a plain pointer: with a sanitizer, a vector's iterators take longer than the code under
  // test.
  std::byte* const out = bytes.data();
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 1664525U + 1013904223U;
    out[i] = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline bool same(ConstBytes a, ConstBytes b) { return as_text(a) == as_text(b); }

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const ConstBytes bytes = as_bytes(text);
  return {bytes.begin(), bytes.end()};
}

// Random numbers that are the same in every run.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  bool one_in(std::uint64_t bound) { return below(bound) == 0; }
  template <typename T>
  const T& pick(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tensorizer::testing_support
