/*
 * weir.h: the C API of weir, an ephemeral burst-buffer file system.
 *
 * For checkpoint libraries, I/O libraries and the like: what POSIX has no call for, and I/O in lists. A program is
 * linked with -lweir, or opens libweir.so.1 with dlopen. It works with the interposer in the process (`weir run`) and
 * without; with it, both are one client, and descriptors of open(2) may be used here.
 *
 * Return values. Functions that return int give 0 or more, or -errno: errno itself is not a result. What was wrong with
 * the calling thread's last call that failed is said by weir_message.
 *
 *     if ((rc = weir_laminate("/weir/ckpt.7")) < 0)
 *             fprintf(stderr, "%s\n", weir_message());
 *
 * Errors of all functions that take a path:
 *
 *     -ENOTCONN      the process is not attached
 *     -EFAULT        a pointer that must not be NULL is
 *     -ENAMETOOLONG  a path of 4096 bytes or more, or a component of more than 255
 *     -EXDEV         the path is not in weir: outside of the mount, or through a link that leads out
 *     -ESHUTDOWN     the server is gone; -EIO: what only a lost node has
 *
 * and those of path_resolution(7). Relative paths are taken from the current directory, links are followed.
 *
 * Threads: all functions may be called from all threads at once, none from a signal handler. Forks: a child is not
 * attached, whatever its parent was doing; it may attach anew, and then the parent's descriptors are void in it. After
 * fork in a program with threads, the usual holds: nothing but what is safe in signal handlers before exec.
 *
 * Without the interposer weir knows nothing of umask(2), setuid(2) and their like after weir_attach, and has some
 * descriptors at high numbers open, which the program must leave alone.
 *
 * Pointers to memory that is not the caller's are, as everywhere in C, the end of the process.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program that was compiled before would no longer work. */
#define WEIR_ABI 1

/* The WEIR_ABI of the library. */
int weir_abi(void);

/* The library's version, as "0.1.0". */
const char *weir_version(void);

/*
 * Attaches the process to a running instance: with the run directory `instance`, or, if that is NULL, the one that the
 * environment variable WEIR_INSTANCE names. May be called again by another library of the process, for the same
 * instance; each weir_attach wants its weir_detach.
 *
 * -ENOENT: no instance was named. -EBUSY: the process is attached to another one, or runs in another one under the
 * interposer. -ENOENT, -ECONNREFUSED: nothing serves there. -EPROTO, -EPROTONOSUPPORT: what serves there, or the
 * interposer, is of another version. -EUSERS: the server takes no more clients; -ENOSPC: it
 * has no memory for one. -ENOSYS: the kernel is older than 4.14.
 */
int weir_attach(const char *instance);

/*
 * Ends one weir_attach. With the last one, descriptors that weir_open gave are closed (but not under the interposer),
 * and what that met is returned, as of close(2). The connection stays until the process ends, for the next
 * weir_attach. -ENOTCONN: there was none.
 */
int weir_detach(void);

/*
 * Laminates a file: makes it read-only for good, for all nodes. 0: it is. -EBUSY: somebody has it open for writing, maybe
 * the caller; it is laminated when that is closed. -EPERM: it is another user's. -EISDIR, -EINVAL: it is no file.
 */
int weir_laminate(const char *path);

/* 1: the file is laminated; 0: not, or not yet. */
int weir_is_laminated(const char *path);

/*
 * Makes what programs of this node have written to a file visible on other nodes (unless only lamination does, see
 * WEIR_READ_AFTER_LAMINATE) and as durable as its tier is: as fsync(2), for who has no descriptor. Also what other
 * processes of the node wrote. -EACCES: the caller may neither read nor write it.
 */
int weir_sync(const char *path);

/* When programs of other nodes see what was written; those of the writer's node see it at once. */
enum weir_visibility {
	WEIR_READ_AFTER_SYNC = 0,    /* "ras": once the writer synced or closed the file, or a second later */
	WEIR_READ_AFTER_WRITE = 1,   /* "raw": once the write returned */
	WEIR_READ_AFTER_LAMINATE = 2 /* "ral": once the file is laminated */
};

/* The visibility of a file, or of what will be made in a directory. */
int weir_get_visibility(const char *path);

/* Sets it. -EINVAL: no such visibility; -EPERM: another user's; -EROFS: the file is laminated. */
int weir_set_visibility(const char *path, int visibility);

enum weir_lamination {
	WEIR_NOT_LAMINATED = 0,
	WEIR_LAMINATED = 1,
	WEIR_LAMINATION_DUE = 2 /* once nobody has it open for writing */
};

