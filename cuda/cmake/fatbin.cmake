# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# With nvcc the library carries machine code of the kernels too, which the driver need not translate. Without it,
# nothing is missing: the PTX in the tree serves every GPU.

find_program(KVC_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin)
if(KVC_NVCC)
  set(default ON)
else()
  set(default OFF)
endif()
option(KVC_CUDA_FATBIN "Embed machine code of the CUDA kernels (needs nvcc)" ${default})

if(KVC_CUDA_FATBIN)
  if(NOT KVC_NVCC)
    message(FATAL_ERROR "KVC_CUDA_FATBIN needs nvcc: put it on the PATH or set KVC_NVCC")
  endif()
  # Of the GPUs we name, those that this nvcc knows.
  execute_process(COMMAND "${KVC_NVCC}" --list-gpu-code
    OUTPUT_VARIABLE known RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "${KVC_NVCC} --list-gpu-code fails (${failed})")
  endif()
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  set(targets)
  foreach(arch 80 86 89 90 100 120)
    if("sm_${arch}" IN_LIST known)
      list(APPEND targets "-gencode=arch=compute_${arch},code=sm_${arch}")
    endif()
  endforeach()
  set(folder "${PROJECT_BINARY_DIR}/cuda")
  file(MAKE_DIRECTORY "${folder}")
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
