/* A clock that runs DAYS ahead, to be loaded before the C library of any program. It needs no library itself. With
   TURNED, a file's name, it runs as many days ahead as the first 8 bytes of that file say, at any time. */
typedef long time_t;
struct timespec { time_t sec; long nsec; };
struct timeval { time_t sec; long usec; };
#ifdef TURNED
static const long *days;
static long call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
static __attribute__((constructor)) void look(void)
{
	long file = call(2, (long)TURNED, 0, 0, 0, 0, 0), place = call(9, 0, 8, 1, 1, file, 0);
	if (file >= 0 && place > 0)
		days = (const long *)place;
	call(3, file, 0, 0, 0, 0, 0);
}
#define DAYS (days ? *(const volatile long *)days : 0)
#endif
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