/* What is known of a file or directory. */
struct weir_stat {
	uint64_t size;         /* bytes */
	uint64_t stored_bytes; /* of the size, without holes; in units of 512 */
	uint64_t inode;
	int64_t mtime_s; /* last change of the contents, since 1970 */
	uint32_t mtime_ns;
	uint32_t mode;      /* as st_mode */
	uint32_t uid;
	uint32_t gid;
	uint32_t links;
	int32_t visibility; /* enum weir_visibility */
	int32_t lamination; /* enum weir_lamination */
	uint32_t home;      /* rank of the server that keeps the inode */
	uint32_t here;      /* rank of the caller's server */
	uint32_t servers;   /* of the instance */
	uint64_t reserved[4];
};

int weir_stat(const char *path, struct weir_stat *out);

/* The bytes of a file that one server has. */
struct weir_location {
	uint32_t rank; /* the server; weir_stat's `here` is the caller's */
	uint32_t reserved;
	uint64_t memory_bytes;
	uint64_t file_bytes; /* in files of a storage directory */
};

/*
 * Where the bytes of a file are: of all that is published, and of what programs of this node wrote. Returns on how
 * many servers they are, and fills `out` with the first `room` of them, by rank.
 */
int weir_locate(const char *path, struct weir_location *out, size_t room);

/*
 * open(2) of a file of weir. Of the flags there are O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND,
 * O_NOFOLLOW, O_SYNC, O_DSYNC and O_CLOEXEC, which is always set; -EINVAL for others. `mode` counts where a file is made.
 *
 * Returns a number of 0 or more, for weir_readv, weir_writev and weir_close. Under the interposer it is a descriptor like
 * that of open(2); else only weir knows what it stands for, and it must not be used in any other way.
 */
int weir_open(const char *path, int flags, mode_t mode);

/* Closes it; errors as of close(2): what was written may not have gone well. */
int weir_close(int fd);

/* A piece of a file, in a list. */
struct weir_io {
	const char *path; /* the file; if NULL: */
	int fd;           /* what weir_open gave, or under the interposer open(2) */
	int reserved;
	uint64_t offset; /* in the file */
	void *buffer;    /* weir_writev only reads it */
	size_t length;   /* bytes */
	ssize_t result;  /* out: how many were moved, or -errno */
};

/*
 * Reads all pieces of a list, of one file or of many. The reads of one file are one look-up, and what lies on other nodes
 * is asked of each of them at once: so a list is faster than its pieces one by one. Fewer bytes than asked for: the file
 * ends there. Returns 0, or the error of the first piece that has one; the others are done all the same.
 *
 * -EFAULT: the list, or the buffer of a piece that is not empty, is NULL. -EINVAL: two buffers overlap, or an offset or a
 * length is more than a file can have, or there are more than 1048576 pieces. Nothing is done then.
 */
int weir_readv(struct weir_io *list, size_t count);

/*
 * Writes all pieces; those of one file in the list's order. As weir_readv else, but that buffers may overlap. Fewer bytes
 * than asked for: room ended (the next write says -ENOSPC).
 */
int weir_writev(struct weir_io *list, size_t count);

/*
 * Transfers: files that weir copies between an instance and a parallel file system (or any other directory), or within
 * the instance, while the program goes on. A process of the node does it, beside the server: a transfer goes on when the
 * program that began it has ended, and ends with the instance; weir run waits for those of its node. Any process of the node may ask about it, by its number.
 *
 * A destination appears whole and on storage, with the permissions and times of the source, in one step and instead of
 * what had its name; else what had its name stays. Holes stay holes, and extended attributes are kept where the file
 * system has them. Directories are not created.
 *
 * Paths are taken as weir stage takes them: a path is in the instance if it begins with the mount prefix, whatever
 * links lead there. A source that is a symbolic link is refused.
 */
enum weir_transfer_mode {
	WEIR_TRANSFER_COPY = 0,
	WEIR_TRANSFER_MOVE = 1 /* the source is removed once the destination is there */
};

struct weir_transfer {
	const char *source;
	const char *destination;
	int mode;     /* enum weir_transfer_mode */
	int reserved; /* 0 */
};

enum weir_transfer_state {
	WEIR_TRANSFER_WAITING = 0, /* for its turn: some files at a time are moved, in the order of the calls */
	WEIR_TRANSFER_MOVING = 1,
	WEIR_TRANSFER_DONE = 2,
	WEIR_TRANSFER_FAILED = 3,
	WEIR_TRANSFER_CANCELLED = 4
};

/* What is known of one file of a transfer. */
struct weir_transfer_result {
	int32_t state;  /* enum weir_transfer_state */
	int32_t error;  /* 0, or -errno if it failed or was cancelled */
	uint64_t bytes; /* copied so far, holes included */
	uint64_t size;  /* of the source; 0 as long as it waits */
	double seconds; /* since its turn began, up to now or to its end */
	uint64_t reserved[2];
};

