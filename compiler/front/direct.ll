; A call of a recorded function whose kernels run in the calling thread: from the arguments to the new
; tensor without running code of Python. The interpreter lock is held. The structures are those of
; compiler/front/direct.py. Offsets are of slots, from an object's address.

%Call = type { i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, i64,
;              count under_way tensor node repeated storage reused now given ring fill here origin slot
               i64, ptr, i64, ptr, ptr, ptr, ptr, ptr }
;              held helds fields template device periods period arguments
; under_way: a set, not empty while anything is recorded. tensor .. reused: classes. now: a record for
; ugpu_now. given: where that has its numbers. ring: a list of memory for results, in use while anything
; else refers to it; fill: returns more. here: returns the origin of a tensor that is made now; origin:
; the last one, if the calling instruction made it. slot: which number is the result's address, or -1.
; template: what a node contains. periods, period: a dictionary and the name of a number in it.
%Argument = type { ptr, ptr, i64 }                        ; dtype shape used
%Held = type { ptr, i64 }                                 ; a weak reference to a tensor, an address
%Field = type { i64, ptr }                                ; offset, content
; Where objects keep their slots. Of tensors: device, node; of nodes: dtype, shape, storage, origin, made;
; of memory: address; of recorded functions: direct; of that: address.
@places = global [10 x i64] zeroinitializer
@slow = global ptr null                                   ; the call in Python
@direct = global ptr null                                 ; the class of records

declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare i64 @PyObject_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare ptr @PyEval_GetFrame()
declare ptr @PyFrame_GetCode(ptr)
declare i32 @PyFrame_GetLasti(ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyMem_Malloc(i64)
declare void @PyMem_Free(ptr)
declare ptr @PyErr_NoMemory()
declare i64 @ugpu_now(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @ugpu_recorded_setup(ptr %places, ptr %slow, ptr %direct) {
  call void @llvm.memcpy.p0.p0.i64(ptr @places, ptr %places, i64 80, i1 0)
  store ptr %slow, ptr @slow
  store ptr %direct, ptr @direct
  ret void
}

define internal ptr @slot(ptr %object, i64 %which) alwaysinline {
  %at = getelementptr i64, ptr @places, i64 %which
  %offset = load i64, ptr %at
  %field = getelementptr i8, ptr %object, i64 %offset
  ret ptr %field
}

define internal ptr @type(ptr %object) alwaysinline {
  %at = getelementptr ptr, ptr %object, i64 1
  %type = load ptr, ptr %at
  ret ptr %type
}

; Jit.__call__
define ptr @ugpu_recorded(ptr %self, ptr %arguments, i64 %count, ptr %names) {
entry:
  %local = alloca [64 x ptr]
  %direct.at = call ptr @slot(ptr %self, i64 8)
  %direct = load ptr, ptr %direct.at
  %unset = icmp eq ptr %direct, null
  %named = icmp ne ptr %names, null
  %never = or i1 %unset, %named
  br i1 %never, label %python, label %look
look:
  %class = call ptr @type(ptr %direct)
  %wanted = load ptr, ptr @direct
  %is = icmp eq ptr %class, %wanted
  br i1 %is, label %run, label %python
run:
  call void @Py_IncRef(ptr %direct)                       ; a call in between may reset the function
  %address.at = call ptr @slot(ptr %direct, i64 9)
  %address.object = load ptr, ptr %address.at
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %address.object)
  %call = inttoptr i64 %address to ptr
  %result = call ptr @run(ptr %call, ptr %arguments, i64 %count)
  call void @Py_DecRef(ptr %direct)
  %number = ptrtoint ptr %result to i64
  %missed = icmp eq i64 %number, 1
  br i1 %missed, label %python, label %done
done:
  ret ptr %result
python:
  %some = icmp ne ptr %names, null
  br i1 %some, label %keywords, label %copy
keywords:
  %more = call i64 @PyTuple_Size(ptr %names)
  br label %copy
copy:
  %extra = phi i64 [ 0, %python ], [ %more, %keywords ]
  %total = add i64 %count, %extra
  %all = add i64 %total, 1
  %small = icmp ule i64 %all, 64
  br i1 %small, label %write, label %large
large:
  %size = shl i64 %all, 3
  %memory = call ptr @PyMem_Malloc(i64 %size)
  %full = icmp eq ptr %memory, null
  br i1 %full, label %full.up, label %write
full.up:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr null
write:
  %allocated = phi ptr [ null, %copy ], [ %memory, %large ]
  %stack = select i1 %small, ptr %local, ptr %allocated
  store ptr %self, ptr %stack
  %rest = getelementptr ptr, ptr %stack, i64 1
  %bytes = shl i64 %total, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %arguments, i64 %bytes, i1 0)
  %slow = load ptr, ptr @slow
  %positional = add i64 %count, 1
  %value = call ptr @PyObject_Vectorcall(ptr %slow, ptr %stack, i64 %positional, ptr %names)
  call void @PyMem_Free(ptr %allocated)
  ret ptr %value
}

