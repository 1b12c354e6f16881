/* Factorises N with Shor's algorithm on a simulated quantum computer (libquantum), for ever or TIMES.
 * Usage: shor [N X [TIMES]]; X must have no factor in common with N. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <quantum.h>

/* The period that one measured value stands for, or 0 if it tells nothing. */
static int period_from(int measured, int width)
{
	int period = 1 << width;

	if (measured == 0)
		return 0;
	quantum_frac_approx(&measured, &period, width);
	if (period % 2 == 1 && 2 * period < (1 << width))
		period *= 2;
	return period % 2 == 0 ? period : 0;
}

static int power_mod(int base, int exponent, int n)
{
	long result = 1;

	for (int i = 0; i < exponent; i++)
		result = result * base % n;
	return (int)result;
}

/* A factor of n, or 0 if this run found none. */
static int factor(int n, int x)
{
	int width = quantum_getwidth(n * n), scratch = quantum_getwidth(n), measured;
	quantum_reg reg = quantum_new_qureg(0, width);

	for (int i = 0; i < width; i++)
		quantum_hadamard(i, &reg);
	quantum_addscratch(3 * scratch + 2, &reg);
	quantum_exp_mod_n(n, x, width, scratch, &reg);
	for (int i = 0; i < 3 * scratch + 2; i++)
		quantum_bmeasure(0, &reg);
	quantum_qft(width, &reg);
	for (int i = 0; i < width / 2; i++) {
		quantum_cnot(i, width - i - 1, &reg);
		quantum_cnot(width - i - 1, i, &reg);
		quantum_cnot(i, width - i - 1, &reg);
	}
	measured = (int)quantum_measure(reg);
	quantum_delete_qureg(&reg);

	int period = measured < 0 ? 0 : period_from(measured, width);
	if (period == 0)
		return 0;
	int root = power_mod(x, period / 2, n);
	for (int sign = -1; sign <= 1; sign += 2) {
		int common = quantum_gcd(n, (root + sign + n) % n);
		if (common > 1 && common < n)
			return common;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[1]) : 1397, x = argc > 2 ? atoi(argv[2]) : 8;
	long times = argc > 3 ? atol(argv[3]) : 0;

	if (n < 15 || n > 10000 || x < 2) {
		fprintf(stderr, "usage: shor [N X [TIMES]]\n");
		return 2;
	}

	srandom((unsigned)time(NULL));
	srand((unsigned)time(NULL));
	for (long i = 0; !times || i < times; i++) {
		int found = factor(n, x);

		if (found)
			printf("%d = %d * %d\n", n, found, n / found);
		else
			printf("no factor found\n");
		fflush(stdout);
	}
	return 0;
}
