/* What the compiler's own header would define, so that the result never depends on the host. */
#ifndef UGPU_STDDEF_H
#define UGPU_STDDEF_H
typedef unsigned long size_t;
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
