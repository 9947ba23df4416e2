/* Reads by position, of files, that do not return as long as the first byte of the file named in HANG is not zero, and
   writes to files that are appended to, as long as the third is not. Loaded before the C library. Handlers of signals
   run meanwhile, but only those in C: the call does not return for them, as where a disk is waited for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile char *hangs;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("HANG"), O_RDWR);
    hangs = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

static void hang(int which) {
    while (hangs[which]) {
        hangs[1] = 1; /* somebody is in here */
        usleep(10000);
    }
}

ssize_t write(int file, const void *data, size_t count) {
    ssize_t (*next)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (hangs && hangs[2] && (fcntl(file, F_GETFL) & O_APPEND))
        hang(2);
    return next(file, data, count);
}

ssize_t preadv2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    ssize_t (*next)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, "preadv2");
    hang(0);
    return next(file, parts, count, offset, flags);
}

ssize_t preadv64v2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    return preadv2(file, parts, count, offset, flags);
}

ssize_t preadv64(int file, const struct iovec *parts, int count, off_t offset) {
    return preadv2(file, parts, count, offset, 0);
}

ssize_t preadv(int file, const struct iovec *parts, int count, off_t offset) {
    return preadv2(file, parts, count, offset, 0);
}
