# CUDA headers, the CUDA runtime, NCCL and CUPTI as imported targets, from the wheel's own dependencies
# (site-packages/nvidia) or from a CUDA toolkit. No nvcc is needed.
#   CudaLibraries::cudart  CudaLibraries::nccl  CudaLibraries::cupti
# Looks next to LibTorch first (<site-packages>/nvidia), then in CUDAToolkit_ROOT, /usr/local/cuda and the system.
# The wheel's dependencies lack the crt/ headers that cuda_runtime_api.h includes and nv/target, which cuda_fp16.h (and so
# nccl.h) does; scripts/setup adds nvidia-cuda-crt and nvidia-cuda-cccl. Nothing but the listed folders is searched: a
# toolkit's headers in the compiler's own path would hide what a user lacks.
set(_hints)
if(LibTorch_INCLUDE_DIR)
  get_filename_component(_site ${LibTorch_INCLUDE_DIR}/../.. ABSOLUTE)
  list(APPEND _hints ${_site}/nvidia/cu13 ${_site}/nvidia/nccl)
endif()
set(_toolkits ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} /usr/local/cuda)
if(STAGECRAFT_HIDE_CUDA_TOOLKIT)  # for the test that the wheel's packages are enough
  set(_toolkits)
endif()

find_path(CudaLibraries_INCLUDE_DIR cuda_runtime_api.h HINTS ${_hints} ${_toolkits} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(CudaLibraries_CRT_INCLUDE_DIR crt/host_defines.h HINTS ${_hints} ${_toolkits} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(CudaLibraries_CCCL_INCLUDE_DIR nv/target HINTS ${_hints} ${_toolkits} PATH_SUFFIXES include include/cccl NO_DEFAULT_PATH)
find_path(CudaLibraries_CUPTI_INCLUDE_DIR cupti.h HINTS ${_hints} ${_toolkits}
          PATH_SUFFIXES include extras/CUPTI/include NO_DEFAULT_PATH)
find_path(CudaLibraries_NCCL_INCLUDE_DIR nccl.h HINTS ${_hints} ${_toolkits} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(CudaLibraries_CUDART_LIBRARY NAMES libcudart.so.13 cudart HINTS ${_hints} ${_toolkits} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
find_library(CudaLibraries_CUPTI_LIBRARY NAMES libcupti.so.13 cupti HINTS ${_hints} ${_toolkits}
             PATH_SUFFIXES lib lib64 extras/CUPTI/lib64 NO_DEFAULT_PATH)
find_library(CudaLibraries_NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${_hints} ${_toolkits} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)

string(REPLACE ";" ", " _looked "${_hints};${_toolkits}")  # a list would end the message
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CudaLibraries
  REQUIRED_VARS CudaLibraries_INCLUDE_DIR CudaLibraries_CRT_INCLUDE_DIR CudaLibraries_CCCL_INCLUDE_DIR CudaLibraries_CUPTI_INCLUDE_DIR
                CudaLibraries_NCCL_INCLUDE_DIR CudaLibraries_CUDART_LIBRARY CudaLibraries_CUPTI_LIBRARY
                CudaLibraries_NCCL_LIBRARY
  REASON_FAILURE_MESSAGE "looked in: ${_looked}. Run scripts/setup, or set CUDAToolkit_ROOT, or build without it: -DSTAGECRAFT_WITH_CUDA=OFF")

if(CudaLibraries_FOUND AND NOT TARGET CudaLibraries::cudart)
  foreach(_name cudart nccl cupti)
    string(TOUPPER ${_name} _upper)
    add_library(CudaLibraries::${_name} SHARED IMPORTED)
    set_target_properties(CudaLibraries::${_name} PROPERTIES
      IMPORTED_LOCATION ${CudaLibraries_${_upper}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES "${CudaLibraries_INCLUDE_DIR};${CudaLibraries_CRT_INCLUDE_DIR};${CudaLibraries_CCCL_INCLUDE_DIR}")
  endforeach()
  target_include_directories(CudaLibraries::nccl INTERFACE ${CudaLibraries_NCCL_INCLUDE_DIR})
  target_include_directories(CudaLibraries::cupti INTERFACE ${CudaLibraries_CUPTI_INCLUDE_DIR})
endif()
