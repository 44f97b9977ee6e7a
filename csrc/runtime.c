/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime table's fillings for HIP and CUDA, and what every launch goes through.
 *
 * The library is looked up among those that the process has already, by path, and bound with
 * RTLD_NOLOAD. Torch wheels bundle a libamdhip64 of their own; linking one, or opening one by name,
 * would bring a second runtime whose streams and modules the first does not know. So nothing here
 * is linked, nothing is loaded, and no GPU header is read: the few prototypes, constants and
 * offsets below are those of the public ABIs.
 *
 * The HIP filling has run against HIP 5.2.3 without a GPU, and for the rest against a fake library
 * (tests/helpers/fake_gpu.c), ROCm 6's property layout included; on no AMD GPU yet.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"

enum { kInvalidValue = 1, kNotFound = 500 }; /* the same codes in HIP and CUDA */
enum { kCaptureModeRelaxed = 2 };            /* the same value in HIP and CUDA */
enum { kMaxDevices = 64 };
enum { kDlpackCuda = 2, kDlpackRocm = 10 };

/* ---- finding the library -------------------------------------------------------------------- */

typedef struct Search {
  const char* prefix;
  char path[PATH_MAX];
} Search;

/* dl_iterate_phdr holds the loader's lock: only copy here, dlopen comes after. The first match
 * wins, as in Triton: it is the one that torch brought when the process imported torch first. */
static int match_library(struct dl_phdr_info* info, size_t size, void* data) {
  Search* search = data;
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* base = slash ? slash + 1 : info->dlpi_name;
  (void)size;
  if (strncmp(base, search->prefix, strlen(search->prefix)) != 0) return 0;
  if (strlen(info->dlpi_name) >= sizeof search->path) return 0;
  strcpy(search->path, info->dlpi_name);
  return 1;
}

typedef struct Symbol {
  void** slot;
  const char* name;
  int optional;
} Symbol;

/* Bind every symbol, or say in `why` what is missing. On success `why` holds the library's path. */
static int bind_library(const char* prefix, const Symbol* symbols, size_t count, char* why,
                        size_t why_size) {
  Search search = {.prefix = prefix};
  if (!dl_iterate_phdr(match_library, &search)) {
    snprintf(why, why_size, "no %s is loaded in this process", prefix);
    return 0;
  }
  /* Never closed: the table points into the library for the rest of the process. */
  void* library = dlopen(search.path, RTLD_NOLOAD | RTLD_NOW);
  if (library == NULL) {
    snprintf(why, why_size, "%s is loaded but cannot be bound", search.path);
    return 0;
  }
  for (size_t i = 0; i < count; i++) {
    *symbols[i].slot = dlsym(library, symbols[i].name);
    if (*symbols[i].slot == NULL && !symbols[i].optional) {
      snprintf(why, why_size, "%s has no %s", search.path, symbols[i].name);
      return 0;
    }
  }
  snprintf(why, why_size, "%s", search.path);
  return 1;
}

/* ---- HIP ------------------------------------------------------------------------------------- */

static struct {
  int (*get_device_count)(int* count);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*get_device_properties)(void* properties, int device); /* hipDeviceProp_t up to ROCm 5 */
  int (*get_device_properties_r0600)(void* properties, int device); /* since ROCm 6 */
  int (*module_load_data)(void** module, const void* image);
  int (*module_get_function)(void** function, void* module, const char* name);
  int (*module_launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned lds_bytes, void* stream, void** params, void** extra);
  int (*thread_exchange_stream_capture_mode)(int* mode);
  int (*get_last_error)(void);
  const char* (*get_error_name)(int code);
} hip;

static const Symbol kHipSymbols[] = {
    {(void**)&hip.get_device_count, "hipGetDeviceCount", 0},
    {(void**)&hip.get_device, "hipGetDevice", 0},
    {(void**)&hip.set_device, "hipSetDevice", 0},
    {(void**)&hip.device_get_attribute, "hipDeviceGetAttribute", 0},
    {(void**)&hip.get_device_properties, "hipGetDeviceProperties", 1},
    {(void**)&hip.get_device_properties_r0600, "hipGetDevicePropertiesR0600", 1},
    {(void**)&hip.module_load_data, "hipModuleLoadData", 0},
    {(void**)&hip.module_get_function, "hipModuleGetFunction", 0},
    {(void**)&hip.module_launch_kernel, "hipModuleLaunchKernel", 0},
    {(void**)&hip.thread_exchange_stream_capture_mode, "hipThreadExchangeStreamCaptureMode", 1},
    {(void**)&hip.get_last_error, "hipGetLastError", 0},
    {(void**)&hip.get_error_name, "hipGetErrorName", 0},
};

