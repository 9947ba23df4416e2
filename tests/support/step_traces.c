/* Which instructions of some code a thread runs, in their order: it sets the processor's trap flag, and notes where each
   step ends. x86-64 only. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

static uint64_t first, end, room;
static volatile uint64_t count;
static uint32_t *notes;
static struct sigaction before;

static void step(int number, siginfo_t *info, void *context)
{
	uint64_t place = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	(void)number, (void)info;
	if (place < first || place >= end)
		return;
	if (count < room)
		notes[count] = (uint32_t)(place - first);
	count++;
}

void steps_begin(uint64_t from, uint64_t to, uint32_t *where, uint64_t most)
{
	struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
	first = from, end = to, notes = where, room = most, count = 0;
	sigaction(SIGTRAP, &action, &before);
	__asm__ volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
}

uint64_t steps_end(void)
{
	__asm__ volatile("pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq" ::: "memory", "cc");
	sigaction(SIGTRAP, &before, 0);
	return count;
}
