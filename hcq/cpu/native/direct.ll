; Decisions about objects of Python, made without running any of its code: whether work may be executed
; now, in the thread that submits it, and whether a wait would find everything ended. The interpreter
; lock is held. A slot is the address of an object's field that points to another object (slot_offsets
; of hcq/objects/builtin.py); records are filled in by hcq/cpu/direct.py.

%Direct = type { ptr, ptr, ptr, ptr, ptr, ptr, %Gate, ptr, ptr, ptr, ptr, ptr, i64, [0 x ptr] }
;                repetition acquire release true false none gate launches more closed note timeline
;                count used
; launches: a slot with a number; more: what is added to it. closed: the name. note: called with the
; timeline and the value of work that has not ended. used: objects that must not be closed.
%Gate = type { ptr, ptr, ptr, ptr, ptr, ptr, ptr }
;              closed failure replaying resets capturing closer (slots) reset
; reset: the object that the slot `resets` has, unless there was another reset.
%Quiet = type { ptr, ptr, ptr, %Gate, ptr, i64, [3 x ptr], i64, [0 x { ptr, ptr }] }
;               true false none gate alarms 3 containers count timelines (cells, clean)
; containers: of Python; something has to be done for what is in them.

declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare i64 @PyObject_Size(ptr)
declare ptr @PyNumber_Add(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)

; Whether the device works: open, not failed, not inside a replay, never reset since.
define internal i1 @works(ptr %gate, ptr %false, ptr %none) alwaysinline {
  %closed.slot = load ptr, ptr %gate
  %failure.slot.at = getelementptr %Gate, ptr %gate, i32 0, i32 1
  %failure.slot = load ptr, ptr %failure.slot.at
  %replaying.slot.at = getelementptr %Gate, ptr %gate, i32 0, i32 2
  %replaying.slot = load ptr, ptr %replaying.slot.at
  %resets.slot.at = getelementptr %Gate, ptr %gate, i32 0, i32 3
  %resets.slot = load ptr, ptr %resets.slot.at
  %reset.at = getelementptr %Gate, ptr %gate, i32 0, i32 6
  %reset = load ptr, ptr %reset.at
  %closed = load ptr, ptr %closed.slot
  %failure = load ptr, ptr %failure.slot
  %replaying = load ptr, ptr %replaying.slot
  %resets = load ptr, ptr %resets.slot
  %a = icmp eq ptr %closed, %false
  %b = icmp eq ptr %failure, %none
  %c = icmp eq ptr %replaying, %none
  %d = icmp eq ptr %resets, %reset
  %ab = and i1 %a, %b
  %cd = and i1 %c, %d
  %all = and i1 %ab, %cd
  ret i1 %all
}

; Submit a %Repetition, whose numbers are in its `given`, if it can be executed at once. Return the
; timeline's value of its end; 0 if nothing was done; -1 with an exception.
define i64 @ugpu_now(ptr %direct) {
entry:
  %argument = alloca ptr
  %type.at = alloca ptr
  %value.at = alloca ptr
  %trace.at = alloca ptr
  %acquire.at = getelementptr %Direct, ptr %direct, i32 0, i32 1
  %acquire = load ptr, ptr %acquire.at
  %true.at = getelementptr %Direct, ptr %direct, i32 0, i32 3
  %true = load ptr, ptr %true.at
  %false.at = getelementptr %Direct, ptr %direct, i32 0, i32 4
  %false = load ptr, ptr %false.at
  store ptr %false, ptr %argument                          ; blocking=False
  %answer = call ptr @PyObject_Vectorcall(ptr %acquire, ptr %argument, i64 1, ptr null)
  %raised = icmp eq ptr %answer, null
  br i1 %raised, label %error, label %answered
answered:
  %mine = icmp eq ptr %answer, %true
  call void @Py_DecRef(ptr %answer)
  br i1 %mine, label %locked, label %no
no:
  ret i64 0
locked:
  %done = call i64 @ugpu_now_locked(ptr %direct)
  %failed = icmp eq i64 %done, -1
  br i1 %failed, label %keep, label %unlock
keep:
  call void @PyErr_Fetch(ptr %type.at, ptr %value.at, ptr %trace.at)
  br label %unlock
unlock:
  %release.at = getelementptr %Direct, ptr %direct, i32 0, i32 2
  %release = load ptr, ptr %release.at
  %released = call ptr @PyObject_Vectorcall(ptr %release, ptr null, i64 0, ptr null)
  %stuck = icmp eq ptr %released, null
  br i1 %stuck, label %error, label %unlocked
unlocked:
  call void @Py_DecRef(ptr %released)
  br i1 %failed, label %restore, label %end
restore:
  %type = load ptr, ptr %type.at
  %value = load ptr, ptr %value.at
  %trace = load ptr, ptr %trace.at
  call void @PyErr_Restore(ptr %type, ptr %value, ptr %trace)
  br label %error
end:
  ret i64 %done
error:
  ret i64 -1
}

