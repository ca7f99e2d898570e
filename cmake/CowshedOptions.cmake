# SPDX-License-Identifier: Apache-2.0
#
# Flags. `cowshed_options` is linked by every target of ours and by none of the generated code: that
# is compiled plain, so that all presets share its objects through ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
# No NDEBUG: assertions stay on. A wrong answer is worse than a crash.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

# ccache with its settings on the command line, so that they hold whoever calls the compiler: paths
# below the checkout are hashed relative to it, hence a clone elsewhere finds the same objects.
find_program(COWSHED_CCACHE ccache)
if(COWSHED_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      ${COWSHED_CCACHE})
endif()

find_program(COWSHED_LLD NAMES ld.lld-14 ld.lld)
if(COWSHED_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_link_options(-fuse-ld=lld)
endif()

add_library(cowshed_options INTERFACE)
target_include_directories(cowshed_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(
  cowshed_options
  INTERFACE -Wall
            -Wextra
            -Werror
            -Wshadow
            -Wextra-semi
            -Wnon-virtual-dtor
            -Woverloaded-virtual
            -Wimplicit-fallthrough
            -Wunused
            -Wcast-qual
            -Wformat=2
            -Wvla
            # __FILE__ and debug information name files relative to the checkout.
            -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(cowshed_options INTERFACE -Wthread-safety -Wrange-loop-analysis)
endif()

# The order of locks is checked where speed does not matter: engine/base/lock_order.h.
if(COWSHED_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(cowshed_options INTERFACE COWSHED_CHECK_LOCK_ORDER)
endif()

if(COWSHED_SANITIZE)
  target_compile_options(
    cowshed_options INTERFACE -fsanitize=${COWSHED_SANITIZE} -fno-sanitize-recover=all
                              -fno-omit-frame-pointer -O1)
  target_link_options(cowshed_options INTERFACE -fsanitize=${COWSHED_SANITIZE})
endif()

# `cowshed_fuzzed` is linked by the libraries that fuzz targets drive. The counters cost a few per
# cent and spare a build of their own: the AddressSanitizer build is the one that fuzzes.
add_library(cowshed_fuzzed INTERFACE)
if(COWSHED_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(cowshed_fuzzed
                         INTERFACE -fsanitize-coverage=inline-8bit-counters,pc-table)
endif()
