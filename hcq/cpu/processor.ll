; The command processor of the cpu device: native threads that walk command words, so that neither
; running nor replaying work needs the interpreter. The words are described in hcq/cpu/queue.py, the
; structures in hcq/cpu/processor.py; both sides of each must agree.

%Bell = type { [64 x i8], [64 x i8], i64, i64 }           ; mutex, condition, alarms, heralds
%Queue = type { i64, i64, i64, i64, ptr, ptr, i64, ptr, ptr, ptr, i64 }
;               head tail stop fault current ring mask bell pool door expected
; bell: the device's, rung by signals and faults; door: the queue's own, rung by what is pushed.
; expected: how often its thread was told that something is about to be pushed.
%Pool = type { [64 x i8], [64 x i8], [64 x i8], i64, i64, i64, i64, ptr, ptr, i64, i64, i64, [6 x i32],
               i64, [64 x %Known], i64, i64 }
;              mutex      work       done       generation active stop workers kernel kernarg next total
;              chunk grid and block, spin, known, home, announced
; spin: nanoseconds that a thread looks for more work before it sleeps. known: how long a group of a
; kernel took when it last ran, in a place found by the kernel's address; the queue's thread only.
; home: the processor that the queue's thread was on when it shared the launch. announced: how many
; entries were pushed that begin with a launch to be shared.
%Known = type { ptr, i64 }                                ; kernel, nanoseconds a group (at least 1)
%Slots = type { ptr, ptr, i64, [256 x i64] }              ; memory timeline next, in use until
; 256 places of 4096 bytes for what is submitted, each in use until the timeline reaches a value.
%Prepared = type { ptr, i64, i64, i64, ptr, [0 x %Number] }
;                  template bytes words count parameters numbers
%Number = type { i64, i64, i64, i64 }                     ; offset kind base slot
; A 64-bit number in an image: base, plus by kind nothing (0), parameters[slot] (1), the image's own
; address (2), or the timeline's value (3).
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
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)

; Nanoseconds of CLOCK_MONOTONIC.
define internal i64 @now() {
  %time = alloca %Time
  %r = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr %Time, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %rest
  ret i64 %total
}

; Look at a word for at most so many nanoseconds, until it is no longer `old`; true if it is not.
; @relax, which processor.py adds, tells the processor that this is a loop that waits.
define internal i1 @changes(ptr %at, i64 %old, i64 %nanoseconds) {
entry:
  %first = load atomic i64, ptr %at acquire, align 8
  %changed = icmp ne i64 %first, %old
  %never = icmp eq i64 %nanoseconds, 0
  %at.once = or i1 %changed, %never
  br i1 %at.once, label %leave, label %begin
leave:
  ret i1 %changed
begin:
  %start = call i64 @now()
  br label %round
round:
  br label %look
look:
  %count = phi i64 [ 0, %round ], [ %count.next, %again ]
  call void @relax()
  %value = load atomic i64, ptr %at acquire, align 8
  %differs = icmp ne i64 %value, %old
  br i1 %differs, label %yes, label %again
again:
  %count.next = add i64 %count, 1
  %more = icmp ult i64 %count.next, 16
  br i1 %more, label %look, label %clock
clock:
  ; Whoever was woken on this processor, the program that waits for the result maybe, goes first.
  %yielded = call i32 @sched_yield()
  %time = call i64 @now()
  %waited = sub i64 %time, %start
  %over = icmp uge i64 %waited, %nanoseconds
  br i1 %over, label %no, label %round
yes:
  ret i1 1
no:
  ret i1 0
}

; Wait on a condition for at most so many nanoseconds; the mutex is held.
define internal void @doze(ptr %condition, ptr %mutex, i64 %nanoseconds) {
  %time = alloca %Time
  %r = call i32 @clock_gettime(i32 0, ptr %time)
  %rest.at = getelementptr %Time, ptr %time, i32 0, i32 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %rest.at
  %sum = add i64 %rest, %nanoseconds
  %carry = udiv i64 %sum, 1000000000
  %left = urem i64 %sum, 1000000000
  %later = add i64 %seconds, %carry
  store i64 %later, ptr %time
  store i64 %left, ptr %rest.at
  %s = call i32 @pthread_cond_timedwait(ptr %condition, ptr %mutex, ptr %time)
  ret void
}

; Wake everybody who listens.
define void @ugpu_ring(ptr %bell) {
  %a = call i32 @pthread_mutex_lock(ptr %bell)
  %condition = getelementptr %Bell, ptr %bell, i32 0, i32 1
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %c = call i32 @pthread_mutex_unlock(ptr %bell)
  ret void
}

