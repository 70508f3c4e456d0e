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
    const Word *limit;   /* of Trisect: generation << 32 | limit; null: no limit */
    Word *seen;          /* for Trisect: generation << 32 | largest payload under it; null: nobody reads */
    uint32_t start;      /* where that has none: the batch of the server's start, 0: none */
    const void *slot;    /* of the payload that grows */
    uint64_t held;       /* inferences in it */
    bool accepted;       /* whether this pass has accepted a request */
    bool complained;     /* one line in the log is enough */
} Batcher;

/* Map the page `model` in the folder that an environment variable names; null where there is none. */
static void *page(const char *variable, const char *model, int access, int protection)
{
    const char *folder = getenv(variable);
    char path[PAGE];
    if (!folder || snprintf(path, sizeof path, "%s/%s", folder, model) >= (int)sizeof path)
        return NULL;
    int file = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return NULL;
    void *mapped = MAP_FAILED;
    /* To read a page beyond the file's end would kill the server. */
    if (lseek(file, 0, SEEK_END) == PAGE)
        mapped = mmap(NULL, PAGE, protection, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
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

/* The limit that holds now; the one of the start, or else the largest possible, where the file has none. */
static uint32_t limit_of(Batcher *batcher, uint32_t *generation)
{
    uint64_t word = batcher->limit ? atomic_load_explicit(batcher->limit, memory_order_relaxed) : 0;
    int32_t limit = (int32_t)low(word);
    *generation = high(word);
    if (limit > 0)
        return (uint32_t)limit;
    if (batcher->start)
        return batcher->start;
    if (!batcher->complained)
        fprintf(stderr, "trisect: no batch limit for model %s: its largest batch holds\n", batcher->name);
    batcher->complained = true;
    return UINT32_MAX;
}

/* Say which generation holds, and the largest payload under it. */
static void answer(Batcher *batcher, uint32_t generation)
{
    if (!batcher->seen)
        return;
    uint64_t word = atomic_load_explicit(batcher->seen, memory_order_relaxed);
    uint64_t largest = high(word) == generation ? low(word) : 0;
    if (batcher->accepted && batcher->held > largest)
        largest = batcher->held;
    atomic_store_explicit(batcher->seen, (uint64_t)generation << 32 | largest, memory_order_relaxed);
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
    (*batcher)->limit = page("TRISECT_BATCH_LIMITS", name, O_RDONLY, PROT_READ);
    (*batcher)->seen = page("TRISECT_BATCH_SEEN", name, O_RDWR, PROT_READ | PROT_WRITE);
    (*batcher)->start = at_start(name);
    uint32_t generation;
    limit_of(*batcher, &generation);
    answer(*batcher, generation);
    return NULL;
}

Error *TRITONBACKEND_ModelBatcherFinalize(Batcher *batcher)
{
    if (batcher->limit)
        munmap((void *)batcher->limit, PAGE);
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
    uint32_t generation;
    uint64_t size = size_of(request), limit = limit_of(batcher, &generation);
    /* The first request of a payload is never refused, whatever its size: nothing would be sent for it. */
    *include = batcher->held == 0 || batcher->held + size <= limit;
    if (*include) {
        batcher->held += size;
        batcher->accepted = true;
    } else if (!batcher->accepted) {
        /* The payload is full and waits for an instance. Triton closes a payload only where a pass accepted
           something before the "no", so it asks again at once, a whole core long, and takes that from the
           models. The instance waits for the end of one nap at most: it holds the lock of the next pass. */
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    answer(batcher, generation);
    return NULL;
}
