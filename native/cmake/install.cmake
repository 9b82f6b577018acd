# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# What is installed: both libraries, the header, the CMake package and kvcast.pc.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The C++ library that a C program must be told of when it links the archive.
set(KVC_CXX_RUNTIME stdc++)
if("c++" IN_LIST CMAKE_CXX_IMPLICIT_LINK_LIBRARIES)
  set(KVC_CXX_RUNTIME c++)
endif()

install(TARGETS kvcast kvcast_static
  EXPORT kvcastTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/native/include/kvcast"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")

set(KVC_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/kvcast")
install(EXPORT kvcastTargets NAMESPACE kvcast:: DESTINATION "${KVC_PACKAGE_DIR}")
configure_package_config_file(native/cmake/kvcastConfig.cmake.in
  "${CMAKE_CURRENT_BINARY_DIR}/kvcastConfig.cmake"
  INSTALL_DESTINATION "${KVC_PACKAGE_DIR}")
# Before 1.0 a minor version may change the API, so only the same one will do.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/kvcastConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/kvcastConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/kvcastConfigVersion.cmake"
  DESTINATION "${KVC_PACKAGE_DIR}")

# Relative to the file's own place where the folders are below the prefix, as they stand where they are absolute.
set(KVC_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
set(KVC_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
foreach(variable KVC_PC_LIBDIR KVC_PC_INCLUDEDIR)
  if(NOT IS_ABSOLUTE "${${variable}}")
    string(PREPEND ${variable} "\${prefix}/")
  endif()
endforeach()
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(KVC_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH KVC_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" KVC_PC_PREFIX "\${pcfiledir}/${KVC_PC_PREFIX}")
endif()
configure_file(native/cmake/kvcast.pc.in "${CMAKE_CURRENT_BINARY_DIR}/kvcast.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvcast.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
