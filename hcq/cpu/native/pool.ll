; Launches: all groups of one, on the queue's thread or shared with the pool's.

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
  %slot = lshr i64 %mixed, 54
  %known = getelementptr %Pool, ptr %pool, i32 0, i32 14, i64 %slot
  ret ptr %known
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
  %known = call ptr @known(ptr %pool, ptr %kernel)
  %known.took.at = getelementptr %Known, ptr %known, i32 0, i32 1
  br i1 %here, label %all, label %recall
all:
  %all.before = call i64 @now()
  call void @groups(ptr %kernel, ptr %kernarg, ptr %record, i64 0, i64 %total)
  %all.after = call i64 @now()
  %all.took = sub i64 %all.after, %all.before
  %all.count = call i64 @llvm.umax.i64(i64 %total, i64 1)
  %all.each = udiv i64 %all.took, %all.count
  %all.some = or i64 %all.each, 1
  store ptr %kernel, ptr %known
  store i64 %all.some, ptr %known.took.at
  ret void

recall:
  %known.kernel = load ptr, ptr %known
  %known.took = load i64, ptr %known.took.at
  %is.known = icmp eq ptr %known.kernel, %kernel
  %opened.at = getelementptr %Pool, ptr %pool, i32 0, i32 17
  %opened = load ptr, ptr %opened.at
  %is.opened = icmp eq ptr %opened, %words
  store ptr null, ptr %opened.at
  br i1 %is.opened, label %work, label %begin
begin:
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
  %first = phi i64 [ 0, %begin ], [ 1, %probe ]
  %took = phi i64 [ %known.took, %begin ], [ %probe.some, %probe ]
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
  call void @open(ptr %pool, ptr %words, i64 %first, i64 %total, i64 %took)
  br label %work
work:
  %share.before = call i64 @now()
  %ran = call i64 @claim(ptr %pool)
  %share.after = call i64 @now()
  %share.took = sub i64 %share.after, %share.before
  %ran.any = icmp ne i64 %ran, 0
  br i1 %ran.any, label %learn, label %learned
learn:
  %share.each = udiv i64 %share.took, %ran
  %share.some = or i64 %share.each, 1
  store i64 %share.some, ptr %known.took.at
  br label %learned
learned:
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
  %pool.total = getelementptr %Pool, ptr %pool, i32 0, i32 10
  store i64 0, ptr %pool.total                            ; a thread that wakes late finds nothing to do
  %e = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
}

; Have the pool's threads work on a launch, whose first groups have run, or none. took: nanoseconds a
; group. By the queue's thread, or before that can see the launch.
define internal void @open(ptr %pool, ptr %words, i64 %first, i64 %total, i64 %took) {
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %kernel.at = getelementptr i32, ptr %words, i64 1
  %kernel = load ptr, ptr %kernel.at, align 4
  %kernarg.at = getelementptr i32, ptr %words, i64 3
  %kernarg = load ptr, ptr %kernarg.at, align 4
  %shape = getelementptr i32, ptr %words, i64 5
  ; A piece is what takes 30 us, but at most an eighth of a thread's share: the threads end together.
  %left = sub i64 %total, %first
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
  call void @rouse(ptr %pool)
  %c = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
}

; Tell a pool's threads that a launch is on its way.
define internal void @announce(ptr %pool) {
  %a = call i32 @pthread_mutex_lock(ptr %pool)
  %announced.at = getelementptr %Pool, ptr %pool, i32 0, i32 16
  %old = atomicrmw add ptr %announced.at, i64 1 acq_rel
  call void @rouse(ptr %pool)
  %c = call i32 @pthread_mutex_unlock(ptr %pool)
  ret void
}