define internal i64 @ugpu_now_locked(ptr %direct) {
entry:
  %arguments = alloca [2 x ptr]
  %repetition = load ptr, ptr %direct
  %false.at = getelementptr %Direct, ptr %direct, i32 0, i32 4
  %false = load ptr, ptr %false.at
  %none.at = getelementptr %Direct, ptr %direct, i32 0, i32 5
  %none = load ptr, ptr %none.at
  %closed.at = getelementptr %Direct, ptr %direct, i32 0, i32 9
  %closed = load ptr, ptr %closed.at
  %count.at = getelementptr %Direct, ptr %direct, i32 0, i32 12
  %count = load i64, ptr %count.at
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %compared ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %one, label %gate
one:
  %used.at = getelementptr %Direct, ptr %direct, i32 0, i32 13, i64 %i
  %used = load ptr, ptr %used.at
  %state = call ptr @PyObject_GetAttr(ptr %used, ptr %closed)
  %raised = icmp eq ptr %state, null
  br i1 %raised, label %error, label %compared
compared:
  %open = icmp eq ptr %state, %false
  call void @Py_DecRef(ptr %state)
  %i.next = add i64 %i, 1
  br i1 %open, label %look, label %no

  ; From here to the submission no other thread runs code of Python.
gate:
  %gate.at = getelementptr %Direct, ptr %direct, i32 0, i32 6
  %works = call i1 @works(ptr %gate.at, ptr %false, ptr %none)
  %capturing.at = getelementptr %Gate, ptr %gate.at, i32 0, i32 4
  %capturing.slot = load ptr, ptr %capturing.at
  %capturing = load ptr, ptr %capturing.slot
  %closer.at = getelementptr %Gate, ptr %gate.at, i32 0, i32 5
  %closer.slot = load ptr, ptr %closer.at
  %closer = load ptr, ptr %closer.slot
  %free = icmp eq ptr %capturing, %none
  %stays = icmp eq ptr %closer, %none
  %both = and i1 %free, %stays
  %usable = and i1 %works, %both
  br i1 %usable, label %idle, label %no
idle:
  %queue.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 1
  %queue = load ptr, ptr %queue.at
  %prepared.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 2
  %prepared = load ptr, ptr %prepared.at
  %bounded.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 5
  %bounded = load i64, ptr %bounded.at
  %ends = icmp ne i64 %bounded, 0
  %tail.at = getelementptr %Queue, ptr %queue, i32 0, i32 1
  %tail = load i64, ptr %tail.at
  %head = load atomic i64, ptr %queue acquire, align 8
  %empty = icmp eq i64 %tail, %head
  %may = and i1 %ends, %empty
  br i1 %may, label %brief, label %no
brief:
  %template = load ptr, ptr %prepared
  %words.at = getelementptr %Prepared, ptr %prepared, i32 0, i32 2
  %words = load i64, ptr %words.at
  %short = call i1 @is_brief(ptr %queue, ptr %template, i64 %words)
  %usual = call i1 @computes_as_usual()
  %fits = and i1 %short, %usual
  br i1 %fits, label %submit, label %no
submit:
  %launches.at = getelementptr %Direct, ptr %direct, i32 0, i32 7
  %launches.slot = load ptr, ptr %launches.at
  %launches = load ptr, ptr %launches.slot
  %more.at = getelementptr %Direct, ptr %direct, i32 0, i32 8
  %more = load ptr, ptr %more.at
  %sum = call ptr @PyNumber_Add(ptr %launches, ptr %more)
  %full = icmp eq ptr %sum, null
  br i1 %full, label %error, label %push
push:
  %last.at = getelementptr %Queue, ptr %queue, i32 0, i32 11
  %last = load ptr, ptr %last.at
  %before = load i64, ptr %last
  %value = add i64 %before, 1
  %given.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 4
  %given = load ptr, ptr %given.at
  store i64 %value, ptr %given
  %submitted = call i32 @ugpu_repeat(ptr %repetition)
  %yes = icmp ne i32 %submitted, 0
  br i1 %yes, label %count.it, label %refused
refused:
  call void @Py_DecRef(ptr %sum)
  br label %no
count.it:
  store ptr %sum, ptr %launches.slot
  call void @Py_DecRef(ptr %launches)
  %slots = load ptr, ptr %repetition
  %reached.at.at = getelementptr %Slots, ptr %slots, i32 0, i32 1
  %reached.at = load ptr, ptr %reached.at.at
  %reached = load atomic i64, ptr %reached.at acquire, align 8
  %ended = icmp uge i64 %reached, %value
  br i1 %ended, label %done, label %note.it
note.it:                                                   ; its execution was cut short
  %number = call ptr @PyLong_FromUnsignedLongLong(i64 %value)
  %none.left = icmp eq ptr %number, null
  br i1 %none.left, label %error, label %call.it
call.it:
  %note.at = getelementptr %Direct, ptr %direct, i32 0, i32 10
  %note = load ptr, ptr %note.at
  %timeline.at = getelementptr %Direct, ptr %direct, i32 0, i32 11
  %timeline = load ptr, ptr %timeline.at
  store ptr %timeline, ptr %arguments
  %second = getelementptr ptr, ptr %arguments, i64 1
  store ptr %number, ptr %second
  %noted = call ptr @PyObject_Vectorcall(ptr %note, ptr %arguments, i64 2, ptr null)
  call void @Py_DecRef(ptr %number)
  %wrong = icmp eq ptr %noted, null
  br i1 %wrong, label %error, label %is.noted
is.noted:
  call void @Py_DecRef(ptr %noted)
  br label %done
done:
  ret i64 %value
no:
  ret i64 0
error:
  ret i64 -1
}

