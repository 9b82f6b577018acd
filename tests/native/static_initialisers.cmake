# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# Fails unless the files of the library that have static initialisers are those named: cmake -DNM=... -DEXPECTED=a;b
# -DOBJECTS=x.o;y.o -P static_initialisers.cmake. Sanitized builds rely on it (see CMakeLists.txt of the project).

execute_process(COMMAND "${NM}" --print-file-name ${OBJECTS} OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM}: ${status}")
endif()
string(REGEX MATCHALL "[^\n]*_GLOBAL__(sub_)?I_" found "${symbols}")
list(TRANSFORM found REPLACE ".*\\.dir/(\\./)?(.*)\\.o:.*" "\\2")
if(NOT "${found}" STREQUAL "${EXPECTED}")
  message(FATAL_ERROR "static initialisers are in '${found}', expected in '${EXPECTED}'")
endif()