; Wait until a word (a timeline) has reached a value, an alarm is raised, or for so long. A
; launch that nears its end rings the bell as its herald: then look for 50 us before sleeping again.
define void @ugpu_await(ptr %bell, ptr %word, i64 %value, i64 %nanoseconds) {
entry:
  %start = call i64 @now()
  %condition = getelementptr %Bell, ptr %bell, i32 0, i32 1
  %alarms.at = getelementptr %Bell, ptr %bell, i32 0, i32 2
  %a = call i32 @pthread_mutex_lock(ptr %bell)
  %alarms.first = load i64, ptr %alarms.at
  br label %look
look:
  %reached = load atomic i64, ptr %word acquire, align 8
  %there = icmp uge i64 %reached, %value
  %alarms = load i64, ptr %alarms.at
  %alarmed = icmp ne i64 %alarms, %alarms.first
  %time = call i64 @now()
  %waited = sub i64 %time, %start
  %late = icmp uge i64 %waited, %nanoseconds
  %either = or i1 %there, %alarmed
  %over = or i1 %either, %late
  br i1 %over, label %leave, label %sleep
sleep:
  %left = sub i64 %nanoseconds, %waited
  %heralds.at = getelementptr %Bell, ptr %bell, i32 0, i32 3
  %heralds.before = load atomic i64, ptr %heralds.at acquire, align 8
  call void @doze(ptr %condition, ptr %bell, i64 %left)
  %heralds = load atomic i64, ptr %heralds.at acquire, align 8
  %heralded = icmp ne i64 %heralds, %heralds.before
  %woken = load atomic i64, ptr %word acquire, align 8
  %early = icmp ult i64 %woken, %value
  %both = and i1 %heralded, %early
  br i1 %both, label %soon, label %look
soon:
  %c = call i32 @pthread_mutex_unlock(ptr %bell)
  %came = call i1 @changes(ptr %word, i64 %woken, i64 50000)
  %d = call i32 @pthread_mutex_lock(ptr %bell)
  br label %look
leave:
  %b = call i32 @pthread_mutex_unlock(ptr %bell)
  ret void
}

; Wake a queue's thread before something is pushed: it comes up while that is being prepared.
define void @ugpu_expect(ptr %queue) {
  %expected.at = getelementptr %Queue, ptr %queue, i32 0, i32 10
  %old = atomicrmw add ptr %expected.at, i64 1 acq_rel
  %door.at = getelementptr %Queue, ptr %queue, i32 0, i32 9
  %door = load ptr, ptr %door.at
  call void @ugpu_ring(ptr %door)
  ret void
}

; Append (words, count) to a queue's ring and wake its thread; 0 when the ring is full. Where the
; first command is a launch that will be shared, the pool's threads are woken too: they come up while
; the queue's does.
define i32 @ugpu_push(ptr %queue, ptr %words, i64 %count) {
  %tail.at = getelementptr %Queue, ptr %queue, i32 0, i32 1
  %tail = load i64, ptr %tail.at
  %head = load atomic i64, ptr %queue acquire, align 8
  %mask.at = getelementptr %Queue, ptr %queue, i32 0, i32 6
  %mask = load i64, ptr %mask.at
  %used = sub i64 %tail, %head
  %full = icmp ugt i64 %used, %mask
  br i1 %full, label %no, label %yes
no:
  ret i32 0
yes:
  %ring.at = getelementptr %Queue, ptr %queue, i32 0, i32 5
  %ring = load ptr, ptr %ring.at
  %slot = and i64 %tail, %mask
  %entry = getelementptr { ptr, i64 }, ptr %ring, i64 %slot
  store ptr %words, ptr %entry
  %count.at = getelementptr { ptr, i64 }, ptr %entry, i32 0, i32 1
  store i64 %count, ptr %count.at
  %next = add i64 %tail, 1
  store atomic i64 %next, ptr %tail.at release, align 8
  %door.at = getelementptr %Queue, ptr %queue, i32 0, i32 9
  %door = load ptr, ptr %door.at
  call void @ugpu_ring(ptr %door)
  %operation = load i32, ptr %words
  %launches = icmp eq i32 %operation, 1
  br i1 %launches, label %foresee, label %done
foresee:
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  %kernel.at = getelementptr i32, ptr %words, i64 1
  %kernel = load ptr, ptr %kernel.at, align 4
  %shape = getelementptr i32, ptr %words, i64 5
  %total = call i64 @count(ptr %shape)
  %known = call ptr @known(ptr %pool, ptr %kernel)
  ; RACE: the queue's thread may write both words just now; a wrong answer costs a wake-up at most.
  %known.kernel = load atomic ptr, ptr %known monotonic, align 8
  %is.known = icmp eq ptr %known.kernel, %kernel
  %took.at = getelementptr %Known, ptr %known, i32 0, i32 1
  %took = load atomic i64, ptr %took.at monotonic, align 8
  %estimate = mul i64 %took, %total
  %long = icmp uge i64 %estimate, 100000
  %shared = and i1 %is.known, %long
  br i1 %shared, label %announce, label %done
announce:
  %announced.at = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %old = atomicrmw add ptr %announced.at, i64 1 acq_rel
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %woken = call i32 @pthread_cond_broadcast(ptr %work)
  br label %done
done:
  ret i32 1
}