; Return a new tensor; 1 if nothing was done; null with an exception.
define internal ptr @run(ptr %call, ptr %arguments, i64 %count) {
entry:
  %expected = load i64, ptr %call
  %fits = icmp eq i64 %count, %expected
  %under_way.at = getelementptr %Call, ptr %call, i32 0, i32 1
  %under_way = load ptr, ptr %under_way.at
  %recordings = call i64 @PyObject_Size(ptr %under_way)
  %quiet = icmp eq i64 %recordings, 0
  %may = and i1 %fits, %quiet
  br i1 %may, label %take, label %miss
miss:
  ret ptr inttoptr (i64 1 to ptr)

  ; First what may run code of Python: memory, the origin, new objects (the collector).
take:
  %storage = call ptr @memory(ptr %call)
  %storage.no = icmp eq ptr %storage, null
  br i1 %storage.no, label %error, label %trace
trace:
  %origin = call ptr @origin(ptr %call)
  %origin.no = icmp eq ptr %origin, null
  br i1 %origin.no, label %drop.storage, label %tensor.new
tensor.new:
  %tensor.class.at = getelementptr %Call, ptr %call, i32 0, i32 2
  %tensor.class = load ptr, ptr %tensor.class.at
  %tensor = call ptr @PyType_GenericAlloc(ptr %tensor.class, i64 0)
  %tensor.no = icmp eq ptr %tensor, null
  br i1 %tensor.no, label %drop.origin, label %node.new
node.new:
  %node.class.at = getelementptr %Call, ptr %call, i32 0, i32 3
  %node.class = load ptr, ptr %node.class.at
  %node = call ptr @PyType_GenericAlloc(ptr %node.class, i64 0)
  %node.no = icmp eq ptr %node, null
  br i1 %node.no, label %drop.tensor, label %check

  ; From here no code of Python runs, except for objects' attribute `closed` in ugpu_now.
check:
  %size.at = getelementptr %Call, ptr %call, i32 0, i32 13
  %slot = load i64, ptr %size.at
  %given.at = getelementptr %Call, ptr %call, i32 0, i32 8
  %given = load ptr, ptr %given.at
  %right = call i32 @check(ptr %call, ptr %arguments, i64 %count)
  %checked = icmp eq i32 %right, 1
  br i1 %checked, label %number, label %not.checked
not.checked:
  %raised = icmp eq i32 %right, -1
  br i1 %raised, label %drop.node, label %give.up
number:
  %used = icmp ne i64 %slot, -1
  br i1 %used, label %name, label %submit
name:
  %address.at = call ptr @slot(ptr %storage, i64 7)
  %address.object = load ptr, ptr %address.at
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %address.object)
  %given.result = getelementptr i64, ptr %given, i64 %slot
  store i64 %address, ptr %given.result
  br label %submit
submit:
  %now.at = getelementptr %Call, ptr %call, i32 0, i32 7
  %now = load ptr, ptr %now.at
  %value = call i64 @ugpu_now(ptr %now)
  switch i64 %value, label %fill [ i64 -1, label %drop.node
                                   i64 0, label %give.up ]

fill:
  call void @fill(ptr %call, ptr %tensor, ptr %node, ptr %storage, ptr %origin)
  ret ptr %tensor

