/* Figures of rows of numbers, each by one pass over memory where NumPy takes one for every figure.

   `numpy_kernels.py` gives the same where this has not been compiled. Every function takes rows of
   one type and size, each as (address, how many numbers, whether they are doubles): to make an
   object for every row takes longer than to read a small one. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#ifdef _MSC_VER
#define restrict __restrict
#endif

/* Of each loop there are versions for wider registers too; the loader takes what the machine has. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)
#define VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VERSIONS
#endif

#define BLOCK 1024               /* numbers summed in their own type; the sums of these in double */
#define LANES 32                 /* numbers that are compared at once */
#define LEAST 1e-30              /* squares that single precision holds */
#define MOST 1e38
#define LONG (1 << 15)           /* numbers; other threads may run while as many are read */

typedef struct {
    double squares, sum, low, high, n_used;
} Figures;

#define NUMBER float
#define OF_TYPE(name) name##_float
#include "_kernels_of_type.h"
#undef NUMBER
#undef OF_TYPE

#define NUMBER double
#define OF_TYPE(name) name##_double
#include "_kernels_of_type.h"
#undef NUMBER
#undef OF_TYPE

static int is_held(double squares) { return LEAST < fabs(squares) && fabs(squares) < MOST; }

#define N_TRACED 16

/* Two rows, of which the second may be missing. */
typedef struct {
    void *some, *other, *copies[2];
    Py_ssize_t n;
    int is_double;
} Rows;

static size_t number_size(const Rows *rows) { return rows->is_double ? 8 : 4; }

static void release(Rows *rows)
{
    PyMem_RawFree(rows->copies[0]);
    PyMem_RawFree(rows->copies[1]);
}

/* Look at one row: where it is, how many numbers it has, and of which type. */
static int get_row(PyObject *from, void **address, Py_ssize_t *n, int *is_double)
{
    if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != 3) {
        PyErr_SetString(PyExc_TypeError, "takes rows: (address, how many, whether double)");
        return -1;
    }
    *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(from, 0));
    if (!*address && PyErr_Occurred())
        return -1;
    *n = PyLong_AsSsize_t(PyTuple_GET_ITEM(from, 1));
    if (*n == -1 && PyErr_Occurred())
        return -1;
    *is_double = PyObject_IsTrue(PyTuple_GET_ITEM(from, 2));
    if (*is_double < 0)
        return -1;
    if (*n < 0 || (*n && !*address)) {
        PyErr_SetString(PyExc_ValueError, "no row can be there");
        return -1;
    }
    return 0;
}

/* Copy a row that lies where no number of its type may. */
static int align(Rows *rows, void **address, void **copy)
{
    size_t size = number_size(rows);
    if ((size_t)*address % size == 0)
        return 0;
    if (!(*copy = PyMem_RawMalloc(rows->n * size))) {
        PyErr_NoMemory();
        return -1;
    }
    *address = memcpy(*copy, *address, rows->n * size);
    return 0;
}

/* Look at the arguments of a call: `n_rows` rows of one type and size, the second maybe to write. */
static int get_rows(Rows *rows, PyObject *const *args, Py_ssize_t n_args, int n_rows, int is_written)
{
    Py_ssize_t n;
    int is_double;
    memset(rows, 0, sizeof *rows);
    if (n_args != n_rows) {
        PyErr_Format(PyExc_TypeError, "takes %d rows, not %zd", n_rows, n_args);
        return -1;
    }
    if (get_row(args[0], &rows->some, &rows->n, &rows->is_double) < 0)
        return -1;
    if (n_rows == 2) {
        if (get_row(args[1], &rows->other, &n, &is_double) < 0)
            return -1;
        if (n != rows->n || is_double != rows->is_double ||
            (is_written && (size_t)rows->other % number_size(rows))) {
            PyErr_SetString(PyExc_ValueError, "takes two rows of one type and size");
            return -1;
        }
    }
    if (align(rows, &rows->some, &rows->copies[0]) < 0 ||
        (n_rows == 2 && align(rows, &rows->other, &rows->copies[1]) < 0)) {
        release(rows);
        return -1;
    }
    return 0;
}