/* hipDeviceAttributeMultiprocessorCount, in HIP 5.2.3 and since. */
enum { kHipMultiprocessorCount = 63 };

/* HIP remembers a failed call until somebody asks. Whoever asks next is torch, after its own
 * launch, and it would raise our error: a hook that answers False must leave none behind. */
static int hip_result(int code) {
  if (code != 0) hip.get_last_error();
  return code;
}

static int hip_current_device(int* device) { return hip_result(hip.get_device(device)); }

static int hip_set_device(int device) { return hip_result(hip.set_device(device)); }

static int hip_compute_units(int device, int* count) {
  return hip_result(hip.device_get_attribute(count, kHipMultiprocessorCount, device));
}

/* gcnArchName has no call of its own, and its offset moved with ROCm 6, where the new layout has a
 * symbol of its own and the old symbol keeps the old one. The text must look like one: a layout
 * that moves again is an error, not a guess. */
static int hip_arch(int device, char* text, size_t size) {
  enum { kArchOffset = 396, kArchOffsetR0600 = 1160, kArchBytes = 256 };
  static const char kPrefix[] = "gfx";
  /* The known layouts have 792 and 1,472 bytes; room for longer ones. */
  _Alignas(16) char properties[8192] = {0};
  const char* arch =
      properties + (hip.get_device_properties_r0600 ? kArchOffsetR0600 : kArchOffset);
  int code = hip_result(hip.get_device_properties_r0600
                            ? hip.get_device_properties_r0600(properties, device)
                            : hip.get_device_properties(properties, device));
  if (code != 0) return code;
  if (strncmp(arch, kPrefix, strlen(kPrefix)) != 0 || memchr(arch, '\0', kArchBytes) == NULL ||
      strlen(arch) >= size)
    return kInvalidValue;
  strcpy(text, arch);
  return 0;
}

/* A load allocates and may synchronise, which a capture of this thread would forbid in its strict
 * modes. Nothing that is captured depends on it, so the thread is relaxed for its duration: a
 * process's first call may come inside a capture. */
static int load_relaxed(int (*exchange_mode)(int*), int (*load)(void**, const void*),
                        const void* image, void** module) {
  int mode = kCaptureModeRelaxed;
  int exchanged = exchange_mode != NULL && exchange_mode(&mode) == 0;
  int code = load(module, image);
  if (exchanged) exchange_mode(&mode);
  return code;
}

static int hip_load(int device, const void* image, void** module) {
  (void)device; /* current already: see dsv41_device_load */
  return hip_result(
      load_relaxed(hip.thread_exchange_stream_capture_mode, hip.module_load_data, image, module));
}

static int hip_get_function(void* module, const char* name, void** function) {
  return hip_result(hip.module_get_function(function, module, name));
}

/* Takes the grid in workgroups, as CUDA does (hipExtModuleLaunchKernel would take work-items). */
static int hip_launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                      void* stream, void** params, void** extra) {
  return hip_result(hip.module_launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y,
                                             block_z, lds_bytes, stream, params, extra));
}

static const char* hip_error_text(int code) {
  const char* name = hip.get_error_name(code);
  return name ? name : "unknown HIP error";
}

static const Dsv41Runtime kHip = {
    .name = "hip",
    .dlpack_device = kDlpackRocm,
    .load = hip_load,
    .get_function = hip_get_function,
    .launch = hip_launch,
    .current_device = hip_current_device,
    .set_device = hip_set_device,
    .compute_units = hip_compute_units,
    .arch = hip_arch,
    .error_text = hip_error_text,
};

static int hip_open(char* why, size_t why_size) {
  if (!bind_library("libamdhip64.so", kHipSymbols, sizeof kHipSymbols / sizeof *kHipSymbols, why,
                    why_size))
    return 0;
  if (hip.get_device_properties == NULL && hip.get_device_properties_r0600 == NULL) {
    snprintf(why, why_size,
             "libamdhip64.so has neither hipGetDevicePropertiesR0600 nor hipGetDeviceProperties");
    return 0;
  }
  return 1;
}

