/* The gate's parser as a program of this machine, with addresses of a made-up memory.
 *
 *   gate_host check TPM TD [CHANGES] < MEMORY   what it says, or `fine`, the answer's address, and the answer; with
 *                                         CHANGES each table is so many bytes longer once more than its header is read
 *   gate_host fuzz SECONDS SEED FILE...   mutate memories; whatever is accepted must be as the gate promises
 *
 * MEMORY is what begins at BASE, the RSDP first. Each piece that the parser reaches is an allocation of its exact size,
 * so that the address sanitizer sees one byte more. Inputs that reach new code are kept and mutated again. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long u64;

#include "tables.h"

#define BASE 0x10000ul
#define LARGEST (256u << 10)
#define PIECES 16384
#define CORPUS 4096

static const u8 *memory;
static u32 memory_size;
static void *pieces[PIECES];
static u32 piece_count, changes;

static const u8 *reach(u64 address, u32 size)
{
	if (!size || address < BASE || address - BASE > memory_size || size > memory_size - (address - BASE))
		return 0;
	if (piece_count == PIECES) { /* the parser holds on to one piece at a time */
		for (u32 i = 0; i < PIECES - 1; i++)
			free(pieces[i]);
		pieces[0] = pieces[PIECES - 1];
		piece_count = 1;
	}
	u8 *piece = malloc(size);
	memcpy(piece, memory + (address - BASE), size);
	if (size > HEADER)
		put(piece + 4, get(piece + 4, 4) + changes, 4);
	return pieces[piece_count++] = piece;
}

/* Code that was reached, by gcc's -fsanitize-coverage=trace-pc. */
static u8 seen[1 << 16];
static int recording, fresh;

void __sanitizer_cov_trace_pc(void);
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	if (!recording)
		return;
	u8 *slot = &seen[((u64)__builtin_return_address(0) >> 1) & 0xffff];
	fresh |= !*slot;
	*slot = 1;
}

static u8 work[2 * MOST];

static struct trouble run(const u8 *data, u32 size, struct allowed allowed, u8 *answer)
{
	memory = data;
	memory_size = size;
	memset(answer, 0, ROOM);
	recording = 1;
	struct trouble trouble = rebuild(BASE, allowed, work, answer);
	recording = 0;
	while (piece_count)
		free(pieces[--piece_count]);
	return trouble;
}

#define MUST(condition)                                                          \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);  \
			abort();                                                 \
		}                                                                \
	} while (0)

static void must_be_table(const u8 *table, const char *name, u32 size)
{
	MUST(!memcmp(table, name, 4) && get(table + 4, 4) == size && !sum(table, size));
	MUST(!memcmp(table + 10, "APPL  GATE    ", 14));
}

