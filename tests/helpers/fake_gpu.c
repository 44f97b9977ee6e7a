/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for libamdhip64 (-DFAKE_HIP) or libcuda (-DFAKE_CUDA) that writes down what is called.
 *
 * Two devices. A test reads fake_log(), makes the nth next call of a function fail with
 * fake_fail(), and leaves functions out with -DWITHOUT_<name>. Modules and functions are made-up
 * addresses.
 */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kDevices = 2, kNotFound = 500 };

static char journal[1 << 16];
static char failing[64];
static int failing_after, failing_code;
static int devices = kDevices;
static char missing_kernel[64];

const char* fake_log(void) { return journal; }
void fake_clear(void) { journal[0] = '\0'; }
void fake_devices(int count) { devices = count; }
void fake_missing(const char* kernel) {
  snprintf(missing_kernel, sizeof missing_kernel, "%s", kernel);
}

/* Let the nth next call of `name` (1: the very next) return `code`. */
void fake_fail(const char* name, int nth, int code) {
  snprintf(failing, sizeof failing, "%s", name);
  failing_after = nth;
  failing_code = code;
}

static void note(const char* format, ...) {
  size_t used = strlen(journal);
  va_list values;
  va_start(values, format);
  vsnprintf(journal + used, sizeof journal - used, format, values);
  va_end(values);
}

static int outcome(const char* name) {
  if (strcmp(name, failing) != 0 || --failing_after != 0) return 0;
  failing[0] = '\0';
  return failing_code;
}

static int get_function(void** function, const char* name) {
  if (strcmp(name, missing_kernel) == 0) return kNotFound;
  *function = strdup(name); /* a launch can tell its kernel's name by it */
  return 0;
}

static void note_launch(int device, const void* function, unsigned grid_x, unsigned grid_y,
                        unsigned block_x, unsigned lds_bytes, const void* stream, void** params) {
  note("launch %s grid %u %u workgroup %u lds %u stream %p argument %d on %d\n",
       (const char*)function, grid_x, grid_y, block_x, lds_bytes, stream, *(const int*)params[0],
       device);
}

#ifdef FAKE_HIP

static _Thread_local int current;
static _Thread_local int capture_mode;
static _Thread_local int last_error;

static int hip(const char* name) {
  int code = outcome(name);
  if (code != 0) last_error = code;
  return code;
}

int fake_pending_error(void) { return last_error; }

int hipGetDeviceCount(int* count) {
  int code = hip("hipGetDeviceCount");
  *count = devices;
  return code;
}

int hipGetDevice(int* device) {
  *device = current;
  return hip("hipGetDevice");
}

int hipSetDevice(int device) {
  int code = hip("hipSetDevice");
  note("set %d\n", device);
  if (code == 0) current = device;
  return code;
}

int hipDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 63 || device < 0 || device >= devices) return last_error = 1;
  *value = 304 - 228 * device;
  return hip("hipDeviceGetAttribute");
}

static const char* arch_text = "gfx942:sramecc+:xnack-";

void fake_arch(const char* text) { arch_text = text; }

int fake_properties(char* base, int device, size_t arch_offset) {
  if (device < 0 || device >= devices) return last_error = 101;
  strcpy(base, "AMD Instinct of paper");
  strcpy(base + arch_offset, arch_text);
  return 0;
}

#ifndef WITHOUT_hipGetDeviceProperties
int hipGetDeviceProperties(void* base, int device) { return fake_properties(base, device, 396); }
#endif

#ifndef WITHOUT_hipGetDevicePropertiesR0600
int hipGetDevicePropertiesR0600(void* base, int device) {
  return fake_properties(base, device, 1160);
}
#endif

#ifndef WITHOUT_hipModuleLoadData
int hipModuleLoadData(void** module, const void* image) {
  int code = hip("hipModuleLoadData");
  note("load %s on %d capture mode %d\n", (const char*)image, current, capture_mode);
  *module = &journal;
  return code;
}
#endif

int hipModuleGetFunction(void** function, void* module, const char* name) {
  int code = hip("hipModuleGetFunction");
  (void)module;
  return code != 0 ? code : (last_error = get_function(function, name));
}

int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                          void* stream, void** params, void** extra) {
  int code = hip("hipModuleLaunchKernel");
  if (code == 0 && grid_z == 1 && block_y == 1 && block_z == 1 && extra == NULL)
    note_launch(current, function, grid_x, grid_y, block_x, lds_bytes, stream, params);
  return code;
}

#ifndef WITHOUT_hipThreadExchangeStreamCaptureMode
int hipThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}
#endif

int hipGetLastError(void) {
  int code = last_error;
  last_error = 0;
  return code;
}

const char* hipGetErrorName(int code) {
  switch (code) {
    case 1:
      return "hipErrorInvalidValue";
    case 100:
      return "hipErrorNoDevice";
    case 209:
      return "hipErrorNoBinaryForGpu";
    default:
      return "hipErrorUnknown";
  }
}

#endif /* FAKE_HIP */

#ifdef FAKE_CUDA

/* A context is an address whose last digit is its device: 0x100 + device is the primary one. */
static _Thread_local size_t current;
static _Thread_local int capture_mode;
static int initialised;

void fake_context(size_t context) { current = context; }
size_t fake_current_context(void) { return current; }

int cuInit(unsigned flags) {
  (void)flags;
  initialised = 1;
  return outcome("cuInit");
}

int cuDeviceGetCount(int* count) {
  *count = devices;
  return initialised ? outcome("cuDeviceGetCount") : 3;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < devices ? outcome("cuDeviceGet") : 101;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= devices) return 101;
  switch (attribute) {
    case 16:
      *value = 132;
      return 0;
    case 75:
      *value = 9;
      return 0;
    case 76:
      *value = 0;
      return 0;
    default:
      return 1;
  }
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  note("retain %d\n", device);
  *context = (void*)(size_t)(0x100 + device);
  return outcome("cuDevicePrimaryCtxRetain");
}

int cuCtxGetCurrent(void** context) {
  *context = (void*)current;
  return outcome("cuCtxGetCurrent");
}

int cuCtxSetCurrent(void* context) {
  int code = outcome("cuCtxSetCurrent");
  note("context %zx\n", (size_t)context);
  if (code == 0) current = (size_t)context;
  return code;
}

int cuCtxGetDevice(int* device) {
  *device = (int)(current & 0xf);
  return current == 0 ? 201 : 0;
}

int cuModuleLoadData(void** module, const void* image) {
  note("load %s on %d capture mode %d\n", (const char*)image, (int)(current & 0xf), capture_mode);
  *module = &journal;
  return outcome("cuModuleLoadData");
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  return get_function(function, name);
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                   void* stream, void** params, void** extra) {
  int code = outcome("cuLaunchKernel");
  if (current == 0) return 201;
  if (code == 0 && grid_z == 1 && block_y == 1 && block_z == 1 && extra == NULL)
    note_launch((int)(current & 0xf), function, grid_x, grid_y, block_x, lds_bytes, stream, params);
  return code;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}

int cuGetErrorName(int code, const char** name) {
  *name = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : NULL;
  return *name ? 0 : 1;
}

#endif /* FAKE_CUDA */
