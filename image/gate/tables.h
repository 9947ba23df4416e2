/* ACPI tables for the kernel, made anew: of the host's tables a few numbers are taken, each checked, and no address but
 * those that are the same on every machine.
 *
 *   RSDP, XSDT, FACS   ours
 *   DSDT               ours (dsdt.asl): power off, one PCI bus
 *   FADT               ours, with the host's I/O ports of events, control and timer
 *   MADT               processors that are enabled, I/O APICs in their page of addresses, legacy interrupts; in a TD
 *                      the firmware's wake-up mailbox
 *   TPM2, SSDT         ours (tpm.asl), where the policy allows a TPM and the host has one where every TPM is
 *
 * Every other table is left out unread. Whatever is malformed ends the boot; the caller says so.
 * Sources: ACPI 6.5, chapter 5 (tables); TCG ACPI Specification 1.4, section 8 (TPM2).
 *
 * The caller defines reach(), which gives `size` bytes at an address of the machine, or null. */
#include "aml.h"

#define HEADER 36u	   /* bytes of a table's header */
#define MOST (64u << 10)   /* bytes of a host's table, at most */
#define ROOM (MOST + 4096) /* bytes of the answer */

/* Where each table is in the answer. */
#define AT_XSDT 64u
#define AT_FADT 256u
#define AT_FACS 512u /* a multiple of 64 */
#define AT_DSDT 576u
#define AT_SSDT 832u
#define AT_TPM2 960u
#define AT_MADT 4096u

#define FADT_SIZE 244u /* revision 3 */
#define TPM2_SIZE 52u  /* without the event log's address */
#define MADT_HEADER 44u

#define LOCAL_APIC 0xfee00000u
#define IO_APICS 0xfec00000u /* one MiB */
#define TPM 0xfed40000u

_Static_assert(AT_FADT + FADT_SIZE <= AT_FACS && AT_FACS + 64 <= AT_DSDT, "tables overlap");
_Static_assert(AT_DSDT + HEADER + sizeof DSDT <= AT_SSDT && AT_SSDT + HEADER + sizeof TPM_SSDT <= AT_TPM2, "tables overlap");
_Static_assert(AT_TPM2 + TPM2_SIZE <= AT_MADT && AT_MADT + MOST <= ROOM, "tables overlap");

/* What ended it, and in which table; `what` null: nothing did. */
struct trouble {
	const char *where, *what;
};

#define FINE ((struct trouble){ 0, 0 })
#define TROUBLE(where, what) ((struct trouble){ where, what })
#define TRY(action)                            \
	do {                                   \
		struct trouble found = action; \
		if (found.what)                \
			return found;          \
	} while (0)

/* What the policy of the image allows. */
struct allowed {
	int tpm, mailbox;
};

static const u8 *reach(u64 address, u32 size);

static u64 get(const u8 *at, u32 bytes)
{
	u64 value = 0;
	while (bytes--)
		value = value << 8 | at[bytes];
	return value;
}

static void put(u8 *at, u64 value, u32 bytes)
{
	for (; bytes--; value >>= 8)
		*at++ = (u8)value;
}

static void copy(u8 *to, const u8 *from, u32 bytes)
{
	for (u32 i = 0; i < bytes; i++)
		((volatile u8 *)to)[i] = from[i];
}

static int same(const u8 *left, const char *right, u32 bytes)
{
	for (u32 i = 0; i < bytes; i++)
		if (left[i] != (u8)right[i])
			return 0;
	return 1;
}

static u8 sum(const u8 *at, u32 bytes)
{
	u8 total = 0;
	while (bytes--)
		total += *at++;
	return total;
}

/* Write a table's header, and its checksum when all else is there. */
static void seal(u8 *table, const char *name, u32 size, u8 revision)
{
	copy(table, (const u8 *)name, 4);
	put(table + 4, size, 4);
	table[8] = revision;
	table[9] = 0;
	copy(table + 10, (const u8 *)"APPL  GATE    \1\0\0\0APPL\1\0\0\0", HEADER - 10);
	table[9] = (u8)-sum(table, size);
}

