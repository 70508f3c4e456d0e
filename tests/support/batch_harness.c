/* Triton's dynamic batcher as far as the batch library meets it, around the library itself.
 *
 * Payloads come from a pool and hold requests; passes begin with Finalize and Initialize of the same payload; an
 * instance takes payloads at any moment between passes; limits change at any moment. After each pass the
 * payload's own content is compared with the limit: batch_harness FOLDER SEED REQUESTS.
 */
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { int64_t shape[2]; } Request;
typedef struct Batcher Batcher;
extern void *TRITONBACKEND_ModelBatcherInitialize(Batcher **, void *);
extern void *TRITONBACKEND_ModelBatcherFinalize(Batcher *);
extern void *TRITONBACKEND_ModelBatchInitialize(Batcher *, void **);
extern void *TRITONBACKEND_ModelBatchFinalize(void *);
extern void *TRITONBACKEND_ModelBatchIncludeRequest(Request *, void *, bool *);

static _Atomic int naps, in_use = -1;
static int deleted;
static bool without_inputs;

void *TRITONBACKEND_ModelName(void *model, const char **name) { (void)model; *name = "m"; return NULL; }
void *TRITONBACKEND_RequestInputByIndex(Request *r, uint32_t index, void **input)
{
    assert(index == 0);
    *input = r;
    return without_inputs ? r : NULL;
}
void *TRITONBACKEND_InputProperties(void *input, const char **name, int *type, const int64_t **shape,
                                    uint32_t *dims, uint64_t *bytes, uint32_t *buffers)
{
    (void)name, (void)type, (void)bytes, (void)buffers;
    *shape = ((Request *)input)->shape;
    *dims = 2;
    return NULL;
}
void TRITONSERVER_ErrorDelete(void *error) { assert(error); deleted++; }
int nanosleep(const struct timespec *time, struct timespec *left) { (void)left; naps += time->tv_nsec > 0; return 0; }

static Batcher *ends_meanwhile; /* a state that another thread ends while its file is in use */
static pthread_t ender;
static void *end_it(void *state) { TRITONBACKEND_ModelBatcherFinalize(state); return NULL; }
static void end_while_in_use(int file)
{
    if (!ends_meanwhile)
        return;
    int before = naps;
    in_use = file;
    assert(!pthread_create(&ender, NULL, end_it, ends_meanwhile));
    ends_meanwhile = NULL;
    while (naps == before) /* until it waits, and does not close */
        ;
    in_use = -1;
}
int close(int file) { assert(file != in_use); return syscall(SYS_close, file); }
ssize_t pread(int file, void *to, size_t size, off_t at)
{
    end_while_in_use(file);
    return syscall(SYS_pread64, file, to, size, at);
}
ssize_t pwrite(int file, const void *from, size_t size, off_t at)
{
    end_while_in_use(file);
    return syscall(SYS_pwrite64, file, from, size, at);
}

enum { POOL = 5, PAGE = 4096, MAX_BATCH = 32, PREFERRED = 16, LONGEST_QUEUE = 64 };
typedef struct { uint64_t held; bool taken; void *user; } Payload;
static Payload pool[POOL];
static char path[2][512];

static void write_file(const char *file, const void *data, size_t size)
{
    int f = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert(f >= 0 && write(f, data, size) == (ssize_t)size && close(f) == 0);
}

static void write_word(const char *file, uint64_t word)
{
    int f = open(file, O_WRONLY);
    assert(f >= 0 && pwrite(f, &word, sizeof word, 0) == sizeof word && close(f) == 0);
}

static uint64_t answer(void)
{
    uint64_t word = 0;
    int f = open(path[1], O_RDONLY);
    assert(f >= 0 && read(f, &word, sizeof word) == sizeof word && close(f) == 0);
    return word;
}

static Payload *another(Payload *present)
{
    Payload *next;
    do
        next = &pool[rand() % POOL];
    while (next == present);
    *next = (Payload){0};
    return next;
}

