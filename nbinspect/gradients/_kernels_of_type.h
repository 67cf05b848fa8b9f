/* The loops, for rows of `NUMBER`. Included once for each type.

   "omp simd" lets the compiler sum in several lanes; one that does not know it passes over it. */

#define END (n - at < BLOCK ? n : at + BLOCK)

VERSIONS static Figures OF_TYPE(figures)(const NUMBER *x, Py_ssize_t n)
{
    Figures own = {0};
    NUMBER low = INFINITY, high = -INFINITY;
    for (Py_ssize_t at = 0; at < n; at += BLOCK) {
        Py_ssize_t end = END;
        NUMBER squares = 0, sum = 0;
        int used = 0;
#pragma omp simd reduction(+ : squares, sum, used) reduction(min : low) reduction(max : high)
        for (Py_ssize_t i = at; i < end; i++) {
            squares += x[i] * x[i];
            sum += x[i];
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
            used += x[i] != 0;
        }
        own.squares += squares, own.sum += sum, own.n_used += used;
    }
    own.low = isnan(own.squares) ? NAN : low; /* comparisons pass over NaN, sums do not */
    own.high = isnan(own.squares) ? NAN : high;
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

/* The largest absolute value of x, or of x - y if there is a y; NaN is passed over. */
VERSIONS static double OF_TYPE(largest)(const NUMBER *x, const NUMBER *y, Py_ssize_t n)
{
    NUMBER largest = 0;
    if (y) {
#pragma omp simd reduction(max : largest)
        for (Py_ssize_t i = 0; i < n; i++) {
            NUMBER size = x[i] < y[i] ? y[i] - x[i] : x[i] - y[i];
            largest = size > largest ? size : largest;
        }
    } else {
#pragma omp simd reduction(max : largest)
        for (Py_ssize_t i = 0; i < n; i++) {
            NUMBER size = x[i] < 0 ? -x[i] : x[i];
            largest = size > largest ? size : largest;
        }
    }
    return largest;
}

/* The norm of x, or of x - y if there is a y, where its type cannot hold the squares. */
static double OF_TYPE(careful_norm)(double squares, const NUMBER *x, const NUMBER *y, Py_ssize_t n)
{
    double all = 0, largest = isnan(squares) ? squares : OF_TYPE(largest)(x, y, n);
    if (largest == 0 || !isfinite(largest))
        return largest;
    for (Py_ssize_t i = 0; i < n; i++) {
        double share = (NUMBER)(y ? x[i] - y[i] : x[i]) / largest;
        all += share * share;
    }
    return largest * sqrt(all);
}

#undef END
