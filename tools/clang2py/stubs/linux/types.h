/* The names of fixed-width integers in kernel headers. */
#ifndef UGPU_LINUX_TYPES_H
#define UGPU_LINUX_TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef int8_t __s8, s8;
typedef int16_t __s16, s16;
typedef int32_t __s32, s32;
typedef long long __s64, s64;
typedef uint8_t __u8, u8;
typedef uint16_t __u16, u16, __le16;
typedef uint32_t __u32, u32, __le32;
typedef unsigned long long __u64, u64, __le64;
typedef unsigned long long __aligned_u64 __attribute__((aligned(8)));
#define __user
#define DECLARE_FLEX_ARRAY(type, name) struct { struct { } ugpu_empty_##name; type name[]; }
#define __DECLARE_FLEX_ARRAY(type, name) DECLARE_FLEX_ARRAY(type, name)
#define __counted_by(member)
#define __packed __attribute__((packed))
#define __bitwise
#endif
