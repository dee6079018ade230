# TensorizerOps::tensorizer_ops: the library with its headers, and libtorch.
#
# A program that calls nothing of the library has its ops and classes in scripted modules as well.
include(CMakeFindDependencyMacro)
get_filename_component(_TensorizerOps_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

find_dependency(Torch)
# The torch that the library was built against: "TORCH = "2.13"".
file(STRINGS "${_TensorizerOps_root}/_build.py" _TensorizerOps_torch REGEX "^TORCH = ")
string(REGEX REPLACE "^TORCH = \"(.*)\"$" "\\1" _TensorizerOps_torch "${_TensorizerOps_torch}")
string(FIND "${Torch_VERSION}." "${_TensorizerOps_torch}." _TensorizerOps_at)
if(NOT _TensorizerOps_at EQUAL 0)
  set(TensorizerOps_FOUND FALSE)
  set(TensorizerOps_NOT_FOUND_MESSAGE
      "tensorizer_ops was built for torch ${_TensorizerOps_torch}, and this is ${Torch_VERSION}")
  return()
endif()

if(NOT TARGET TensorizerOps::tensorizer_ops)
  # What needs no torch. A program calls it as well, and so is linked against both.
  add_library(TensorizerOps::tensorizer_core SHARED IMPORTED)
  set_target_properties(TensorizerOps::tensorizer_core
                        PROPERTIES IMPORTED_LOCATION "${_TensorizerOps_root}/libtensorizer_core.so")
  add_library(TensorizerOps::tensorizer_ops SHARED IMPORTED)
  set_target_properties(
    TensorizerOps::tensorizer_ops
    PROPERTIES IMPORTED_LOCATION "${_TensorizerOps_root}/libtensorizer_ops.so"
               INTERFACE_INCLUDE_DIRECTORIES "${_TensorizerOps_root}/include"
               INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
               INTERFACE_LINK_LIBRARIES "TensorizerOps::tensorizer_core;${TORCH_LIBRARIES}")
endif()