; Whether a wait for all work would find it ended and free of failures, without doing anything else; then
; it counts as found so.
define ptr @ugpu_quiet(ptr %self, ptr %arguments, i64 %given) {
entry:
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %self)
  %quiet = inttoptr i64 %address to ptr
  %true = load ptr, ptr %quiet
  %false.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 1
  %false = load ptr, ptr %false.at
  %none.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 2
  %none = load ptr, ptr %none.at
  %gate.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 3
  %works = call i1 @works(ptr %gate.at, ptr %false, ptr %none)
  %alarms.at.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 4
  %alarms.at = load ptr, ptr %alarms.at.at
  %alarms = load atomic i64, ptr %alarms.at acquire, align 8
  %calm = icmp eq i64 %alarms, 0
  %fine = and i1 %works, %calm
  br i1 %fine, label %container, label %no
container:
  %i = phi i64 [ 0, %entry ], [ %i.next, %counted ]
  %left = icmp ult i64 %i, 3
  br i1 %left, label %counted, label %timeline
counted:
  %container.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 6, i64 %i
  %object = load ptr, ptr %container.at
  %size = call i64 @PyObject_Size(ptr %object)
  %none.in = icmp eq i64 %size, 0
  %i.next = add i64 %i, 1
  br i1 %none.in, label %container, label %no
timeline:
  %t = phi i64 [ 0, %container ], [ %t.next, %ended ]
  %count.at = getelementptr %Quiet, ptr %quiet, i32 0, i32 7
  %count = load i64, ptr %count.at
  %more = icmp ult i64 %t, %count
  br i1 %more, label %look, label %yes
look:
  %pair = getelementptr %Quiet, ptr %quiet, i32 0, i32 8, i64 %t
  %cells = load ptr, ptr %pair
  %reached = load atomic i64, ptr %cells acquire, align 8
  %last.at = getelementptr i64, ptr %cells, i64 1
  %last = load i64, ptr %last.at
  %over = icmp uge i64 %reached, %last
  br i1 %over, label %ended, label %no
ended:
  %clean.at.at = getelementptr { ptr, ptr }, ptr %pair, i32 0, i32 1
  %clean.at = load ptr, ptr %clean.at.at
  %clean = load i64, ptr %clean.at
  %highest = call i64 @llvm.umax.i64(i64 %clean, i64 %last)
  store i64 %highest, ptr %clean.at
  %t.next = add i64 %t, 1
  br label %timeline
yes:
  call void @Py_IncRef(ptr %true)
  ret ptr %true
no:
  call void @Py_IncRef(ptr %false)
  ret ptr %false
}
