/* A stand-in for NVIDIA's management library where no GPU is: two whole GPUs and one MIG slice, whose readings are made up.
   Signatures and structures are those of NVML's API reference; what it measures is not real, what calls it is. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
enum { WHOLE = 2, SLICE = WHOLE, COUNT };
#define MIB (1024ULL * 1024)

typedef struct { int index; } *Device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static struct { int index; } devices[COUNT] = {{0}, {1}, {SLICE}};
static const char *names[COUNT] = {"NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"};
static const char *uuids[COUNT] = {"GPU-11111111-aaaa", "GPU-22222222-bbbb", "MIG-77777777-cccc"};
static const unsigned watts[WHOLE] = {100, 150};

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { return snprintf(text, length, "550.0-stand-in"), SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = WHOLE, SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  if (index >= WHOLE) return INVALID_ARGUMENT;
  *device = (Device)&devices[index];
  return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
  for (int index = 0; index < COUNT; index++)
    if (!strcmp(uuid, uuids[index])) return *device = (Device)&devices[index], SUCCESS;
  return NOT_FOUND;
}
int nvmlDeviceGetName(Device device, char *text, unsigned length) { return snprintf(text, length, "%s", names[device->index]), SUCCESS; }
int nvmlDeviceGetUUID(Device device, char *text, unsigned length) { return snprintf(text, length, "%s", uuids[device->index]), SUCCESS; }

int nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
  if (device->index == SLICE) return NOT_SUPPORTED;
  rates->gpu = 20 + 40 * device->index;
  rates->memory = 5;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
  memory->total = 81920 * MIB, memory->used = 1500 * MIB, memory->free = memory->total - memory->used;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
  if (memory->version != (sizeof(MemoryV2) | 2 << 24)) return INVALID_ARGUMENT;
  memory->total = 81920 * MIB, memory->reserved = 500 * MIB, memory->used = 1000 * MIB * (device->index + 1);
  memory->free = memory->total - memory->reserved - memory->used;
  return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
  if (device->index == SLICE) return NOT_SUPPORTED;
  return *milliwatts = 1000 * watts[device->index], SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
  struct timespec now;
  if (device->index == SLICE) return NOT_SUPPORTED;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoules = watts[device->index] * (1000ULL * now.tv_sec + now.tv_nsec / 1000000);
  return SUCCESS;
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) { return *celsius = 50 + device->index, SUCCESS; }
int nvmlDeviceGetClockInfo(Device device, int clock, unsigned *mhz) { return *mhz = 1200 + 100 * device->index, SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons) { return *reasons = 1ULL << device->index, SUCCESS; }

/* On each device the process that started the caller, the cell's, and one that is nobody's. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
  if (*count < 2) return *count = 2, 7; /* insufficient size */
  *count = 2;
  processes[0] = (Process){getppid(), 300 * MIB, -1, -1};
  processes[1] = (Process){1, 500 * MIB, -1, -1};
  return SUCCESS;
}