; Submit what was prepared: copy its template to the next slot, fill in its numbers, push it. 0 when
; the slot's last content is still in use, or the ring is full. value: of the queue's timeline, that
; marks the end. One thread at a time.
define i32 @ugpu_submit(ptr %slots, ptr %queue, ptr %prepared, i64 %value) {
entry:
  %next.at = getelementptr %Slots, ptr %slots, i32 0, i32 2
  %next = load i64, ptr %next.at
  %index = and i64 %next, 255
  %until.at = getelementptr %Slots, ptr %slots, i32 0, i32 3, i64 %index
  %until = load i64, ptr %until.at
  %timeline.at = getelementptr %Slots, ptr %slots, i32 0, i32 1
  %timeline = load ptr, ptr %timeline.at
  %reached = load atomic i64, ptr %timeline acquire, align 8
  %free = icmp ule i64 %until, %reached
  br i1 %free, label %write, label %no
no:
  ret i32 0
write:
  %memory = load ptr, ptr %slots
  %offset = shl i64 %index, 12
  %place = getelementptr i8, ptr %memory, i64 %offset
  %template = load ptr, ptr %prepared
  %bytes.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 1
  %bytes = load i64, ptr %bytes.at
  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %place, ptr align 64 %template, i64 %bytes, i1 0)
  %count.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 3
  %count = load i64, ptr %count.at
  %given = getelementptr %Prepared, ptr %prepared, i32 0, i32 5
  br label %look
look:
  %i = phi i64 [ 0, %write ], [ %i.next, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %push
one:
  %number = getelementptr %Number, ptr %given, i64 %i
  %kind.at = getelementptr %Number, ptr %number, i32 0, i32 1
  %kind = load i64, ptr %kind.at
  %base.at = getelementptr %Number, ptr %number, i32 0, i32 2
  %base = load i64, ptr %base.at
  switch i64 %kind, label %put [ i64 1, label %parameter
                                 i64 2, label %image
                                 i64 3, label %signal ]
parameter:
  %values.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 4
  %values = load ptr, ptr %values.at
  %slot.at = getelementptr %Number, ptr %number, i32 0, i32 3
  %slot = load i64, ptr %slot.at
  %parameter.at = getelementptr i64, ptr %values, i64 %slot
  %parameter.value = load i64, ptr %parameter.at
  br label %put
image:
  %image.value = ptrtoint ptr %place to i64
  br label %put
signal:
  br label %put
put:
  %value.base = phi i64 [ 0, %one ], [ %parameter.value, %parameter ], [ %image.value, %image ],
                        [ %value, %signal ]
  %sum = add i64 %value.base, %base
  %offset.to = load i64, ptr %number
  %to = getelementptr i8, ptr %place, i64 %offset.to
  store i64 %sum, ptr %to, align 4
  %i.next = add i64 %i, 1
  br label %look
push:
  %words.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 2
  %words = load i64, ptr %words.at
  store i64 %value, ptr %until.at
  %next.one = add i64 %next, 1
  store i64 %next.one, ptr %next.at
  %pushed = call i32 @ugpu_push(ptr %queue, ptr %place, i64 %words)
  ret i32 %pushed
}

; Groups of a launch, from its grid.
define internal i64 @count(ptr %shape) {
  %x = load i32, ptr %shape
  %y.at = getelementptr i32, ptr %shape, i64 1
  %y = load i32, ptr %y.at
  %z.at = getelementptr i32, ptr %shape, i64 2
  %z = load i32, ptr %z.at
  %x.wide = zext i32 %x to i64
  %y.wide = zext i32 %y to i64
  %z.wide = zext i32 %z to i64
  %xy = mul i64 %x.wide, %y.wide
  %total = mul i64 %xy, %z.wide
  ret i64 %total
}