give.up:
  call void @Py_DecRef(ptr %node)
  call void @Py_DecRef(ptr %tensor)
  call void @Py_DecRef(ptr %origin)
  call void @Py_DecRef(ptr %storage)
  br label %miss
drop.node:
  call void @Py_DecRef(ptr %node)
  br label %drop.tensor
drop.tensor:
  call void @Py_DecRef(ptr %tensor)
  br label %drop.origin
drop.origin:
  call void @Py_DecRef(ptr %origin)
  br label %drop.storage
drop.storage:
  call void @Py_DecRef(ptr %storage)
  br label %error
error:
  ret ptr null
}

; Return memory of the ring that nothing else refers to, with a new reference; null with an exception.
define internal ptr @memory(ptr %call) {
entry:
  %ring.at = getelementptr %Call, ptr %call, i32 0, i32 9
  %ring = load ptr, ptr %ring.at
  %count = call i64 @PyObject_Size(ptr %ring)
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %one, label %more
one:
  %storage = call ptr @PyList_GetItem(ptr %ring, i64 %i)
  %references = load i32, ptr %storage
  %alone = icmp eq i32 %references, 1
  br i1 %alone, label %own, label %next
own:
  call void @Py_IncRef(ptr %storage)
  ret ptr %storage
next:
  %i.next = add i64 %i, 1
  br label %look
more:
  %fill.at = getelementptr %Call, ptr %call, i32 0, i32 10
  %fill = load ptr, ptr %fill.at
  %new = call ptr @PyObject_Vectorcall(ptr %fill, ptr null, i64 0, ptr null)
  ret ptr %new
}

; Return the origin of a tensor that is made now, with a new reference; null with an exception. The last
; one is used again if the same instruction makes another.
define internal ptr @origin(ptr %call) {
entry:
  %origin.at = getelementptr %Call, ptr %call, i32 0, i32 12
  %frame = call ptr @PyEval_GetFrame()
  %none = icmp eq ptr %frame, null
  br i1 %none, label %ask, label %look
look:
  %last = load ptr, ptr %origin.at
  %unset = icmp eq ptr %last, null
  br i1 %unset, label %ask, label %compare
compare:
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  %place = call i32 @PyFrame_GetLasti(ptr %frame)
  %last.code = call ptr @PyTuple_GetItem(ptr %last, i64 0)
  %last.place.object = call ptr @PyTuple_GetItem(ptr %last, i64 1)
  %last.place = call i64 @PyLong_AsLongLong(ptr %last.place.object)
  %place.long = sext i32 %place to i64
  call void @Py_DecRef(ptr %code)                         ; its frame keeps it
  %same.code = icmp eq ptr %code, %last.code
  %same.place = icmp eq i64 %place.long, %last.place
  %same = and i1 %same.code, %same.place
  br i1 %same, label %again, label %ask
again:
  call void @Py_IncRef(ptr %last)
  ret ptr %last
ask:
  %here.at = getelementptr %Call, ptr %call, i32 0, i32 11
  %here = load ptr, ptr %here.at
  %origin = call ptr @PyObject_Vectorcall(ptr %here, ptr null, i64 0, ptr null)
  ret ptr %origin
}

