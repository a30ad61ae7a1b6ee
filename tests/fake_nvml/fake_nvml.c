/* A libnvidia-ml.so.1 without a GPU: the calls clockwright makes, over a shared state file.
 *
 * FAKE_NVML_STATE names the file. Every call holds an flock on it, which the kernel frees when a
 * process is killed, so a kill -9 at any moment leaves a consistent file. What is modelled: clock
 * tables, locks (that hold or do not, at once or late, before or after a slow call), power, an
 * energy counter that moves in steps, reasons over time, rights, and an error code for any call.
 * What is not: anything computed on a GPU. */
#define _GNU_SOURCE
#include "fake_nvml.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, DEPRECATED = 26
};

static struct fake_state *state;
static char path[4096];
static int file = -1;
static pid_t file_owner;
static int references;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock_state(void) {
    if (file_owner != getpid()) { /* after a fork: an inherited descriptor shares its flock */
        pthread_mutex_init(&mutex, NULL);
        file = open(path, O_RDWR | O_CLOEXEC);
        file_owner = getpid();
    }
    pthread_mutex_lock(&mutex);
    while (flock(file, LOCK_EX) != 0) {}
}

static void unlock_state(void) {
    flock(file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

static int64_t now_ns(void) {
    struct timespec t;
    if (state->manual_now_ns >= 0) return state->manual_now_ns;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void wait_ns(int64_t ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0) nanosleep(&t, NULL);
}

/* The code scripted for this call; NONE if none is. A setter scripted to succeed does nothing. */
#define NONE (-1)
static int scripted(const char *call, int gpu) {
    for (int i = 0; i < FAKE_ERRORS; i++) {
        struct fake_error *e = &state->error[i];
        if (!e->call[0] || e->times == 0 || (e->gpu >= 0 && e->gpu != gpu)) continue;
        if (strcmp(e->call, call) != 0 && strcmp(e->call, "*") != 0) continue;
        if (e->skip > 0) { e->skip--; continue; }
        if (e->times > 0) e->times--;
        return e->code;
    }
    return NONE;
}

/* Locks the state and resolves the device; on failure the state is unlocked again. */
static int enter(const char *call, nvmlDevice_t device, struct fake_gpu **gpu) {
    int index = (int)(intptr_t)device - 1, code;
    if (!state || references == 0) return UNINITIALIZED;
    lock_state();
    if (gpu && (index < 0 || index >= state->gpus)) code = INVALID_ARGUMENT;
    else code = scripted(call, gpu ? index : -1);
    if (code > SUCCESS) { unlock_state(); return code; }
    if (gpu) *gpu = &state->gpu[index];
    return SUCCESS;
}

#define ENTER(gpu) do { int code_ = enter(__func__, device, &gpu); if (code_) return code_; } while (0)
#define LEAVE(code) do { unlock_state(); return (code); } while (0)

static int copy_text(char *to, unsigned size, const char *from) {
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    memset(to, 0, size);
    strcpy(to, from);
    return SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    const char *wanted = getenv("FAKE_NVML_STATE");
    int code;
    (void)flags;
    if (!wanted || strlen(wanted) >= sizeof path) return DRIVER_NOT_LOADED;
    if (state && references == 0) {
        munmap(state, sizeof *state);
        if (file_owner == getpid()) close(file);
        state = NULL;
    }
    if (!state) {
        int fd = open(wanted, O_RDWR | O_CLOEXEC);
        void *map = fd < 0 ? MAP_FAILED
                           : mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) return DRIVER_NOT_LOADED;
        state = map; file = fd; file_owner = getpid();
        strcpy(path, wanted);
        if (state->magic != FAKE_MAGIC || state->version != FAKE_VERSION) abort();
    }
    lock_state();
    code = scripted("nvmlInitWithFlags", -1);
    if (code <= SUCCESS) references++;
    LEAVE(code <= SUCCESS ? SUCCESS : code);
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    if (!state || references == 0) return UNINITIALIZED;
    references--;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    static __thread char text[48];
    snprintf(text, sizeof text, "fake NVML code %d", code);
    return text;
}

/* Sizes in the order of layout.py's check. */
void fake_nvml_sizes(int64_t *sizes) {
    sizes[0] = sizeof(struct fake_moment); sizes[1] = sizeof(struct fake_process);
    sizes[2] = sizeof(struct fake_lock); sizes[3] = sizeof(struct fake_gpu);
    sizes[4] = sizeof(struct fake_error); sizes[5] = sizeof(struct fake_entry);
    sizes[6] = sizeof(struct fake_state);
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    LEAVE(copy_text(version, size, state->driver));
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    LEAVE(copy_text(version, size, "13.fake"));
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    *count = (unsigned)state->gpus;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    if (index >= (unsigned)state->gpus) LEAVE(INVALID_ARGUMENT);
    *device = (nvmlDevice_t)(intptr_t)(index + 1);
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    int code = enter(__func__, NULL, NULL);
    if (code) return code;
    for (int i = 0; i < state->gpus; i++)
        if (strcmp(state->gpu[i].uuid, uuid) == 0) {
            *device = (nvmlDevice_t)(intptr_t)(i + 1);
            LEAVE(SUCCESS);
        }
    LEAVE(NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *index = (unsigned)(gpu - state->gpu);
    LEAVE(SUCCESS);
}

#define TEXT(function, field)                                                       \
    nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned size) {         \
        struct fake_gpu *gpu;                                                       \
        ENTER(gpu);                                                                 \
        LEAVE(copy_text(text, size, gpu->field));                                   \
    }
TEXT(nvmlDeviceGetName, name)
TEXT(nvmlDeviceGetUUID, uuid)
TEXT(nvmlDeviceGetVbiosVersion, vbios)

#define NUMBER(function, expression)                                                \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *value) {                   \
        struct fake_gpu *gpu;                                                       \
        ENTER(gpu);                                                                 \
        *value = (unsigned)(expression);                                            \
        LEAVE(SUCCESS);                                                             \
    }
