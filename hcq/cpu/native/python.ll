; Functions that Python calls without ctypes (METH_FASTCALL). They use functions of CPython's stable
; interface alone. self: the address of their record, a Python integer.

declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyLong_FromUnsignedLongLong(i64)
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

; ugpu_expect of a %Queue; returns 0.
define ptr @ugpu_expected(ptr %self, ptr %arguments, i64 %count) {
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %self)
  %queue = inttoptr i64 %address to ptr
  call void @ugpu_expect(ptr %queue)
  %object = call ptr @PyLong_FromUnsignedLongLong(i64 0)
  ret ptr %object
}

; ugpu_settle of its record and two values; without the interpreter lock.
define ptr @ugpu_settled(ptr %self, ptr %arguments, i64 %count) {
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %self)
  %waiting = inttoptr i64 %address to ptr
  %fits = icmp eq i64 %count, 2
  br i1 %fits, label %read, label %wrong
wrong:
  %bad = call i32 @PyErr_BadArgument()
  ret ptr null
read:
  %one.object = load ptr, ptr %arguments
  %two.at = getelementptr ptr, ptr %arguments, i64 1
  %two.object = load ptr, ptr %two.at
  %one = call i64 @PyLong_AsUnsignedLongLong(ptr %one.object)
  %two = call i64 @PyLong_AsUnsignedLongLong(ptr %two.object)
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %wait, label %failed
failed:
  ret ptr null
wait:
  %thread = call ptr @PyEval_SaveThread()
  %settled = call i32 @ugpu_settle(ptr %waiting, i64 %one, i64 %two)
  call void @PyEval_RestoreThread(ptr %thread)
  %result = zext i32 %settled to i64
  %object = call ptr @PyLong_FromUnsignedLongLong(i64 %result)
  ret ptr %object
}

; Submit once more what a %Repetition names, with these numbers; keeps the interpreter lock. Return the
; value that marks the end, or 0 as ugpu_repeat does.
define ptr @ugpu_again(ptr %self, ptr %arguments, i64 %count) {
entry:
  %address = call i64 @PyLong_AsUnsignedLongLong(ptr %self)
  %repetition = inttoptr i64 %address to ptr
  %wanted.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 6
  %wanted = load i64, ptr %wanted.at
  %fits = icmp eq i64 %count, %wanted
  br i1 %fits, label %begin, label %wrong
wrong:
  %bad = call i32 @PyErr_BadArgument()
  ret ptr null
begin:
  %given.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 4
  %given = load ptr, ptr %given.at
  br label %look
look:
  %i = phi i64 [ 0, %begin ], [ %i.next, %one ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %check
one:
  %argument.at = getelementptr ptr, ptr %arguments, i64 %i
  %argument = load ptr, ptr %argument.at
  %number = call i64 @PyLong_AsUnsignedLongLong(ptr %argument)
  %i.next = add i64 %i, 1
  %to = getelementptr i64, ptr %given, i64 %i.next
  store i64 %number, ptr %to
  br label %look
check:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %submit, label %failed
failed:
  ret ptr null
submit:
  %queue.at = getelementptr %Repetition, ptr %repetition, i32 0, i32 1
  %queue = load ptr, ptr %queue.at
  %last.at = getelementptr %Queue, ptr %queue, i32 0, i32 11
  %last = load ptr, ptr %last.at
  %before = load i64, ptr %last
  %value = add i64 %before, 1
  store i64 %value, ptr %given
  %submitted = call i32 @ugpu_repeat(ptr %repetition)
  %yes = icmp ne i32 %submitted, 0
  %result = select i1 %yes, i64 %value, i64 0
  %object = call ptr @PyLong_FromUnsignedLongLong(i64 %result)
  ret ptr %object
}
