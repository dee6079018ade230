#include "base/timestamp.h"

#include <algorithm>

#include "base/text.h"

namespace tensorizer {

namespace {

using std::chrono::sys_days;
using std::chrono::sys_seconds;

// Within the range of the system's clock, and later than any real expiration.
constexpr sys_seconds kLatest = sys_days(std::chrono::year(2200) / 1 / 1);

// Takes fields off the front of a text. After a mismatch, ended_well() returns false.
class TimestampParser {
 public:
  explicit TimestampParser(std::string_view text) : text_(text) {}

  int take_number(std::size_t digits) {
    int number = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      if (text_.empty() || !is_digit(text_[0])) {
        ok_ = false;
        return 0;
      }
      number = number * 10 + (text_[0] - '0');
      text_.remove_prefix(1);
    }
    return number;
  }

  // Takes one of these characters and returns it; NUL if the next one is none of them.
  char take_any(std::string_view choices) {
    if (text_.empty() || choices.find(text_[0]) == std::string_view::npos) return '\0';
    const char taken = text_[0];
    text_.remove_prefix(1);
    return taken;
  }

  void require(std::string_view choices) {
    if (take_any(choices) == '\0') ok_ = false;
  }

  void skip_fraction() {
    if (take_any(".,") == '\0') return;
    take_number(1);
    while (!text_.empty() && is_digit(text_[0])) text_.remove_prefix(1);
  }

  bool ended_well() const { return ok_ && text_.empty(); }

 private:
  std::string_view text_;
  bool ok_ = true;
};

}  // namespace

std::optional<WallClock::time_point> parse_timestamp(std::string_view text) {
  TimestampParser parser(text);
  const int year = parser.take_number(4);
  parser.require("-");
  const int month = parser.take_number(2);
  parser.require("-");
  const int day = parser.take_number(2);
  parser.require("Tt ");
  const int hour = parser.take_number(2);
  parser.require(":");
  const int minute = parser.take_number(2);
  parser.require(":");
  const int second = parser.take_number(2);
  parser.skip_fraction();
  int offset = 0;  // in minutes
  if (const char sign = parser.take_any("Zz+-"); sign == '+' || sign == '-') {
    const int hours = parser.take_number(2);
    parser.take_any(":");
    const int minutes = parser.take_number(2);
    if (hours > 23 || minutes > 59) return std::nullopt;
    offset = (hours * 60 + minutes) * (sign == '+' ? 1 : -1);
  }
  const std::chrono::year_month_day date(std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day)));
  // A minute may end with a leap second.
  if (!parser.ended_well() || !date.ok() || year < 1970 || hour > 23 || minute > 59 ||
      second > 60) {
    return std::nullopt;
  }
  const sys_seconds moment = sys_days(date) + std::chrono::hours(hour) +
                             std::chrono::minutes(minute - offset) + std::chrono::seconds(second);
  return std::min(moment, kLatest);
}

}  // namespace tensorizer
