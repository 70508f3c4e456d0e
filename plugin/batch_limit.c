/* A batch limit for Triton's dynamic batcher that can change while the server serves.
 *
 * Triton loads this library for each model whose configuration names it (TRITON_BATCH_STRATEGY_PATH). Its
 * batcher forms one payload at a time and makes, for each model, from one thread, under its own locks:
 *
 *     ModelBatchInitialize(batcher, slot)    a pass begins over the queued requests
 *     ModelBatchIncludeRequest(request)      may this one join the payload? the first "no" ends the pass
 *     ModelBatchFinalize(user pointer)       before the next pass, and when the payload is queued
 *
 * A payload goes on growing in further passes until an instance takes it, so a count that began at 0 in each
 * pass would forget what it holds already. `slot` is a place in the payload itself. A new payload is taken
 * from Triton's pool while the batcher still holds the one before. Therefore: another slot than in the last
 * pass means a new, empty payload, and the same slot means the same payload, with all that it holds.
 * This counts exactly where max_queue_delay is 0 and one preferred size is at least every limit: then all that
 * a pass accepts moves into the payload. docs/design/plugin.md has the rest.
 *
 * No header of Triton is needed: its types are opaque here.
 */
#define _POSIX_C_SOURCE 200809L /* not _GNU_SOURCE, which may bind strtol to glibc 2.38: older images lack it */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct Error Error;     /* TRITONSERVER_Error */
typedef struct Model Model;     /* TRITONBACKEND_Model */
typedef struct Request Request; /* TRITONBACKEND_Request */
typedef struct Input Input;     /* TRITONBACKEND_Input */

/* Of the server that loads this library. */
extern Error *TRITONBACKEND_ModelName(Model *, const char **name);
extern Error *TRITONBACKEND_RequestInputByIndex(Request *, uint32_t index, Input **);
extern Error *TRITONBACKEND_InputProperties(Input *, const char **name, int *datatype, const int64_t **shape,
                                            uint32_t *dims, uint64_t *bytes, uint32_t *buffers);
extern void TRITONSERVER_ErrorDelete(Error *);

enum { PAGE = 4096, NAP_NS = 100000 };

static uint32_t high(uint64_t word) { return (uint32_t)(word >> 32); }
static uint32_t low(uint64_t word) { return (uint32_t)word; }

/* A file of one page, whose first word is read and written in one step. It is not mapped: to touch a mapped page
 * of a file that was truncated, or has no room on a full disk, would kill the server. */
typedef struct {
    char *path; /* null: none is named */
    int access;
    int file;         /* -1: none */
    atomic_flag held; /* while its file is in use: another thread may end the state, and close it, meanwhile */
} Page;

typedef struct {
    Page limits;         /* of Trisect, with generation << 32 | limit */
    Page seen;           /* for Trisect: generation << 32 | largest payload under it */
    uint64_t said;       /* what `seen` holds */
    uint32_t start;      /* where there are no limits: the batch of the server's start, 0: none */
    uint32_t generation; /* of the limit that holds in this pass */
    uint32_t limit;
    const void *slot;    /* of the payload that grows */
    uint64_t held;       /* inferences in it */
    bool accepted;       /* whether this pass has accepted a request */
    bool complained;     /* one line in the log is enough */
} Batcher;

/* The page of a model in the folder that an environment variable names. */
static Page page_of(const char *variable, const char *model, int access)
{
    const char *folder = getenv(variable);
    Page page = {NULL, access, -1, ATOMIC_FLAG_INIT};
    if (folder && (page.path = malloc(strlen(folder) + strlen(model) + 2)))
        sprintf(page.path, "%s/%s", folder, model);
    return page;
}