; Where it stands how long a kernel's groups take.
define internal ptr @known(ptr %pool, ptr %kernel) {
  %address = ptrtoint ptr %kernel to i64
  %mixed = mul i64 %address, 11400714819323198485          ; 2^64 / the golden ratio: spreads addresses
  %slot = lshr i64 %mixed, 58
  %known = getelementptr %Pool, ptr %pool, i32 0, i32 14, i64 %slot
  ret ptr %known
}

; A queue's thread: run entries in order until told to stop.
define void @ugpu_serve(ptr %queue) {
entry:
  %tail.at = getelementptr %Queue, ptr %queue, i32 0, i32 1
  %stop.at = getelementptr %Queue, ptr %queue, i32 0, i32 2
  %ring.at = getelementptr %Queue, ptr %queue, i32 0, i32 5
  %mask.at = getelementptr %Queue, ptr %queue, i32 0, i32 6
  %door.at = getelementptr %Queue, ptr %queue, i32 0, i32 9
  %expected.at = getelementptr %Queue, ptr %queue, i32 0, i32 10
  %ring = load ptr, ptr %ring.at
  %mask = load i64, ptr %mask.at
  %door = load ptr, ptr %door.at
  %condition = getelementptr %Bell, ptr %door, i32 0, i32 1
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 13
  %spin = load i64, ptr %spin.at
  br label %look
look:
  %head = load i64, ptr %queue
  %busy = call i1 @changes(ptr %tail.at, i64 %head, i64 %spin)
  %a = call i32 @pthread_mutex_lock(ptr %door)
  br label %check
check:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %leave, label %has
has:
  %tail = load atomic i64, ptr %tail.at acquire, align 8
  %empty = icmp eq i64 %head, %tail
  br i1 %empty, label %sleep, label %take
sleep:
  %expected.before = load atomic i64, ptr %expected.at acquire, align 8
  call void @doze(ptr %condition, ptr %door, i64 1000000000)
  %expected = load atomic i64, ptr %expected.at acquire, align 8
  %is.expected = icmp ne i64 %expected, %expected.before
  br i1 %is.expected, label %await, label %check
await:
  %d = call i32 @pthread_mutex_unlock(ptr %door)
  %patience = mul i64 %spin, 6                            ; Python is slow where no cache has it
  %came = call i1 @changes(ptr %tail.at, i64 %head, i64 %patience)
  %e = call i32 @pthread_mutex_lock(ptr %door)
  br label %check
leave:
  %b = call i32 @pthread_mutex_unlock(ptr %door)
  ret void
take:
  %c = call i32 @pthread_mutex_unlock(ptr %door)
  %slot = and i64 %head, %mask
  %at = getelementptr { ptr, i64 }, ptr %ring, i64 %slot
  %words = load ptr, ptr %at
  %count.at = getelementptr { ptr, i64 }, ptr %at, i32 0, i32 1
  %count = load i64, ptr %count.at
  %fine = call i1 @execute(ptr %queue, ptr %words, i64 %count)
  br i1 %fine, label %finish, label %end
finish:
  %next = add i64 %head, 1
  store atomic i64 %next, ptr %queue release, align 8
  br label %look
end:
  ret void
}

