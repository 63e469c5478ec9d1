; A queue's thread: the commands of its ring, in order.

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

; Whether a command buffer is known to take less than `brief`: it has launches, whose kernels have all
; run before, and at last a signal. The queue is idle.
define internal i1 @is_brief(ptr %queue, ptr %words, i64 %count) {
entry:
  %brief.at = getelementptr %Queue, ptr %queue, i32 0, i32 12
  %brief = load i64, ptr %brief.at
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.launch, %recalled ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %recalled ]
  %p = getelementptr i32, ptr %words, i64 %i
  %operation = load i32, ptr %p
  switch i32 %operation, label %unknown [ i32 1, label %launch
                                          i32 5, label %signal ]
launch:
  %kernel.at = getelementptr i32, ptr %p, i64 1
  %kernel = load ptr, ptr %kernel.at, align 4
  %known = call ptr @known(ptr %pool, ptr %kernel)
  %known.kernel = load ptr, ptr %known
  %is.known = icmp eq ptr %known.kernel, %kernel
  br i1 %is.known, label %recalled, label %unknown
recalled:
  %took.at = getelementptr %Known, ptr %known, i32 0, i32 1
  %took = load i64, ptr %took.at
  %shape = getelementptr i32, ptr %p, i64 5
  %total = call i64 @count(ptr %shape)
  %estimate = mul i64 %took, %total
  %sum.next = add i64 %sum, %estimate
  %i.launch = add i64 %i, 11
  %more = icmp ult i64 %i.launch, %count
  %still = icmp ult i64 %sum.next, %brief
  %on = and i1 %more, %still
  br i1 %on, label %next, label %unknown
signal:
  %i.signal = add i64 %i, 5
  %last = icmp eq i64 %i.signal, %count
  ret i1 %last
unknown:
  ret i1 0
}

; Run a command buffer in the thread that submits it, if nothing is before it, it is known to take less
; than `brief`, and this thread computes as the queue's does; false if not. Its kernels end by
; themselves. value: of the timeline, that marks the end.
define internal i1 @at_once(ptr %queue, ptr %words, i64 %count, i64 %value) {
  %tail.at = getelementptr %Queue, ptr %queue, i32 0, i32 1
  %tail = load i64, ptr %tail.at
  %head = load atomic i64, ptr %queue acquire, align 8
  %idle = icmp eq i64 %tail, %head
  br i1 %idle, label %look, label %no
look:
  %short = call i1 @is_brief(ptr %queue, ptr %words, i64 %count)
  %usual = call i1 @computes_as_usual()
  %may = and i1 %short, %usual
  br i1 %may, label %run, label %no
run:
  %last.at = getelementptr %Queue, ptr %queue, i32 0, i32 11
  %last = load ptr, ptr %last.at
  store i64 %value, ptr %last
  %fine = call i1 @execute(ptr %queue, ptr %words, i64 %count)
  ret i1 1
no:
  ret i1 0
}

; Run a command buffer whose kernels end by themselves: at once, or as ugpu_push does. 0 when the ring
; is full.
define i32 @ugpu_run(ptr %queue, ptr %words, i64 %count, i64 %value) {
  %ran = call i1 @at_once(ptr %queue, ptr %words, i64 %count, i64 %value)
  br i1 %ran, label %yes, label %push
yes:
  ret i32 1
push:
  %pushed = call i32 @ugpu_push(ptr %queue, ptr %words, i64 %count, i64 %value)
  ret i32 %pushed
}
