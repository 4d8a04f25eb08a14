/* A disk that fails on command, for LD_PRELOAD: calls on files below one folder fail with an errno.

   fault_arm(folder, call, countdown, error) lets the countdown-th call of a kind fail, and with persistent != 0 all
   later ones as well; fault_budget(folder, bytes) lets writes fail with ENOSPC after so many bytes. Both are reset by
   fault_disarm(), which returns how many calls failed. Short writes are faults with error 0: half of the bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, RENAME = 4, MAP = 8, OPEN = 16, READ = 32, TRUNCATE = 64 };

static char folder[PATH_MAX];
static size_t folder_length;
static int armed, kinds, countdown, error_number, persistent, failed;
static long long budget = -1;

void fault_arm(const char *path, int call, int count, int error, int lasting) {
    folder_length = strlen(strncpy(folder, path, sizeof folder - 1));
    kinds = call, countdown = count, error_number = error, persistent = lasting, failed = 0, budget = -1;
    armed = 1;
}

void fault_budget(const char *path, long long bytes) {
    fault_arm(path, 0, 0, ENOSPC, 1);
    budget = bytes;
}

int fault_disarm(void) {
    armed = 0;
    return failed;
}

static int below(const char *path) {
    char full[PATH_MAX];
    if (!armed || !path) return 0;
    if (path[0] != '/') {   /* relative names are resolved as far as the folder */
        if (!getcwd(full, sizeof full)) return 0;
        return strncmp(full, folder, folder_length) == 0;
    }
    return strncmp(path, folder, folder_length) == 0;
}

static int open_below(int handle) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, folder_length) == 0;
}

/* Whether this call fails. */
static int fails(int kind) {
    if (!(kinds & kind) || (countdown -= 1) > 0 || (countdown < 0 && !persistent)) return 0;
    failed += 1;
    errno = error_number;
    return 1;
}

static int over_budget(size_t bytes) {
    if (budget < 0) return 0;
    if (budget >= (long long)bytes) {
        budget -= bytes;
        return 0;
    }
    failed += 1;
    errno = ENOSPC;
    return 1;
}

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t write(int handle, const void *bytes, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (open_below(handle)) {
        if (over_budget(size)) return -1;
        if (fails(WRITE)) {
            if (error_number || size < 2) return errno = error_number ? error_number : EIO, -1;
            return real(handle, bytes, size / 2);
        }
    }
    return real(handle, bytes, size);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int handle, const void *bytes, size_t size, offset_type offset) { \
        REAL(ssize_t, #name, int, const void *, size_t, offset_type); \
        if (open_below(handle)) { \
            if (over_budget(size)) return -1; \
            if (fails(WRITE)) { \
                if (error_number || size < 2) return errno = error_number ? error_number : EIO, -1; \
                return real(handle, bytes, size / 2, offset); \
            } \
        } \
        return real(handle, bytes, size, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PREAD(name, offset_type) \
    ssize_t name(int handle, void *bytes, size_t size, offset_type offset) { \
        REAL(ssize_t, #name, int, void *, size_t, offset_type); \
        if (open_below(handle) && fails(READ)) return errno = error_number ? error_number : EIO, -1; \
        return real(handle, bytes, size, offset); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

ssize_t read(int handle, void *bytes, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (open_below(handle) && fails(READ)) return errno = error_number ? error_number : EIO, -1;
    return real(handle, bytes, size);
}

#define ON_HANDLE(name, kind) \
    int name(int handle) { \
        REAL(int, #name, int); \
        if (open_below(handle) && fails(kind)) return errno = error_number ? error_number : EIO, -1; \
        return real(handle); \
    }
ON_HANDLE(fsync, SYNC)
ON_HANDLE(fdatasync, SYNC)

#define FTRUNCATE(name, offset_type) \
    int name(int handle, offset_type size) { \
        REAL(int, #name, int, offset_type); \
        if (open_below(handle) && fails(TRUNCATE)) return errno = error_number ? error_number : EIO, -1; \
        return real(handle, size); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (below(to) && fails(RENAME)) return errno = error_number ? error_number : EIO, -1;
    return real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    if ((below(to) || open_below(to_folder)) && fails(RENAME)) return errno = error_number ? error_number : EIO, -1;
    return real(from_folder, from, to_folder, to);
}

#define MMAP(name, offset_type) \
    void *name(void *address, size_t size, int protection, int flags, int handle, offset_type offset) { \
        REAL(void *, #name, void *, size_t, int, int, int, offset_type); \
        if (handle >= 0 && open_below(handle) && fails(MAP)) return errno = error_number ? error_number : EIO, MAP_FAILED; \
        return real(address, size, protection, flags, handle, offset); \
    }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

#define OPEN_PATH(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if (below(path) && fails(OPEN)) return errno = error_number ? error_number : EIO, -1; \
        return real(path, flags, mode); \
    }
OPEN_PATH(open)
OPEN_PATH(open64)

#define OPEN_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = va_arg(rest, mode_t); \
        va_end(rest); \
        if ((below(path) || (at >= 0 && open_below(at))) && fails(OPEN)) \
            return errno = error_number ? error_number : EIO, -1; \
        return real(at, path, flags, mode); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
