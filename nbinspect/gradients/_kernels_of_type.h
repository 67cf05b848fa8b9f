/* The loops, for rows of `NUMBER`. Included once for each type.

   "omp simd" lets the compiler sum in several lanes; one that does not know it passes over it. */

#define END (n - at < BLOCK ? n : at + BLOCK)

/* Widen a range to hold a block, in lanes: compilers keep minima in order, as one may be NaN. */
static inline void OF_TYPE(widen)(NUMBER *restrict low, NUMBER *restrict high, const NUMBER *x,
                                  Py_ssize_t n)
{
    Py_ssize_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            NUMBER one = x[i + lane];
            low[lane] = one < low[lane] ? one : low[lane];
            high[lane] = one > high[lane] ? one : high[lane];
        }
    for (; i < n; i++) {
        low[0] = x[i] < low[0] ? x[i] : low[0];
        high[0] = x[i] > high[0] ? x[i] : high[0];
    }
}

VERSIONS static Figures OF_TYPE(figures)(const NUMBER *x, Py_ssize_t n)
{
    Figures own = {.low = INFINITY, .high = -INFINITY};
    NUMBER low[LANES], high[LANES];
    for (int lane = 0; lane < LANES; lane++)
        low[lane] = INFINITY, high[lane] = -INFINITY;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0, sum = 0;
        int used = 0;
#pragma omp simd reduction(+ : squares, sum, used)
        for (Py_ssize_t i = at; i < end; i++) {
            squares += x[i] * x[i];
            sum += x[i];
            used += x[i] != 0;
        }
        OF_TYPE(widen)(low, high, x + at, end - at); /* the block is in the nearest cache now */
        own.squares += squares, own.sum += sum, own.n_used += used;
    }
    for (int lane = 0; lane < LANES; lane++) {
        own.low = low[lane] < own.low ? low[lane] : own.low;
        own.high = high[lane] > own.high ? high[lane] : own.high;
    }
    if (isnan(own.squares)) /* comparisons pass over NaN, sums do not */
        own.low = own.high = NAN;
    if (!isfinite(own.sum) && isfinite(own.low) && isfinite(own.high)) {
        own.sum = 0; /* a block's was too large for its type */
        for (Py_ssize_t i = 0; i < n; i++)
            own.sum += x[i];
    }
    return own;
}

VERSIONS static double OF_TYPE(squares)(const NUMBER *x, Py_ssize_t n)
{
    double all = 0;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0;
#pragma omp simd reduction(+ : squares)
        for (Py_ssize_t i = at; i < end; i++)
            squares += x[i] * x[i];
        all += squares;
    }
    return all;
}

VERSIONS static double OF_TYPE(n_used)(const NUMBER *x, Py_ssize_t n)
{
    double all = 0;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        int used = 0;
#pragma omp simd reduction(+ : used)
        for (Py_ssize_t i = at; i < end; i++)
            used += x[i] != 0;
        all += used;
    }
    return all;
}

VERSIONS static double OF_TYPE(squares_and_products)(const NUMBER *x, const NUMBER *y,
                                                     Py_ssize_t n, double *all_products)
{
    double all = 0, both = 0;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0, products = 0;
#pragma omp simd reduction(+ : squares, products)
        for (Py_ssize_t i = at; i < end; i++) {
            squares += x[i] * x[i];
            products += x[i] * y[i];
        }
        all += squares, both += products;
    }
    *all_products = both;
    return all;
}

VERSIONS static double OF_TYPE(copied_squares)(const NUMBER *restrict x, NUMBER *restrict to,
                                               Py_ssize_t n)
{
    double all = 0;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0;
#pragma omp simd reduction(+ : squares)
        for (Py_ssize_t i = at; i < end; i++) {
            to[i] = x[i];
            squares += x[i] * x[i];
        }
        all += squares;
    }
    return all;
}

VERSIONS static double OF_TYPE(squares_of_difference)(const NUMBER *x, const NUMBER *y,
                                                      Py_ssize_t n)
{
    double all = 0;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0;
#pragma omp simd reduction(+ : squares)
        for (Py_ssize_t i = at; i < end; i++) {
            NUMBER change = x[i] - y[i];
            squares += change * change;
        }
        all += squares;
    }
    return all;
}

static double OF_TYPE(careful_product)(const NUMBER *x, const NUMBER *y, Py_ssize_t n)
{
    double all = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        all += (double)x[i] * y[i];
    return all;
}

/* The norm of x, or of x - y if there is a y, where its type cannot hold the squares. */
static double OF_TYPE(careful_norm)(const NUMBER *x, const NUMBER *y, Py_ssize_t n)
{
    double largest = 0, all = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        double size = fabs((double)(NUMBER)(y ? x[i] - y[i] : x[i]));
        if (isnan(size))
            return NAN;
        largest = size > largest ? size : largest;
    }
    if (largest == 0 || isinf(largest))
        return largest;
    for (Py_ssize_t i = 0; i < n; i++) {
        double share = (NUMBER)(y ? x[i] - y[i] : x[i]) / largest;
        all += share * share;
    }
    return largest * sqrt(all);
}

/* Whether all are 0, which is so common that it must not take long. */
VERSIONS static int OF_TYPE(is_zero)(const NUMBER *x, const NUMBER *y, Py_ssize_t n)
{
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        int used = 0;
        if (y) {
#pragma omp simd reduction(+ : used)
            for (Py_ssize_t i = at; i < end; i++)
                used += x[i] != y[i];
        } else {
#pragma omp simd reduction(+ : used)
            for (Py_ssize_t i = at; i < end; i++)
                used += x[i] != 0;
        }
        if (used)
            return 0;
    }
    return 1;
}

#undef END
