#include "io/node/open.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "io/keeping_source.h"
#include "io/node/node_file.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kBlock = NodeFile::kBlock;
// How long to wait before looking again for blocks that others fetch.
constexpr auto kLook = std::chrono::milliseconds(1);
// After this time in one read, they are fetched here as well: a process may have been stopped.
constexpr auto kPatience = std::chrono::seconds(60);

class NodeSource final : public KeepingSource {
 public:
  NodeSource(std::shared_ptr<Source> file, const std::string& folder, const std::string& content,
             Cancel& cancel)
      : KeepingSource(std::move(file)), node_(folder, content, size_, cancel) {}

  bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    if (!file_->read_anew(offset, out, cancel)) return false;
    node_.replace(offset, out, cancel);
    return true;
  }

  std::optional<WholeDigest> digest() override { return file_->digest(); }

 private:
  void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    const std::uint64_t end = offset + total_size(pieces);
    const std::uint64_t first = offset / kBlock;
    std::vector<bool> filled(align_up(end, kBlock) / kBlock - first);
    const Clock::time_point since = Clock::now();
    while (!fill_rest(offset, pieces, first, filled, cancel)) {
      if (Clock::now() - since > kPatience) {
        file_->read(offset, pieces, cancel);
        return;
      }
      cancel.sleep(kLook);
    }
  }

  // Fills the blocks from `first` on that are not in `filled` and that nobody else fetches. Returns
  // whether all are filled then.
  bool fill_rest(std::uint64_t offset, std::span<const Bytes> pieces, std::uint64_t first,
                 std::vector<bool>& filled, Cancel& cancel) {
    auto next = std::ranges::find(filled, false);
    while (next != filled.end()) {
      const auto stop = std::find(next, filled.end(), true);
      const auto number = [&](auto at) {
        return first + static_cast<std::uint64_t>(at - filled.begin());
      };
      const NodeFile::Run run = node_.next(number(next), number(stop), cancel);
      const auto past = next + static_cast<std::ptrdiff_t>(run.end - run.begin);
      if (run.state == NodeFile::State::Claimed) fetch(run, offset, pieces, cancel);
      if (run.state == NodeFile::State::There) copy(run, offset, pieces, cancel);
      if (run.state != NodeFile::State::Awaited) std::fill(next, past, true);
      next = std::find(past, filled.end(), false);
    }
    return std::ranges::find(filled, false) == filled.end();
  }

  void copy(const NodeFile::Run& run, std::uint64_t offset, std::span<const Bytes> pieces,
            Cancel& cancel) {
    const std::uint64_t begin = std::max(run.begin * kBlock, offset);
    const std::uint64_t end = std::min(run.end * kBlock, offset + total_size(pieces));
    node_.read(begin, part_of(pieces, begin - offset, end - offset), cancel);
  }

  // Fetches whole blocks: into the pieces, and what is in front of them and behind them.
  void fetch(const NodeFile::Run& run, std::uint64_t offset, std::span<const Bytes> pieces,
             Cancel& cancel) {
    const std::uint64_t begin = run.begin * kBlock;
    const std::uint64_t end = std::min(run.end * kBlock, size_);
    const std::uint64_t from = std::max(begin, offset);
    const std::uint64_t to = std::min(end, offset + total_size(pieces));
    std::vector<std::byte> front(from - begin);
    std::vector<std::byte> back(end - to);
    std::vector<Bytes> all = part_of(pieces, from - offset, to - offset);
    all.insert(all.begin(), Bytes(front));
    all.emplace_back(back);
    file_->read(begin, all, cancel);
    node_.put(run, std::vector<ConstBytes>(all.begin(), all.end()), cancel);
  }

  const NodeFile node_;
};

}  // namespace

std::vector<Option> node_options(NodeOptions& options) {
  Option folder = text_option("node_folder", "a folder of this machine", options.folder);
  folder.use = OptionUse::Load;
  return {folder};
}

std::unique_ptr<Source> node_source(std::shared_ptr<Source> file, const std::string& folder,
                                    const std::string& name, Cancel& cancel) {
  const std::optional<std::string> version = file->version();
  if (!file->size() || !version || !file->is_exact_version() || file->sequential()) {
    throw Error(ErrorKind::InvalidArgument,
                file->label() +
                    ": option 'node_folder' needs a server that supports ranges and tells the "
                    "version of a file by an ETag or a date, and this one does not");
  }
  const std::string content = name + '\n' + *version;
  return std::make_unique<NodeSource>(std::move(file), expand_home(folder), content, cancel);
}

}  // namespace tensorizer
