// Kernels whose groups, warps and lanes wait for each other, and calls through pointers, as NVIDIA's
// own headers have them: cooperative_groups, libcu++ and CUB.
#include <cooperative_groups.h>
#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/atomic>
#include <cuda/barrier>

extern "C" __global__ void meet(unsigned *count, unsigned *out, int rounds) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (int r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) atomicAdd(count, 1);
    grid.sync();
    if (threadIdx.x == 0 && *(volatile unsigned *)count < (r + 1) * gridDim.x) __trap();
    grid.sync();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = rounds;
}

// Decoupled look-back. reverse: each group waits for those that begin behind it.
typedef cub::ScanTileState<int> Tiles;
extern "C" __global__ void tiles(Tiles state, int count) { state.InitializeStatus(count); }
extern "C" __global__ void scan(Tiles state, const int *in, int *out, int reverse) {
  typedef cub::BlockScan<int, 128> Scan;
  typedef cub::TilePrefixCallbackOp<int, cuda::std::plus<>, Tiles> Prefix;
  __shared__ typename Scan::TempStorage own;
  __shared__ typename Prefix::TempStorage others;
  int tile = reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  int value = in[tile * 128 + threadIdx.x], result;
  if (tile == 0) {
    int sum;
    Scan(own).InclusiveSum(value, result, sum);
    if (threadIdx.x == 0) state.SetInclusive(0, sum);
  } else {
    Prefix prefix(state, others, cuda::std::plus<>{}, tile);
    Scan(own).InclusiveScan(value, result, cuda::std::plus<>{}, prefix);
  }
  out[tile * 128 + threadIdx.x] = result;
}

// On chips of sm_90 the copy is cp.async.bulk, without a proxy fence behind the object's start.
extern "C" __global__ void copies(const int *in, int *out) {
  __shared__ __align__(16) int stage[256];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(cooperative_groups::this_thread_block(), stage, in + 256 * blockIdx.x,
                     cuda::aligned_size_t<16>(1024), barrier);
  barrier.arrive_and_wait();
  out[256 * blockIdx.x + threadIdx.x] = stage[255 - threadIdx.x] + stage[threadIdx.x];
}

extern "C" __global__ void tickets(cuda::atomic<unsigned, cuda::thread_scope_device> *queue,
                                   unsigned *data) {
  if (threadIdx.x) return;
  unsigned mine = queue[0].fetch_add(1, cuda::memory_order_relaxed);
  while (queue[1].load(cuda::memory_order_acquire) != mine) __nanosleep(50);
  *data = *data * 3 + 1;
  queue[1].store(mine + 1, cuda::memory_order_release);
}

extern "C" __global__ void lanes(int *lock, int *data) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *(volatile int *)data += threadIdx.x;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int mul(int a, int b) { return a * b; }
__device__ __noinline__ int sub(int a, int b) { return a - b; }
__device__ Operation table[3] = {add, mul, sub};
__constant__ Operation fixed[3] = {mul, sub, add};
extern "C" __global__ void pointers(int *out, int which) {
  int i = threadIdx.x;
  Operation mine = i % 3 == 0 ? add : i % 3 == 1 ? mul : sub;
  out[i] = mine(i, 7) + 100 * table[(i + which) % 3](i, 3) + 10000 * fixed[which](i, 2);
}

struct Shape { __device__ virtual int area(int) = 0; };
struct Square : Shape {
  int side;
  __device__ Square(int a) : side(a) {}
  __device__ int area(int more) override { return side * side + more; }
};
struct Line : Shape {
  int length;
  __device__ Line(int a) : length(a) {}
  __device__ int area(int less) override { return length - less; }
};
extern "C" __global__ void shapes(int *out) {
  Square square(threadIdx.x);
  Line line(2 * threadIdx.x);
  Shape *shape = threadIdx.x % 2 ? (Shape *)&square : (Shape *)&line;
  if (out[0] == 77) shape = &line;
  out[threadIdx.x] = shape->area(5);
}

__device__ __noinline__ unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void recurse(int *out) { out[threadIdx.x] = fib(threadIdx.x % 12); }