/* Copy a table of the host's, so that what is checked is what is used. */
static struct trouble take(u64 address, const char *name, u8 *table, u32 *size)
{
	const u8 *found = reach(address, HEADER);
	if (!found)
		return TROUBLE(name, "it is at no address of memory");
	copy(table, found, HEADER); /* once: memory that is the host's may change between two reads */
	*size = (u32)get(table + 4, 4);
	if (*size < HEADER || *size > MOST)
		return TROUBLE(name, "its length is not one of 36 bytes to 64 KiB");
	found = reach(address, *size);
	if (!found)
		return TROUBLE(name, "it leaves memory");
	copy(table, found, *size);
	if (!same(table, name, 4) || get(table + 4, 4) != *size)
		return TROUBLE(name, "it is not the table that it should be");
	if (sum(table, *size))
		return TROUBLE(name, "its checksum is wrong");
	return FINE;
}

/* The address of the one table of this name; zero where there is none. */
static struct trouble find(const u8 *xsdt, u32 size, const char *name, u64 *address)
{
	*address = 0;
	if ((size - HEADER) % 8)
		return TROUBLE("XSDT", "its length is not that of whole addresses");
	for (u32 at = HEADER; at < size; at += 8) {
		const u8 *table = reach(get(xsdt + at, 8), HEADER);
		if (!table)
			return TROUBLE("XSDT", "it names an address that is not one of memory");
		if (!same(table, name, 4))
			continue;
		if (*address)
			return TROUBLE(name, "it is there twice");
		*address = get(xsdt + at, 8);
	}
	return FINE;
}

/* The address of the XSDT. */
static struct trouble root(u64 address, u64 *xsdt)
{
	const u8 *found = reach(address, 36);
	u8 rsdp[36];
	if (!found)
		return TROUBLE("RSDP", "it is at no address of memory");
	copy(rsdp, found, sizeof rsdp);
	if (!same(rsdp, "RSD PTR ", 8) || rsdp[15] < 2 || get(rsdp + 20, 4) != sizeof rsdp)
		return TROUBLE("RSDP", "it is not one of ACPI 2.0 or later");
	if (sum(rsdp, 20) || sum(rsdp, sizeof rsdp))
		return TROUBLE("RSDP", "its checksum is wrong");
	*xsdt = get(rsdp + 24, 8);
	return FINE;
}

/* An I/O port of the FADT, as a number and as a register (Generic Address Structure). */
static void port(u8 *fadt, u32 number_at, u32 register_at, u64 number, u8 bytes, u8 access)
{
	put(fadt + number_at, number, 4);
	fadt[register_at] = 1; /* system I/O */
	fadt[register_at + 1] = (u8)(bytes * 8);
	fadt[register_at + 3] = access;
	put(fadt + register_at + 4, number, 8);
}

/* The FADT: ports from the host's, all else ours. What is not written here is zero. */
static struct trouble make_fadt(const u8 *host, u32 size, u8 *answer)
{
	u8 *fadt = answer + AT_FADT;
	if (size < 116)
		return TROUBLE("FACP", "it is absent, or shorter than that of ACPI 1.0");
	const u64 events = get(host + 56, 4), control = get(host + 64, 4), timer = get(host + 76, 4);
	if (!events || events > 0xfffc || !control || control > 0xfffe || timer > 0xfffc)
		return TROUBLE("FACP", "it names no I/O ports for events and control of power");
	fadt[45] = 4;		  /* an enterprise server: nothing that sleeps */
	put(fadt + 46, 9, 2);	  /* the interrupt that none of our tables raises */
	port(fadt, 56, 148, events, 4, 2);
	fadt[88] = 4;
	port(fadt, 64, 172, control, 2, 2);
	fadt[89] = 2;
	if (timer) {
		port(fadt, 76, 208, timer, 4, 3);
		fadt[91] = 4;
	}
	put(fadt + 96, 0xffff, 2); /* no C2 */
	put(fadt + 98, 0xffff, 2); /* no C3 */
	put(fadt + 109, 3, 2);	   /* devices of old PCs, a keyboard controller */
	put(fadt + 112, 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 10, 4); /* WBINVD, C1, neither button, a reset register */
	fadt[116] = 1; /* reset: 0x0f to I/O port 0xcf9 */
	fadt[117] = 8;
	fadt[119] = 1;
	put(fadt + 120, 0xcf9, 8);
	fadt[128] = 0x0f;
	put(fadt + 132, (u64)(answer + AT_FACS), 8);
	put(fadt + 140, (u64)(answer + AT_DSDT), 8);
	seal(fadt, "FACP", FADT_SIZE, 3);
	return FINE;
}

