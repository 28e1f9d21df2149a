/* Just enough of CUDA to run a kernel of ours on the CPU, compiled by g++: how kernels are tested without a device.
 *
 * The threads of a block are fibers of one host thread. A fiber runs until it needs its warp (a shuffle, a
 * ballot, __syncwarp) and hands over to the next; once all have had their turn, it goes on. So warps run
 * interleaved, a run is deterministic, and a lane that stays away, which would hang a device, ends the
 * program with a sentence. Blocks run one after another. A collective orders memory here even where a
 * device's does not (all but __syncwarp): a missing __syncwarp behind another collective goes unseen.
 * One host thread at a time may launch.
 */
#ifndef BITRING_EMULATED_CUDA_H
#define BITRING_EMULATED_CUDA_H

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define BITRING_SHARED(name) uint8_t *name = emulated::shared

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

namespace emulated {

constexpr unsigned kLanes = 32;
constexpr int kMostThreads = 1024, kMostShared = 1 << 16;  // bytes; the least that a device of ours has
constexpr size_t kStack = 1 << 16, kGuard = 64;
constexpr uint8_t kPoison = 0xCD;

struct Index { unsigned x; };
static Index thread, block, threads, blocks;
static uint8_t *shared;

static struct {
    ucontext_t launcher, fibers[kMostThreads];
    std::unique_ptr<uint8_t[]> stacks;
    std::function<void()> kernel;
    bool done[kMostThreads];
    uint64_t turn[kMostThreads];        // collectives that a thread has come to
    uint32_t slots[2][kMostThreads];    // two: a lane may reach the next before all have read this one's
} state;

[[noreturn]] inline void stop(const char *why) {
    std::fprintf(stderr, "emulated CUDA: %s (block %u, thread %u)\n", why, block.x, thread.x);
    std::abort();
}

/* Hand over from `from` to the first thread after `last` that has not ended, or to the launcher. */
inline void hand_over(ucontext_t *from, unsigned last) {
    for (unsigned step = 1; step <= threads.x; ++step) {
        const unsigned next = (last + step) % threads.x;
        if (state.done[next]) continue;
        thread.x = next;
        swapcontext(from, &state.fibers[next]);
        return;
    }
    swapcontext(from, &state.launcher);
}

inline void run_fiber() {
    state.kernel();
    state.done[thread.x] = true;
    hand_over(&state.fibers[thread.x], thread.x);
}

inline void run_block() {
    for (unsigned i = 0; i < threads.x; ++i) {
        ucontext_t &fiber = state.fibers[i];
        state.done[i] = false;
        state.turn[i] = 0;
        getcontext(&fiber);
        fiber.uc_stack.ss_sp = state.stacks.get() + kStack * i;
        fiber.uc_stack.ss_size = kStack;
        fiber.uc_link = nullptr;
        makecontext(&fiber, run_fiber, 0);
    }
    hand_over(&state.launcher, threads.x - 1);
}

/* The values of a warp's lanes, once all have come. */
inline const uint32_t *exchange(unsigned mask, uint32_t value) {
    if (mask != 0xFFFFFFFFu) stop("collectives of part of a warp are not emulated");
    const unsigned own = thread.x, first = own / kLanes * kLanes;
    const uint64_t turn = ++state.turn[own];
    uint32_t *slots = state.slots[turn % 2];
    slots[own] = value;
    hand_over(&state.fibers[own], own);
    for (unsigned other = first; other < first + kLanes; ++other)
        if (state.turn[other] < turn) stop("a lane did not come to a collective that others wait at");
    return slots + first;
}

/* Returns 0, or 1 for a launch that a device would refuse. */
template <typename... P, typename... A>
int launch(void (*kernel)(P...), int64_t num_blocks, int num_threads, int64_t shared_bytes, A... arguments) {
    if (num_blocks < 1 || num_blocks > INT32_MAX || num_threads < 1 || num_threads > kMostThreads) return 1;
    if (num_threads % static_cast<int>(kLanes) || shared_bytes < 0 || shared_bytes > kMostShared) return 1;
    blocks.x = static_cast<unsigned>(num_blocks);
    threads.x = static_cast<unsigned>(num_threads);
    state.kernel = [=] { kernel(arguments...); };
    if (!state.stacks) state.stacks.reset(new uint8_t[kStack * kMostThreads]);
    const size_t size = static_cast<size_t>(shared_bytes);
    std::vector<uint8_t> memory(size + kGuard);
    for (block.x = 0; block.x < blocks.x; ++block.x) {
        std::memset(memory.data(), kPoison, memory.size());
        shared = memory.data();
        run_block();
        for (size_t i = size; i < memory.size(); ++i)
            if (memory[i] != kPoison) stop("a kernel wrote beyond its shared memory");
    }
    return 0;
}

}  // namespace emulated

#define threadIdx emulated::thread
#define blockIdx emulated::block
#define blockDim emulated::threads
#define gridDim emulated::blocks

inline void __syncwarp() { emulated::exchange(0xFFFFFFFFu, 0); }

inline uint32_t __shfl_xor_sync(unsigned mask, uint32_t value, int step) {
    const unsigned lane = threadIdx.x % emulated::kLanes;
    return emulated::exchange(mask, value)[lane ^ static_cast<unsigned>(step)];
}

inline float __shfl_xor_sync(unsigned mask, float value, int step) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = __shfl_xor_sync(mask, bits, step);
    std::memcpy(&value, &bits, 4);
    return value;
}

inline unsigned __ballot_sync(unsigned mask, int vote) {
    const uint32_t *votes = emulated::exchange(mask, vote != 0);
    unsigned all = 0;
    for (unsigned lane = 0; lane < emulated::kLanes; ++lane) all |= votes[lane] << lane;
    return all;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned long long atomicMin(unsigned long long *place, unsigned long long value) {
    const unsigned long long before = *place;
    if (value < before) *place = value;
    return before;
}

#endif