; Wake a pool's threads; the pool is locked. A single one comes up on another processor than this
; thread's, where Linux may put it, to wait until this one sleeps; it takes the set of those it may use
; back itself. RACE: a set given from outside meanwhile is lost.
define internal void @rouse(ptr %pool) {
entry:
  %others = alloca [128 x i8]                             ; as many processors as glibc's cpu_set_t
  %asleep.at = getelementptr %Pool, ptr %pool, i32 0, i32 19
  %asleep = load i64, ptr %asleep.at
  %sent.at = getelementptr %Pool, ptr %pool, i32 0, i32 20
  %sent = load i64, ptr %sent.at
  %cpu = call i32 @sched_getcpu()
  %here = sext i32 %cpu to i64
  %counted = icmp ult i64 %here, 1024
  %sleeps = icmp ne i64 %asleep, 0
  %stays = icmp eq i64 %sent, 0
  %may = and i1 %sleeps, %stays
  %goes = and i1 %may, %counted
  br i1 %goes, label %send, label %wake
send:
  %processors = getelementptr %Pool, ptr %pool, i32 0, i32 21
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %processors, i64 128, i1 0)
  call void @without(ptr %others, i64 %here)
  %thread.at = getelementptr %Pool, ptr %pool, i32 0, i32 18
  %thread = load i64, ptr %thread.at
  %a = call i32 @pthread_setaffinity_np(i64 %thread, i64 128, ptr %others)
  %fine = icmp eq i32 %a, 0                               ; refused where there is no other
  %now.sent = zext i1 %fine to i64
  store i64 %now.sent, ptr %sent.at
  br label %wake
wake:
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %b = call i32 @pthread_cond_broadcast(ptr %work)
  ret void
}

; Take a processor out of a set.
define internal void @without(ptr %set, i64 %processor) {
  %byte = lshr i64 %processor, 3
  %bit = and i64 %processor, 7
  %bit.narrow = trunc i64 %bit to i8
  %one = shl i8 1, %bit.narrow
  %kept = xor i8 %one, -1
  %at = getelementptr i8, ptr %set, i64 %byte
  %old = load i8, ptr %at
  %new = and i8 %old, %kept
  store i8 %new, ptr %at
  ret void
}

; Sleep as a thread of the pool does, which is locked, until woken.
define internal void @rest(ptr %pool) {
entry:
  %work = getelementptr %Pool, ptr %pool, i32 0, i32 1
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %single = icmp eq i64 %workers, 1
  br i1 %single, label %lie, label %sleep
sleep:
  call void @doze(ptr %work, ptr %pool, i64 1000000000)
  ret void
lie:
  %processors = getelementptr %Pool, ptr %pool, i32 0, i32 21
  %a = call i32 @sched_getaffinity(i32 0, i64 128, ptr %processors)
  %fine = icmp eq i32 %a, 0
  %asleep = zext i1 %fine to i64
  %asleep.at = getelementptr %Pool, ptr %pool, i32 0, i32 19
  store i64 %asleep, ptr %asleep.at
  %thread = call i64 @pthread_self()
  %thread.at = getelementptr %Pool, ptr %pool, i32 0, i32 18
  store i64 %thread, ptr %thread.at
  call void @doze(ptr %work, ptr %pool, i64 1000000000)
  store i64 0, ptr %asleep.at
  %sent.at = getelementptr %Pool, ptr %pool, i32 0, i32 20
  %sent = load i64, ptr %sent.at
  %was.sent = icmp ne i64 %sent, 0
  br i1 %was.sent, label %arrive, label %up
arrive:
  store i64 0, ptr %sent.at
  %b = call i32 @sched_setaffinity(i32 0, i64 128, ptr %processors)
  br label %up
up:
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
  call void @without(ptr %others, i64 %here)
  %b = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)    ; refused where there is no other
  %c = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %done
done:
  ret void
}

; A thread of the pool.
define void @ugpu_work(ptr %pool) {
entry:
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
  call void @rest(ptr %pool)
  %announced = load atomic i64, ptr %announced.at acquire, align 8
  %now.announced = icmp ne i64 %announced, %announced.before
  br i1 %now.announced, label %expect, label %look
expect:                                                   ; a launch is on its way to the queue's thread
  %h = call i32 @pthread_mutex_unlock(ptr %pool)
  %patience = mul i64 %spin, 6                            ; Python is slow where no cache has it
  %came = call i1 @changes(ptr %generation.at, i64 %seen, i64 %patience)
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