/* Run a statement with `x` and `y`, the rows as pointers to their type; others may run meanwhile. */
#define READ(rows, statement)                                                                      \
    do {                                                                                           \
        PyThreadState *state = (rows).n > LONG ? PyEval_SaveThread() : NULL;                       \
        const void *x = (rows).some;                                                               \
        void *y = (rows).other;                                                                    \
        Py_ssize_t n = (rows).n;                                                                   \
        (void)y;                                                                                   \
        statement;                                                                                 \
        if (state)                                                                                 \
            PyEval_RestoreThread(state);                                                           \
        release(&(rows));                                                                          \
    } while (0)

#define EITHER(rows, function, ...)                                                                \
    ((rows).is_double ? function##_double(__VA_ARGS__) : function##_float(__VA_ARGS__))

static double root(const Rows *rows, double squares, const void *x, const void *y, Py_ssize_t n)
{
    if (is_held(squares))
        return sqrt(squares);
    if (squares == 0 && EITHER(*rows, is_zero, x, y, n))
        return 0;
    return EITHER(*rows, careful_norm, x, y, n);
}

static PyObject *final(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    Figures own;
    double norm;
    if (get_rows(&rows, args, n_args, 1, 0) < 0)
        return NULL;
    READ(rows, {
        own = EITHER(rows, figures, x, n);
        norm = root(&rows, own.squares, x, NULL, n);
    });
    return Py_BuildValue("(ddddd)", norm, own.sum, own.low, own.high, own.n_used);
}

static PyObject *norm(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    double found;
    if (get_rows(&rows, args, n_args, 1, 0) < 0)
        return NULL;
    READ(rows, found = root(&rows, EITHER(rows, squares, x, n), x, NULL, n));
    return PyFloat_FromDouble(found);
}

static PyObject *nonzeros(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    double found;
    if (get_rows(&rows, args, n_args, 1, 0) < 0)
        return NULL;
    READ(rows, found = EITHER(rows, n_used, x, n));
    return PyFloat_FromDouble(found);
}

static PyObject *product(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    double found, products;
    if (get_rows(&rows, args, n_args, 2, 0) < 0)
        return NULL;
    READ(rows, {
        double squares = EITHER(rows, squares_and_products, x, y, n, &products);
        if (!is_held(squares) || !is_held(products))
            products = EITHER(rows, careful_product, x, y, n);
        found = root(&rows, squares, x, NULL, n);
    });
    return Py_BuildValue("(dd)", found, products);
}

static PyObject *copy(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    double found;
    if (get_rows(&rows, args, n_args, 2, 1) < 0)
        return NULL;
    READ(rows, found = root(&rows, EITHER(rows, copied_squares, x, y, n), x, NULL, n));
    return PyFloat_FromDouble(found);
}

static PyObject *difference(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    double found;
    if (get_rows(&rows, args, n_args, 2, 0) < 0)
        return NULL;
    READ(rows, found = root(&rows, EITHER(rows, squares_of_difference, x, y, n), x, y, n));
    return PyFloat_FromDouble(found);
}

static PyObject *trace(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    Rows rows;
    PyObject *found;
    if (get_rows(&rows, args, n_args, 1, 0) < 0)
        return NULL;
    Py_ssize_t step = rows.n / N_TRACED + 1, size = (Py_ssize_t)number_size(&rows);
    found = PyBytes_FromStringAndSize(NULL, (rows.n + step - 1) / step * size);
    for (Py_ssize_t at = 0, to = 0; found && at < rows.n; at += step, to += size)
        memcpy(PyBytes_AS_STRING(found) + to, (char *)rows.some + at * size, size);
    release(&rows);
    return found;
}

#define METHOD(name, words) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, words}

static PyMethodDef methods[] = {
    METHOD(final, "Measure a gradient: norm, sum, lowest, highest, and how many are not 0."),
    METHOD(norm, "Give the norm of a row."),
    METHOD(nonzeros, "Count the numbers that are not 0."),
    METHOD(product, "Give the norm of a row, and its scalar product with another."),
    METHOD(copy, "Copy a row into another, and give its norm."),
    METHOD(difference, "Give the norm of the difference of two rows."),
    METHOD(trace, "Give a few of the numbers, evenly spread."),
    {0},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_MOD_GIL_NOT_USED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "nbinspect.gradients._kernels",
    .m_doc = "Figures of rows of numbers, each by one pass over memory.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&definition); }
