# TensorizerOps::tensorizer_ops: the library with its headers, and libtorch.
#
# A program that calls nothing of the library has its ops and classes in scripted modules as well.
include(CMakeFindDependencyMacro)
get_filename_component(_TensorizerOps_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

find_dependency(Torch)
string(REGEX REPLACE "^([0-9]+)[.]([0-9]+).*" "torch_\\1_\\2" _TensorizerOps_torch "${Torch_VERSION}")
set(_TensorizerOps_library
    "${_TensorizerOps_root}/${_TensorizerOps_torch}/libtensorizer_ops.so")
if(NOT EXISTS "${_TensorizerOps_library}")
  file(GLOB _TensorizerOps_torches RELATIVE "${_TensorizerOps_root}"
       "${_TensorizerOps_root}/torch_*_*")
  set(TensorizerOps_FOUND FALSE)
  set(TensorizerOps_NOT_FOUND_MESSAGE
      "tensorizer_ops is for ${_TensorizerOps_torches}, and this is torch ${Torch_VERSION}")
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
    PROPERTIES IMPORTED_LOCATION "${_TensorizerOps_library}"
               INTERFACE_INCLUDE_DIRECTORIES "${_TensorizerOps_root}/include"
               INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
               INTERFACE_LINK_LIBRARIES "TensorizerOps::tensorizer_core;${TORCH_LIBRARIES}")
endif()