/*
 * Begins a transfer of the files of a list, and stores its number. Nothing is begun if one of them is refused.
 *
 * -EXDEV: neither path is in the instance, or one is in an elevated directory, whose files are moved by themselves.
 * -EINVAL: no files, or more than 65536, or than 8 MiB of paths; `..` in a path; no such mode. -EAGAIN: a million
 * files wait already.
 *
 * Errors that a file may meet, beside those of open(2), write(2) and rename(2) at its two ends: -EBUSY: a program has the
 * source open for writing, or writes to it meanwhile, or it awaits its lamination, or somebody else changes what has
 * the destination's name, or moves to it. -EISDIR, -EINVAL: the source, or the destination, is a
 * directory, or a device, FIFO or socket. -ELOOP: the source is a symbolic link.
 */
int weir_transfer_start(const struct weir_transfer *list, size_t count, uint64_t *transfer);

/*
 * Begins to take files of elevated directories into the instance, so that reads of them do not wait for the parallel file
 * system; what the instance has already is left. It is a transfer as those above, without destinations.
 *
 * -EXDEV: a path is in no elevated directory. -EINVAL: as above. Errors of a file: -ENOSPC: there is no room that
 * eviction would not free again (it is read where it is). -EMLINK: it has several names. -EOPNOTSUPP: the rule of its
 * directory does not choose it.
 */
int weir_prefetch(const char *const *paths, size_t count, uint64_t *transfer);

/*
 * 0: all files of the transfer are done; 1: some wait or are being moved; -errno: it has ended, and this is the error of the
 * first file that has one. Fills `results`, unless that is NULL, with the state of the first `room` files, in the order of
 * the list. -ESRCH: there is no such transfer: it ended long ago (the files of 131072 others have ended since), or what
 * moved it was killed.
 */
int weir_transfer_test(uint64_t transfer, struct weir_transfer_result *results, size_t room);

/* The same once the transfer has ended, or after some milliseconds; -1: as long as it takes. Signals do not end it. */
int weir_transfer_wait(uint64_t transfer, int timeout_ms, struct weir_transfer_result *results, size_t room);

/*
 * Gives up the files of a transfer that do not have their names yet: they leave nothing. Does not wait for those that are being
 * copied; weir_transfer_wait does, and then gives -ECANCELED. Files that are done stay.
 */
int weir_transfer_cancel(uint64_t transfer);

/*
 * Where a file is on its way to the parallel file system: one of an elevated directory, by its path there, or, with
 * `weir run --drain-to`, of the mount. The letters are those of Data Elevator's states.
 */
enum weir_drain_step {
	WEIR_DRAIN_NONE = 0,     /* nothing moves it: it is not chosen, or no drain runs now */
	WEIR_DRAIN_WRITING = 1,  /* W: a program has it open for writing, or it awaits its lamination */
	WEIR_DRAIN_WRITTEN = 2,  /* B, D: it is closed, and awaits its move, or is being moved */
	WEIR_DRAIN_ANALYSIS = 3, /* A: it awaits its analysis (weir analyze), or is under it */
	WEIR_DRAIN_SAFE = 4,     /* F: the parallel file system has it, on storage, as it is now */
	WEIR_DRAIN_FAILED = 5    /* it could not be moved; `reason` says why, and it is tried again */
};

struct weir_drain_state {
	int32_t step; /* enum weir_drain_step */
	int32_t reserved;
	uint64_t size;      /* bytes */
	uint64_t age_ms;    /* since the drain's last look at the instance began; 0 if no drain runs */
	uint64_t more[4];   /* 0 */
	char reason[256];   /* "", or a line, cut if it is longer */
};

/*
 * The state of a file, as of the drain's last look and of the file's own now: it is SAFE only if it has not changed since. Paths
 * are taken as by transfers.
 *
 * -EXDEV: it is neither in the instance nor in an elevated directory. -ENOENT: it is not there, nor on the parallel file
 * system. -EISDIR, -EINVAL: it is no file. -EREMOTE: there are several nodes, and no drain runs on the caller's: it does on that of
 * `weir run`.
 */
int weir_drain_state(const char *path, struct weir_drain_state *out);

/*
 * Has a file, or all files below a directory, moved before others, from the next look on, which begins at once unless one is under
 * way, and waits until they are safe, or some milliseconds; -1: as long as it takes. A file that a program has open
 * for writing is waited for. 0: they are safe; 1: not yet.
 *
 * -EIO: one could not be moved (weir_drain_state says why). -EOPNOTSUPP: nothing moves them. Else as weir_drain_state.
 */
int weir_drain(const char *path, int timeout_ms);

/* What an error (of either sign) means, as strerror(3) says it, in English; never NULL. */
const char *weir_strerror(int error);

/*
 * What was wrong with the last call of this thread that failed: its name, its path if it has one, the error. "" if none
 * has failed. A thread's message is always at the same place: what is there changes when the next call fails.
 */
const char *weir_message(void);

#ifdef __cplusplus
}
#endif

#endif
