/* Finds the largest numbers of rows, in order. workers/engine/choosing/largest.py calls it without the interpreter's
 * lock, and has the same function in NumPy.
 *
 * A row is read once to find the maximum of each block. The k-th largest maximum bounds the k-th largest number from
 * below, so only the blocks whose maximum is at least as large are read again. A block has 256 numbers, or fewer if the
 * row would otherwise have too few blocks for a close bound. */

#include <math.h>
#include <stdint.h>

enum { MAX_BLOCK = 256, LANES = 32, MAX_K = 128, MAX_BLOCKS = 16384, BLOCKS_FOR_EACH = 4 };

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#if defined(__GNUC__)
#define INLINED static inline __attribute__((always_inline))
#else
#define INLINED static inline
#endif

typedef struct {
    float value;
    int32_t id;
} entry;

/* The worse of two entries is the smaller one or, of equal ones, the one with the larger id. */
static inline int is_worse(entry a, entry b) {
    return a.value < b.value || (a.value == b.value && a.id > b.id);
}

static void sift_down(entry *heap, int n, int at) {
    entry moved = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && is_worse(heap[child + 1], heap[child])) child++;
        if (!is_worse(heap[child], moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Adds an entry to a heap whose root is its worst entry. Keeps at most k entries. */
static inline int add(entry *heap, int n, int k, entry new) {
    if (n == k) {
        if (!is_worse(heap[0], new)) return n;
        heap[0] = new;
        sift_down(heap, n, 0);
        return n;
    }
    int at = n;
    while (at > 0 && is_worse(new, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = new;
    return n + 1;
}

/* The maximum of each block; NaN is passed over, and -inf is the maximum of nothing. */
INLINED void maxima_of(const float *x, const int block, int blocks, float *maxima) {
    for (int b = 0; b < blocks; b++) {
        const float *p = x + (long)b * block;
        float m[LANES];
        for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
        /* With loops of known length, the compiler keeps the lanes in registers. */
#pragma GCC unroll 8
        for (int i = 0; i < block; i += LANES)
            for (int j = 0; j < LANES; j++) m[j] = p[i + j] > m[j] ? p[i + j] : m[j];
        for (int j = 0; j < 16; j++) m[j] = m[j + 16] > m[j] ? m[j + 16] : m[j];
        for (int j = 0; j < 8; j++) m[j] = m[j + 8] > m[j] ? m[j + 8] : m[j];
        for (int j = 0; j < 4; j++) m[j] = m[j + 4] > m[j] ? m[j + 4] : m[j];
        float even = m[2] > m[0] ? m[2] : m[0], odd = m[3] > m[1] ? m[3] : m[1];
        maxima[b] = odd > even ? odd : even;
    }
}

FOR_EACH_PROCESSOR
static void block_maxima(const float *x, int block, int blocks, float *maxima) {
    if (block == MAX_BLOCK)
        maxima_of(x, MAX_BLOCK, blocks, maxima);
    else
        maxima_of(x, block, blocks, maxima);
}

/* Finds the chunks of LANES numbers in which any number is at least as large as the bound. */
FOR_EACH_PROCESSOR
static int find_chunks(const float *x, int chunks, float bound, int *found) {
    int count = 0;
    for (int c = 0; c < chunks; c++) {
        int any = 0;
        for (int j = 0; j < LANES; j++) any |= x[c * LANES + j] >= bound;
        found[count] = c;
        count += any;
    }
    return count;
}

static int one_row(const float *x, int n, int k, int32_t *ids, float *values) {
    float maxima[MAX_BLOCKS];
    int block = MAX_BLOCK;
    while (block > LANES && n / block < BLOCKS_FOR_EACH * k) block /= 2;
    int whole = n / block, blocks = (n + block - 1) / block;
    block_maxima(x, block, whole, maxima);
    if (blocks > whole) {
        float most = -INFINITY;
        for (int i = whole * block; i < n; i++) most = x[i] > most ? x[i] : most;
        maxima[whole] = most;
    }
    entry heap[MAX_K];
    int count = 0;
    for (int b = 0; b < blocks; b++) count = add(heap, count, k, (entry){maxima[b], b});
    float bound = count == k ? heap[0].value : -INFINITY;
    count = 0;
    for (int b = 0; b < blocks; b++) {
        if (!(maxima[b] >= bound)) continue;
        int chunks[MAX_BLOCK / LANES + 1], begin = b * block, length = n - begin < block ? n - begin : block;
        int some = find_chunks(x + begin, length / LANES, bound, chunks);
        if (length % LANES) chunks[some++] = length / LANES;
        for (int c = 0; c < some; c++) {
            int first = begin + chunks[c] * LANES, end = first + LANES < n ? first + LANES : n;
            for (int i = first; i < end; i++)
                if (x[i] >= bound && x[i] > -INFINITY) count = add(heap, count, k, (entry){x[i], i});
        }
    }
    for (int left = count; left > 0; left--) {
        ids[left - 1] = heap[0].id;
        values[left - 1] = heap[0].value;
        heap[0] = heap[left - 1];
        sift_down(heap, left - 1, 0);
    }
    return count;
}

/* Writes the ks[r] largest of the n numbers of each row to ids and values, whose rows have `width` places, and how many
 * there are to counts. Of equal numbers those with the smaller index come first. NaN and -inf are left out.
 * 1 <= ks[r] <= width <= 128, and n <= 4194304. */
#ifdef _WIN32
__declspec(dllexport)
#endif
void penstock_largest(const float *const *rows, const int32_t *ks, int count, int n, int width, int32_t *ids,
                      float *values, int32_t *counts) {
    for (int r = 0; r < count; r++)
        counts[r] = one_row(rows[r], n, ks[r], ids + (long)r * width, values + (long)r * width);
}