/* What the gate promises of each answer. */
static void judge(const u8 *answer, struct allowed allowed)
{
	u8 used[ROOM] = { 0 };
	MUST(!memcmp(answer, "RSD PTR ", 8) && !sum(answer, 20) && !sum(answer, 36));
	MUST(get(answer + 16, 4) == 0 && get(answer + 24, 8) == (u64)(answer + AT_XSDT));

	const u32 xsdt_size = (u32)get(answer + AT_XSDT + 4, 4);
	const u64 listed[] = { AT_FADT, AT_MADT, AT_TPM2, AT_SSDT };
	MUST(xsdt_size == HEADER + 16 || (allowed.tpm && xsdt_size == HEADER + 32));
	must_be_table(answer + AT_XSDT, "XSDT", xsdt_size);
	for (u32 i = 0; i < (xsdt_size - HEADER) / 8; i++)
		MUST(get(answer + AT_XSDT + HEADER + 8 * i, 8) == (u64)answer + listed[i]);

	const u8 *fadt = answer + AT_FADT;
	must_be_table(fadt, "FACP", FADT_SIZE);
	MUST(!get(fadt + 36, 8) && !get(fadt + 48, 4));
	MUST(get(fadt + 132, 8) == (u64)answer + AT_FACS && get(fadt + 140, 8) == (u64)answer + AT_DSDT);
	for (u32 at = 56; at < 88; at += 4)
		MUST(get(fadt + at, 4) <= 0xfffe);
	for (u32 at = 116; at < FADT_SIZE; at += at == 116 ? 32 : 12)
		MUST(fadt[at] == 1 ? get(fadt + at + 4, 8) <= 0xfffe : !get(fadt + at, 4) && !get(fadt + at + 4, 8));

	must_be_table(answer + AT_DSDT, "DSDT", HEADER + sizeof DSDT);
	MUST(!memcmp(answer + AT_DSDT + HEADER, DSDT, sizeof DSDT));

	const u8 *madt = answer + AT_MADT;
	const u32 madt_size = (u32)get(madt + 4, 4);
	u32 processors = 0, mailboxes = 0;
	must_be_table(madt, "APIC", madt_size);
	MUST(madt_size <= MOST && get(madt + 36, 4) == LOCAL_APIC && get(madt + 40, 4) <= 1);
	for (u32 at = MADT_HEADER; at < madt_size; at += madt[at + 1]) {
		const u8 *entry = madt + at;
		MUST(at + 2 <= madt_size && entry[1] >= 8 && entry[1] <= madt_size - at);
		MUST(entry[0] == 0   ? get(entry + 4, 4) == 1 :
		     entry[0] == 1   ? get(entry + 4, 4) >= IO_APICS && get(entry + 4, 4) <= IO_APICS + 0xff000 &&
					       get(entry + 8, 4) < 256 :
		     entry[0] == 2   ? !entry[2] && entry[3] < 16 && get(entry + 4, 4) < 256 :
		     entry[0] == 9   ? get(entry + 8, 4) == 1 :
		     entry[0] == 16 && allowed.mailbox && !mailboxes && at + 16 == madt_size);
		processors += entry[0] == 0 || entry[0] == 9;
		mailboxes += entry[0] == 16;
	}
	MUST(processors);

	memset(used, 1, 36);
	memset(used + AT_XSDT, 1, xsdt_size);
	memset(used + AT_FADT, 1, FADT_SIZE);
	memset(used + AT_FACS, 1, 64);
	memset(used + AT_DSDT, 1, HEADER + sizeof DSDT);
	memset(used + AT_MADT, 1, madt_size);
	if (xsdt_size == HEADER + 32) {
		const u8 *tpm2 = answer + AT_TPM2, *ssdt = answer + AT_SSDT;
		must_be_table(tpm2, "TPM2", TPM2_SIZE);
		MUST(get(tpm2 + 48, 4) == 7 ? get(tpm2 + 40, 8) == 0xfed40040 :
					      get(tpm2 + 48, 4) == 6 && !get(tpm2 + 40, 8));
		must_be_table(ssdt, "SSDT", HEADER + sizeof TPM_SSDT);
		MUST(!memcmp(ssdt + HEADER, TPM_SSDT, sizeof TPM_SSDT));
		memset(used + AT_TPM2, 1, TPM2_SIZE);
		memset(used + AT_SSDT, 1, HEADER + sizeof TPM_SSDT);
	}
	for (u32 i = 0; i < ROOM; i++)
		MUST(used[i] || !answer[i]);
}

static u64 state;

static u32 chance(u32 below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (u32)(state >> 20) % below;
}

static void set_sum(u8 *data, u32 at, u32 size, u32 sum_at)
{
	data[at + sum_at] = 0;
	data[at + sum_at] = (u8)-sum(data + at, size);
}

/* Right checksums, wherever tables can be found by the addresses in the data. */
static void heal(u8 *data, u32 size)
{
	if (size < 36)
		return;
	set_sum(data, 0, 20, 8);
	set_sum(data, 0, 36, 32);
	const u64 xsdt = get(data + 24, 8) - BASE;
	if (size < HEADER || xsdt > size - HEADER)
		return;
	const u64 xsdt_size = get(data + xsdt + 4, 4);
	if (xsdt_size < HEADER || xsdt_size > size - xsdt)
		return;
	for (u64 at = xsdt + HEADER; at + 8 <= xsdt + xsdt_size; at += 8) {
		const u64 table = get(data + at, 8) - BASE;
		if (table > size - HEADER)
			continue;
		const u64 length = get(data + table + 4, 4);
		if (length >= HEADER && length <= size - table)
			set_sum(data, (u32)table, (u32)length, 9);
	}
	set_sum(data, (u32)xsdt, (u32)xsdt_size, 9);
}