; Run one command buffer; false when told to stop, or at a word that is no command.
define internal i1 @execute(ptr %queue, ptr %words, i64 %count) {
entry:
  %stop.at = getelementptr %Queue, ptr %queue, i32 0, i32 2
  %fault.at = getelementptr %Queue, ptr %queue, i32 0, i32 3
  %current.at = getelementptr %Queue, ptr %queue, i32 0, i32 4
  %bell.at = getelementptr %Queue, ptr %queue, i32 0, i32 7
  %bell = load ptr, ptr %bell.at
  %condition = getelementptr %Bell, ptr %bell, i32 0, i32 1
  %end = getelementptr i32, ptr %words, i64 %count
  br label %next
next:
  %p = phi ptr [ %words, %entry ], [ %p.launch, %launch ], [ %p.copy, %copy ], [ %p.fill, %filled ],
               [ %p.wait, %waited ], [ %p.signal, %signal ], [ %p.timestamp, %timestamp ]
  store ptr %p, ptr %current.at
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %no, label %more
no:
  store ptr null, ptr %current.at
  ret i1 0
more:
  %over = icmp uge ptr %p, %end
  br i1 %over, label %yes, label %decode
yes:
  store ptr null, ptr %current.at
  ret i1 1
decode:
  %operation = load i32, ptr %p
  %a.at = getelementptr i32, ptr %p, i64 1
  %b.at = getelementptr i32, ptr %p, i64 3
  %c.at = getelementptr i32, ptr %p, i64 5
  switch i32 %operation, label %bad [ i32 1, label %launch
                                      i32 2, label %copy
                                      i32 3, label %fill
                                      i32 4, label %wait
                                      i32 5, label %signal
                                      i32 6, label %timestamp ]
bad:
  %place = ptrtoint ptr %p to i64
  store atomic i64 %place, ptr %fault.at release, align 8
  %alarms.at = getelementptr %Bell, ptr %bell, i32 0, i32 2
  %alarms = atomicrmw add ptr %alarms.at, i64 1 acq_rel
  call void @ugpu_ring(ptr %bell)
  ret i1 0

launch:
  %p.launch = getelementptr i32, ptr %p, i64 11
  call void @launch(ptr %queue, ptr %p)
  br label %next

copy:
  %p.copy = getelementptr i32, ptr %p, i64 7
  %copy.to = load ptr, ptr %a.at, align 4
  %copy.from = load ptr, ptr %b.at, align 4
  %copy.size = load i64, ptr %c.at, align 4
  call void @llvm.memcpy.p0.p0.i64(ptr %copy.to, ptr %copy.from, i64 %copy.size, i1 0)
  br label %next

fill:
  %p.fill = getelementptr i32, ptr %p, i64 6
  %fill.to = load ptr, ptr %a.at, align 4
  %fill.words = load i64, ptr %b.at, align 4
  %fill.value = load i32, ptr %c.at
  br label %fill.next
fill.next:
  %i = phi i64 [ 0, %fill ], [ %i.next, %fill.one ]
  %fill.more = icmp ult i64 %i, %fill.words
  br i1 %fill.more, label %fill.one, label %filled
fill.one:
  %fill.at = getelementptr i32, ptr %fill.to, i64 %i
  store i32 %fill.value, ptr %fill.at
  %i.next = add i64 %i, 1
  br label %fill.next
filled:
  br label %next

wait:
  %p.wait = getelementptr i32, ptr %p, i64 5
  %wait.at = load ptr, ptr %a.at, align 4
  %wait.value = load i64, ptr %b.at, align 4
  %wait.now = load atomic i64, ptr %wait.at acquire, align 8
  %reached = icmp uge i64 %wait.now, %wait.value
  br i1 %reached, label %waited, label %wait.enter
wait.enter:
  %wait.a = call i32 @pthread_mutex_lock(ptr %bell)
  br label %wait.look
wait.look:
  %wait.again = load atomic i64, ptr %wait.at acquire, align 8
  %reached.now = icmp uge i64 %wait.again, %wait.value
  %wait.stop = load atomic i64, ptr %stop.at acquire, align 8
  %wait.stopped = icmp ne i64 %wait.stop, 0
  %wait.over = or i1 %reached.now, %wait.stopped
  br i1 %wait.over, label %wait.leave, label %wait.sleep
wait.sleep:
  ; A timeline may also be raised by the host, which rings no bell: look now and then.
  call void @doze(ptr %condition, ptr %bell, i64 5000000)
  br label %wait.look
wait.leave:
  %wait.b = call i32 @pthread_mutex_unlock(ptr %bell)
  br label %waited
waited:
  br label %next

signal:
  %p.signal = getelementptr i32, ptr %p, i64 5
  %signal.at = load ptr, ptr %a.at, align 4
  %signal.value = load i64, ptr %b.at, align 4
  store atomic i64 %signal.value, ptr %signal.at release, align 8
  call void @ugpu_ring(ptr %bell)
  br label %next

timestamp:
  %p.timestamp = getelementptr i32, ptr %p, i64 3
  %timestamp.at = load ptr, ptr %a.at, align 4
  %ticks = call i64 @now()
  store i64 %ticks, ptr %timestamp.at
  br label %next
}

