/* A FAKE of the few calls of libcuda that the probe makes. A kernel takes its time by its blocks and by the
   percentage in the environment, which the file named by FAKE_UNENFORCED makes it ignore. A context becomes a
   client of the MPS daemon, as in `fake_cuda.py`, and may hold as much memory as its limit says. Between a
   launch and the end of its wait it is busy. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { NO_MEMORY = 2, NO_IMAGE = 218, LAUNCH_FAILED = 719, NO_SERVER = 805, NOT_READY = 807, UNKNOWN = 999 };
static double queued_ms;
static unsigned long held;
static int faulted, daemon_end = -1;
static char fault[4096]; /* a file of the daemon, while its server is in state FAULT */

static int reach_daemon(void) {
  const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
  int folder = open(pipes ? pipes : "/tmp/nvidia-mps", O_PATH), end = socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un at = {AF_UNIX, ""};
  snprintf(fault, sizeof fault, "%s/fault", pipes ? pipes : "");
  char answer[16] = "";
  snprintf(at.sun_path, sizeof at.sun_path, "/proc/self/fd/%d/control", folder);
  if (connect(end, (struct sockaddr *)&at, sizeof at)) return 0; /* it runs on without MPS */
  if (write(end, "client", 6) != 6 || read(end, answer, sizeof answer - 1) <= 0) return NO_SERVER;
  daemon_end = end;
  return strcmp(answer, "served\n") ? strcmp(answer, "not ready\n") ? NO_SERVER : NOT_READY : 0;
}
static void tell_daemon(const char *what) {
  if (daemon_end >= 0 && write(daemon_end, what, 4) != 4) daemon_end = -1;
}

int cuInit(unsigned flags) {
  const char *device = getenv("FAKE_UVM"); /* in the place of /dev/nvidia-uvm */
  (void)flags;
  return device && access(device, F_OK) ? UNKNOWN : 0;
}
int cuGetErrorString(int code, const char **words) {
  *words = code == NOT_READY ? "MPS server is not ready" : code == UNKNOWN ? "unknown error" : "an error";
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) {
  (void)flags; (void)device; *context = &queued_ms;
  return reach_daemon();
}
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuModuleLoadData(void **module, const void *image) {
  *module = &queued_ms;
  return ((const char *)image)[0] ? 0 : NO_IMAGE;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strcmp(name, "fault") ? module : &faulted;
  return 0;
}
int cuLaunchKernel(void *function, unsigned blocks) {
  faulted |= function == &faulted;
  queued_ms += blocks / 1024.0;
  tell_daemon("busy");
  return 0;
}
int cuMemAlloc_v2(unsigned long long *at, size_t bytes) {
  const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"); /* 0=1024M */
  held += bytes;
  *at = 1;
  return limit && held > strtoul(limit + 2, 0, 10) << 20 ? NO_MEMORY : 0;
}
int cuCtxSynchronize(void) {
  const char *asked = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *all = getenv("FAKE_UNENFORCED");
  double percent = asked && !(all && !access(all, F_OK)) ? atof(asked) : 100;
  long ns = (long)(queued_ms * 1e6 * 100 / percent);
  struct timespec wait = {ns / 1000000000, ns % 1000000000};
  queued_ms = 0;
  if (faulted) close(open(fault, O_CREAT | O_WRONLY, 0666));
  faulted |= !access(fault, F_OK); /* one client's fault is every client's */
  if (!faulted) nanosleep(&wait, 0);
  tell_daemon("idle");
  return faulted ? LAUNCH_FAILED : 0;
}
