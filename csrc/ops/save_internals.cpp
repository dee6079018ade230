// Classes of torch.classes.tensorizer that the Python package needs for saves, beside the ops:
// _BackgroundSave is a save that other threads can watch, _SharedSave one of a file that several
// processes write, _SharedModel publishes such files, and _HeldMemory keeps the memory of tensors
// in place.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "io/handed_over.h"
#include "ops/internals.h"
#include "ops/translate_errors.h"
#include "transfer/files/file_writer.h"
#include "transfer/files/saving.h"
#include "transfer/memory/held_memory.h"
#include "transfer/memory/memory.h"

namespace tensorizer::ops {

namespace {

using Names = c10::List<std::string>;
using Options = std::optional<StringDict>;
using Tensors = std::vector<at::Tensor>;

SaveRequest save_request(const Names& names, Tensors tensors, const std::string& hashes,
                         const Options& options, const Options& metadata) {
  return {.names = string_vector(names),
          .tensors = std::move(tensors),
          .hashes = parse_hashes(hashes),
          .options = option_list(options),
          .metadata = metadata_list(metadata)};
}

class BackgroundSave final : public torch::CustomClassHolder {
 public:
  // `sink` is the number of one that was handed over, to write instead of `uri`.
  void run(std::string uri, std::optional<std::int64_t> sink, Names names, Tensors tensors,
           std::string hashes, std::int64_t threads, Options options, Options metadata,
           std::optional<c10::ScalarType> dtype) {
    translate_errors([&] {
      SaveRequest request = save_request(names, std::move(tensors), hashes, options, metadata);
      request.uri = std::move(uri);
      if (sink) request.sink = take_handed<std::unique_ptr<Sink>>(*sink);
      request.threads = threads;
      request.dtype = dtype;
      save(std::move(request), job_->progress, job_->cancel);
    });
  }

  std::tuple<std::int64_t, std::int64_t> progress() {
    return {number(job_->progress.done), number(job_->progress.total)};
  }
  void cancel() { job_->cancel.request(); }

 private:
  struct Job {
    Progress progress;
    Cancel cancel;
  };

  const std::unique_ptr<Job> job_ = std::make_unique<Job>();
};

struct ScriptHeldMemory final : torch::CustomClassHolder {
  explicit ScriptHeldMemory(Tensors tensors)
      : held(translate_errors([&] { return std::make_unique<HeldMemory>(tensors); })) {}

  const std::unique_ptr<HeldMemory> held;
};

struct ScriptSharedSave final : torch::CustomClassHolder {
  ScriptSharedSave(std::string uri, Names names, Tensors tensors, std::string hashes,
                   Options options, Options metadata)
      : save(translate_errors([&] {
          SaveRequest request = save_request(names, std::move(tensors), hashes, options, metadata);
          request.uri = std::move(uri);
          return shared_save(std::move(request));
        })) {}
  SharedSave& file() const noexcept { return *save; }

  const std::unique_ptr<SharedSave> save;
};

struct ScriptSharedModel final : torch::CustomClassHolder {
  ScriptSharedModel(std::string uri, Options options)
      : model(
            translate_errors([&] { return shared_model(std::move(uri), option_list(options)); })) {}
  SharedModel& file() const noexcept { return *model; }

  const std::unique_ptr<SharedModel> model;
};

ConstBytes bytes_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == at::kByte && tensor.is_contiguous(),
              "bytes are a contiguous tensor of torch.uint8 on the CPU");
  return const_bytes(tensor);
}

// Returns the tensor, the start and the size of each range, one range after another.
std::vector<std::int64_t> ranges(SharedSave& save, std::int64_t section) {
  std::vector<std::int64_t> numbers;
  for (const DataRange& range : save.ranges(static_cast<std::size_t>(section))) {
    numbers.insert(numbers.end(), {number(range.tensor), number(range.start), number(range.size)});
  }
  return numbers;
}