/* One entry of the MADT: how many bytes of ours it gives, none where it is left out; or what is wrong. */
static struct trouble entry(const u8 *host, u32 size, u8 *to, u32 *made)
{
	static const u8 sizes[] = { 8, 12, 10, 0, 0, 0, 0, 0, 0, 16 }; /* by type; zero: left out */
	const u8 type = host[0];
	*made = 0;
	if (type >= sizeof sizes || !sizes[type])
		return FINE;
	if (size != sizes[type])
		return TROUBLE("APIC", "an entry has a length that its type has not");
	if ((type == 0 && !(host[4] & 1)) || (type == 9 && !(host[8] & 1)))
		return FINE; /* a processor that is not there, though it could be plugged in */
	if (type == 1 && (get(host + 4, 4) & ~0xff000ul) != IO_APICS)
		return TROUBLE("APIC", "an I/O APIC is not at 0xfec00000");
	if (type == 1 && get(host + 8, 4) > 0xff)
		return TROUBLE("APIC", "an I/O APIC has interrupts beyond 255");
	if (type == 2 && (host[2] || host[3] > 15 || get(host + 4, 4) > 0xff))
		return TROUBLE("APIC", "an interrupt is not one of an old PC");
	copy(to, host, size);
	if (type == 0)
		put(to + 4, 1, 4);
	if (type == 1)
		to[3] = 0;
	if (type == 2)
		put(to + 8, host[8] & 15, 2);
	if (type == 9) {
		put(to + 2, 0, 2);
		put(to + 8, 1, 4);
	}
	*made = size;
	return FINE;
}

/* The mailbox by which a TD's processors are woken. Firmware appends it; the host could have put one before it. */
static struct trouble mailbox(const u8 *host, u32 size, int last, u8 *to, u32 *made)
{
	if (!last || size < 16 || !get(host + 8, 8) || get(host + 8, 8) & 0xfff)
		return TROUBLE("APIC", "a wake-up mailbox is not the firmware's");
	to[0] = 16;
	to[1] = 16;
	put(to + 2, 0, 6);
	copy(to + 8, host + 8, 8);
	*made = 16;
	return FINE;
}

/* The MADT: what is left of the host's, entry by entry. It never grows. */
static struct trouble make_madt(const u8 *host, u32 size, struct allowed allowed, u8 *answer)
{
	u8 *madt = answer + AT_MADT;
	u32 used = MADT_HEADER, processors = 0, bytes;
	if (size < MADT_HEADER)
		return TROUBLE("APIC", "it is absent, or shorter than its header");
	if (get(host + 36, 4) != LOCAL_APIC)
		return TROUBLE("APIC", "processors' interrupt controllers are not at 0xfee00000");
	put(madt + 36, LOCAL_APIC, 4);
	put(madt + 40, host[40] & 1, 4); /* whether there are two 8259 */
	for (u32 at = MADT_HEADER; at < size; at += bytes) {
		u32 made;
		bytes = size - at < 2 ? 0 : host[at + 1];
		if (bytes < 2 || bytes > size - at)
			return TROUBLE("APIC", "an entry leaves the table");
		if (host[at] == 16 && allowed.mailbox)
			TRY(mailbox(host + at, bytes, at + bytes == size, madt + used, &made));
		else
			TRY(entry(host + at, bytes, madt + used, &made));
		processors += made && (host[at] == 0 || host[at] == 9);
		used += made;
	}
	if (!processors)
		return TROUBLE("APIC", "it names no processor");
	seal(madt, "APIC", used, 3);
	return FINE;
}