static void replay(long requests)
{
    char page[PAGE] = {0};
    write_file(path[0], page, PAGE);
    write_file(path[1], page, PAGE);
    uint32_t limit = 4, generation = 1, largest = 0;
    write_word(path[0], (uint64_t)generation << 32 | limit);
    Batcher *batcher;
    assert(!TRITONBACKEND_ModelBatcherInitialize(&batcher, NULL));
    assert(answer() >> 32 == generation);
    Payload *now = another(NULL);
    TRITONBACKEND_ModelBatchInitialize(batcher, &now->user);
    Request queue[LONGEST_QUEUE];
    int waiting = 0;
    bool saturated = false;
    for (long sent = 0; sent < requests || waiting;) {
        for (int n = rand() % 4; n > 0 && waiting < LONGEST_QUEUE && sent < requests; n--, sent++)
            queue[waiting++] = (Request){{rand() % 8 ? 1 : 1 + rand() % 6, 1}};
        if (rand() % 50 == 0) {
            limit = 1 + rand() % PREFERRED;
            largest = 0;
            for (int i = 0; i < 2; i++)
                if (rand() % 4 == 0) { /* another file in place of one that was removed */
                    unlink(path[i]);
                    write_file(path[i], page, PAGE);
                }
            write_word(path[0], (uint64_t)++generation << 32 | limit);
        }
        if (now->held && (saturated || rand() % 4 == 0))
            now->taken = true;
        if (now->taken) {
            now = another(now);
            saturated = false;
            TRITONBACKEND_ModelBatchInitialize(batcher, &now->user);
        }
        if (!waiting)
            continue;
        if (now->user)
            TRITONBACKEND_ModelBatchFinalize(now->user);
        now->user = NULL;
        TRITONBACKEND_ModelBatchInitialize(batcher, &now->user);
        int accepted = 0, before = naps;
        bool refused = false;
        uint64_t pending = 0;
        while (accepted < waiting) {
            uint64_t size = queue[accepted].shape[0];
            if (now->held + pending && now->held + pending + size > PREFERRED) {
                saturated = true;
                break;
            }
            bool include = false;
            assert(!TRITONBACKEND_ModelBatchIncludeRequest(&queue[accepted], now->user, &include));
            bool first = now->held + pending == 0;
            assert(include == (first || now->held + pending + size <= limit));
            if (!include) {
                refused = true;
                break;
            }
            pending += size;
            accepted++;
        }
        assert((naps > before) == (refused && accepted == 0));
        saturated = saturated || (refused && accepted);
        now->held += pending;
        if (accepted && now->held > largest)
            largest = now->held;
        if (accepted) /* the library answers each time it is asked */
            assert(answer() == ((uint64_t)generation << 32 | largest));
        memmove(queue, queue + accepted, sizeof *queue * (waiting -= accepted));
    }
    TRITONBACKEND_ModelBatcherFinalize(batcher);
}

/* Any content of the files: what is no limit is none, and nothing crashes. */
static void fuzz(int rounds)
{
    static char data[3 * PAGE];
    while (rounds--) {
        size_t sizes[] = {0, 1, 7, 8, PAGE - 1, PAGE, PAGE, PAGE, PAGE + 1, 3 * PAGE};
        unlink(path[0]);
        unlink(path[1]);
        size_t size = sizes[rand() % 10];
        int32_t limits[] = {0, -1, 1, 2, INT32_MAX, INT32_MIN, rand() % 40};
        int32_t limit = limits[rand() % 7];
        memcpy(data, &limit, sizeof limit);
        memcpy(data + 4, &rounds, sizeof rounds);
        int kind = rand() % 5;
        if (kind == 1) /* neither may hold up the start of a server */
            assert((rand() % 2 ? mkfifo(path[0], 0600) : symlink("/dev/zero", path[0])) == 0);
        else if (kind)
            write_file(path[0], data, size);
        if (rand() % 3)
            write_file(path[1], data, sizes[rand() % 10]);
        without_inputs = rand() % 5 == 0;
        Batcher *batcher;
        void *slot = NULL;
        assert(!TRITONBACKEND_ModelBatcherInitialize(&batcher, NULL));
        TRITONBACKEND_ModelBatchInitialize(batcher, &slot);
        uint64_t held = 0, bound = kind > 1 && size == PAGE && limit > 0 ? (uint64_t)limit : UINT32_MAX;
        for (int i = 0; i < 40; i++) {
            Request request = {{rand() % 3 ? 1 : rand() % 9 - 2, 1}};
            uint64_t counted = without_inputs || request.shape[0] < 1 ? 1 : request.shape[0];
            bool include = false;
            TRITONBACKEND_ModelBatchIncludeRequest(&request, slot, &include);
            assert(include == (held == 0 || held + counted <= bound));
            held += include ? counted : 0;
        }
        bool without[] = {kind > 1 && rand() % 2, access(path[1], F_OK) == 0 && rand() % 2};
        for (int i = 0; i < 2; i++)
            assert(!without[i] || truncate(path[i], rand() % 8) == 0);
        void *next = NULL;
        Request request = {{1, 1}};
        bool include = false;
        TRITONBACKEND_ModelBatchInitialize(batcher, &next);
        TRITONBACKEND_ModelBatchIncludeRequest(&request, next, &include);
        assert(include);
        TRITONBACKEND_ModelBatcherFinalize(batcher);
    }
    without_inputs = false;
}

