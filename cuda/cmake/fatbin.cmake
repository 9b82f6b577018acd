# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# With nvcc the library carries machine code of the kernels too, which the driver need not translate. Without it,
# nothing is missing: the PTX in the tree serves every GPU.

set(KVC_CUDA_FATBIN AUTO CACHE STRING
  "Embed machine code of the CUDA kernels: ON (needs nvcc), OFF, or AUTO (where there is an nvcc that compiles them)")
set_property(CACHE KVC_CUDA_FATBIN PROPERTY STRINGS AUTO ON OFF)
find_program(KVC_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)

# What nvcc is to compile for, and why it cannot: "" when it can. An nvcc that does not get on with the C++ compiler, or
# is older than our kernels, is common, and nothing needs it.
function(kvc_try_nvcc targets_out problem_out)
  set(targets)
  set(problem)
  # Of the GPUs we name, those that this nvcc knows.
  execute_process(COMMAND "${KVC_NVCC}" --list-gpu-code
    OUTPUT_VARIABLE known ERROR_VARIABLE said RESULT_VARIABLE failed TIMEOUT 60)
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  foreach(arch 80 86 89 90 100 120)
    if("sm_${arch}" IN_LIST known)
      list(APPEND targets "-gencode=arch=compute_${arch},code=sm_${arch}")
    endif()
  endforeach()
  if(failed)
    set(problem "--list-gpu-code fails (${failed}): ${said}")
  elseif(NOT targets)
    set(problem "it knows none of the GPUs that kvcast names, from sm_80")
  elseif(NOT "${KVC_NVCC_TRIED}" STREQUAL "${KVC_NVCC}")
    list(GET targets 0 first)
    execute_process(
      COMMAND "${KVC_NVCC}" -fatbin --std=c++17 "${first}" -I "${PROJECT_SOURCE_DIR}"
        -o "${PROJECT_BINARY_DIR}/cuda/try.fatbin" "${PROJECT_SOURCE_DIR}/cuda/kernels/kernels.cu"
      OUTPUT_VARIABLE printed ERROR_VARIABLE said RESULT_VARIABLE failed TIMEOUT 120)
    if(failed)
      set(problem "it does not compile the kernels (${failed}): ${printed}${said}")
    else()
      set(KVC_NVCC_TRIED "${KVC_NVCC}" CACHE INTERNAL "The nvcc that has compiled the kernels")
    endif()
  endif()
  set(${targets_out} "${targets}" PARENT_SCOPE)
  set(${problem_out} "${problem}" PARENT_SCOPE)
endfunction()

set(embed OFF)
if(KVC_NVCC AND KVC_CUDA_FATBIN)
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/cuda")
  kvc_try_nvcc(targets problem)
  if(NOT problem)
    set(embed ON)
  elseif(KVC_CUDA_FATBIN STREQUAL "AUTO")
    message(WARNING "No machine code of the CUDA kernels goes into the library, but PTX, which is enough. "
      "${KVC_NVCC} is unfit: ${problem}")
  else()
    message(FATAL_ERROR "KVC_CUDA_FATBIN is ON, and ${KVC_NVCC} is unfit: ${problem}")
  endif()
elseif(KVC_CUDA_FATBIN AND NOT KVC_CUDA_FATBIN STREQUAL "AUTO")
  message(FATAL_ERROR "KVC_CUDA_FATBIN needs nvcc: put it on the PATH or set KVC_NVCC")
endif()

# A test has a kernel_image.cpp of its own with another image, in the place of the library's: it must be a unit by itself.
set_source_files_properties(cuda/src/kernel_image.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
if(embed)
  set(folder "${PROJECT_BINARY_DIR}/cuda")
  file(GLOB kernel_sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/cuda/kernels/*.cu" "${PROJECT_SOURCE_DIR}/cuda/kernels/*.h")
  add_custom_command(
    OUTPUT "${folder}/kernels_fatbin.inc"
    COMMAND "${KVC_NVCC}" -fatbin --std=c++17 ${targets} -I "${PROJECT_SOURCE_DIR}"
      -o "${folder}/kernels.fatbin" "${PROJECT_SOURCE_DIR}/cuda/kernels/kernels.cu"
    COMMAND "${CMAKE_COMMAND}" -DIN=${folder}/kernels.fatbin -DOUT=${folder}/kernels_fatbin.inc
      -P "${CMAKE_CURRENT_LIST_DIR}/bytes.cmake"
    DEPENDS ${kernel_sources} "${CMAKE_CURRENT_LIST_DIR}/bytes.cmake"
    COMMENT "Compiling the CUDA kernels with ${KVC_NVCC}"
    VERBATIM)
  add_custom_target(kvcast_fatbin DEPENDS "${folder}/kernels_fatbin.inc")
  set_source_files_properties(cuda/src/kernel_image.cpp PROPERTIES
    COMPILE_DEFINITIONS "KVC_CUDA_FATBIN=\"${folder}/kernels_fatbin.inc\""
    OBJECT_DEPENDS "${folder}/kernels_fatbin.inc")
endif()
