; How work gets into a queue's ring, called by the thread that submits.

; Wake those who will work before something is pushed: they come up while that is being prepared.
define internal void @ugpu_expect(ptr %queue) {
entry:
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %none = icmp eq i64 %workers, 0
  br i1 %none, label %own, label %others
own:
  %expected.at = getelementptr %Queue, ptr %queue, i32 0, i32 10
  %old = atomicrmw add ptr %expected.at, i64 1 acq_rel
  %door.at = getelementptr %Queue, ptr %queue, i32 0, i32 9
  %door = load ptr, ptr %door.at
  call void @ugpu_ring(ptr %door)
  ret void
others:
  call void @announce(ptr %pool)
  ret void
}

; Append (words, count) to a queue's ring and wake its thread; 0 when the ring is full. value: of the
; timeline, that marks the end. Python sees the entry and the value of one call, or neither. Where the
; first command is a launch that is worth sharing, the pool's threads are woken too; and where nothing
; is before it, they begin: Linux may wake the queue's thread on this thread's processor, where it has
; to wait until this one sleeps.
define i32 @ugpu_push(ptr %queue, ptr %words, i64 %count, i64 %value) {
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
  %operation = load i32, ptr %words
  %launches = icmp eq i32 %operation, 1
  br i1 %launches, label %foresee, label %publish
foresee:
  %pool.at = getelementptr %Queue, ptr %queue, i32 0, i32 8
  %pool = load ptr, ptr %pool.at
  %workers.at = getelementptr %Pool, ptr %pool, i32 0, i32 6
  %workers = load i64, ptr %workers.at
  %some = icmp ne i64 %workers, 0
  %kernel.at = getelementptr i32, ptr %words, i64 1
  %kernel = load ptr, ptr %kernel.at, align 4
  %shape = getelementptr i32, ptr %words, i64 5
  %total = call i64 @count(ptr %shape)
  %several = icmp ugt i64 %total, 1
  %known = call ptr @known(ptr %pool, ptr %kernel)
  ; RACE: the queue's thread, where it is at work, may write both words just now; a wrong answer costs
  ; a wake-up then.
  %known.kernel = load atomic ptr, ptr %known monotonic, align 8
  %is.known = icmp eq ptr %known.kernel, %kernel
  %took.at = getelementptr %Known, ptr %known, i32 0, i32 1
  %took = load atomic i64, ptr %took.at monotonic, align 8
  %estimate = mul i64 %took, %total
  %long = icmp uge i64 %estimate, 100000
  %sharable = and i1 %some, %several
  %worth = and i1 %is.known, %long
  %shared = and i1 %sharable, %worth
  br i1 %shared, label %look, label %publish
look:
  %first = icmp eq i64 %used, 0
  br i1 %first, label %begin, label %tell
begin:
  ; ORDER: before the queue's thread can see the launch. Until then it touches none of this.
  call void @open(ptr %pool, ptr %words, i64 0, i64 %total, i64 %took)
  %opened.at = getelementptr %Pool, ptr %pool, i32 0, i32 17
  store ptr %words, ptr %opened.at
  br label %publish
tell:
  call void @announce(ptr %pool)
  br label %publish
publish:
  %last.at = getelementptr %Queue, ptr %queue, i32 0, i32 11
  %last = load ptr, ptr %last.at
  store i64 %value, ptr %last
  %next = add i64 %tail, 1
  store atomic i64 %next, ptr %tail.at release, align 8
  %door.at = getelementptr %Queue, ptr %queue, i32 0, i32 9
  %door = load ptr, ptr %door.at
  call void @ugpu_ring(ptr %door)
  ret i32 1
}

; Submit what was prepared: copy its template to the next slot, fill in its numbers, push it or run it.
; 0 when the slot's last content is still in use, or the ring is full. value: of the queue's timeline,
; that marks the end. One thread at a time.
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
  %given = getelementptr %Prepared, ptr %prepared, i32 0, i32 6
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
  %bounded.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 5
  %bounded = load i64, ptr %bounded.at
  %ends = icmp ne i64 %bounded, 0
  br i1 %ends, label %run, label %queued
run:
  %ran = call i32 @ugpu_run(ptr %queue, ptr %place, i64 %words, i64 %value)
  ret i32 %ran
queued:
  %pushed = call i32 @ugpu_push(ptr %queue, ptr %place, i64 %words, i64 %value)
  ret i32 %pushed
}

; Submit what was prepared once more, with the given value and numbers for those of its parameters that
; a %Repetition lists. Otherwise as ugpu_submit.
define internal i32 @ugpu_repeat(ptr %repetition) {
entry:
  %slots = load ptr, ptr %repetition
  %queue.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 1
  %queue = load ptr, ptr %queue.at
  %prepared.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 2
  %prepared = load ptr, ptr %prepared.at
  %parameters.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 3
  %parameters = load ptr, ptr %parameters.at
  %given.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 4
  %given = load ptr, ptr %given.at
  %value = load i64, ptr %given
  %count.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 5
  %count = load i64, ptr %count.at
  %listed = getelementptr %Repetition, ptr %repetition, i32 0, i32 7
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %submit
one:
  %slot.at = getelementptr { i64, i64 }, ptr %listed, i64 %i
  %slot = load i64, ptr %slot.at
  %which.at = getelementptr { i64, i64 }, ptr %slot.at, i32 0, i32 1
  %which = load i64, ptr %which.at
  %after = add i64 %which, 1
  %number.at = getelementptr i64, ptr %given, i64 %after
  %number = load i64, ptr %number.at
  %to = getelementptr i64, ptr %parameters, i64 %slot
  store i64 %number, ptr %to
  %i.next = add i64 %i, 1
  br label %look
submit:
  %result = call i32 @ugpu_submit(ptr %slots, ptr %queue, ptr %prepared, i64 %value)
  ret i32 %result
}