/* Without files the batch of the server's start holds. */
static void from_environment(void)
{
    struct { const char *text; uint64_t bound; } cases[] = {
        {"7:other/3:m/", 3}, {"3:m", UINT32_MAX}, {"3:mm/2:m/", 2}, {"", UINT32_MAX}, {"/:/x/5:m/", 5}, {"-1:m/", UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("TRISECT_BATCHES", cases[i].text, 1);
        Batcher *batcher;
        void *slot = NULL;
        assert(!TRITONBACKEND_ModelBatcherInitialize(&batcher, NULL));
        TRITONBACKEND_ModelBatchInitialize(batcher, &slot);
        for (uint64_t held = 0; held < 10; held++) {
            Request request = {{1, 1}};
            bool include = false;
            TRITONBACKEND_ModelBatchIncludeRequest(&request, slot, &include);
            assert(include == (held < cases[i].bound));
        }
        TRITONBACKEND_ModelBatcherFinalize(batcher);
    }
    unsetenv("TRISECT_BATCHES");
}

/* Triton's thread may come once more when the state of its model has ended. */
static void after_the_end(void)
{
    Batcher *late[] = {NULL, NULL};
    assert(!TRITONBACKEND_ModelBatcherInitialize(&late[0], NULL));
    TRITONBACKEND_ModelBatcherFinalize(late[0]);
    for (int i = 0; i < 2; i++) {
        void *slot = NULL;
        Request request = {{1, 1}};
        bool include = false;
        TRITONBACKEND_ModelBatchInitialize(late[i], &slot);
        TRITONBACKEND_ModelBatchIncludeRequest(&request, slot, &include);
        assert(include);
    }
}

/* No file is closed under the thread that reads or writes it: its number may be another file's at once. */
static void during_the_end(void)
{
    char page[PAGE] = {0};
    for (int writes = 0; writes < 2; writes++) {
        write_file(path[0], page, PAGE);
        write_file(path[1], page, PAGE);
        write_word(path[0], 1ULL << 32 | 4);
        Batcher *batcher;
        void *slot = NULL;
        Request request = {{1, 1}};
        bool include = false;
        assert(!TRITONBACKEND_ModelBatcherInitialize(&batcher, NULL));
        if (!writes)
            ends_meanwhile = batcher;
        TRITONBACKEND_ModelBatchInitialize(batcher, &slot);
        if (writes)
            ends_meanwhile = batcher;
        TRITONBACKEND_ModelBatchIncludeRequest(&request, slot, &include);
        assert(include && !ends_meanwhile && !pthread_join(ender, NULL));
        assert(!writes || answer() == (1ULL << 32 | 1));
    }
}

int main(int argc, char **argv)
{
    assert(argc == 4);
    srand(atoi(argv[2]));
    setenv("TRISECT_BATCH_LIMITS", argv[1], 1);
    char seen[400];
    snprintf(seen, sizeof seen, "%s/seen", argv[1]);
    setenv("TRISECT_BATCH_SEEN", seen, 1);
    snprintf(path[0], sizeof *path, "%s/m", argv[1]);
    snprintf(path[1], sizeof *path, "%s/m", seen);
    fuzz(2000);
    unlink(path[0]);
    unlink(path[1]);
    from_environment();
    after_the_end();
    during_the_end();
    replay(atol(argv[3]));
    assert(deleted > 0 && naps > 0);
    return 0;
}
