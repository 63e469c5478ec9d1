; How threads wait: looking, sleeping on a bell, being woken.

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

; Wait as ugpu_await does until two timelines have reached their values; 1 if both have, and no alarm
; was ever raised. waiting: bell, the timelines, and nanoseconds.
define internal i32 @ugpu_settle(ptr %waiting, i64 %first, i64 %second) {
entry:
  %bell = load ptr, ptr %waiting
  %one.at = getelementptr ptr, ptr %waiting, i64 1
  %one = load ptr, ptr %one.at
  %two.at = getelementptr ptr, ptr %waiting, i64 2
  %two = load ptr, ptr %two.at
  %nanoseconds.at = getelementptr i64, ptr %waiting, i64 3
  %nanoseconds = load i64, ptr %nanoseconds.at
  %one.now = load atomic i64, ptr %one acquire, align 8
  %one.there = icmp uge i64 %one.now, %first
  br i1 %one.there, label %other, label %await
await:
  call void @ugpu_await(ptr %bell, ptr %one, i64 %first, i64 %nanoseconds)
  br label %other
other:
  %one.last = load atomic i64, ptr %one acquire, align 8
  %one.reached = icmp uge i64 %one.last, %first
  %two.now = load atomic i64, ptr %two acquire, align 8
  %two.reached = icmp uge i64 %two.now, %second
  %reached = and i1 %one.reached, %two.reached
  %alarms.at = getelementptr %Bell, ptr %bell, i32 0, i32 2
  %alarms = load atomic i64, ptr %alarms.at acquire, align 8
  %calm = icmp eq i64 %alarms, 0
  %fine = and i1 %reached, %calm
  %result = zext i1 %fine to i32
  ret i32 %result
}