static u32 mutate(u8 *data, u32 size)
{
	static const u64 numbers[] = { 0, 1, 2, 4, 7, 8, 9, 12, 16, 36, 44, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000,
				       0x7fffffff, 0x80000000, 0xffffffff, BASE, 0xfec00000, 0xfed40040,
				       0x7fffffffffffffff, 0xffffffffffffffff };
	for (u32 edits = 1u << chance(4); edits; edits--) {
		const u32 at = chance(size), kind = chance(7), bytes = 1u << chance(4);
		if (kind == 0)
			data[at] ^= (u8)(1u << chance(8));
		else if (kind == 1)
			data[at] = (u8)chance(256);
		else if (kind < 4 && bytes <= size - at)
			put(data + at, numbers[chance(sizeof numbers / sizeof *numbers)], bytes);
		else if (kind == 4 && bytes <= size - at)
			put(data + at, get(data + at, bytes) + chance(33) - 16, bytes);
		else if (kind == 5) {
			const u32 from = chance(size), most = size - (from > at ? from : at);
			memmove(data + at, data + from, chance(most < 64 ? most + 1 : 64));
		} else if (kind == 6 && chance(8) == 0)
			size = 1 + chance(size);
	}
	if (chance(8))
		heal(data, size);
	return size;
}

struct input {
	u8 *data;
	u32 size;
};

static struct input corpus[CORPUS];
static u32 kept;

static void keep(const u8 *data, u32 size)
{
	if (kept == CORPUS)
		return;
	corpus[kept].data = malloc(size);
	corpus[kept].size = size;
	memcpy(corpus[kept++].data, data, size);
}

static u8 data[LARGEST], answer[ROOM];

static int check(int tpm, int td)
{
	const u32 size = (u32)fread(data, 1, sizeof data, stdin);
	const struct allowed allowed = { tpm, td };
	struct trouble trouble = run(data, size, allowed, answer);
	if (trouble.what) {
		printf("%s: %s\n", trouble.where, trouble.what);
		return 0;
	}
	judge(answer, allowed);
	printf("fine\n%lu\n", (u64)answer);
	fwrite(answer, 1, sizeof answer, stdout);
	return 0;
}

static int fuzz(double seconds, u64 seed, char **files, int count)
{
	u64 tried = 0, accepted = 0;
	struct timespec begun, now;
	clock_gettime(CLOCK_MONOTONIC, &begun);
	state = seed * 0x9e3779b97f4a7c15 | 1;
	for (int i = 0; i < count; i++) {
		FILE *file = fopen(files[i], "rb");
		MUST(file);
		keep(data, (u32)fread(data, 1, sizeof data, file));
		fclose(file);
	}
	do {
		const struct input *input = &corpus[chance(kept)];
		const struct allowed allowed = { (int)chance(2), (int)chance(2) };
		memcpy(data, input->data, input->size);
		const u32 size = mutate(data, input->size);
		fresh = 0;
		struct trouble trouble = run(data, size, allowed, answer);
		if (!trouble.what) {
			judge(answer, allowed);
			accepted++;
		}
		if (fresh)
			keep(data, size);
		tried++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9 < seconds);
	printf("%lu inputs, %lu accepted, %u kept\n", tried, accepted, kept);
	return 0;
}

int main(int count, char **words)
{
	if ((count == 4 || count == 5) && !strcmp(words[1], "check")) {
		changes = count == 5 ? (u32)strtoul(words[4], 0, 10) : 0;
		return check(atoi(words[2]), atoi(words[3]));
	}
	if (count > 4 && !strcmp(words[1], "fuzz"))
		return fuzz(atof(words[2]), strtoul(words[3], 0, 10), words + 4, count - 4);
	fprintf(stderr, "gate_host check TPM TD [CHANGES] < MEMORY | gate_host fuzz SECONDS SEED FILE...\n");
	return 2;
}
