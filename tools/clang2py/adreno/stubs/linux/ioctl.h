/* What <linux/ioctl.h> defines for x86-64 and arm64: direction:2, size:14, type:8, number:8. */
#define UGPU_IOC(direction, type, number, size) \
	(((direction) << 30) | ((size) << 16) | ((type) << 8) | (number))
#define _IO(type, number) UGPU_IOC(0U, type, number, 0)
#define _IOW(type, number, kind) UGPU_IOC(1U, type, number, sizeof(kind))
#define _IOR(type, number, kind) UGPU_IOC(2U, type, number, sizeof(kind))
#define _IOWR(type, number, kind) UGPU_IOC(3U, type, number, sizeof(kind))
