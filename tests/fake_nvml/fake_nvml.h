/* The state of the fake driver: one file, mapped by every process that loads the fake library
 * and by the test. layout.py declares the same structures; it refuses to run if they differ. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stdint.h>

#define FAKE_MAGIC 0x4c4d564eu
#define FAKE_VERSION 1
#define FAKE_GPUS 8
#define FAKE_MEM_ROWS 8
#define FAKE_CORE_CLOCKS 256
#define FAKE_MOMENTS 64
#define FAKE_PROCESSES 16
#define FAKE_ERRORS 32
#define FAKE_LOG 16384

/* From after_ns (since the epoch) until the next moment. */
struct fake_moment {
    int64_t after_ns;
    uint64_t reasons;
    uint32_t core_cap_mhz; /* 0: no cap */
    uint32_t power_mw;
    int32_t temperature_c;
    uint32_t utilization_percent;
};

struct fake_process {
    uint32_t pid;
    uint32_t mps;
    uint64_t memory_bytes;
};

struct fake_lock {
    uint32_t min_mhz; /* 0: not locked */
    uint32_t max_mhz;
    uint32_t before_mhz; /* reported until at_ns + settle_ns */
    uint32_t pid;        /* who set or reset it last */
    int64_t at_ns;
};

struct fake_gpu {
    char name[96];
    char uuid[96];
    char vbios[32];
    char bus_id[32];
    uint64_t memory_bytes;
    int32_t mig_mode; /* -1: not supported */
    int32_t persistence;
    int32_t mem_rows;
    uint32_t mem_mhz[FAKE_MEM_ROWS];
    int32_t row_error[FAKE_MEM_ROWS]; /* returned instead of the row's core clocks */
    int32_t core_counts[FAKE_MEM_ROWS];
    uint32_t core_mhz[FAKE_MEM_ROWS][FAKE_CORE_CLOCKS];
    uint32_t governor_core_mhz;
    uint32_t governor_mem_mhz;
    uint32_t app_core_mhz; /* 0: application clocks are deprecated */
    uint32_t app_mem_mhz;
    struct fake_lock core_lock;
    struct fake_lock mem_lock;
    int32_t core_lock_holds;
    int32_t mem_lock_holds;
    int32_t effect_first; /* a lock acts before the call's wait, not after it */
    int32_t moments;
    int64_t lock_call_ns;
    int64_t settle_ns;
    int64_t lock_calls; /* allowed lock and reset calls begun, ended or not */
    uint32_t power_limit_mw;
    uint32_t default_power_limit_mw;
    uint32_t least_power_limit_mw;
    uint32_t most_power_limit_mw;
    int64_t energy_base_mj;
    int64_t energy_period_ns;
    int64_t energy_reset_ns; /* since the epoch; -1: never */
    struct fake_moment moment[FAKE_MOMENTS];
    int32_t processes;
    int32_t pad;
    struct fake_process process[FAKE_PROCESSES];
};

struct fake_error {
    char call[64];
    int32_t gpu;   /* -1: any */
    int32_t code;
    int32_t skip;  /* let this many calls pass first */
    int32_t times; /* -1: for ever */
};

struct fake_entry {
    int64_t at_ns;
    uint32_t pid;
    int32_t gpu;
    uint32_t low;
    uint32_t high;
    int32_t code;
    int32_t pad;
    char call[48];
};

struct fake_state {
    uint32_t magic;
    uint32_t version;
    char driver[80];
    int32_t permission;    /* 0: everyone; 1: nobody; 2: processes with FAKE_NVML_ROOT=1 */
    int32_t gpus;
    int64_t epoch_ns;
    int64_t manual_now_ns; /* -1: CLOCK_MONOTONIC */
    struct fake_gpu gpu[FAKE_GPUS];
    struct fake_error error[FAKE_ERRORS];
    int64_t logged;        /* setter calls ever; the newest FAKE_LOG of them are kept */
    struct fake_entry log[FAKE_LOG];
};

#endif