; Run all groups of a launch: here when they are few or quick, else on all threads of the pool. How
; long a group takes is known from the kernel's last launch; for the first, group 0 runs here alone.
define internal void @launch(ptr %queue, ptr %words) {
entry:
  %record = alloca %Launch
  %kernel.at = getelementptr i32, ptr %words, i64 1
  %kernel = load ptr, ptr %kernel.at, align 4
  %kernarg.at = getelementptr i32, ptr %words, i64 3
  %kernarg = load ptr, ptr %kernarg.at, align 4
  %shape = getelementptr i32, ptr %words, i64 5
  %record.shape = getelementptr %Launch, ptr %record, i32 0, i32 2
  call void @llvm.memcpy.p0.p0.i64(ptr %record.shape, ptr %shape, i64 24, i1 0)
  %total = call i64 @count(ptr %shape)
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %alone = icmp eq i64 %workers, 0
  %few = icmp ult i64 %total, 2
  %here = or i1 %alone, %few
  br i1 %here, label %all, label %recall
all:
  call void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 0, i64 %total)
  ret void

recall:
  %known = call ptr @known(ptr %pool, ptr %kernel)
  %known.kernel = load ptr, ptr %known
  %known.took.at = getelementptr %Known, ptr %known, i32 0, i32 1
  %known.took = load i64, ptr %known.took.at
  %is.known = icmp eq ptr %known.kernel, %kernel
  %before = call i64 @now()
  br i1 %is.known, label %judge, label %probe
probe:
  call void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 0, i64 1)
  %probed = call i64 @now()
  %probe.took = sub i64 %probed, %before
  store ptr %kernel, ptr %known
  %probe.some = or i64 %probe.took, 1
  store i64 %probe.some, ptr %known.took.at
  br label %judge
judge:
  %first = phi i64 [ 0, %recall ], [ 1, %probe ]
  %took = phi i64 [ %known.took, %recall ], [ %probe.some, %probe ]
  %left = sub i64 %total, %first
  %estimate = mul i64 %took, %left
  %quick = icmp ult i64 %estimate, 20000
  br i1 %quick, label %rest, label %share
rest:
  %rest.before = call i64 @now()
  call void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 %first, i64 %total)
  %rest.after = call i64 @now()
  %rest.took = sub i64 %rest.after, %rest.before
  %rest.each = udiv i64 %rest.took, %left
  %rest.some = or i64 %rest.each, 1
  store i64 %rest.some, ptr %known.took.at
  ret void

share:
  ; A piece is what takes 30 us, but at most an eighth of a thread's share: the threads end together.
  %enough = udiv i64 30000, %took
  %threads = add i64 %workers, 1
  %pieces = mul i64 %threads, 8
  %share.size = udiv i64 %left, %pieces
  %smaller = call i64 @llvm.umin.i64(i64 %enough, i64 %share.size)
  %chunk = call i64 @llvm.umax.i64(i64 %smaller, i64 1)
  %a = call i32 @pthread_mutex_lock(ptr %pool)
  %pool.kernel = getelementptr %Pool, ptr %pool, i32 0, i32 7
  store ptr %kernel, ptr %pool.kernel
  %pool.kernarg = getelementptr %Pool, ptr %pool, i32 0, i32 8
  store ptr %kernarg, ptr %pool.kernarg
  %pool.next = getelementptr %Pool, ptr %pool, i32 0, i32 9
  store atomic i64 %first, ptr %pool.next release, align 8
  %pool.total = getelementptr %Pool, ptr %pool, i32 0, i32 10
  store i64 %total, ptr %pool.total
  %pool.chunk = getelementptr %Pool, ptr %pool, i32 0, i32 11
  store i64 %chunk, ptr %pool.chunk
  %pool.shape = getelementptr %Pool, ptr %pool, i32 0, i32 12
  call void @llvm.memcpy.p0.p0.i64(ptr %pool.shape, ptr %shape, i64 24, i1 0)
  %generation.at = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %generation = load i64, ptr %generation.at
  %generation.next = add i64 %generation, 1
  store atomic i64 %generation.next, ptr %generation.at release, align 8
  %here.cpu = call i32 @sched_getcpu()
  %home = sext i32 %here.cpu to i64
  %home.at = getelementptr %Pool, ptr %pool, i32 0, i32 15
  store i64 %home, ptr %home.at
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %b = call i32 @pthread_cond_broadcast(ptr %work)
  %c = call i32 @pthread_mutex_unlock(ptr %pool)
  %share.before = call i64 @now()
  %ran = call i64 @claim(ptr %pool)
  %share.after = call i64 @now()
  %ran.some = call i64 @llvm.umax.i64(i64 %ran, i64 1)
  %share.took = sub i64 %share.after, %share.before
  %share.each = udiv i64 %share.took, %ran.some
  %share.some = or i64 %share.each, 1
  store i64 %share.some, ptr %known.took.at
  %stop.at = getelementptr %Queue, ptr %queue, i32 0, i32 2
  %active.at = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %done = getelementptr %Pool, ptr %pool, i32 0, i32 2
  ; The other threads are in their last pieces: look for their end first, which costs no waking.
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 13
  %spin = load i64, ptr %spin.at
  %active.first = load atomic i64, ptr %active.at acquire, align 8
  %none.active = icmp eq i64 %active.first, 0
  br i1 %none.active, label %close, label %herald
