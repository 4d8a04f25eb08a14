// Threads that share the work of one call.
#pragma once

#include <cstdint>
#include <functional>

namespace matryo {

// Call `run(part)` for the parts 0 … parts − 1, on up to `threads` threads including this one. The first exception is
// thrown again here. If the threads are busy with another call, this thread does all the work: there are never more
// running threads than the pool has and calls there are.
void share(int64_t parts, int threads, const std::function<void(int64_t)>& run);

// MATRYO_THREADS, or the number of processors that this process may use.
int default_threads();

}   // namespace matryo