NUMBER(nvmlDeviceGetBrand, 2)
NUMBER(nvmlDeviceGetPersistenceMode, gpu->persistence)
NUMBER(nvmlDeviceGetPowerManagementLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu->default_power_limit_mw)

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *info) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    memset(info, 0, sizeof *info);
    strcpy(info->bus_id, gpu->bus_id);
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, unsigned long long *memory) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    memory[0] = memory[1] = gpu->memory_bytes;
    memory[2] = 0;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    if (gpu->mig_mode < 0) LEAVE(NOT_SUPPORTED);
    *current = *pending = (unsigned)gpu->mig_mode;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count,
                                                unsigned *clocks) {
    struct fake_gpu *gpu;
    unsigned room = *count;
    ENTER(gpu);
    *count = (unsigned)gpu->mem_rows;
    if (room < *count) LEAVE(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < *count; i++) clocks[i] = gpu->mem_mhz[i];
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned mem_mhz,
                                                  unsigned *count, unsigned *clocks) {
    struct fake_gpu *gpu;
    unsigned room = *count;
    ENTER(gpu);
    for (int row = 0; row < gpu->mem_rows; row++) {
        if (gpu->mem_mhz[row] != mem_mhz) continue;
        if (gpu->row_error[row]) LEAVE(gpu->row_error[row]);
        *count = (unsigned)gpu->core_counts[row];
        if (room < *count) LEAVE(INSUFFICIENT_SIZE);
        for (unsigned i = 0; i < *count; i++) clocks[i] = gpu->core_mhz[row][i];
        LEAVE(SUCCESS);
    }
    LEAVE(NOT_FOUND);
}

static const struct fake_moment *moment_at(const struct fake_gpu *gpu, int64_t since_ns) {
    const struct fake_moment *found = &gpu->moment[0];
    for (int i = 1; i < gpu->moments; i++)
        if (gpu->moment[i].after_ns <= since_ns) found = &gpu->moment[i];
    return found;
}

static uint32_t clamp(uint32_t mhz, const struct fake_lock *lock) {
    if (!lock->max_mhz) return mhz;
    if (mhz < lock->min_mhz) return lock->min_mhz;
    return mhz > lock->max_mhz ? lock->max_mhz : mhz;
}