herald:
  ; Whoever waits for this comes up while the others end, if the launch was worth a sleep.
  %short = icmp ult i64 %share.took, 200000
  br i1 %short, label %watch, label %call
call:
  %bell.at = getelementptr %Queue, ptr %queue, i32 0, i32 7
  %bell = load ptr, ptr %bell.at
  %heralds.at = getelementptr %Bell, ptr %bell, i32 0, i32 3
  %heralds = atomicrmw add ptr %heralds.at, i64 1 acq_rel
  call void @ugpu_ring(ptr %bell)
  br label %watch
watch:
  %moved = call i1 @changes(ptr %active.at, i64 %active.first, i64 %spin)
  br label %close
close:
  %d = call i32 @pthread_mutex_lock(ptr %pool)
  br label %look
look:
  %active = load atomic i64, ptr %active.at acquire, align 8
  %idle = icmp eq i64 %active, 0
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  %over = or i1 %idle, %stopped
  br i1 %over, label %leave, label %sleep
sleep:
  call void @doze(ptr %done, ptr %pool, i64 50000000)
  br label %look
leave:
  store i64 0, ptr %pool.total                            ; a thread that wakes late finds nothing to do
  %e = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
}

define internal void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 %first, i64 %last) {
  store i64 %first, ptr %record
  %last.at = getelementptr %Launch, ptr %record, i32 0, i32 1
  store i64 %last, ptr %last.at
  %some = icmp ult i64 %first, %last
  br i1 %some, label %run, label %done
run:
  call void %kernel(ptr %kernarg, ptr %record)
  br label %done
done:
  ret void
}

; Take chunks of the pool's launch until none is left; returns how many groups it ran.
define internal i64 @claim(ptr %pool) {
entry:
  %record = alloca %Launch
  %record.shape = getelementptr %Launch, ptr %record, i32 0, i32 2
  %pool.shape = getelementptr %Pool, ptr %pool, i32 0, i32 12
  call void @llvm.memcpy.p0.p0.i64(ptr %record.shape, ptr %pool.shape, i64 24, i1 0)
  %stop.at = getelementptr %Pool, ptr %pool, i32 0, i32 5
  %kernel.at = getelementptr %Pool, ptr %pool, i32 0, i32 7
  %kernel = load ptr, ptr %kernel.at
  %kernarg.at = getelementptr %Pool, ptr %pool, i32 0, i32 8
  %kernarg = load ptr, ptr %kernarg.at
  %next.at = getelementptr %Pool, ptr %pool, i32 0, i32 9
  %total.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %total = load i64, ptr %total.at
  %chunk.at = getelementptr %Pool, ptr %pool, i32 0, i32 11
  %chunk = load i64, ptr %chunk.at
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %threads = add i64 %workers, 1
  %parts = mul i64 %threads, 4
  br label %take
take:
  %ran = phi i64 [ 0, %entry ], [ %ran.next, %run ]
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %done, label %add
add:
  %seen = load atomic i64, ptr %next.at acquire, align 8
  br label %try
try:
  %first = phi i64 [ %seen, %add ], [ %now.next, %size ]
  %some = icmp ult i64 %first, %total
  br i1 %some, label %size, label %done
size:
  ; Large pieces first, whose memory lies together, and small ones last.
  %remaining = sub i64 %total, %first
  %large = udiv i64 %remaining, %parts
  %piece = call i64 @llvm.umax.i64(i64 %large, i64 %chunk)
  %after = add i64 %first, %piece
  %tried = cmpxchg ptr %next.at, i64 %first, i64 %after acq_rel acquire
  %now.next = extractvalue { i64, i1 } %tried, 0
  %taken = extractvalue { i64, i1 } %tried, 1
  br i1 %taken, label %run, label %try
run:
  %end = add i64 %first, %piece
  %beyond = icmp ugt i64 %end, %total
  %last = select i1 %beyond, i64 %total, i64 %end
  call void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 %first, i64 %last)
  %count = sub i64 %last, %first
  %ran.next = add i64 %ran, %count
  br label %take
done:
  ret i64 %ran
}

