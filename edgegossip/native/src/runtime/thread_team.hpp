// Threads that wait for work, so that a kernel's call does not start any.
#pragma once

namespace edgegossip {

// Calls work(with) on this thread and, at the same time, on up to `threads` - 1 others, of which no more than `helpers` are of
// use: fewer where the system gives no more, where some are not awake before the work is done, or where another call has them.
// Returns when all that began have ended. `work` divides what there is to do itself, and does not throw.
//
// Where torch is loaded they are the threads of its OpenMP, all `threads`: those wait for their next work by spinning, and threads
// of our own would have to share the cores with them. Else they are started by the first call that asks for them, wait for the
// process's end, and take no signals. A forked child has none and starts its own.
void work_together(void (*work)(const void*), const void* with, int helpers, int threads);

}  // namespace edgegossip
