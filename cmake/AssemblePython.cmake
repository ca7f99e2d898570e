# SPDX-License-Identifier: Apache-2.0
#
# cmake -DPROJECT_DIR= -DGENERATED_DIR= -DOUTPUT_DIR= -P AssemblePython.cmake
# Rebuilds OUTPUT_DIR from nothing, so that no removed module lives on in it.
file(REMOVE_RECURSE ${OUTPUT_DIR})
file(MAKE_DIRECTORY ${OUTPUT_DIR}/cowshed/v1)
foreach(dir ${PROJECT_DIR}/src ${GENERATED_DIR})
  if(EXISTS ${dir})
    file(COPY ${dir}/ DESTINATION ${OUTPUT_DIR} PATTERN "__pycache__" EXCLUDE
         PATTERN "*.egg-info" EXCLUDE)
  endif()
endforeach()
foreach(name pyproject.toml README.md)
  if(EXISTS ${PROJECT_DIR}/${name})
    file(COPY ${PROJECT_DIR}/${name} DESTINATION ${OUTPUT_DIR})
  endif()
endforeach()
foreach(init ${OUTPUT_DIR}/cowshed/__init__.py ${OUTPUT_DIR}/cowshed/v1/__init__.py)
  if(NOT EXISTS ${init})
    file(WRITE ${init} "# SPDX-License-Identifier: Apache-2.0\n")
  endif()
endforeach()
