/* A FAKE of the few calls of libcuda that the probe makes: a kernel takes its time by the percentage in the
   environment, which the file named by FAKE_UNENFORCED makes it ignore. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int queued;

int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { (void)flags; (void)device; *context = &queued; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = &queued; return ((const char *)image)[0] ? 0 : 218; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)name; *function = module; return 0; }
int cuLaunchKernel(void *function) { (void)function; queued++; return 0; }
int cuCtxSynchronize(void) {
  const char *asked = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), *all = getenv("FAKE_UNENFORCED");
  double percent = asked && !(all && !access(all, F_OK)) ? atof(asked) : 100;
  long ns = (long)(queued * 1e6 * 100 / percent);
  struct timespec wait = {ns / 1000000000, ns % 1000000000};
  queued = 0;
  return nanosleep(&wait, 0);
}
