/* The first code of the image: it takes the host's ACPI tables away and gives the kernel others (tables.h).
 *
 * Tables hold bytecode that a kernel runs, and addresses that it writes to; a host chooses both. This runs before the
 * boot stub, in the EFI program that firmware measures and starts, and then jumps to the stub's own first instruction.
 *
 * Freestanding, position independent, without writable data. Compiled by the build from pinned packages
 * (appliance/imaging/disk/programs.py), which says what the image's policy allows: TPM_ALLOWED, TD_ALLOWED.
 * Source: UEFI 2.10, sections 4 (tables), 7.2 (memory), 7.5 (ResetSystem), 12.4 (console). */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
#include "tables.h"

#define EFI __attribute__((ms_abi))

struct guid {
	u64 low, high;
};

struct console { /* EFI_SIMPLE_TEXT_OUTPUT_PROTOCOL */
	void *reset;
	u64(EFI *output)(struct console *, const u16 *text);
};

struct boot { /* EFI_BOOT_SERVICES */
	u8 header[24];
	void *levels[2];
	u64(EFI *allocate_pages)(u32 how, u32 kind, u64 pages, u64 *address);
	void *others[18];
	u64(EFI *install_table)(const struct guid *, void *table);
};

struct runtime { /* EFI_RUNTIME_SERVICES */
	u8 header[24];
	void *others[10];
	u64(EFI *reset)(u32 how, u64 status, u64 size, void *data);
};

struct entry { /* EFI_CONFIGURATION_TABLE */
	struct guid guid;
	void *table;
};

struct system { /* EFI_SYSTEM_TABLE */
	u8 header[24];
	void *vendor;
	u64 revision;
	void *input[2], *output_handle;
	struct console *output;
	void *errors[2];
	struct runtime *runtime;
	struct boot *boot;
	u64 count;
	struct entry *tables;
};

_Static_assert(__builtin_offsetof(struct boot, allocate_pages) == 40, "EFI_BOOT_SERVICES");
_Static_assert(__builtin_offsetof(struct boot, install_table) == 192, "EFI_BOOT_SERVICES");
_Static_assert(__builtin_offsetof(struct runtime, reset) == 104, "EFI_RUNTIME_SERVICES");
_Static_assert(__builtin_offsetof(struct system, output) == 64, "EFI_SYSTEM_TABLE");
_Static_assert(__builtin_offsetof(struct system, runtime) == 88, "EFI_SYSTEM_TABLE");
_Static_assert(__builtin_offsetof(struct system, tables) == 112, "EFI_SYSTEM_TABLE");

static const struct guid ACPI_2 = { 0x11d3e4f18868e871, 0x81883cc7800022bc };
static const struct guid ACPI_1 = { 0x11d32d88eb9d2d30, 0x4dc13f279000169a };

#define ANYWHERE 0 /* AllocateAnyPages */
#define LOADER_DATA 2
#define ACPI_RECLAIM 9
#define SHUT_DOWN 2
#define COMPROMISED 0x8000000000000021ul
#define PAGES(bytes) (((bytes) + 4095) / 4096)

/* Memory is mapped where it is while firmware's services last; what is at no memory is an exception of firmware's. */
static const u8 *reach(u64 address, u32 size)
{
	return address && address + size > address ? (const u8 *)address : 0;
}

static void say(struct system *system, const char *text)
{
	u16 line[100];
	u32 used = 0;
	for (; text[used] && used < 99; used++)
		line[used] = (u16)text[used];
	line[used] = 0;
	if (system->output)
		system->output->output(system->output, line);
}

__attribute__((noreturn)) static void stop(struct system *system, struct trouble trouble)
{
	say(system, "\r\ngate: ACPI table ");
	say(system, trouble.where);
	say(system, ": ");
	say(system, trouble.what);
	say(system, "\r\ngate: the kernel is not started with tables like these; the machine goes off\r\n");
	system->runtime->reset(SHUT_DOWN, COMPROMISED, 0, 0);
	for (;;)
		__asm__ volatile("cli; hlt");
}

static void *table(struct system *system, const struct guid *guid)
{
	for (u64 i = 0; i < system->count; i++)
		if (system->tables[i].guid.low == guid->low && system->tables[i].guid.high == guid->high)
			return system->tables[i].table;
	return 0;
}

/* Whether this is a TD: the TDX module answers this leaf, not the host. */
static int in_td(void)
{
	u32 a = 0, b, c = 0, d;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	if (a < 0x21)
		return 0;
	a = 0x21;
	c = 0;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
	return b == 0x65746e49 && d == 0x5844546c && c == 0x20202020; /* "IntelTDX    " */
}

EFI __attribute__((used)) void gate(struct system *system)
{
	const struct allowed allowed = { TPM_ALLOWED, TD_ALLOWED && in_td() };
	u64 work, answer;
	void *rsdp = table(system, &ACPI_2);
	if (!rsdp)
		stop(system, TROUBLE("RSDP", "firmware gives none of ACPI 2.0 or later"));
	if (system->boot->allocate_pages(ANYWHERE, LOADER_DATA, PAGES(2 * MOST), &work) ||
	    system->boot->allocate_pages(ANYWHERE, ACPI_RECLAIM, PAGES(ROOM), &answer))
		stop(system, TROUBLE("XSDT", "firmware has no memory for one of ours"));
	for (u32 i = 0; i < ROOM; i++)
		((volatile u8 *)answer)[i] = 0;
	struct trouble trouble = rebuild((u64)rsdp, allowed, (u8 *)work, (u8 *)answer);
	if (trouble.what)
		stop(system, trouble);
	system->boot->install_table(&ACPI_1, 0); /* an error where there was none */
	system->boot->install_table(&ACPI_2, (void *)answer);
	if (table(system, &ACPI_1) || table(system, &ACPI_2) != (void *)answer)
		stop(system, TROUBLE("RSDP", "firmware does not take ours"));
}

/* In: image handle in RCX, system table in RDX, both of which the stub is to find, and a return address on the stack. */
__asm__(".section .entry,\"ax\"\n.globl _start\n_start:\n"
	"\tpush %rcx\n\tpush %rdx\n\tsub $40, %rsp\n"
	"\tmov %rdx, %rcx\n\tcall gate\n"
	"\tadd $40, %rsp\n\tpop %rdx\n\tpop %rcx\n"
	"\tjmp boot_stub\n" /* where it is, the linker is told */
	".text\n");
