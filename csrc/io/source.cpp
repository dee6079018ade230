#include "io/source.h"

#include "base/error.h"

namespace tensorizer {

void Source::read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t done = read_up_to(offset, pieces[i], cancel);
    offset += done;
    if (done < pieces[i].size()) {
      throw_source_ended(label(), offset, total_size(pieces.subspan(i)) - done);
    }
  }
}

void throw_source_ended(const std::string& label, std::uint64_t end, std::uint64_t missing) {
  throw Error(ErrorKind::InvalidFormat, label + " ends at byte " + std::to_string(end) +
                                            ", expected " + std::to_string(missing) +
                                            " more: it is truncated");
}

SourceStats operator+(const SourceStats& one, const SourceStats& other) {
  return {one.requests + other.requests, one.connections + other.connections,
          one.retries + other.retries,   one.received + other.received,
          one.lookup + other.lookup,     one.connect + other.connect,
          one.tls + other.tls,           one.first_byte + other.first_byte,
          one.transfer + other.transfer};
}

SourceStats operator-(const SourceStats& now, const SourceStats& before) {
  return {now.requests - before.requests, now.connections - before.connections,
          now.retries - before.retries,   now.received - before.received,
          now.lookup - before.lookup,     now.connect - before.connect,
          now.tls - before.tls,           now.first_byte - before.first_byte,
          now.transfer - before.transfer};
}

}  // namespace tensorizer