/* TPM2, by CRB (start method 7) or FIFO (6), at the one address where TPMs are. */
static struct trouble make_tpm(const u8 *host, u32 size, u8 *answer)
{
	u8 *tpm2 = answer + AT_TPM2;
	if (size < TPM2_SIZE)
		return TROUBLE("TPM2", "it is too short");
	const u64 control = get(host + 40, 8), method = get(host + 48, 4);
	if (!(method == 7 && control == TPM + 0x40) && !(method == 6 && (!control || control == TPM)))
		return TROUBLE("TPM2", "the TPM is not at 0xfed40000");
	put(tpm2 + 40, method == 7 ? control : 0, 8);
	put(tpm2 + 48, method, 4);
	seal(tpm2, "TPM2", TPM2_SIZE, 4);
	copy(answer + AT_SSDT + HEADER, TPM_SSDT, sizeof TPM_SSDT);
	seal(answer + AT_SSDT, "SSDT", HEADER + sizeof TPM_SSDT, 2);
	return FINE;
}

/* Copy the host's one table of this name; `size` zero where there is none. */
static struct trouble fetch(const u8 *xsdt, u32 xsdt_size, const char *name, u8 *table, u32 *size)
{
	u64 address;
	*size = 0;
	TRY(find(xsdt, xsdt_size, name, &address));
	return address ? take(address, name, table, size) : FINE;
}

/* Make all tables. `answer` is ROOM bytes, zero; `work` twice MOST bytes; `rsdp` the address of the host's. */
static struct trouble rebuild(u64 rsdp, struct allowed allowed, u8 *work, u8 *answer)
{
	u8 *xsdt = work, *table = work + MOST, *next = answer + AT_XSDT + HEADER;
	u64 address;
	u32 xsdt_size, size;

	TRY(root(rsdp, &address));
	TRY(take(address, "XSDT", xsdt, &xsdt_size));

	TRY(fetch(xsdt, xsdt_size, "FACP", table, &size));
	TRY(make_fadt(table, size, answer));
	put(next, (u64)(answer + AT_FADT), 8);
	next += 8;

	TRY(fetch(xsdt, xsdt_size, "APIC", table, &size));
	TRY(make_madt(table, size, allowed, answer));
	put(next, (u64)(answer + AT_MADT), 8);
	next += 8;

	size = 0;
	if (allowed.tpm)
		TRY(fetch(xsdt, xsdt_size, "TPM2", table, &size));
	if (size) {
		TRY(make_tpm(table, size, answer));
		put(next, (u64)(answer + AT_TPM2), 8);
		put(next + 8, (u64)(answer + AT_SSDT), 8);
		next += 16;
	}

	copy(answer + AT_DSDT + HEADER, DSDT, sizeof DSDT);
	seal(answer + AT_DSDT, "DSDT", HEADER + sizeof DSDT, 2);
	copy(answer + AT_FACS, (const u8 *)"FACS\100\0\0\0", 8);
	seal(answer + AT_XSDT, "XSDT", (u32)(next - (answer + AT_XSDT)), 1);
	copy(answer, (const u8 *)"RSD PTR \0APPL  \2", 16);
	put(answer + 20, 36, 4);
	put(answer + 24, (u64)(answer + AT_XSDT), 8);
	answer[8] = (u8)-sum(answer, 20);
	answer[32] = (u8)-sum(answer, 36);
	return FINE;
}
