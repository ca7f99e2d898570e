# SPDX-License-Identifier: Apache-2.0

# Sets <out> to all *.cc below the current folder, looked up again at every build. A folder without
# sources yields one empty file, since a library needs one.
function(cowshed_sources out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cc)
    file(CONFIGURE OUTPUT ${sources} CONTENT "// SPDX-License-Identifier: Apache-2.0\n")
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