static void hold(Page *page)
{
    while (atomic_flag_test_and_set(&page->held))
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

static void leave(Page *page) { atomic_flag_clear(&page->held); }

/* A page's open file, -1 where there is none of the right size. Where it was removed another one may stand. */
static int file_of(Page *page)
{
    struct stat now;
    for (int tries = 0; page->path && tries < 2; tries++) {
        if (page->file < 0)
            page->file = open(page->path, page->access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (page->file < 0)
            break;
        if (fstat(page->file, &now) == 0 && now.st_nlink > 0 && now.st_size == PAGE)
            return page->file;
        close(page->file);
        page->file = -1;
    }
    return -1;
}

/* The word of the limits; 0 without one. */
static uint64_t word_of(Page *limits)
{
    uint64_t word;
    hold(limits);
    int file = file_of(limits);
    bool whole = file >= 0 && pread(file, &word, sizeof word, 0) == sizeof word;
    leave(limits);
    return whole ? word : 0;
}

/* The batch of a model at the server's start, from BATCH:MODEL/BATCH:MODEL/; 0 where it has none. */
static uint32_t at_start(const char *model)
{
    const char *entry = getenv("TRISECT_BATCHES");
    size_t length = strlen(model);
    while (entry && *entry) {
        char *name;
        long batch = strtol(entry, &name, 10);
        if (*name == ':' && strncmp(name + 1, model, length) == 0 && name[length + 1] == '/')
            return batch > 0 && batch <= INT32_MAX ? (uint32_t)batch : 0;
        entry = strchr(name, '/');
        entry = entry ? entry + 1 : NULL;
    }
    return 0;
}

/* Take the limit that holds now; the one of the start, or else the largest possible, where there is none. */
static void take_limit(Batcher *batcher)
{
    uint64_t word = word_of(&batcher->limits);
    int32_t limit = (int32_t)low(word);
    batcher->generation = high(word);
    batcher->limit = limit > 0 ? (uint32_t)limit : batcher->start ? batcher->start : UINT32_MAX;
    if (batcher->limit == UINT32_MAX && !batcher->complained) {
        const char *path = batcher->limits.path;
        fprintf(stderr, "trisect: no batch limit in %s: the largest batch holds\n", path ? path : "any file");
        batcher->complained = true;
    }
}

/* Say which generation holds, and the largest payload under it. */
static void answer(Batcher *batcher)
{
    uint64_t largest = high(batcher->said) == batcher->generation ? low(batcher->said) : 0;
    if (batcher->accepted && batcher->held > largest)
        largest = batcher->held;
    uint64_t word = (uint64_t)batcher->generation << 32 | largest;
    if (word == batcher->said)
        return;
    hold(&batcher->seen);
    int file = file_of(&batcher->seen);
    if (file >= 0 && pwrite(file, &word, sizeof word, 0) == sizeof word)
        batcher->said = word;
    leave(&batcher->seen);
}

/* The inferences of a request: the first dimension of its first input. */
static uint64_t size_of(Request *request)
{
    Input *input;
    const int64_t *shape = NULL;
    uint32_t dims = 0;
    Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
    if (!error)
        error = TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, NULL, NULL);
    if (error)
        TRITONSERVER_ErrorDelete(error);
    return !error && dims > 0 && shape[0] > 0 ? (uint64_t)shape[0] : 1;
}

Error *TRITONBACKEND_ModelBatcherInitialize(Batcher **made, Model *model)
{
    const char *name = "";
    Error *error = TRITONBACKEND_ModelName(model, &name);
    if (error)
        return error;
    Batcher *batcher = *made = calloc(1, sizeof *batcher);
    if (!batcher)
        abort(); /* as Triton itself does where memory ends */
    batcher->limits = page_of("TRISECT_BATCH_LIMITS", name, O_RDONLY);
    batcher->seen = page_of("TRISECT_BATCH_SEEN", name, O_WRONLY);
    batcher->start = at_start(name);
    take_limit(batcher);
    answer(batcher);
    return NULL;
}

static void end(Page *page)
{
    hold(page);
    page->path = NULL;
    if (page->file >= 0)
        close(page->file);
    page->file = -1;
    leave(page);
}

/* Where a model is unloaded, Triton ends this state before the thread that forms batches, which may come once
 * more. So the memory stays, as does the library (`-z nodelete`), and a null pointer is no state. */
Error *TRITONBACKEND_ModelBatcherFinalize(Batcher *batcher)
{
    end(&batcher->limits);
    end(&batcher->seen);
    return NULL;
}

Error *TRITONBACKEND_ModelBatchInitialize(Batcher *batcher, void **slot)
{
    *slot = batcher;
    if (!batcher)
        return NULL;
    if (batcher->slot != slot)
        batcher->held = 0;
    batcher->slot = slot;
    batcher->accepted = false;
    take_limit(batcher);
    return NULL;
}

Error *TRITONBACKEND_ModelBatchFinalize(Batcher *batcher)
{
    (void)batcher;
    return NULL;
}

Error *TRITONBACKEND_ModelBatchIncludeRequest(Request *request, Batcher *batcher, bool *include)
{
    *include = true;
    if (!batcher)
        return NULL;
    uint64_t size = size_of(request);
    /* The first request of a payload is never refused, whatever its size: nothing would be sent for it. */
    if (batcher->held == 0 || batcher->held + size <= batcher->limit) {
        batcher->held += size;
        batcher->accepted = true;
    } else {
        *include = false;
        /* A payload that is full and waits for an instance. Triton closes it only where a pass accepted
           something before the "no", so it asks again at once, a whole core long, and takes that from the
           models. The instance waits for the end of one nap at most: it holds the lock of the next pass. */
        if (!batcher->accepted)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    answer(batcher);
    return NULL;
}