static int hip_device_count(int* count) { return hip_result(hip.get_device_count(count)); }

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* CUlaunchAttribute and CUlaunchConfig of CUDA 12. */
typedef struct CudaLaunchAttribute {
  int id;
  int pad;
  union {
    int programmatic_stream_serialization;
    char bytes[64];
  } value;
} CudaLaunchAttribute;

typedef struct CudaLaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, lds_bytes;
  void* stream;
  CudaLaunchAttribute* attributes;
  unsigned attribute_count;
} CudaLaunchConfig;

_Static_assert(sizeof(CudaLaunchAttribute) == 72 && sizeof(CudaLaunchConfig) == 56,
               "the driver's own sizes");

static struct {
  int (*init)(unsigned flags);
  int (*device_get_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*device_primary_ctx_retain)(void** context, int device);
  int (*ctx_get_current)(void** context);
  int (*ctx_set_current)(void* context);
  int (*ctx_get_device)(int* device);
  int (*module_load_data)(void** module, const void* image);
  int (*module_get_function)(void** function, void* module, const char* name);
  int (*launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                       void* stream, void** params, void** extra);
  int (*launch_kernel_ex)(const CudaLaunchConfig* config, void* function, void** params,
                          void** extra);
  int (*thread_exchange_stream_capture_mode)(int* mode);
  int (*get_error_name)(int code, const char** name);
} cuda;

static const Symbol kCudaSymbols[] = {
    {(void**)&cuda.init, "cuInit", 0},
    {(void**)&cuda.device_get_count, "cuDeviceGetCount", 0},
    {(void**)&cuda.device_get, "cuDeviceGet", 0},
    {(void**)&cuda.device_get_attribute, "cuDeviceGetAttribute", 0},
    {(void**)&cuda.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain", 0},
    {(void**)&cuda.ctx_get_current, "cuCtxGetCurrent", 0},
    {(void**)&cuda.ctx_set_current, "cuCtxSetCurrent", 0},
    {(void**)&cuda.ctx_get_device, "cuCtxGetDevice", 0},
    {(void**)&cuda.module_load_data, "cuModuleLoadData", 0},
    {(void**)&cuda.module_get_function, "cuModuleGetFunction", 0},
    {(void**)&cuda.launch_kernel, "cuLaunchKernel", 0},
    {(void**)&cuda.launch_kernel_ex, "cuLaunchKernelEx", 1},
    {(void**)&cuda.thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode", 1},
    {(void**)&cuda.get_error_name, "cuGetErrorName", 0},
};

enum { kCudaMultiprocessorCount = 16, kCudaCapabilityMajor = 75, kCudaCapabilityMinor = 76 };

/* The driver knows contexts, not a current device. A thread that has none yet reads as device -1.
 */
static int cuda_current_device(int* device) {
  void* context = NULL;
  int code = cuda.ctx_get_current(&context);
  *device = -1;
  return code != 0 || context == NULL ? code : cuda.ctx_get_device(device);
}

/* The primary context is the one that torch's runtime API uses. One reference a device, held for
 * the process: without it a released primary context would take the loaded module with it. */
static int cuda_primary_context(int device, void** context) {
  static void* retained[kMaxDevices];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  int handle, code = 0;
  if (device < 0 || device >= kMaxDevices) return kInvalidValue;
  pthread_mutex_lock(&lock);
  if (retained[device] == NULL && (code = cuda.device_get(&handle, device)) == 0)
    code = cuda.device_primary_ctx_retain(&retained[device], handle);
  *context = retained[device];
  pthread_mutex_unlock(&lock);
  return code;
}

/* Going back must give the thread the context that it had, which need not be its device's primary
 * one: the context that a switch displaces is kept until the switch back asks for its device. */
static int cuda_set_device(int device) {
  static _Thread_local struct {
    void* context;
    int device;
  } displaced = {NULL, -1};
  void* wanted = NULL;
  void* current = NULL;
  int current_device, code;
  if ((code = cuda.ctx_get_current(&current)) != 0) return code;
  if ((code = cuda_current_device(&current_device)) != 0) return code;
  if (device >= 0 && device == displaced.device)
    wanted = displaced.context;
  else if (device >= 0 && (code = cuda_primary_context(device, &wanted)) != 0)
    return code;
  displaced.context = current;
  displaced.device = current_device;
  return cuda.ctx_set_current(wanted);
}

static int cuda_compute_units(int device, int* count) {
  return cuda.device_get_attribute(count, kCudaMultiprocessorCount, device);
}

static int cuda_arch(int device, char* text, size_t size) {
  int major, minor, code;
  if ((code = cuda.device_get_attribute(&major, kCudaCapabilityMajor, device)) != 0) return code;
  if ((code = cuda.device_get_attribute(&minor, kCudaCapabilityMinor, device)) != 0) return code;
  return snprintf(text, size, "sm_%d%d", major, minor) < (int)size ? 0 : kInvalidValue;
}

static int cuda_load(int device, const void* image, void** module) {
  (void)device; /* current already: see dsv41_device_load */
  return load_relaxed(cuda.thread_exchange_stream_capture_mode, cuda.module_load_data, image,
                      module);
}

static int cuda_get_function(void* module, const char* name, void** function) {
  return cuda.module_get_function(function, module, name);
}

static int cuda_launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                       void* stream, void** params, void** extra) {
  enum { kProgrammaticStreamSerialization = 6 };
  if (cuda.launch_kernel_ex == NULL)
    return cuda.launch_kernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                              lds_bytes, stream, params, extra);
  CudaLaunchAttribute overlap = {.id = kProgrammaticStreamSerialization,
                                 .value.programmatic_stream_serialization = 1};
  CudaLaunchConfig config = {grid_x,  grid_y,    grid_z, block_x,  block_y,
                             block_z, lds_bytes, stream, &overlap, 1};
  return cuda.launch_kernel_ex(&config, function, params, extra);
}