static uint32_t clock_now(const struct fake_gpu *gpu, int memory) {
    const struct fake_lock *lock = memory ? &gpu->mem_lock : &gpu->core_lock;
    const struct fake_moment *moment = moment_at(gpu, now_ns() - state->epoch_ns);
    uint32_t mhz = memory ? gpu->governor_mem_mhz : gpu->governor_core_mhz;
    if (memory ? gpu->mem_lock_holds : gpu->core_lock_holds) mhz = clamp(mhz, lock);
    if (lock->before_mhz && now_ns() < lock->at_ns + gpu->settle_ns) mhz = lock->before_mhz;
    if (!memory && moment->core_cap_mhz && mhz > moment->core_cap_mhz) mhz = moment->core_cap_mhz;
    return mhz;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *mhz = clock_now(gpu, type == 2);
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *mhz) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *mhz = type == 2 ? gpu->governor_mem_mhz : gpu->governor_core_mhz;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, int type, unsigned *mhz) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    if (!gpu->app_core_mhz) LEAVE(DEPRECATED);
    *mhz = type == 2 ? gpu->app_mem_mhz : gpu->app_core_mhz;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    if (sensor != 0) LEAVE(INVALID_ARGUMENT);
    *celsius = (unsigned)moment_at(gpu, now_ns() - state->epoch_ns)->temperature_c;
    LEAVE(SUCCESS);
}

struct temperature {
    unsigned version;
    int sensor, celsius;
};
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *temperature) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    if (temperature->sensor != 0) LEAVE(INVALID_ARGUMENT);
    temperature->celsius = moment_at(gpu, now_ns() - state->epoch_ns)->temperature_c;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned *rates) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    rates[0] = moment_at(gpu, now_ns() - state->epoch_ns)->utilization_percent;
    rates[1] = 0;
    LEAVE(SUCCESS);
}

static int64_t last_update_ns(const struct fake_gpu *gpu) {
    int64_t since_ns = now_ns() - state->epoch_ns;
    return gpu->energy_period_ns > 0 ? since_ns - since_ns % gpu->energy_period_ns : since_ns;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *mw) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *mw = moment_at(gpu, last_update_ns(gpu))->power_mw;
    LEAVE(SUCCESS);
}

/* Energy from the epoch to since_ns: the moments' powers, integrated. 1 mW ns = 1e-9 mJ. */
static int64_t integral_mj(const struct fake_gpu *gpu, int64_t since_ns) {
    __int128 total = 0;
    for (int i = 0; i < gpu->moments; i++) {
        int64_t from = gpu->moment[i].after_ns;
        int64_t to = i + 1 < gpu->moments ? gpu->moment[i + 1].after_ns : since_ns;
        if (to > since_ns) to = since_ns;
        if (to > from) total += (__int128)gpu->moment[i].power_mw * (to - from);
    }
    return (int64_t)(total / 1000000000);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj) {
    struct fake_gpu *gpu;
    int64_t since_ns, total;
    ENTER(gpu);
    since_ns = last_update_ns(gpu);
    total = integral_mj(gpu, since_ns);
    if (gpu->energy_reset_ns >= 0 && since_ns >= gpu->energy_reset_ns)
        total -= integral_mj(gpu, gpu->energy_reset_ns);
    else
        total += gpu->energy_base_mj;
    *mj = (unsigned long long)total;
    LEAVE(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *reasons = moment_at(gpu, now_ns() - state->epoch_ns)->reasons;
    LEAVE(SUCCESS);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *reasons) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *reasons = moment_at(gpu, now_ns() - state->epoch_ns)->reasons;
    LEAVE(SUCCESS);
}

struct process_info {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
};
static int list_processes(const struct fake_gpu *gpu, unsigned mps, unsigned *count,
                          struct process_info *infos) {
    unsigned room = *count, found = 0;
    for (int i = 0; i < gpu->processes; i++) {
        if (gpu->process[i].mps != mps) continue;
        if (found < room && infos) {
            memset(&infos[found], 0xff, sizeof infos[found]);
            infos[found].pid = gpu->process[i].pid;
            infos[found].used_memory = gpu->process[i].memory_bytes;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     struct process_info *infos) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    LEAVE(list_processes(gpu, 0, count, infos));
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        struct process_info *infos) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    LEAVE(list_processes(gpu, 1, count, infos));
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least,
                                                          unsigned *most) {
    struct fake_gpu *gpu;
    ENTER(gpu);
    *least = gpu->least_power_limit_mw;
    *most = gpu->most_power_limit_mw;
    LEAVE(SUCCESS);
}

