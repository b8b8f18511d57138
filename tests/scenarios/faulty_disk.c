/* A disk with faults, for files whose path holds "store.db". While FAULTS/NAME exists:
   full, readonly, failing: writes fail so; stall: a flush does not return; slow: a flush takes 50 ms longer.
   FAULTS/stalled is made by a flush that waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_on(const char *name) {
    char path[4096];
    const char *folder = getenv("FAULTS");
    if (folder == NULL) return 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static int is_store(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "store.db") != NULL && strstr(path, "-shm") == NULL;
}

static int refused(int fd) {
    if (!is_store(fd)) return 0;
    if (is_on("full")) errno = ENOSPC;
    else if (is_on("readonly")) errno = EROFS;
    else if (is_on("failing")) errno = EIO;
    else return 0;
    return 1;
}

static void wait_here(int fd) {
    if (!is_store(fd)) return;
    if (is_on("slow")) usleep(50000);
    while (is_on("stall")) {
        char path[4096];
        snprintf(path, sizeof path, "%s/stalled", getenv("FAULTS"));
        int mark = open(path, O_CREAT | O_WRONLY, 0600);
        if (mark >= 0) close(mark);
        usleep(10000);
    }
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return refused(fd) ? -1 : NEXT(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return refused(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    return refused(fd) ? -1 : NEXT(write)(fd, data, size);
}
int fsync(int fd) {
    wait_here(fd);
    return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
    wait_here(fd);
    return NEXT(fdatasync)(fd);
}
