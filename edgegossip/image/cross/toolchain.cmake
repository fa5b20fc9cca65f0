# aarch64 Linux by Debian's cross compiler against a board's own headers and C library (EDGEGOSSIP_SYSROOT), so that the module needs no
# newer ones than the board has. Its C++ library comes along inside.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "${EDGEGOSSIP_SYSROOT}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-static-libstdc++ -static-libgcc -Wl,--build-id=none")
set(CMAKE_CXX_FLAGS_INIT "-ffile-prefix-map=${EDGEGOSSIP_SOURCE}=. -ffile-prefix-map=${EDGEGOSSIP_SYSROOT}=/")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE NEVER)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EDGEGOSSIP_SYSROOT EDGEGOSSIP_SOURCE)
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
