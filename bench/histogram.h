// Durations counted in a log-linear histogram: 2,048 steps to each doubling, so a quantile is within 0.05 %.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

enum { STEPS = 2048, STEP_BITS = 11, BUCKETS = 54 * STEPS };

typedef struct {
  uint64_t count, bucket[BUCKETS];
  int64_t least, most;
} histogram;

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline void note(histogram *h, int64_t ns) {
  if (ns < 0) ns = 0;
  if (!h->count || ns < h->least) h->least = ns;
  if (!h->count || ns > h->most) h->most = ns;
  h->count++;
  int shift = ns < STEPS ? 0 : 63 - __builtin_clzll((uint64_t)ns) - STEP_BITS;
  h->bucket[ns < STEPS ? ns : (shift + 1) * STEPS + (int)((ns >> shift) - STEPS)]++;
}

// Nearest rank, in ms: sorted[ceil(p·n) − 1].
static inline double quantile_ms(const histogram *h, double p) {
  uint64_t rank = (uint64_t)ceil(p * h->count), seen = 0;
  for (int i = 0; h->count && i < BUCKETS; i++) {
    seen += h->bucket[i];
    if (seen < (rank ? rank : 1)) continue;
    int shift = i / STEPS - 1;
    double ns = i < STEPS ? i : (double)((int64_t)(i % STEPS + STEPS) << shift) + ((int64_t)1 << shift) / 2.0;
    if (ns > h->most) ns = h->most;
    if (ns < h->least) ns = h->least;
    return ns / 1e6;
  }
  return 0;
}

// Writes `"name":{…},` and returns its length.
static inline int histogram_json(char *out, const char *name, const histogram *h) {
  return sprintf(out, "\"%s\":{\"n\":%llu,\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f},", name, (unsigned long long)h->count,
                 quantile_ms(h, .5), quantile_ms(h, .99), h->most / 1e6);
}
