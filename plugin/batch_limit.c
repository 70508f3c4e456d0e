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
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* One aligned word, written and read in one step: the limit and its generation, or the answer to it. */
typedef _Atomic uint64_t Word;
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a word shared by processes needs no lock");

static uint32_t high(uint64_t word) { return (uint32_t)(word >> 32); }
static uint32_t low(uint64_t word) { return (uint32_t)word; }

typedef struct {
    char name[256];
    int limits;          /* the file of Trisect, with generation << 32 | limit; -1: none */
    Word *seen;          /* for Trisect: generation << 32 | largest payload under it; null: it is read by none */
    uint32_t start;      /* where the file has none: the batch of the server's start, 0: none */
    uint32_t generation; /* of the limit that holds in this pass */
    uint32_t limit;
    const void *slot;    /* of the payload that grows */
    uint64_t held;       /* inferences in it */
    bool accepted;       /* whether this pass has accepted a request */
    bool complained;     /* one line in the log is enough */
} Batcher;

/* Open the file `model` of one page in the folder that an environment variable names; -1 where there is none. */
static int file_of(const char *variable, const char *model, int access)
{
    const char *folder = getenv(variable);
    char path[PAGE];
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, model) >= (int)sizeof path)
        return -1;
    int file = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    /* To read a mapped page beyond the file's end would kill the server. */
    if (file >= 0 && lseek(file, 0, SEEK_END) != PAGE) {
        close(file);
        return -1;
    }
    return file;
}

/* The word that Trisect's file holds now; 0 without one. Where the file was removed another one may stand. */
static uint64_t word_of(Batcher *batcher)
{
    struct stat now;
    uint64_t word;
    if (batcher->limits >= 0 && (fstat(batcher->limits, &now) || now.st_nlink == 0)) {
        close(batcher->limits);
        batcher->limits = -1;
    }
    if (batcher->limits < 0)
        batcher->limits = file_of("TRISECT_BATCH_LIMITS", batcher->name, O_RDONLY);
    if (batcher->limits < 0 || pread(batcher->limits, &word, sizeof word, 0) != sizeof word)
        return 0;
    return word;
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

/* Take the limit that holds now; the one of the start, or else the largest possible, where the file has none. */
static void take_limit(Batcher *batcher)
{
    uint64_t word = word_of(batcher);
    int32_t limit = (int32_t)low(word);
    batcher->generation = high(word);
    batcher->limit = limit > 0 ? (uint32_t)limit : batcher->start ? batcher->start : UINT32_MAX;
    if (batcher->limit == UINT32_MAX && !batcher->complained) {
        fprintf(stderr, "trisect: no batch limit for model %s: its largest batch holds\n", batcher->name);
        batcher->complained = true;
    }
}

/* Say which generation holds, and the largest payload under it. */
static void answer(Batcher *batcher)
{
    if (!batcher->seen)
        return;
    uint64_t word = atomic_load_explicit(batcher->seen, memory_order_relaxed);
    uint64_t largest = high(word) == batcher->generation ? low(word) : 0;
    if (batcher->accepted && batcher->held > largest)
        largest = batcher->held;
    atomic_store_explicit(batcher->seen, (uint64_t)batcher->generation << 32 | largest, memory_order_relaxed);
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

Error *TRITONBACKEND_ModelBatcherInitialize(Batcher **batcher, Model *model)
{
    const char *name = "";
    Error *error = TRITONBACKEND_ModelName(model, &name);
    if (error)
        return error;
    *batcher = calloc(1, sizeof **batcher);
    if (!*batcher)
        abort(); /* as Triton itself does where memory ends */
    snprintf((*batcher)->name, sizeof(*batcher)->name, "%s", name);
    (*batcher)->limits = -1;
    (*batcher)->start = at_start(name);
    int file = file_of("TRISECT_BATCH_SEEN", name, O_RDWR);
    if (file >= 0) {
        void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        (*batcher)->seen = mapped == MAP_FAILED ? NULL : mapped;
        close(file);
    }
    take_limit(*batcher);
    answer(*batcher);
    return NULL;
}

Error *TRITONBACKEND_ModelBatcherFinalize(Batcher *batcher)
{
    if (batcher->limits >= 0)
        close(batcher->limits);
    if (batcher->seen)
        munmap(batcher->seen, PAGE);
    free(batcher);
    return NULL;
}

Error *TRITONBACKEND_ModelBatchInitialize(Batcher *batcher, void **slot)
{
    if (batcher->slot != slot)
        batcher->held = 0;
    batcher->slot = slot;
    batcher->accepted = false;
    take_limit(batcher);
    *slot = batcher;
    return NULL;
}

Error *TRITONBACKEND_ModelBatchFinalize(Batcher *batcher)
{
    (void)batcher;
    return NULL;
}

Error *TRITONBACKEND_ModelBatchIncludeRequest(Request *request, Batcher *batcher, bool *include)
{
    uint64_t size = size_of(request);
    /* The first request of a payload is never refused, whatever its size: nothing would be sent for it. */
    *include = batcher->held == 0 || batcher->held + size <= batcher->limit;
    if (*include) {
        batcher->held += size;
        batcher->accepted = true;
    } else if (!batcher->accepted) {
        /* The payload is full and waits for an instance. Triton closes a payload only where a pass accepted
           something before the "no", so it asks again at once, a whole core long, and takes that from the
           models. The instance waits for the end of one nap at most: it holds the lock of the next pass. */
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    answer(batcher);
    return NULL;
}
