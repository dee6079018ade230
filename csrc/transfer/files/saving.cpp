#include "transfer/files/saving.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "engine/save/new_layout.h"
#include "io/key.h"
#include "transfer/memory/dtype.h"
#include "transfer/memory/memory.h"
#include "transfer/memory/ties.h"

namespace tensorizer {

namespace {

constexpr std::array<std::byte, 16> kZeroElement{};

// Returns the address ranges that are mapped from the file that the sink overwrites.
std::vector<ConstBytes> overwritten_memory(const Sink& sink) {
  std::vector<ConstBytes> mapped;
  const std::optional<FileIdentity> file = sink.overwritten();
  if (!file) return mapped;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned int major_number = 0;
    unsigned int minor_number = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*x %x:%x %lu", &begin, &end, &major_number,
                    &minor_number, &inode) == 5 &&
        *file == FileIdentity{makedev(major_number, minor_number), inode}) {
      mapped.emplace_back(reinterpret_cast<const std::byte*>(begin), end - begin);
    }
  }
  return mapped;
}

// Returns the size of the chunks whose digests a file is to list; 0 if it lists none.
std::uint64_t listed_chunk(HashKinds hashes, const SaveOptions& options) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::InvalidArgument, why); };
  const bool encrypts = !options.key.empty();
  for (const auto& [name, is_given] : {std::pair("kdf", options.kdf.has_value()),
                                       std::pair("plain_digests", options.plain_digests)}) {
    if (!is_given || encrypts) continue;
    refuse("option '" + std::string(name) + "' is for encrypted files, and no key is given");
  }
  const char* const given = options.plain_digests ? "plain_digests" : "digest_chunk";
  if ((options.digest_chunk || options.plain_digests) && !hashes.chunked) {
    refuse("the option '" + std::string(given) +
           "' is given, and hashes asks for no digests of chunks: use 'chunked' or 'all+chunked'");
  }
  if (options.digest_chunk && encrypts && !options.plain_digests) {
    refuse(
        "the option 'digest_chunk' is given, and an encrypted file has the MACs of its chunks: "
        "leave it out, or see the option 'plain_digests'");
  }
  if (!hashes.chunked || (encrypts && !options.plain_digests)) return 0;
  return options.digest_chunk.value_or(kUsualChunk);
}

FileKind asked_kind(HashKinds hashes, std::optional<Metadata> metadata, const SaveOptions& options,
                    Cancel& cancel) {
  FileKind kind;
  kind.empty_metadata = metadata.has_value();
  kind.metadata = std::move(metadata).value_or(Metadata());
  kind.header.hashes = hashes;
  kind.data_digests = options.digests;
  kind.share = options.share.value_or(false);
  kind.chunk_size = listed_chunk(hashes, options);
  kind.chunk_hash = hashes.chunk_hash;
  if (options.key.empty()) return kind;
  if (hashes.crc32 && !hashes.sha256 && !hashes.chunked) {
    throw Error(ErrorKind::InvalidArgument,
                "hashes is 'crc32', but an encrypted file stores no CRC32, which would reveal "
                "something about the data: use 'sha256' or 'all', which store SHA-256, or "
                "'chunked', which relies on the MAC of each chunk");
  }
  kind.header.hashes.set(Hash::Crc32, false);
  const KeySource source = resolve_key(options.key);
  Encryption& encryption = kind.header.encryption.emplace();
  encryption.key = source.secret;
  if (source.derivation) encryption.derivation = *source.derivation;
  if (source.passphrase) {
    KeyDerivation& derivation = encryption.derivation.emplace();
    derivation.cost = options.kdf.value_or(*named_cost("moderate"));
    fill_random(derivation.salt);
    encryption.key = derive_key(source.secret->bytes(), derivation, cancel);
  }
  return kind;
}

}  // namespace

Saving prepare_saving(std::string name, const at::Tensor& tensor, Staging& staging, TensorType type,
                      std::uint16_t module_index, std::optional<c10::ScalarType> dtype) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, "tensor " + quote(name) + " cannot be saved: " + why);
  };
  if (!tensor.defined()) refuse("it is undefined");
  if (const std::string why = lacks_memory(tensor); !why.empty()) refuse(why);
  const c10::ScalarType stored = cast_type(tensor.scalar_type(), dtype);
  Saving saving;
  saving.tensor = tensor;
  saving.spec.type = type;
  saving.spec.module_index = module_index;
  saving.spec.dtype = format_dtype(stored, name);
  saving.spec.shape = tensor.sizes().vec();
  if (tensor.is_meta()) {
    // Other implementations cannot open a meta tensor without dimensions, so its element is
    // written, as zero.
    saving.spec.meta = tensor.dim() > 0 && tensor.numel() > 0;
    if (tensor.dim() == 0)
      saving.item.memory = ConstBytes(kZeroElement).first(c10::elementSize(stored));
  } else if (tensor.numel() > 0) {
    const bool is_stored = stored == tensor.scalar_type() && tensor.is_cpu();
    if (is_stored && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
      saving.item.memory = const_bytes(tensor);
    } else {
      saving.item.staged = staging.add(tensor, stored);
    }
  }
  saving.spec.name = std::move(name);
  return saving;
}

