/* The first process: the measured command line and nothing else, modules, one dm-verity device, its root, PID 1.
 *
 * Freestanding: no C library, no allocation, no parsing of anything that the host wrote but a comparison of bytes.
 * Compiled by the build from pinned packages (appliance/imaging/disk/programs.py) into the initrd's /init.
 *
 *   /cmdline       the command line that was measured; /proc/cmdline must be equal to the last byte
 *   /required/NN   kernel modules that must load, in this order
 *   /optional/NN   kernel modules for hardware that may be absent
 *
 * Whatever fails powers the machine off, with one line on the console.
 */
#include <asm/ioctl.h>
#include <asm/unistd.h>
#include <linux/dm-ioctl.h>
#include <linux/fcntl.h>
#include <linux/mount.h>
#include <linux/reboot.h>

#define BLOCK 4096ul      /* bytes of a dm-verity data or hash block */
#define SECTORS 8ul       /* 512-byte sectors of a block */
#define SALT 32ul         /* bytes; dm-verity superblock: salt size at 80, salt at 88 (kernel.org, dm-verity format 1) */
#define SALT_OFFSET 88ul
#define WAIT 1500         /* times 10 ms for the disk to appear */

typedef unsigned long ulong;

static long call(long number, ulong a, ulong b, ulong c, ulong d, ulong e)
{
	long result;
	register ulong r10 __asm__("r10") = d;
	register ulong r8 __asm__("r8") = e;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

#define CALL(name, a, b, c, d, e) \
	call(__NR_##name, (ulong)(a), (ulong)(b), (ulong)(c), (ulong)(d), (ulong)(e))

void *memset(void *to, int value, ulong size)
{
	for (ulong i = 0; i < size; i++)
		((volatile char *)to)[i] = (char)value;
	return to;
}

void *memcpy(void *to, const void *from, ulong size)
{
	for (ulong i = 0; i < size; i++)
		((volatile char *)to)[i] = ((const char *)from)[i];
	return to;
}

static ulong length(const char *text)
{
	ulong size = 0;
	while (text[size])
		size++;
	return size;
}

static int same(const char *left, const char *right, ulong size)
{
	for (ulong i = 0; i < size; i++)
		if (left[i] != right[i])
			return 0;
	return 1;
}

static char *append(char *end, const char *text)
{
	ulong size = length(text);
	memcpy(end, text, size);
	end[size] = 0;
	return end + size;
}

static char *append_number(char *end, ulong number)
{
	char digits[24];
	int at = sizeof digits - 1;
	digits[at] = 0;
	do
		digits[--at] = (char)('0' + number % 10);
	while (number /= 10);
	return append(end, digits + at);
}

static void sleep_10ms(void)
{
	long span[2] = { 0, 10000000 };
	CALL(nanosleep, span, 0, 0, 0, 0);
}

static void say(const char *what, const char *detail)
{
	char line[512], *end = append(line, "init: ");
	end = append(append(append(append(end, what), *detail ? ": " : ""), detail), "\n");
	CALL(write, 2, line, end - line, 0, 0);
}

__attribute__((noreturn)) static void stop(const char *what, const char *detail)
{
	say(what, detail);
	for (int i = 0; i < 20; i++)
		sleep_10ms(); /* let the console drain */
	CALL(reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_POWER_OFF, 0, 0);
	for (;;)
		sleep_10ms();
}

static void need(long result, const char *what)
{
	char number[32];
	if (result >= 0)
		return;
	append_number(append(number, "error "), (ulong)-result);
	stop(what, number);
}

/* Read a whole file; it must be smaller than the buffer. */
static ulong read_file(const char *path, char *buffer, ulong room)
{
	long file = CALL(open, path, O_RDONLY | O_CLOEXEC, 0, 0, 0), got;
	ulong size = 0;
	need(file, path);
	while ((got = CALL(read, file, buffer + size, room - size, 0, 0)) > 0)
		size += (ulong)got;
	need(got, path);
	if (size == room)
		stop(path, "too long");
	CALL(close, file, 0, 0, 0, 0);
	buffer[size] = 0;
	return size;
}

/* The initrd holds what was measured. The boot stub adds its own os-release, which is measured too, and would add
 * credentials and extensions that the host offers: those are refused. */
static const char *const EXPECTED[] = { ".", "..", ".extra", "cmdline", "dev", "init", "optional", "proc", "required",
					"root", "sys", 0 };
static const char *const EXTRA[] = { ".", "..", "os-release", 0 };

struct entry { /* getdents64(2) */
	ulong inode;
	long offset;
	unsigned short size;
	unsigned char type;
	char name[];
};

static void check_folder(const char *path, const char *const *expected)
{
	char buffer[2048] __attribute__((aligned(8)));
	long folder = CALL(open, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0), size;
	if (folder == -2) /* ENOENT */
		return;
	need(folder, path);
	while ((size = CALL(getdents64, folder, buffer, sizeof buffer, 0, 0)) > 0)
		for (long at = 0; at < size; at += ((struct entry *)(buffer + at))->size) {
			const char *name = ((struct entry *)(buffer + at))->name;
			int known = 0;
			for (const char *const *each = expected; *each; each++)
				known |= same(name, *each, length(*each) + 1);
			if (!known)
				stop("refused: the initrd holds what was not measured", name);
		}
	need(size, path);
	CALL(close, folder, 0, 0, 0, 0);
}

static char cmdline[4096], found[4096];

static void check_cmdline(void)
{
	ulong size = read_file("/cmdline", cmdline, sizeof cmdline - 1);
	ulong other = read_file("/proc/cmdline", found, sizeof found - 1);
	if (other && found[other - 1] == '\n')
		found[--other] = 0;
	if (size != other || !same(cmdline, found, size))
		stop("refused: the command line is not the one that was measured", "");
}

/* The value of a word KEY=VALUE of the measured command line. */
static ulong word(const char *key, char *value, ulong room)
{
	ulong size = length(key), used = 0;
	for (const char *at = cmdline; *at; at++) {
		if ((at != cmdline && at[-1] != ' ') || !same(at, key, size))
			continue;
		for (at += size; *at && *at != ' ' && used < room - 1; at++)
			value[used++] = *at;
		break;
	}
	value[used] = 0;
	if (!used)
		stop("the command line lacks", key);
	return used;
}

static void load_modules(const char *folder, int required)
{
	for (ulong number = 10;; number++) { /* two digits, so that a name has one length */
		char path[64];
		append_number(append(append(path, folder), "/"), number);
		long file = CALL(open, path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
		if (file < 0)
			return;
		long result = CALL(finit_module, file, "", 0, 0, 0);
		CALL(close, file, 0, 0, 0, 0);
		CALL(unlink, path, 0, 0, 0, 0);
		if (required)
			need(result, path);
	}
}

/* Whether a block device carries this image's hash tree where it must be. What it holds, dm-verity decides later. */
static int is_root(const char *device, ulong blocks, const char *salt)
{
	static char block[512];
	static const char hex[] = "0123456789abcdef";
	long file = CALL(open, device, O_RDONLY | O_CLOEXEC, 0, 0, 0);
	if (file < 0)
		return 0;
	long got = CALL(pread64, file, block, sizeof block, blocks * BLOCK, 0);
	CALL(close, file, 0, 0, 0, 0);
	if (got != sizeof block || !same(block, "verity\0", 8))
		return 0;
	for (ulong i = 0; i < SALT; i++) {
		unsigned char byte = (unsigned char)block[SALT_OFFSET + i];
		if (salt[2 * i] != hex[byte >> 4] || salt[2 * i + 1] != hex[byte & 15])
			return 0;
	}
	return 1;
}

static int find_root(char *device, ulong blocks, const char *salt)
{
	static char buffer[4096] __attribute__((aligned(8)));
	long folder = CALL(open, "/sys/class/block", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0), size;
	int hit = 0;
	need(folder, "/sys/class/block");
	while (!hit && (size = CALL(getdents64, folder, buffer, sizeof buffer, 0, 0)) > 0)
		for (long at = 0; !hit && at < size; at += ((struct entry *)(buffer + at))->size) {
			const char *name = ((struct entry *)(buffer + at))->name;
			if (name[0] == '.' || length(name) > 32)
				continue;
			append(append(device, "/dev/"), name);
			hit = is_root(device, blocks, salt);
		}
	CALL(close, folder, 0, 0, 0, 0);
	return hit;
}

struct request {
	struct dm_ioctl head;
	struct dm_target_spec target;
	char parameters[1024];
} __attribute__((aligned(8)));

static struct request request;

static void mapper(long control, ulong command, unsigned int flags, const char *what)
{
	request.head.version[0] = DM_VERSION_MAJOR;
	request.head.data_size = sizeof request;
	request.head.data_start = sizeof request.head;
	request.head.flags = flags;
	append(request.head.name, "root");
	need(CALL(ioctl, control, command, &request, 0, 0), what);
}

static void open_verity(const char *device, ulong blocks, const char *count, const char *root, const char *salt)
{
	long control = CALL(open, "/dev/mapper/control", O_RDWR | O_CLOEXEC, 0, 0, 0);
	need(control, "/dev/mapper/control");
	mapper(control, DM_DEV_CREATE, DM_READONLY_FLAG, "device mapper");

	memset(&request, 0, sizeof request);
	request.head.target_count = 1;
	request.target.length = blocks * SECTORS;
	append(request.target.target_type, "verity");
	/* version, data device, hash device, block sizes, data blocks, first hash block (after the superblock) */
	char *end = append(request.parameters, "1 ");
	end = append(append(append(append(end, device), " "), device), " 4096 4096 ");
	end = append_number(append(append(end, count), " "), blocks + 1);
	end = append(append(append(append(end, " sha256 "), root), " "), salt);
	append(end, " 1 panic_on_corruption");
	mapper(control, DM_TABLE_LOAD, DM_READONLY_FLAG, "dm-verity table");

	memset(&request, 0, sizeof request);
	mapper(control, DM_DEV_SUSPEND, 0, "dm-verity"); /* which resumes it */
	CALL(close, control, 0, 0, 0, 0);
}

__attribute__((used, noreturn)) static void run(void)
{
	static char device[64], root[80], salt[80], count[24];
	static const char *const arguments[] = { "/usr/bin/python3.13", "-I", "-B", "-X", "utf8", "-m", "appliance.guest.init", 0 };
	static const char *const environment[] = { "LANG=C.UTF-8", 0 };
	const ulong plain = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	ulong blocks = 0;

	check_folder("/", EXPECTED);
	check_folder("/.extra", EXTRA);
	need(CALL(mount, "proc", "/proc", "proc", plain, 0), "/proc");
	check_cmdline();
	need(CALL(mount, "sysfs", "/sys", "sysfs", plain, 0), "/sys");
	need(CALL(mount, "dev", "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755"), "/dev");
	load_modules("/required", 1);
	load_modules("/optional", 0);

	if (word("roothash=", root, sizeof root) != 64 || word("verity.salt=", salt, sizeof salt) != 2 * SALT)
		stop("the command line has a malformed digest", "");
	word("verity.blocks=", count, sizeof count);
	for (const char *digit = count; *digit; digit++)
		blocks = blocks * 10 + (ulong)(*digit - '0');

	for (int i = 0; !find_root(device, blocks, salt); i++, sleep_10ms())
		if (i == WAIT)
			stop("no disk carries the root file system of this image", "");
	open_verity(device, blocks, count, root, salt);
	need(CALL(mount, "/dev/dm-0", "/root", "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, 0), "root file system");

	need(CALL(mount, "/dev", "/root/dev", 0, MS_MOVE, 0), "/dev");
	need(CALL(mount, "/sys", "/root/sys", 0, MS_MOVE, 0), "/sys");
	need(CALL(mount, "/proc", "/root/proc", 0, MS_MOVE, 0), "/proc");
	need(CALL(chdir, "/root", 0, 0, 0, 0), "/root");
	need(CALL(mount, ".", "/", 0, MS_MOVE, 0), "root");
	need(CALL(chroot, ".", 0, 0, 0, 0), "root");
	need(CALL(chdir, "/", 0, 0, 0, 0), "root");
	need(CALL(execve, arguments[0], arguments, environment, 0, 0), arguments[0]);
	stop("cannot go on", "");
}

__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall run\n\thlt\n");