; Whether the arguments, and tensors from outside, are as recorded: 1, 0, or -1 with an exception. The
; addresses of those that kernels name are then among the given numbers.
define internal i32 @check(ptr %call, ptr %arguments, i64 %count) {
entry:
  %given.at = getelementptr %Call, ptr %call, i32 0, i32 8
  %given = load ptr, ptr %given.at
  %tensor.class.at = getelementptr %Call, ptr %call, i32 0, i32 2
  %tensor.class = load ptr, ptr %tensor.class.at
  %device.at = getelementptr %Call, ptr %call, i32 0, i32 18
  %device = load ptr, ptr %device.at
  %expected.at = getelementptr %Call, ptr %call, i32 0, i32 21
  %expected = load ptr, ptr %expected.at
  br label %argument
argument:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %place = phi i64 [ 0, %entry ], [ %place.next, %next ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %one, label %outside
one:
  %object.at = getelementptr ptr, ptr %arguments, i64 %i
  %object = load ptr, ptr %object.at
  %class = call ptr @type(ptr %object)
  %is.tensor = icmp eq ptr %class, %tensor.class
  br i1 %is.tensor, label %before, label %no
before:                                                   ; each argument once
  %j = phi i64 [ 0, %one ], [ %j.next, %differs ]
  %earlier = icmp ult i64 %j, %i
  br i1 %earlier, label %compare, label %located
compare:
  %other.at = getelementptr ptr, ptr %arguments, i64 %j
  %other = load ptr, ptr %other.at
  %twice = icmp eq ptr %other, %object
  br i1 %twice, label %no, label %differs
differs:
  %j.next = add i64 %j, 1
  br label %before
located:
  %device.slot = call ptr @slot(ptr %object, i64 0)
  %its.device = load ptr, ptr %device.slot
  %near = icmp eq ptr %its.device, %device
  br i1 %near, label %typed, label %no
typed:
  %node = call ptr @node(ptr %call, ptr %object)
  %no.node = icmp eq ptr %node, null
  br i1 %no.node, label %no, label %formed
formed:
  %wanted = getelementptr %Argument, ptr %expected, i64 %i
  %dtype = load ptr, ptr %wanted
  %dtype.slot = call ptr @slot(ptr %node, i64 2)
  %its.dtype = load ptr, ptr %dtype.slot
  %same.dtype = icmp eq ptr %its.dtype, %dtype
  br i1 %same.dtype, label %shaped, label %no
shaped:
  %shape.at = getelementptr %Argument, ptr %wanted, i32 0, i32 1
  %shape = load ptr, ptr %shape.at
  %shape.slot = call ptr @slot(ptr %node, i64 3)
  %its.shape = load ptr, ptr %shape.slot
  %equal = call i32 @PyObject_RichCompareBool(ptr %its.shape, ptr %shape, i32 2)
  switch i32 %equal, label %error [ i32 0, label %no
                                    i32 1, label %stored ]
stored:
  %address = call i64 @address(ptr %call, ptr %node)
  %absent = icmp eq i64 %address, -1
  br i1 %absent, label %no, label %number
number:
  %used.at = getelementptr %Argument, ptr %wanted, i32 0, i32 2
  %used = load i64, ptr %used.at
  %to = getelementptr i64, ptr %given, i64 %place
  %is.used = icmp ne i64 %used, 0
  br i1 %is.used, label %put, label %next
put:
  store i64 %address, ptr %to
  br label %next
next:
  %place.next = add i64 %place, %used
  %i.next = add i64 %i, 1
  br label %argument

outside:
  %held.at = getelementptr %Call, ptr %call, i32 0, i32 14
  %held = load i64, ptr %held.at
  %helds.at = getelementptr %Call, ptr %call, i32 0, i32 15
  %helds = load ptr, ptr %helds.at
  br label %tensor
tensor:
  %h = phi i64 [ 0, %outside ], [ %h.next, %compared ]
  %left = icmp ult i64 %h, %held
  br i1 %left, label %alive, label %yes
alive:
  %each = getelementptr %Held, ptr %helds, i64 %h
  %reference = load ptr, ptr %each
  %kept = call ptr @PyObject_Vectorcall(ptr %reference, ptr null, i64 0, ptr null)
  %raised = icmp eq ptr %kept, null
  br i1 %raised, label %error, label %placed
placed:
  %kept.class = call ptr @type(ptr %kept)
  %kept.tensor = icmp eq ptr %kept.class, %tensor.class
  br i1 %kept.tensor, label %fetch, label %dead
dead:
  call void @Py_DecRef(ptr %kept)
  br label %no
fetch:
  %kept.node = call ptr @node(ptr %call, ptr %kept)
  %kept.none = icmp eq ptr %kept.node, null
  br i1 %kept.none, label %dead, label %where
where:
  %kept.address = call i64 @address(ptr %call, ptr %kept.node)
  %wanted.at = getelementptr %Held, ptr %each, i32 0, i32 1
  %wanted.address = load i64, ptr %wanted.at
  %there = icmp eq i64 %kept.address, %wanted.address
  br i1 %there, label %compared, label %dead
compared:
  call void @Py_DecRef(ptr %kept)
  %h.next = add i64 %h, 1
  br label %tensor
yes:
  ret i32 1
no:
  ret i32 0
error:
  ret i32 -1
}

; Return a tensor's node; null if it is of an unexpected class.
define internal ptr @node(ptr %call, ptr %tensor) alwaysinline {
entry:
  %node.slot = call ptr @slot(ptr %tensor, i64 1)
  %node = load ptr, ptr %node.slot
  %unset = icmp eq ptr %node, null
  br i1 %unset, label %no, label %look
look:
  %class = call ptr @type(ptr %node)
  %node.class.at = getelementptr %Call, ptr %call, i32 0, i32 3
  %node.class = load ptr, ptr %node.class.at
  %repeated.class.at = getelementptr %Call, ptr %call, i32 0, i32 4
  %repeated.class = load ptr, ptr %repeated.class.at
  %plain = icmp eq ptr %class, %node.class
  %repeated = icmp eq ptr %class, %repeated.class
  %fits = or i1 %plain, %repeated
  br i1 %fits, label %yes, label %no
yes:
  ret ptr %node
no:
  ret ptr null
}

; Return the address of a node's memory; -1 if it has none of its own.
define internal i64 @address(ptr %call, ptr %node) alwaysinline {
entry:
  %storage.slot = call ptr @slot(ptr %node, i64 4)
  %storage = load ptr, ptr %storage.slot
  %unset = icmp eq ptr %storage, null
  br i1 %unset, label %no, label %look
look:
  %class = call ptr @type(ptr %storage)
  %own.class.at = getelementptr %Call, ptr %call, i32 0, i32 5
  %own.class = load ptr, ptr %own.class.at
  %reused.class.at = getelementptr %Call, ptr %call, i32 0, i32 6
  %reused.class = load ptr, ptr %reused.class.at
  %own = icmp eq ptr %class, %own.class
  %reused = icmp eq ptr %class, %reused.class
  %fits = or i1 %own, %reused
  br i1 %fits, label %yes, label %no
yes:
  %address.slot = call ptr @slot(ptr %storage, i64 7)
  %number = load ptr, ptr %address.slot
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %number)
  ret i64 %address
no:
  ret i64 -1
}