/* --- Setters: all go through `set`, which checks rights, waits, acts and logs. --- */

enum action { LOCK_CORE, LOCK_MEM, RESET_CORE, RESET_MEM, POWER_LIMIT };

static void act(struct fake_gpu *gpu, enum action action, uint32_t low, uint32_t high) {
    int memory = action == LOCK_MEM || action == RESET_MEM;
    struct fake_lock *lock = memory ? &gpu->mem_lock : &gpu->core_lock;
    if (action == POWER_LIMIT) {
        gpu->power_limit_mw = low;
        return;
    }
    lock->before_mhz = clock_now(gpu, memory);
    lock->at_ns = now_ns();
    lock->pid = (uint32_t)getpid();
    lock->min_mhz = low;
    lock->max_mhz = high;
}

static int allowed(void) {
    const char *root = getenv("FAKE_NVML_ROOT");
    if (state->permission == 0) return 1;
    return state->permission == 2 && root && strcmp(root, "1") == 0;
}

static int refuse(const struct fake_gpu *gpu, enum action action, uint32_t low, uint32_t high) {
    if (!allowed()) return NO_PERMISSION;
    if (action == POWER_LIMIT && (low < gpu->least_power_limit_mw || low > gpu->most_power_limit_mw))
        return INVALID_ARGUMENT;
    if ((action == LOCK_CORE || action == LOCK_MEM) && (low == 0 || low > high))
        return INVALID_ARGUMENT;
    return SUCCESS;
}

static void record(const char *call, int gpu, uint32_t low, uint32_t high, int code) {
    struct fake_entry *entry = &state->log[state->logged % FAKE_LOG];
    memset(entry, 0, sizeof *entry);
    entry->at_ns = now_ns();
    entry->pid = (uint32_t)getpid();
    entry->gpu = gpu;
    entry->low = low;
    entry->high = high;
    entry->code = code;
    snprintf(entry->call, sizeof entry->call, "%s", call);
    __sync_synchronize();
    state->logged++;
}

static int set(const char *call, nvmlDevice_t device, enum action action, uint32_t low,
               uint32_t high) {
    int index = (int)(intptr_t)device - 1, code;
    struct fake_gpu *gpu;
    int64_t call_ns;
    int first;
    if (!state || references == 0) return UNINITIALIZED;
    lock_state();
    if (index < 0 || index >= state->gpus) LEAVE(INVALID_ARGUMENT);
    gpu = &state->gpu[index];
    code = scripted(call, index);
    if (code != NONE) {
        record(call, index, low, high, code);
        LEAVE(code);
    }
    code = refuse(gpu, action, low, high);
    call_ns = code == SUCCESS && action != POWER_LIMIT ? gpu->lock_call_ns : 0;
    if (code == SUCCESS && action != POWER_LIMIT) gpu->lock_calls++;
    first = call_ns == 0 || gpu->effect_first;
    if (code == SUCCESS && first) act(gpu, action, low, high);
    if (code != SUCCESS || first) record(call, index, low, high, code);
    unlock_state();
    wait_ns(call_ns); /* unlocked: other processes read meanwhile, and a kill may land here */
    if (first) return code;
    lock_state();
    act(gpu, action, low, high);
    record(call, index, low, high, code);
    LEAVE(code);
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned low, unsigned high) {
    return set(__func__, device, LOCK_CORE, low, high);
}
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned low, unsigned high) {
    return set(__func__, device, LOCK_MEM, low, high);
}
nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    return set(__func__, device, RESET_CORE, 0, 0);
}
nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
    return set(__func__, device, RESET_MEM, 0, 0);
}
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned mw) {
    return set(__func__, device, POWER_LIMIT, mw, mw);
}
