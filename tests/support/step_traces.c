/* Which instructions of some code a thread runs, in their order, and which lines of memory they name: it sets the
   processor's trap flag, and notes where each step ends. The registers are those before the next instruction. x86-64
   only. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

struct operand { /* of the instruction at a place; numbers of registers are those of <ucontext.h>, -1: none */
	int8_t base, index, scale, mask; /* scale 0: the instruction names no memory; mask: its number of k0 to k7 */
	int32_t away;
};

#define STACK 0x100000

static uint64_t first, end, room, lines, scattered, masks, stack;
static volatile uint64_t count;
static uint32_t *notes;
static const struct operand *operands;
static struct sigaction before;

static void note(uint64_t value)
{
	lines = (lines ^ value) * 0x100000001b3ull; /* FNV-1a, a word at a time */
	lines ^= lines >> 29;
}

static void note_line(const struct operand *each, const ucontext_t *context)
{
	const greg_t *registers = context->uc_mcontext.gregs;
	uint64_t address = (uint64_t)(int64_t)each->away;
	if (each->scale < 0)
		scattered++;
	if (each->base >= 0)
		address += (uint64_t)registers[each->base];
	if (each->index >= 0 && each->scale > 0)
		address += (uint64_t)registers[each->index] * (uint64_t)each->scale;
	/* Where a stack begins is its caller's matter. */
	note(address - stack + STACK < 2 * STACK ? address - stack : address >> 6);
	if (each->mask >= 0)
		note(0 != *(const uint64_t *)((const char *)context->uc_mcontext.fpregs + masks + 8 * each->mask));
}

static void step(int number, siginfo_t *info, void *context)
{
	uint64_t place = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	(void)number, (void)info;
	if (place < first || place >= end)
		return;
	if (!count)
		stack = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
	if (count < room)
		notes[count] = (uint32_t)(place - first);
	count++;
	if (operands && operands[place - first].scale)
		note_line(operands + (place - first), context);
}

/* `named`: an operand for each byte of the code, or null. */
void steps_begin(uint64_t from, uint64_t to, uint32_t *where, uint64_t most, const struct operand *named)
{
	struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
	uint32_t size, none, place;
	__asm__ volatile("cpuid" : "=a"(size), "=b"(place), "=c"(none), "=d"(none) : "a"(13), "c"(5));
	first = from, end = to, notes = where, room = most, count = lines = scattered = 0;
	operands = named, masks = place; /* of k0 to k7 in what XSAVE writes */
	sigaction(SIGTRAP, &action, &before);
	__asm__ volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}

uint64_t steps_end(void)
{
	__asm__ volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
	sigaction(SIGTRAP, &before, 0);
	return count;
}

uint64_t steps_lines(void)
{
	return lines;
}

uint64_t steps_scattered(void)
{
	return scattered;
}
