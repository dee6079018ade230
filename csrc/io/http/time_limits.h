// The times after which a request is not waited for any longer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/world.h"
#include "io/curl.h"
#include "io/seconds.h"
#include "io/stall.h"

namespace tensorizer {

// The limits of one request with all of its redirects. Not thread-safe.
class TimeLimits {
 public:
  // `patience`: the seconds that a stall and the headers may take. `for_refusals`: the seconds for
  // all bodies that the receiver does not want.
  TimeLimits(double patience, double for_refusals)
      : patience_(patience), refusals_left_(seconds(for_refusals)), watch_(patience, 0) {}

  // Called when the request starts or continues. `moved`: the bytes sent and received so far.
  void start(std::optional<Clock::time_point> deadline, std::uint64_t moved) {
    deadline_ = deadline;
    watch_ = StallWatch(patience_, moved);
  }
  // Called while our own limit of bandwidth holds the request up.
  void excuse(std::uint64_t moved) {
    watch_ = StallWatch(patience_, moved);
    if (headers_since_) headers_since_ = Clock::now();
  }

  // Called for each line of the headers.
  void headers_arrive() {
    if (!headers_since_) headers_since_ = Clock::now();
  }
  void headers_end() { headers_since_.reset(); }

  void refusal_begins() { refusals_end_ = Clock::now() + refusals_left_; }
  void refusal_ends() { refusals_left_ = refusals_end_ - Clock::now(); }
  // Returns true if the rest of a refusal's body is not worth more time.
  bool is_refusal_over() const {
    return is_late() || watch_.is_over() || Clock::now() >= refusals_end_;
  }

  // Returns which limit is exceeded, or null.
  std::optional<ConnectionFailure> exceeded(std::uint64_t moved) {
    if (is_late()) return failure("it takes longer than its time limit");
    if (headers_since_ && Clock::now() >= *headers_since_ + seconds(patience_)) {
      return failure("its headers are not complete after " + whole(patience_) + " s");
    }
    if (watch_.has_stalled(moved)) {
      return failure("nothing or almost nothing was transferred for " + whole(watch_.waited()) +
                     " s");
    }
    return {};
  }

 private:
  static ConnectionFailure failure(std::string what) {
    return {.what = std::move(what), .temporary = true, .timed_out = true};
  }
  static std::string whole(double count) { return std::to_string(static_cast<int>(count)); }
  bool is_late() const { return deadline_ && Clock::now() >= *deadline_; }

  double patience_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> headers_since_;
  Clock::duration refusals_left_;
  Clock::time_point refusals_end_;
  StallWatch watch_;
};

}  // namespace tensorizer