static const char* cuda_error_text(int code) {
  const char* name = NULL;
  return cuda.get_error_name(code, &name) == 0 && name ? name : "unknown CUDA error";
}

static const Dsv41Runtime kCuda = {
    .name = "cuda",
    .dlpack_device = kDlpackCuda,
    .load = cuda_load,
    .get_function = cuda_get_function,
    .launch = cuda_launch,
    .current_device = cuda_current_device,
    .set_device = cuda_set_device,
    .compute_units = cuda_compute_units,
    .arch = cuda_arch,
    .error_text = cuda_error_text,
};

static int cuda_open(char* why, size_t why_size) {
  return bind_library("libcuda.so", kCudaSymbols, sizeof kCudaSymbols / sizeof *kCudaSymbols, why,
                      why_size);
}

static int cuda_device_count(int* count) {
  int code = cuda.init(0);
  return code != 0 ? code : cuda.device_get_count(count);
}

/* ---- the public face ------------------------------------------------------------------------ */

typedef struct Filling {
  const Dsv41Runtime* runtime;
  int (*open)(char* why, size_t why_size);
  int (*device_count)(int* count);
  const char* device_count_name;
  int bound;
} Filling;

static Filling fillings[] = {
    {&kHip, hip_open, hip_device_count, "hipGetDeviceCount", 0},
    {&kCuda, cuda_open, cuda_device_count, "cuDeviceGetCount", 0},
};

const Dsv41Runtime* dsv41_runtime_find(const char* name, char* why, size_t why_size) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Filling* filling = NULL;
  int bound, code, count = 0;
  for (size_t i = 0; i < sizeof fillings / sizeof *fillings; i++)
    if (strcmp(fillings[i].runtime->name, name) == 0) filling = &fillings[i];
  if (filling == NULL) {
    snprintf(why, why_size, "no runtime is called %s", name);
    return NULL;
  }
  /* Only binding is under the lock: asking for devices can take seconds, and a fork meanwhile would
   * keep it locked. A failure is not kept: the process may load the library later. */
  pthread_mutex_lock(&lock);
  bound = filling->bound = filling->bound || filling->open(why, why_size);
  pthread_mutex_unlock(&lock);
  if (!bound) return NULL;
  if ((code = filling->device_count(&count)) != 0) {
    snprintf(why, why_size, "%s (%d) from %s", filling->runtime->error_text(code), code,
             filling->device_count_name);
    return NULL;
  }
  if (count < 1) {
    snprintf(why, why_size, "%s finds no device", filling->device_count_name);
    return NULL;
  }
  return filling->runtime;
}

