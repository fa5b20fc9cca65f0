# aarch64 Linux by Debian's cross compiler against a board's own headers and C library (EDGEGOSSIP_SYSROOT), so that the module needs no
# newer ones than the board has. Its C++ library comes along inside, but for what nothing uses: among that is what would need a newer C
# library than JetPack 6 has. So would this compiler's unwinder (_dl_find_object): the board's own serves.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT "${EDGEGOSSIP_SYSROOT}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "-static-libstdc++ -shared-libgcc -Wl,--exclude-libs,ALL -Wl,--gc-sections -Wl,--build-id=none")
set(CMAKE_CXX_FLAGS_INIT "-ffile-prefix-map=${EDGEGOSSIP_SOURCE}=. -ffile-prefix-map=${EDGEGOSSIP_SYSROOT}=/")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE NEVER)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EDGEGOSSIP_SYSROOT EDGEGOSSIP_SOURCE)
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
