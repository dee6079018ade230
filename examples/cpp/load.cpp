// Loads a file several times and saves what it has loaded to another, without Python. Prints the
// seconds of the fastest load.
//
//   load SOURCE TARGET VERIFY ROUNDS [OPTION=VALUE...]
//
// VERIFY is none, crc32 or all.
#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <string>

#include <tensorizer_ops/tensorizer.h>

int main(int argc, char** argv) {
  const std::map<std::string, tensorizer::Verify> kinds{{"none", tensorizer::Verify::None},
                                                        {"crc32", tensorizer::Verify::Crc32},
                                                        {"all", tensorizer::Verify::All}};
  if (argc < 5 || !kinds.contains(argv[3])) {
    std::cerr << "usage: load SOURCE TARGET none|crc32|all ROUNDS [OPTION=VALUE...]\n";
    return 2;
  }
  try {
    tensorizer::OptionList options;
    for (int i = 5; i < argc; ++i) {
      const std::string option = argv[i];
      const std::size_t middle = option.find('=');
      options.emplace_back(option.substr(0, middle),
                           middle == std::string::npos ? "" : option.substr(middle + 1));
    }
    tensorizer::LoadRequest request;
    request.verify = kinds.at(argv[3]);
    request.copy = true;

    double fastest = std::numeric_limits<double>::infinity();
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
    for (int round = 0; round < std::stoi(argv[4]); ++round) {
      tensors.clear();
      const auto start = std::chrono::steady_clock::now();
      tensorizer::Reader reader(argv[1], options);
      names = reader.names();
      tensors = reader.load(names, request);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      fastest = std::min(fastest, taken.count());
    }
    tensorizer::save(argv[2], names, tensors, {.crc32 = true}, 0, {});
    std::cout << fastest << "\n";
  } catch (const tensorizer::Error& error) {
    std::cerr << tensorizer::kind_name(error.kind()) << ": " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