const char* dsv41_error_text(const Dsv41Runtime* runtime, int code) {
  switch (code) {
    case DSV41_OK:
      return "no error";
    case DSV41_NO_MEMORY:
      return "out of memory";
    case DSV41_NO_DEVICE:
      return "no device";
    case DSV41_NO_KERNEL:
      return "kernel not in the code object";
    default:
      return runtime ? runtime->error_text(code) : "unknown error";
  }
}

static int fail(Dsv41Failure* failure, int code, const char* kernel) {
  failure->code = code;
  failure->kernel = kernel;
  return code;
}

/* Make `ordinal` current. *previous is where to go back to, or `ordinal` itself when it was
 * current. */
static int enter_device(const Dsv41Runtime* runtime, int ordinal, int* previous) {
  int code = runtime->current_device(previous);
  return code != 0 || *previous == ordinal ? code : runtime->set_device(ordinal);
}

static int leave_device(const Dsv41Runtime* runtime, int ordinal, int previous) {
  return previous == ordinal ? 0 : runtime->set_device(previous);
}

int dsv41_device_load(const Dsv41Runtime* runtime, int ordinal, const void* image,
                      Dsv41Device* device, Dsv41Failure* failure) {
  Dsv41Device loaded = {.runtime = runtime, .ordinal = ordinal};
  const char* step = "device switch";
  int previous, code, found = 0;
  failure->launched = 0;
  if ((code = enter_device(runtime, ordinal, &previous)) != 0) return fail(failure, code, step);
  step = "compute units";
  code = runtime->compute_units(ordinal, &loaded.compute_units);
  if (code == 0) {
    step = "module load";
    code = runtime->load(ordinal, image, &loaded.module);
  }
  for (int kernel = 0; code == 0 && kernel < DSV41_KERNEL_COUNT; kernel++) {
    step = dsv41_kernel_name(kernel);
    code = runtime->get_function(loaded.module, step, &loaded.functions[kernel]);
    if (code == 0) found++;
    if (code == kNotFound) {
      loaded.functions[kernel] = NULL;
      code = 0;
    }
  }
  if (code == 0 && found == 0) {
    step = "module load";
    code = DSV41_NO_KERNEL;
  }
  int restored = leave_device(runtime, ordinal, previous);
  if (code != 0) return fail(failure, code, step);
  if (restored != 0) return fail(failure, restored, "device switch back");
  *device = loaded;
  return fail(failure, DSV41_OK, NULL);
}

int dsv41_function_launch(const Dsv41Runtime* runtime, int ordinal, void* function,
                          const char* name, unsigned grid_x, unsigned grid_y, unsigned block_x,
                          unsigned lds_bytes, void* stream, void** params, Dsv41Failure* failure) {
  int previous, code, restored;
  if (function == NULL) return fail(failure, DSV41_NO_KERNEL, name);
  /* The dispatch packet of AMD's queues holds the grid in work-items, 32 bits: a larger one would
   * wrap. */
  if ((uint64_t)grid_x * grid_y * block_x > UINT32_MAX) return fail(failure, kInvalidValue, name);
  if ((code = enter_device(runtime, ordinal, &previous)) != 0)
    return fail(failure, code, "device switch");
  code =
      runtime->launch(function, grid_x, grid_y, 1, block_x, 1, 1, lds_bytes, stream, params, NULL);
  restored = leave_device(runtime, ordinal, previous);
  if (code != 0) return fail(failure, code, name);
  failure->launched++;
  return restored != 0 ? fail(failure, restored, "device switch back") : DSV41_OK;
}

int dsv41_device_launch(const Dsv41Device* device, int kernel, unsigned grid_x, unsigned grid_y,
                        unsigned block_x, void* stream, const void* args, Dsv41Failure* failure) {
  void* params[] = {(void*)args};
  return dsv41_function_launch(device->runtime, device->ordinal, device->functions[kernel],
                               dsv41_kernel_name(kernel), grid_x, grid_y, block_x, 0, stream,
                               params, failure);
}