at::Tensor write(SharedSave& save, std::int64_t section, at::Tensor data) {
  const std::vector<std::byte> digests =
      save.write(static_cast<std::size_t>(section), bytes_of(data));
  at::Tensor made = at::empty({static_cast<std::int64_t>(digests.size())}, at::kByte);
  std::ranges::copy(digests, tensor_bytes(made).begin());
  return made;
}

void define_shared_save(torch::Library& library) {
  const auto method = [](auto body) { return tensorizer::method<ScriptSharedSave>(body); };
  library.class_<ScriptSharedSave>("_SharedSave")
      .def(torch::init<std::string, Names, Tensors, std::string, Options, Options>())
      .def("start", method(+[](SharedSave& save, std::optional<std::string> joined,
                               std::string replaces) { return save.start(joined, replaces); }))
      .def("names", method(+[](SharedSave& save) {
             Names names;
             for (const std::string_view name : save.names()) names.emplace_back(name);
             return names;
           }))
      .def("plan", method(+[](SharedSave& save) { return save.plan(); }))
      .def("section_count", method(+[](SharedSave& save) { return number(save.section_count()); }))
      .def("head_sections", method(+[](SharedSave& save) { return number(save.head_sections()); }))
      .def("ranges", method(&ranges))
      .def("digest_sizes", method(+[](SharedSave& save, std::int64_t section) {
             const auto [common, first_only] = save.digest_sizes(static_cast<std::size_t>(section));
             return std::tuple(number(common), number(first_only));
           }))
      .def("own", method(+[](SharedSave& save, std::vector<std::int64_t> sections) {
             const std::vector<std::size_t> own(sections.begin(), sections.end());
             save.own(own);
           }))
      .def("write", method(&write))
      .def("take", method(+[](SharedSave& save, std::int64_t section, at::Tensor digests) {
             save.take(static_cast<std::size_t>(section), bytes_of(digests));
           }))
      .def("hand_in", method(+[](SharedSave& save) { return save.hand_in(); }))
      .def("take_in",
           method(+[](SharedSave& save, std::string handed_in) { save.take_in(handed_in); }))
      .def("finish", method(+[](SharedSave& save) { save.finish(); }))
      .def("leave", method(+[](SharedSave& save) { save.leave(); }))
      .def("abort", [](const c10::intrusive_ptr<ScriptSharedSave>& self) { self->save->abort(); })
      .def("cancel",
           [](const c10::intrusive_ptr<ScriptSharedSave>& self) { self->save->cancel(); });
}

void define_shared_model(torch::Library& library) {
  const auto method = [](auto body) { return tensorizer::method<ScriptSharedModel>(body); };
  library.class_<ScriptSharedModel>("_SharedModel")
      .def(torch::init<std::string, Options>())
      .def("choose_names", method(+[](SharedModel& model, std::int64_t count) {
             return Names(model.choose_names(static_cast<std::size_t>(count)));
           }))
      .def("replaced_by", method(+[](SharedModel& model, std::int64_t file) {
             return model.replaced_by(static_cast<std::size_t>(file));
           }))
      .def("add", method(+[](SharedModel& model, c10::intrusive_ptr<ScriptSharedSave> file) {
             model.add(file->file());
           }))
      .def("publish", method(+[](SharedModel& model) { model.publish(); }));
}

}  // namespace

void define_save_internals(torch::Library& library) {
  library.class_<BackgroundSave>("_BackgroundSave")
      .def(torch::init<>())
      .def("run", &BackgroundSave::run)
      .def("progress", &BackgroundSave::progress)
      .def("cancel", &BackgroundSave::cancel);
  library.class_<ScriptHeldMemory>("_HeldMemory")
      .def(torch::init<Tensors>())
      .def("tensors",
           [](const c10::intrusive_ptr<ScriptHeldMemory>& self) { return self->held->tensors(); })
      .def("release",
           [](const c10::intrusive_ptr<ScriptHeldMemory>& self) { self->held->release(); });
  define_shared_save(library);
  define_shared_model(library);
}

}  // namespace tensorizer::ops