; Tell a pool's threads to end.
define void @ugpu_halt(ptr %pool) {
  %a = call i32 @pthread_mutex_lock(ptr %pool)
  %stop.at = getelementptr %Pool, ptr %pool, i32 0, i32 5
  store atomic i64 1, ptr %stop.at release, align 8
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %b = call i32 @pthread_cond_broadcast(ptr %work)
  %c = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
}

; Leave the processor that the queue's thread is on: where others are busy, Linux may wake a thread on
; its waker's, and the two then take turns there for longer than most launches last. The processors
; this thread may use are as before afterwards. RACE: a set given from outside meanwhile is lost.
define internal void @step_aside(ptr %pool) {
  %all = alloca [128 x i8]                                ; as many processors as glibc's cpu_set_t
  %others = alloca [128 x i8]
  %home.at = getelementptr %Pool, ptr %pool, i32 0, i32 15
  %home = load i64, ptr %home.at
  %cpu = call i32 @sched_getcpu()
  %here = sext i32 %cpu to i64
  %together = icmp eq i64 %here, %home
  %counted = icmp ult i64 %here, 1024
  %both = and i1 %together, %counted
  br i1 %both, label %ask, label %done
ask:
  %a = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %fine = icmp eq i32 %a, 0
  br i1 %fine, label %move, label %done
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %all, i64 128, i1 0)
  %byte = lshr i64 %here, 3
  %bit = and i64 %here, 7
  %bit.narrow = trunc i64 %bit to i8
  %one = shl i8 1, %bit.narrow
  %kept = xor i8 %one, -1
  %at = getelementptr i8, ptr %others, i64 %byte
  %old = load i8, ptr %at
  %new = and i8 %old, %kept
  store i8 %new, ptr %at
  %b = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)    ; refused where there is no other
  %c = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %done
done:
  ret void
}

; A thread of the pool.
define void @ugpu_work(ptr %pool) {
entry:
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %done = getelementptr %Pool, ptr %pool, i32 0, i32 2
  %generation.at = getelementptr %Pool, ptr %pool, i32 0, i32 3
  %active.at = getelementptr %Pool, ptr %pool, i32 0, i32 4
  %stop.at = getelementptr %Pool, ptr %pool, i32 0, i32 5
  %total.at = getelementptr %Pool, ptr %pool, i32 0, i32 10
  %spin.at = getelementptr %Pool, ptr %pool, i32 0, i32 13
  %spin = load i64, ptr %spin.at
  %announced.at = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %a = call i32 @pthread_mutex_lock(ptr %pool)
  br label %look
look:
  %seen = phi i64 [ 0, %entry ], [ %seen, %sleep ], [ %seen, %expect ], [ %generation, %skip ], [ %generation, %finished ]
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %leave, label %check
leave:
  %b = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
check:
  %generation = load i64, ptr %generation.at
  %same = icmp eq i64 %generation, %seen
  br i1 %same, label %sleep, label %join
sleep:
  %announced.before = load atomic i64, ptr %announced.at acquire, align 8
  call void @doze(ptr %work, ptr %pool, i64 1000000000)
  %announced = load atomic i64, ptr %announced.at acquire, align 8
  %now.announced = icmp ne i64 %announced, %announced.before
  br i1 %now.announced, label %expect, label %look
expect:                                                   ; a launch is on its way to the queue's thread
  %h = call i32 @pthread_mutex_unlock(ptr %pool)
  %came = call i1 @changes(ptr %generation.at, i64 %seen, i64 %spin)
  %i = call i32 @pthread_mutex_lock(ptr %pool)
  br label %look
join:
  %total = load i64, ptr %total.at
  %none = icmp eq i64 %total, 0
  br i1 %none, label %skip, label %enter
skip:
  br label %look
enter:
  %active = load i64, ptr %active.at
  %active.more = add i64 %active, 1
  store i64 %active.more, ptr %active.at
  %c = call i32 @pthread_mutex_unlock(ptr %pool)
  call void @step_aside(ptr %pool)
  %ran = call i64 @claim(ptr %pool)
  %d = call i32 @pthread_mutex_lock(ptr %pool)
  %active.now = load i64, ptr %active.at
  %active.less = sub i64 %active.now, 1
  store atomic i64 %active.less, ptr %active.at release, align 8
  %e = call i32 @pthread_cond_broadcast(ptr %done)
  %f = call i32 @pthread_mutex_unlock(ptr %pool)
  %more = call i1 @changes(ptr %generation.at, i64 %generation, i64 %spin)
  %g = call i32 @pthread_mutex_lock(ptr %pool)
  br label %finished
finished:
  br label %look
}
