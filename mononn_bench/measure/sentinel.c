/* Fixed loops that show what the machine gives: fp32 multiply-adds from registers, reads from each core's second-level
 * cache, reads from memory. One thread a core, all at once.
 *
 * usage: sentinel SECONDS_PER_LOOP CACHE_BYTES_PER_CORE MEMORY_BYTES CORE...
 * prints: flops/s cache_bytes/s memory_bytes/s
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#define LANES (WIDTH / 4)
#define CHAINS 12 /* independent accumulators: latency 4, two units, 16 registers */

typedef float vector __attribute__((vector_size(WIDTH)));

struct worker {
    pthread_t thread;
    int core;
    double seconds;
    size_t cache_bytes, memory_bytes;
    double rates[3];
};

static pthread_barrier_t barrier;
static volatile float sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double multiply_add(double seconds) {
    vector sums[CHAINS], factor, term;
    for (int lane = 0; lane < LANES; lane++) factor[lane] = 0.999f, term[lane] = 0.001f;
    for (int chain = 0; chain < CHAINS; chain++) sums[chain] = term;
    double start = now(), done = 0, elapsed;
    do {
        for (int repeat = 0; repeat < 4096; repeat++) {
#pragma GCC unroll 12
            for (int chain = 0; chain < CHAINS; chain++) sums[chain] = sums[chain] * factor + term;
        }
        done += 4096.0 * CHAINS * LANES * 2;
        elapsed = now() - start;
    } while (elapsed < seconds);
    for (int chain = 0; chain < CHAINS; chain++) sink += sums[chain][0];
    return done / elapsed;
}

static double read_bytes(const vector *data, size_t bytes, double seconds) {
    size_t count = bytes / WIDTH / 8 * 8;
    vector sums[8];
    memset(sums, 0, sizeof sums);
    double start = now(), done = 0, elapsed;
    do {
        for (size_t i = 0; i < count; i += 8) {
#pragma GCC unroll 8
            for (int chain = 0; chain < 8; chain++) sums[chain] += data[i + chain];
        }
        __asm__ volatile("" ::: "memory");
        done += (double)count * WIDTH;
        elapsed = now() - start;
    } while (elapsed < seconds);
    for (int chain = 0; chain < 8; chain++) sink += sums[chain][0];
    return done / elapsed;
}

static void *run(void *argument) {
    struct worker *w = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(w->core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    vector *cache = aligned_alloc(4096, w->cache_bytes), *memory = aligned_alloc(4096, w->memory_bytes);
    if (!cache || !memory) exit(1);
    memset(cache, 0, w->cache_bytes);
    memset(memory, 0, w->memory_bytes);
    pthread_barrier_wait(&barrier);
    w->rates[0] = multiply_add(w->seconds);
    pthread_barrier_wait(&barrier);
    w->rates[1] = read_bytes(cache, w->cache_bytes, w->seconds);
    pthread_barrier_wait(&barrier);
    w->rates[2] = read_bytes(memory, w->memory_bytes, w->seconds);
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc - 4;
    if (count < 1) return 2;
    struct worker *workers = calloc(count, sizeof *workers);
    pthread_barrier_init(&barrier, NULL, count);
    for (int i = 0; i < count; i++) {
        workers[i].core = atoi(argv[4 + i]);
        workers[i].seconds = atof(argv[1]);
        workers[i].cache_bytes = strtoull(argv[2], NULL, 10) / 4096 * 4096;
        workers[i].memory_bytes = strtoull(argv[3], NULL, 10) / count / 4096 * 4096;
        pthread_create(&workers[i].thread, NULL, run, &workers[i]);
    }
    double total[3] = {0, 0, 0};
    for (int i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        for (int k = 0; k < 3; k++) total[k] += workers[i].rates[k];
    }
    printf("%.6e %.6e %.6e\n", total[0], total[1], total[2]);
    return 0;
}