void tie_savings(std::span<Saving> savings) {
  std::vector<std::size_t> numbers;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < savings.size(); ++i) {
    const at::Tensor& tensor = savings[i].tensor;
    const bool is_stored = !tensor.is_meta() && tensor.numel() > 0;
    if (!is_stored || savings[i].spec.shape.size() > kMostTiedDimensions) continue;
    numbers.push_back(i);
    tensors.push_back(tensor);
  }
  const std::vector<std::size_t> ties = find_ties(tensors);
  for (std::size_t i = 0; i < ties.size(); ++i) {
    if (ties[i] != i) savings[numbers[i]].tied_to = numbers[ties[i]];
  }
}

std::vector<SaveItem> add_to(Layout& layout, std::span<Saving> savings) {
  std::vector<SaveItem> items;
  items.reserve(savings.size());
  std::vector<std::uint32_t> placed(savings.size());
  for (std::size_t i = 0; i < savings.size(); ++i) {
    Saving& saving = savings[i];
    if (saving.tied_to) {
      layout.tie(saving.spec, placed[*saving.tied_to]);
      continue;
    }
    placed[i] = static_cast<std::uint32_t>(layout.tensors().size());
    layout.add(std::move(saving.spec));
    items.push_back(saving.item);
  }
  return items;
}

FileKind file_kind(Format format, HashKinds hashes, std::optional<Metadata> metadata,
                   const SaveOptions& options, Cancel& cancel) {
  return kind_in(format, asked_kind(hashes, std::move(metadata), options, cancel), cancel);
}

SaveSettings save_settings(const SaveOptions& options, int threads, Staging& staging) {
  SaveSettings settings;
  settings.threads = threads;
  settings.memory_ceiling = staging.is_pinned() ? options.staging : options.memory_ceiling;
  // While some workers wait for bytes from a device, others compute and write.
  settings.moves_in_flight = staging.is_pinned() ? 2 * threads : threads;
  settings.open_access = [&staging] { return TensorAccess{.port = staging.open_port()}; };
  return settings;
}

std::unique_ptr<SharedSave> shared_save(SaveRequest request) {
  const SaveOptions options = parse_save_options(request.options);
  const Format format = format_of(request.uri, options.format);
  Cancel cancel;
  FileKind kind = file_kind(format, request.hashes, std::move(request.metadata), options, cancel);
  Staging staging;
  std::vector<TensorSpec> specs;
  specs.reserve(request.names.size());
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    specs.push_back(prepare_saving(std::move(request.names[i]), request.tensors[i], staging).spec);
    specs.back().meta = false;
  }
  if (format == Format::Safetensors) {
    std::stable_sort(specs.begin(), specs.end(), comes_first_in_safetensors);
  }
  std::unique_ptr<Layout> layout = new_layout(format, std::move(kind), 0);
  for (TensorSpec& spec : specs) layout->add(std::move(spec));
  return std::make_unique<SharedSave>(std::move(request.uri), std::move(layout), options);
}

std::unique_ptr<SharedModel> shared_model(std::string uri, const OptionList& options) {
  return std::make_unique<SharedModel>(std::move(uri), parse_save_options(options));
}

void check_not_overwritten(const Sink& sink, std::span<const Saving> savings) {
  const std::vector<ConstBytes> overwritten = overwritten_memory(sink);
  if (overwritten.empty()) return;
  for (const Saving& saving : savings) {
    if (!saving.tensor.is_cpu() || saving.tensor.numel() == 0) continue;
    const std::uintptr_t data = address_of(saving.tensor);
    for (const ConstBytes memory : overwritten) {
      if (data - reinterpret_cast<std::uintptr_t>(memory.data()) < memory.size()) {
        throw Error(ErrorKind::InvalidArgument,
                    sink.label() + " is written in place, and tensor " + quote(saving.spec.name) +
                        " is mapped from it: load it with copy=True, or save to another file");
      }
    }
  }
}

void check_not_overwritten(const Sink& sink, const Source& source) {
  const std::optional<FileIdentity> overwritten = sink.overwritten();
  if (!overwritten || !source.reads(*overwritten)) return;
  throw Error(ErrorKind::InvalidArgument, sink.label() + " is written in place, and " +
                                              source.label() +
                                              " is the same file, which would be overwritten "
                                              "while it is read: write to another file");
}

}  // namespace tensorizer
