; The command processor of the cpu device: native threads that walk command words, so that neither
; running nor replaying work needs the interpreter. The words are described in hcq/cpu/queue.py, the
; structures in hcq/cpu/processor.py; both sides of each must agree.

%Bell = type { [64 x i8], [64 x i8], i64, i64 }           ; mutex, condition, alarms, heralds
%Queue = type { i64, i64, i64, i64, ptr, ptr, i64, ptr, ptr, ptr, i64, ptr, i64 }
;               head tail stop fault current ring mask bell pool door expected last brief
; bell: the device's, rung by signals and faults; door: the queue's own, rung by what is pushed.
; expected: how often its thread was told that something is about to be pushed. last: where to note the
; value that the timeline has after all that was pushed. brief: nanoseconds of work that is not worth
; waking its thread.
%Pool = type { [64 x i8], [64 x i8], [64 x i8], i64, i64, i64, i64, ptr, ptr, i64, i64, i64, [6 x i32],
               i64, [1024 x %Known], i64, i64, ptr, i64, i64, i64, [128 x i8] }
;              mutex      work       done       generation active stop workers kernel kernarg next total
;              chunk grid and block, spin, known, home, announced, opened, thread, asleep, sent,
;              processors
; spin: nanoseconds that a thread looks for more work before it sleeps. known: how long a group of a
; kernel took when it last ran, in a place found by the kernel's address; only by the thread that runs
; the queue's work.
; home: the processor of the thread that shared the launch. announced: how often its threads were told
; that a launch is about to be shared. opened: the command of the launch, where the thread that pushed
; it has shared it. thread, and what follows: of the pool's only thread, where it has one: asleep; sent,
; to be woken on another processor; processors: those that it may use.
%Known = type { ptr, i64 }                                ; kernel, nanoseconds a group (at least 1)
%Slots = type { ptr, ptr, i64, [256 x i64] }              ; memory timeline next, in use until
; 256 places of 4096 bytes for what is submitted, each in use until the timeline reaches a value.
%Prepared = type { ptr, i64, i64, i64, ptr, i64, [0 x %Number] }
;                  template bytes words count parameters bounded numbers
; bounded: not 0 where its kernels end, whatever they are given.
%Number = type { i64, i64, i64, i64 }                     ; offset kind base slot
; A 64-bit number in an image: base, plus by kind nothing (0), parameters[slot] (1), the image's own
; address (2), or the timeline's value (3).
%Repetition = type { ptr, ptr, ptr, ptr, ptr, i64, i64, [0 x { i64, i64 }] }
;                    slots queue prepared parameters given count numbers (parameter, which of the given)
; given: the value that marks the end, then the numbers that change, so many.
%Launch = type { i64, i64, [6 x i32] }                    ; first group, last group, grid and block
%Time = type { i64, i64 }

declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
declare i32 @clock_gettime(i32, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @sched_getcpu()
declare i32 @sched_yield()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i64 @pthread_self()
declare i32 @pthread_setaffinity_np(i64, i64, ptr)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
