/* A clock that runs DAYS ahead, to be loaded before the C library of any program. It needs no library itself. */
typedef long time_t;
struct timespec { time_t sec; long nsec; };
struct timeval { time_t sec; long usec; };
static long real(struct timespec *now)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(228L), "D"(0L), "S"(now) : "rcx", "r11", "memory");
	now->sec += 86400L * DAYS;
	return result;
}
int clock_gettime(int clock, struct timespec *now)
{
	long result;
	if (clock == 0 || clock == 5)
		return real(now);
	__asm__ volatile("syscall" : "=a"(result) : "a"(228L), "D"((long)clock), "S"(now) : "rcx", "r11", "memory");
	return result;
}
int gettimeofday(struct timeval *now, void *zone)
{
	struct timespec precise;
	real(&precise);
	now->sec = precise.sec, now->usec = precise.nsec / 1000;
	return 0;
}
time_t time(time_t *out)
{
	struct timespec now;
	real(&now);
	if (out)
		*out = now.sec;
	return now.sec;
}