; Fill in the new objects; takes over the references to node, storage and origin.
define internal void @fill(ptr %call, ptr %tensor, ptr %node, ptr %storage, ptr %origin) {
entry:
  %fields.at = getelementptr %Call, ptr %call, i32 0, i32 16
  %fields = load i64, ptr %fields.at
  %template.at = getelementptr %Call, ptr %call, i32 0, i32 17
  %template = load ptr, ptr %template.at
  br label %field
field:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %some = icmp ult i64 %i, %fields
  br i1 %some, label %one, label %rest
one:
  %from = getelementptr %Field, ptr %template, i64 %i
  %offset = load i64, ptr %from
  %content.at = getelementptr %Field, ptr %from, i32 0, i32 1
  %content = load ptr, ptr %content.at
  call void @Py_IncRef(ptr %content)
  %to = getelementptr i8, ptr %node, i64 %offset
  store ptr %content, ptr %to
  %i.next = add i64 %i, 1
  br label %field
rest:
  %periods.at = getelementptr %Call, ptr %call, i32 0, i32 19
  %periods = load ptr, ptr %periods.at
  %period.at = getelementptr %Call, ptr %call, i32 0, i32 20
  %period = load ptr, ptr %period.at
  %made = call ptr @PyDict_GetItemWithError(ptr %periods, ptr %period)
  call void @Py_IncRef(ptr %made)
  %made.slot = call ptr @slot(ptr %node, i64 6)
  store ptr %made, ptr %made.slot
  %storage.slot = call ptr @slot(ptr %node, i64 4)
  store ptr %storage, ptr %storage.slot
  %origin.slot = call ptr @slot(ptr %node, i64 5)
  store ptr %origin, ptr %origin.slot
  %node.slot = call ptr @slot(ptr %tensor, i64 1)
  store ptr %node, ptr %node.slot
  %device.at = getelementptr %Call, ptr %call, i32 0, i32 18
  %device = load ptr, ptr %device.at
  call void @Py_IncRef(ptr %device)
  %device.slot = call ptr @slot(ptr %tensor, i64 0)
  store ptr %device, ptr %device.slot
  ret void
}
