/* Which pages of some memory a process touches, in their order, as a hypervisor learns it from nested page tables: it
   takes the right to use them away, notes each fault, and gives one page back, while another one goes. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

enum { PAGE = 4096, RANGES = 4096, OPEN = 64 };

static struct { uint64_t first, end; int rights; } ranges[RANGES];
static uint64_t open_pages[OPEN], *notes, room;
static volatile uint64_t count;
static int range_count, window, used, oldest;
static struct sigaction before;

static void fault(int number, siginfo_t *info, void *context)
{
	uint64_t page = (uint64_t)info->si_addr & ~(uint64_t)(PAGE - 1);
	int range = 0;
	(void)number, (void)context;
	while (range < range_count && (page < ranges[range].first || page >= ranges[range].end))
		range++;
	if (range == range_count) { /* a fault of its own: it comes again, to whoever was there before */
		sigaction(SIGSEGV, &before, 0);
		return;
	}
	if (count < room)
		notes[count] = page;
	count++;
	if (used == window)
		mprotect((void *)open_pages[oldest], PAGE, PROT_NONE);
	else
		used++;
	open_pages[oldest] = page;
	oldest = (oldest + 1) % window;
	mprotect((void *)page, PAGE, ranges[range].rights);
}

void trace_add(uint64_t first, uint64_t end, int rights)
{
	ranges[range_count].first = first;
	ranges[range_count].rights = rights;
	ranges[range_count++].end = end;
}

void trace_begin(uint64_t *to, uint64_t most, int pages)
{
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	notes = to, room = most, count = 0, window = pages, used = oldest = 0;
	sigaction(SIGSEGV, &action, &before);
	for (int range = 0; range < range_count; range++)
		mprotect((void *)ranges[range].first, ranges[range].end - ranges[range].first, PROT_NONE);
}

uint64_t trace_end(void)
{
	for (int range = 0; range < range_count; range++) {
		uint64_t first = ranges[range].first, end = ranges[range].end;
		if (mprotect((void *)first, end - first, ranges[range].rights)) /* a part of it is gone by now */
			for (uint64_t page = first; page < end; page += PAGE)
				mprotect((void *)page, PAGE, ranges[range].rights);
	}
	sigaction(SIGSEGV, &before, 0);
	return count;
}
