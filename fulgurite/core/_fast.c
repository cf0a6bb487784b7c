/* The host's hot path in C: interning, origins, entries, operators, templates, walks, keys.
 *
 * Each function and class has the name of the Python one that says what it means (`extension.py`
 * pairs them) and its answers; rare cases are left to it, or to what Python gives (`adopt`). Public
 * C API only, for interpreters with a global lock.
 * Invariants. The table and lists hold nodes and entries without owning them: one leaves them
 * before it is freed, is passed over if its count is 0, and never cleared by the collector, which
 * may run code that finds it there: what else closes a cycle breaks it. No Python code runs while
 * the marks of a walk (`walk`, `number`) are in use: the collector waits. `changes` counts what
 * happens to the table: who let Python code run between looking and inserting looks again.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#ifdef Py_GIL_DISABLED
#error "this extension relies on the interpreter's lock"
#endif
#ifndef SOURCE
#define SOURCE 0 /* which text it was built from */
#endif
#define ITEM PyTuple_GET_ITEM
#define SIZE PyTuple_GET_SIZE
typedef struct Node Node;
typedef struct Entry Entry;
typedef struct Use { Node *user; struct Use *next, *before; } Use; /* of a node as a source */
struct Node {
    PyObject_HEAD
    PyObject *op, *dtype, *src, *arg, *tag, *origins, *meta, *memory, *realized;
    PyObject *shape, *device, *bounds, *likely_bounds, *watched, *slice; /* NULL: not known yet */
    PyObject *weak;
    Use *first_use, *last_use, *own; /* of this node by others; of its sources, one for each */
    Entry *first_entry, *last_entry;
    Py_hash_t hash;
    long long id, interned;
    unsigned long long walk; /* the walk that met it last, and its number there */
    Py_ssize_t number;
};
struct Entry {
    PyObject_HEAD
    PyObject *id, *key, *node, *value, *weak;
    Node *root;           /* the node it hangs at, borrowed: it leaves before the node is freed */
    Entry *next, *before; /* there */
};
typedef struct { PyObject_HEAD PyObject *entry, *grad, *weak; } Tensor;
static PyTypeObject NodeFields, EntryFields, TensorFields;
/* How objects are visited, cleared and freed; those of Python's classes, which limit the depth. */
#define VISIT(name) Py_VISIT(self->name);
#define CLEAR(name) Py_CLEAR(self->name);
#define LIFE(kind, Struct, OWNS, leave)                                                            \
    static int kind##_traverse(Struct *self, visitproc visit, void *arg) { OWNS(VISIT) return 0; } \
    static int kind##_clear(Struct *self) { leave(self); OWNS(CLEAR) return 0; }                   \
    static void kind##_dealloc(Struct *self) {                                                     \
        PyObject_GC_UnTrack(self);                                                                 \
        leave(self);                                                                               \
        if (self->weak) PyObject_ClearWeakRefs((PyObject *)self);                                  \
        kind##_clear(self);                                                                        \
        kind##_free(self);                                                                         \
    }
/* --- what Python gives ------------------------------------------------------------------------ */
#define GIVEN(X)                                                                                   \
    X(Node) X(Entry) X(Fresh) X(Tensor) X(Parameter) X(ids) X(NOBODY) X(facts) X(kind_bit) X(site) \
    X(wrap) X(is_our_code) X(is_recording) X(find_shape) X(find_device) X(find_watched) X(apply)   \
    X(flatten) X(add) X(sub) X(mul) X(div) X(CONST) X(float32) X(float64) X(int32) X(int64)        \
    X(uint8) X(ASSIGN) X(BIND) X(BUFFER) X(DETACH) X(OVERRIDE) X(UNWATCH) X(WATCH) X(REDUCE)       \
    X(SCAN) X(SORT) X(detach)
#define DECLARE(name) PyObject *name;
static struct { GIVEN(DECLARE) } given;
#define PLACE(name) {#name, &given.name},
static const struct { const char *name; PyObject **place; } places[] = {GIVEN(PLACE)};
static PyObject *empty, *s_dtype, *s_apply, *s_param, *s_const, *s_arg, *s_node;
static void *fail(PyObject *kind, const char *text) {
    PyErr_SetString(kind, text);
    return NULL;
}
static void *too_soon(void) { return fail(PyExc_RuntimeError, "Python has not given this yet"); }
static PyObject *call_given(PyObject *function, PyObject *argument) {
    return function ? PyObject_CallOneArg(function, argument) : too_soon();
}
static PyObject *m_adopt(PyObject *self, PyObject *args) {
    const char *name;
    PyObject *thing;
    if (!PyArg_ParseTuple(args, "sO", &name, &thing)) return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (!strcmp(places[i].name, name)) {
            PyTypeObject *base = !i ? &NodeFields : i < 3 ? &EntryFields : &TensorFields;
            if (i < 5 && !(PyType_Check(thing) && PyType_IsSubtype((PyTypeObject *)thing, base)))
                return fail(PyExc_TypeError, "such a class has other fields");
            Py_XSETREF(*places[i].place, Py_NewRef(thing));
        }
    Py_RETURN_NONE;
}
static int is_a(PyObject *thing, PyObject *type) { return (PyObject *)Py_TYPE(thing) == type; }
static int check_node(PyObject *thing) {
    if (PyObject_TypeCheck(thing, &NodeFields) && ((Node *)thing)->src) return 1;
    PyErr_Format(PyExc_TypeError, "%.100s is not a node", Py_TYPE(thing)->tp_name);
    return 0;
}
static int check_nodes(PyObject *tuple) {
    if (!PyTuple_Check(tuple)) return fail(PyExc_TypeError, "sources are a tuple") != NULL;
    for (Py_ssize_t i = 0; i < SIZE(tuple); i++)
        if (!check_node(ITEM(tuple, i))) return 0;
    return 1;
}
/* What is known of an op, a dtype or a code: bits, found by Python once for each. -1: an error. */
enum { FIRST_DTYPE = 1, LAST_DTYPE = 2, FIRST_SHAPE = 4, SOURCE_DEVICE = 8, SOURCE_WATCHED = 16,
       CONTROL = 32, INEXACT = 64 | 128 /* kinds of dtype begin with these */ };
static long facts_of(PyObject *thing, PyObject *rule) {
    static struct { PyObject *thing; long bits; } known[8192]; /* owned: an address stays its own */
    size_t place = ((size_t)thing >> 4 ^ (size_t)thing >> 17) & 8191;
    if (known[place].thing == thing) return known[place].bits;
    PyObject *answer = call_given(rule, thing);
    long bits = answer ? PyLong_AsLong(answer) : -1;
    Py_XDECREF(answer);
    if (bits == -1) return -1;
    known[place].bits = bits;
    Py_XSETREF(known[place].thing, Py_NewRef(thing));
    return bits;
}
/* Tuples of numbers and words, and what a node alone owns, are not for the collector to look at. */
static int lean(PyObject *thing) {
    if (!PyTuple_CheckExact(thing)) return !PyObject_IS_GC(thing);
    if (!PyObject_GC_IsTracked(thing)) return 1;
    for (Py_ssize_t i = 0; i < SIZE(thing); i++)
        if (!lean(ITEM(thing, i))) return 0;
    PyObject_GC_UnTrack(thing);
    return 1;
}
/* --- the table of live nodes: open addressing ------------------------------------------------- */
static Node **table;
static size_t mask, used, filled; /* `filled` counts the places of the dead, too */
static unsigned long long changes; static long long last_id;
#define DEAD ((Node *)1)
static int grow(void) {
    size_t size = 1024;
    while (size < used * 4) size *= 2;
    Node **bigger = PyMem_Calloc(size, sizeof *bigger);
    if (!bigger) return PyErr_NoMemory() == NULL;
    for (size_t i = 0; table && i <= mask; i++)
        if (table[i] && table[i] != DEAD) {
            size_t j = (size_t)table[i]->hash & (size - 1);
            while (bigger[j]) j = (j + 1) & (size - 1);
            bigger[j] = table[i];
        }
    PyMem_Free(table);
    table = bigger, mask = size - 1, filled = used, changes++;
    return 0;
}
static uint64_t mix(uint64_t hash, uint64_t more) {
    hash = (hash ^ more) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}
typedef struct { PyObject *op, *dtype, *src, *arg, *tag; Py_hash_t hash; } Fields;
static int hash_fields(Fields *f) {
    uint64_t found = mix((uintptr_t)f->op >> 4, (uintptr_t)f->dtype >> 4);
    for (Py_ssize_t i = 0; i < SIZE(f->src); i++)
        found = mix(found, (uintptr_t)ITEM(f->src, i) >> 4);
    Py_hash_t arg = PyObject_Hash(f->arg), tag = arg == -1 ? -1 : PyObject_Hash(f->tag);
    found = mix(mix(found, (uint64_t)arg), (uint64_t)tag);
    f->hash = (Py_hash_t)(found ^ found >> 32);
    return tag == -1 ? -1 : 0;
}
static int agrees(Node *node, Fields *f) { /* in all that is compared by identity */
    if (node->hash != f->hash || node->op != f->op || node->dtype != f->dtype) return 0;
    Py_ssize_t count = SIZE(f->src);
    if (!Py_REFCNT(node) || SIZE(node->src) != count) return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (ITEM(node->src, i) != ITEM(f->src, i)) return 0;
    return 1;
}
/* The live node with these fields (a new reference), or NULL and, if no error, a free place. */
static Node *probe(Fields *f, size_t *place) {
again:;
    size_t spot = SIZE_MAX, j = (size_t)f->hash & mask;
    for (; table[j]; j = (j + 1) & mask) {
        Node *node = table[j];
        if (node == DEAD && spot == SIZE_MAX) spot = j;
        if (node == DEAD || !agrees(node, f)) continue;
        Py_INCREF(node);
        if (node->arg == f->arg && node->tag == f->tag) return node;
        unsigned long long before = changes;
        PyObject *arg = Py_NewRef(node->arg), *tag = Py_NewRef(node->tag);
        int equal = PyObject_RichCompareBool(arg, f->arg, Py_EQ);
        if (equal > 0) equal = PyObject_RichCompareBool(tag, f->tag, Py_EQ);
        Py_DECREF(arg), Py_DECREF(tag);
        if (equal > 0 && node->interned) return node;
        Py_DECREF(node);
        if (equal < 0) return NULL;
        if (changes != before) goto again;
    }
    *place = spot == SIZE_MAX ? j : spot;
    return NULL;
}
/* Graphs come and go: memory of nodes is kept for the next, which the collector need not count. */
static Node *idle[4096]; static size_t idle_count;
static void node_free(Node *node) {
    if (is_a((PyObject *)node, given.Node) && idle_count < 4096) idle[idle_count++] = node;
    else Py_TYPE(node)->tp_free(node);
}
static Node *new_node(Fields *f) {
    PyTypeObject *type = (PyTypeObject *)given.Node;
    Node *node = idle_count ? idle[--idle_count] : NULL;
    if (!node) node = type ? (Node *)type->tp_alloc(type, 0) : too_soon();
    if (!node) return NULL;
    if (!Py_REFCNT(node)) { /* it was idle */
        memset(node, 0, sizeof *node);
        PyObject_GC_Track(PyObject_Init((PyObject *)node, type));
    }
    node->op = Py_NewRef(f->op), node->dtype = Py_NewRef(f->dtype), node->src = Py_NewRef(f->src);
    node->arg = Py_NewRef(f->arg), node->tag = Py_NewRef(f->tag), node->origins = Py_NewRef(empty);
    node->meta = Py_NewRef(Py_None), node->memory = Py_NewRef(Py_None);
    node->realized = Py_NewRef(Py_None), node->id = ++last_id;
    return node;
}
static void enter_table(Node *node, size_t place) {
    for (Py_ssize_t i = 0; i < SIZE(node->src); i++) {
        Node *source = (Node *)ITEM(node->src, i);
        Use *use = &node->own[i];
        *use = (Use){node, NULL, source->last_use};
        *(source->last_use ? &source->last_use->next : &source->first_use) = use;
        source->last_use = use;
    }
    node->interned = 1;
    PyObject_GC_UnTrack(node->src); /* the node visits them */
    if (lean(node->arg) && node->op == given.CONST && !SIZE(node->src)) PyObject_GC_UnTrack(node);
    if (!table[place]) filled++;
    table[place] = node;
    used++, changes++;
}
static void forget(Node *node) { /* the table and the lists at its sources know it no more */
    if (!node->interned) return;
    node->interned = 0;
    size_t j = (size_t)node->hash & mask;
    while (table[j] != node) j = (j + 1) & mask;
    table[j] = DEAD;
    used--, changes++;
    for (Py_ssize_t i = 0; i < SIZE(node->src); i++) {
        Node *source = (Node *)ITEM(node->src, i);
        Use *use = &node->own[i];
        *(use->before ? &use->before->next : &source->first_use) = use->next;
        *(use->next ? &use->next->before : &source->last_use) = use->before;
    }
    PyMem_Free(node->own);
    node->own = NULL;
}
/* The one live node with these fields; the sources are known to be nodes. */
static PyObject *intern(PyObject *op, PyObject *dtype, PyObject *src, PyObject *arg,
                        PyObject *tag) {
    Fields fields = {op, dtype, src, arg, tag, 0};
    if (hash_fields(&fields) < 0) return NULL;
    for (;;) {
        size_t place = 0;
        Node *node = probe(&fields, &place);
        if (node || PyErr_Occurred()) return (PyObject *)node;
        unsigned long long before = changes;
        if ((filled + 1) * 3 > mask * 2 && grow()) return NULL;
        if (!(node = new_node(&fields))) return NULL;
        if (changes == before) { /* else a collection ran, or the table has grown */
            node->own = PyMem_Malloc(((size_t)SIZE(src) + 1) * sizeof *node->own);
            node->hash = fields.hash;
            if (node->own) return enter_table(node, place), (PyObject *)node;
            PyErr_NoMemory();
        }
        Py_DECREF(node);
        if (PyErr_Occurred()) return NULL;
    }
}
static PyObject *m_make(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count < 2 || count > 5) return fail(PyExc_TypeError, "make takes an op, a dtype, ...");
    PyObject *src = count > 2 ? args[2] : empty, *arg = count > 3 ? args[3] : Py_None;
    PyObject *tag = count > 4 ? args[4] : Py_None;
    return check_nodes(src) ? intern(args[0], args[1], src, arg, tag) : NULL;
}
static PyObject *m_annotate(PyObject *self, PyObject *args) {
    PyObject *from, *meta;
    if (!PyArg_ParseTuple(args, "OO", &from, &meta) || !check_node(from)) return NULL;
    Node *n = (Node *)from, *copy = new_node(&(Fields){n->op, n->dtype, n->src, n->arg, n->tag, 0});
    if (!copy) return NULL;
    Py_SETREF(copy->origins, Py_NewRef(n->origins ? n->origins : empty));
    Py_SETREF(copy->meta, Py_NewRef(meta));
    return (PyObject *)copy;
}
static PyObject *m_live_nodes(PyObject *self, PyObject *nothing) {
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i <= mask; i++)
        if (table[i] && table[i] != DEAD && Py_REFCNT(table[i])
            && PyList_Append(found, (PyObject *)table[i]) < 0) Py_CLEAR(found);
    return found;
}
static PyObject *m_live_count(PyObject *self, PyObject *nothing) { return PyLong_FromSize_t(used); }
/* --- nodes ------------------------------------------------------------------------------------ */
#define NODE_OWNS(X)                                                                               \
    X(op) X(dtype) X(src) X(arg) X(tag) X(origins) X(meta) X(memory) X(realized) X(shape)          \
    X(device) X(bounds) X(likely_bounds) X(watched) X(slice) OWN_##X
#define OWN_VISIT /* sources in a tuple that only the node has: who else holds it holds them */    \
    for (Py_ssize_t i = self->src && Py_REFCNT(self->src) == 1 ? SIZE(self->src) : 0; i-- > 0;)    \
        if (!PyObject_GC_IsTracked(self->src)) Py_VISIT(ITEM(self->src, i));
#define OWN_CLEAR
static void unhang(Entry *entry);
static void node_leave(Node *node) {
    forget(node);
    while (node->first_entry) unhang(node->first_entry);
}
LIFE(node, Node, NODE_OWNS, node_leave)
/* Facts by the common rules, as far as the sources know theirs; -1: an error. */
static void settle_device(Node *node) {
    PyObject *device = Py_None;
    for (Py_ssize_t i = 0; device == Py_None && i < SIZE(node->src); i++)
        device = ((Node *)ITEM(node->src, i))->device;
    if (device) Py_XSETREF(node->device, Py_NewRef(device));
}
static int settle_watched(Node *node) {
    long kind = facts_of(node->dtype, given.kind_bit);
    PyObject *found = kind < 0 || !given.NOBODY ? NULL : Py_NewRef(given.NOBODY), *its;
    for (Py_ssize_t i = 0; kind & INEXACT && found && i < SIZE(node->src); i++) {
        its = ((Node *)ITEM(node->src, i))->watched;
        if (!its || !PyAnySet_Check(its)) Py_CLEAR(found); /* not known yet */
        else if (!PySet_Size(found)) Py_SETREF(found, Py_NewRef(its));
        else if (PySet_Size(its)) Py_SETREF(found, PyNumber_Or(its, found));
    }
    if (found) Py_XSETREF(node->watched, found);
    return kind < 0 || PyErr_Occurred() ? -1 : 0;
}
static int settle(Node *node) {
    long facts = facts_of(node->op, given.facts);
    if (facts < 0 || !SIZE(node->src)) return facts < 0 ? -1 : 0;
    PyObject *shape = ((Node *)ITEM(node->src, 0))->shape;
    if (!node->shape && shape && facts & FIRST_SHAPE) node->shape = Py_NewRef(shape);
    if (!node->device && facts & SOURCE_DEVICE) settle_device(node);
    return !node->watched && facts & SOURCE_WATCHED ? settle_watched(node) : 0;
}
#define FACT(name)                                                                                 \
    static PyObject *get_##name(Node *node, void *closure) {                                       \
        if (!node->name && node->src && settle(node) < 0) return NULL;                             \
        return node->name ? Py_NewRef(node->name) : call_given(given.find_##name, (void *)node);   \
    }
FACT(shape) FACT(device) FACT(watched)
#define GET(name) {#name, (getter)get_##name, NULL, NULL, NULL}
static PyGetSetDef node_getset[] = {GET(shape), GET(device), GET(watched), {.name = NULL}};
#define MEMBER(type, text, name, flags) {text, T_OBJECT_EX, offsetof(type, name), flags, NULL}
#define FIELD(name) MEMBER(Node, #name, name, READONLY)
#define OPEN(name, field) MEMBER(Node, name, field, 0)
static PyMemberDef node_members[] = {
    FIELD(op), FIELD(dtype), FIELD(src), FIELD(arg), FIELD(tag),
    {"id", T_LONGLONG, offsetof(Node, id), READONLY, NULL}, OPEN("origins", origins),
    OPEN("meta", meta), OPEN("memory", memory), OPEN("realized", realized), OPEN("_shape", shape),
    OPEN("_device", device), OPEN("_bounds", bounds), OPEN("_likely_bounds", likely_bounds),
    OPEN("_watched", watched), OPEN("_slice", slice), {NULL},
};
/* op(*src, arg=None): the node of an op on sources that fit already. */
static PyObject *call_op(PyObject *op, PyObject *const *sources, Py_ssize_t count, PyObject *arg) {
    long facts = facts_of(op, given.facts);
    PyObject *src = facts < 0 ? NULL : PyTuple_New(count), *dtype = NULL, *made = NULL;
    for (Py_ssize_t i = 0; src && i < count; i++) PyTuple_SET_ITEM(src, i, Py_NewRef(sources[i]));
    if (src && !check_nodes(src)) Py_CLEAR(src);
    if (src && count && facts & (FIRST_DTYPE | LAST_DTYPE))
        dtype = Py_NewRef(((Node *)sources[facts & FIRST_DTYPE ? 0 : count - 1])->dtype);
    else if (src) {
        PyObject *rule = PyObject_GetAttr(op, s_dtype);
        if (rule == Py_None) PyErr_Format(PyExc_AssertionError, "%S: say the dtype with make", op);
        else if (rule) dtype = PyObject_CallFunctionObjArgs(rule, src, arg, NULL);
        Py_XDECREF(rule);
    }
    if (dtype) made = intern(op, dtype, src, arg, Py_None);
    if (made && settle((Node *)made) < 0) Py_CLEAR(made);
    Py_XDECREF(dtype), Py_XDECREF(src);
    return made;
}
static PyObject *m_call(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? SIZE(names) : 0;
    if (named > 1 || (named && PyUnicode_Compare(ITEM(names, 0), s_arg)))
        return PyErr_Format(PyExc_TypeError, "an op takes sources and arg, not %R", names);
    if (!count) return fail(PyExc_TypeError, "which op is called?");
    return call_op(args[0], args + 1, count - 1, named ? args[count] : Py_None);
}
/* --- entries ---------------------------------------------------------------------------------- */
static void unhang(Entry *entry) {
    if (!entry->root) return;
    *(entry->before ? &entry->before->next : &entry->root->first_entry) = entry->next;
    *(entry->next ? &entry->next->before : &entry->root->last_entry) = entry->before;
    entry->root = NULL;
}
static void hang(Entry *entry, Node *node) {
    unhang(entry);
    entry->root = node, entry->next = NULL, entry->before = node->last_entry;
    *(node->last_entry ? &node->last_entry->next : &node->first_entry) = entry;
    node->last_entry = entry;
}
#define ENTRY_OWNS(X) X(id) X(key) X(node) X(value)
#define entry_free(self) Py_TYPE(self)->tp_free(self)
LIFE(entry, Entry, ENTRY_OWNS, unhang)
static PyMemberDef entry_members[] = {
    MEMBER(Entry, "id", id, 0), MEMBER(Entry, "key", key, 0), MEMBER(Entry, "node", node, 0),
    MEMBER(Entry, "value", value, 0), {NULL},
};
static Entry *new_entry(PyObject *type) {
    if (!type || !given.ids) return too_soon();
    Entry *entry = (Entry *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (entry) entry->id = PyIter_Next(given.ids); /* which never ends */
    if (entry) entry->key = entry->id ? PyNumber_Negative(entry->id) : NULL;
    if (entry && !entry->key) Py_CLEAR(entry);
    return entry;
}
static PyObject *m_enter(PyObject *self, PyObject *node) {
    Entry *entry = check_node(node) ? new_entry(given.Entry) : NULL;
    if (entry)
        entry->node = Py_NewRef(node), entry->value = Py_NewRef(Py_None), hang(entry, (Node *)node);
    return (PyObject *)entry;
}
static PyObject *m_admit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyObject_TypeCheck(args[0], &EntryFields) || !check_node(args[1]))
        return PyErr_Occurred() ? NULL : fail(PyExc_TypeError, "admit takes an entry and a node");
    hang((Entry *)args[0], (Node *)args[1]);
    Py_RETURN_NONE;
}
static PyObject *m_entries_of(PyObject *self, PyObject *nodes) {
    PyObject *every = PySequence_Tuple(nodes), *found = NULL;
    if (every && check_nodes(every)) found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < SIZE(every); i++)
        for (Entry *e = ((Node *)ITEM(every, i))->first_entry; found && e; e = e->next)
            if (e->node == ITEM(every, i) && Py_REFCNT(e) && PyList_Append(found, (PyObject *)e))
                Py_CLEAR(found);
    Py_XDECREF(every);
    return found;
}
/* --- origins ---------------------------------------------------------------------------------- */
static _Thread_local PyObject *scopes, *here; /* NULL: none */ static int origins_on = 1;
static PyObject *m_surround(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyTuple_Check(args[0])) return fail(PyExc_TypeError, "scopes are a tuple");
    Py_XSETREF(scopes, SIZE(args[0]) ? Py_NewRef(args[0]) : NULL);
    Py_XSETREF(here, args[1] != Py_None ? Py_NewRef(args[1]) : NULL);
    Py_RETURN_NONE;
}
static PyObject *m_enable_origins(PyObject *self, PyObject *flag) {
    int on = PyObject_IsTrue(flag), before = origins_on;
    if (on >= 0) origins_on = on;
    return on >= 0 ? PyBool_FromLong(before) : NULL;
}
static PyObject *origin_of(PyObject *code, int instruction) {
    typedef struct { PyObject *code, *scopes, *origin; int instruction; } Site;
    static Site sites[8192];
    Site *known = &sites[(((size_t)code >> 4) * 31 + (size_t)instruction) & 8191];
    PyObject *around = scopes ? scopes : empty;
    if (known->code == code && known->instruction == instruction && known->scopes == around)
        return Py_NewRef(known->origin);
    if (!given.site) return too_soon();
    PyObject *origin = PyObject_CallFunction(given.site, "OiO", code, instruction, around);
    if (!origin) return NULL;
    known->instruction = instruction;
    Py_XSETREF(known->scopes, Py_NewRef(around));
    Py_XSETREF(known->origin, Py_NewRef(origin));
    Py_XSETREF(known->code, Py_NewRef(code)); /* last: letting go of it may run code */
    return origin;
}
static PyObject *m_capture(PyObject *self, PyObject *nothing) {
    if (!origins_on || here) return Py_NewRef(origins_on ? here : Py_None);
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame), *origin = NULL;
        long ours = facts_of(code, given.is_our_code);
        if (!ours) origin = origin_of(code, PyFrame_GetLasti(frame));
        PyFrameObject *back = ours > 0 ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(code), Py_DECREF(frame);
        if (ours <= 0) return origin;
        frame = back;
    }
    Py_RETURN_NONE;
}
#define MAX_ORIGINS 8
static int note(Node *node, PyObject *given_origin) {
    PyObject *origin = given_origin ? Py_NewRef(given_origin) : m_capture(NULL, NULL), *more = NULL;
    if (!origin) return -1;
    PyObject *known = node->origins ? node->origins : empty;
    int met = !PyTuple_Check(known) || origin == Py_None;
    Py_ssize_t count = met ? 0 : SIZE(known);
    for (Py_ssize_t i = 0; !met && i < count; i++) met = ITEM(known, i) == origin;
    static PyObject *alone; /* the tuple of one line that was made last: many nodes have it */
    if (!met && !count && alone && ITEM(alone, 0) == origin) more = Py_NewRef(alone);
    else if (!met && count < MAX_ORIGINS && (more = PyTuple_New(count + 1))) {
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(more, i, Py_NewRef(ITEM(known, i)));
        PyTuple_SET_ITEM(more, count, Py_NewRef(origin));
        PyObject_GC_UnTrack(more); /* lines own nothing */
        if (!count) Py_XSETREF(alone, Py_NewRef(more));
    }
    if (more) Py_SETREF(node->origins, more);
    Py_DECREF(origin);
    return !met && count < MAX_ORIGINS && !more ? -1 : 0;
}
static PyObject *m_note(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count < 1 || count > 2) return fail(PyExc_TypeError, "note takes a node and a line");
    PyObject *origin = count > 1 && args[1] != Py_None ? args[1] : NULL;
    return check_node(args[0]) && note((Node *)args[0], origin) >= 0 ? Py_NewRef(args[0]) : NULL;
}
/* --- elementwise ops -------------------------------------------------------------------------- */
static int derive(PyObject *thing, PyObject *shape) { /* this shape, the rest by the rules */
    Node *node = (Node *)thing;
    Py_XSETREF(node->shape, Py_NewRef(shape));
    lean(shape);
    if (!node->device) settle_device(node);
    return node->watched ? 0 : settle_watched(node);
}
static PyObject *m_derived(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return fail(PyExc_TypeError, "derived takes a node and a shape");
    return check_node(args[0]) && derive(args[0], args[1]) >= 0 ? Py_NewRef(args[0]) : NULL;
}
/* op(*sources), all of one dtype and shape, noted; NULL and no error: it is for Python. */
static PyObject *of_equals(PyObject *op, PyObject *const *sources, Py_ssize_t count) {
    Node *first = (Node *)sources[0];
    long facts = facts_of(op, given.facts), kind = facts_of(first->dtype, given.kind_bit);
    if (facts < 0 || kind < 0 || !(facts & kind) || !(facts & FIRST_SHAPE)) return NULL;
    PyObject *shape = get_shape(first, NULL), *its = NULL, *made = NULL;
    if (count == 2 && shape && ((Node *)sources[1])->dtype == first->dtype)
        its = get_shape((Node *)sources[1], NULL);
    if (shape && (count == 1 || (its && PyObject_RichCompareBool(shape, its, Py_EQ) > 0))) {
        made = call_op(op, sources, count, Py_None);
        if (made && (derive(made, shape) < 0 || note((Node *)made, NULL) < 0)) Py_CLEAR(made);
    }
    Py_XDECREF(shape), Py_XDECREF(its);
    return made;
}
static int is_number(PyObject *x) { return PyFloat_CheckExact(x) || PyLong_CheckExact(x); }
/* A Python number as bits of a dtype; -1: it is for Python. */
static long long bits_of(PyObject *number, PyObject *dtype) {
    int overflow = 0, whole = PyLong_CheckExact(number);
    if (!is_number(number)) return -1;
    long long count = whole ? PyLong_AsLongLongAndOverflow(number, &overflow) : 0;
    if (overflow || count > INT32_MAX || count < INT32_MIN) return -1;
    if (dtype == given.int32) return whole ? (long long)(uint32_t)count : -1;
    if (dtype == given.int64 || (dtype == given.uint8 && count < 256))
        return whole && count >= 0 ? count : -1; /* bits are whole numbers from 0 */
    double value = whole ? (double)count : PyFloat_AS_DOUBLE(number);
    long long image = (union { double number; long long image; }){value}.image;
    if (dtype == given.float64) return value <= DBL_MAX && image >= 0 ? image : -1;
    if (dtype != given.float32 || count > 1 << 24 || count < -(1 << 24)) return -1;
    if (!(value >= -FLT_MAX && value <= FLT_MAX)) return -1;
    return (union { float number; uint32_t image; }){(float)value}.image;
}
static int all_ints(PyObject *shape) {
    int fixed = PyTuple_Check(shape);
    for (Py_ssize_t i = 0; fixed && i < SIZE(shape); i++) fixed = PyLong_CheckExact(ITEM(shape, i));
    return fixed;
}
static PyObject *constant_like(Node *node, PyObject *number) { /* NULL and no error: as above */
    long long bits = bits_of(number, node->dtype);
    PyObject *shape = bits < 0 || !given.CONST ? NULL : get_shape(node, NULL), *made = NULL;
    PyObject *arg = shape && all_ints(shape) ? Py_BuildValue("(LO)", bits, shape) : NULL;
    if (arg) made = intern(given.CONST, node->dtype, empty, arg, Py_None);
    if (made && derive(made, shape) < 0) Py_CLEAR(made);
    Py_XDECREF(arg), Py_XDECREF(shape);
    return made;
}
/* What `build.apply` does in the common cases; NULL and no error: it is for that. */
static PyObject *apply(PyObject *op, PyObject *const *operands, Py_ssize_t count) {
    if (count < 1 || count > 2) return NULL;
    int first = is_a(operands[0], given.Node), last = is_a(operands[count - 1], given.Node);
    if (!(first || last) || !((Node *)operands[!first])->src) return NULL;
    if (first && last) return of_equals(op, operands, count);
    PyObject *number = constant_like((Node *)operands[!first], operands[first]);
    PyObject *both[2] = {first ? operands[0] : number, first ? number : operands[1]};
    PyObject *made = number ? of_equals(op, both, 2) : NULL;
    Py_XDECREF(number);
    return made;
}
static PyObject *m_apply(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (!count) return fail(PyExc_TypeError, "apply takes an op and operands");
    PyObject *made = apply(args[0], args + 1, count - 1);
    if (made || PyErr_Occurred()) return made;
    return given.apply ? PyObject_Vectorcall(given.apply, args, (size_t)count, NULL) : too_soon();
}
/* --- tensors ---------------------------------------------------------------------------------- */
#define TENSOR_OWNS(X) X(entry) X(grad)
static void tensor_leave(Tensor *tensor) {}
#define tensor_free entry_free
LIFE(tensor, Tensor, TENSOR_OWNS, tensor_leave)
static PyMemberDef tensor_members[] = {
    MEMBER(Tensor, "entry", entry, 0), MEMBER(Tensor, "grad", grad, 0), {NULL},
};
static PyObject *tensor_around(PyObject *entry) { /* which it takes */
    PyTypeObject *type = (PyTypeObject *)given.Tensor;
    Tensor *tensor = entry ? (Tensor *)type->tp_alloc(type, 0) : NULL;
    if (tensor) tensor->entry = entry, tensor->grad = Py_NewRef(Py_None);
    else Py_XDECREF(entry);
    return (PyObject *)tensor;
}
static PyObject *m_wrap(PyObject *self, PyObject *node) {
    if (!check_node(node)) return NULL;
    if (!given.Tensor || ((Node *)node)->op == given.WATCH) return call_given(given.wrap, node);
    return tensor_around(m_enter(NULL, node));
}
static PyObject *m_fresh_tensor(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !given.Tensor) return fail(PyExc_TypeError, "memory, and what it is");
    Entry *entry = new_entry(given.Fresh);
    if (entry && !(entry->value = PyTuple_Pack(2, args[0], args[1]))) Py_CLEAR(entry);
    return tensor_around((PyObject *)entry);
}
/* What tensors' nodes, their memory's own nodes, weakly, and the memory are held by; and it. */
static PyObject *m_counted(PyObject *self, PyObject *tensors) {
    if (!PyTuple_Check(tensors)) return fail(PyExc_TypeError, "tensors are a tuple");
    Py_ssize_t n = SIZE(tensors), i = 0;
    PyObject *counts = PyList_New(4 * n), *memories = PyTuple_New(n), *both = NULL;
    for (; counts && memories && i < n; i++) {
        Tensor *tensor = (Tensor *)ITEM(tensors, i);
        Entry *entry = PyObject_TypeCheck(tensor, &TensorFields) ? (Entry *)tensor->entry : NULL;
        if (entry && !entry->node) Py_XDECREF(PyObject_GetAttr((PyObject *)entry, s_node));
        Node *node = entry && entry->node ? (Node *)entry->node : (Node *)tensor;
        if (PyErr_Occurred() || !check_node((PyObject *)node)) break;
        Node *base = node->op == given.WATCH ? (Node *)ITEM(node->src, 0) : node;
        if (!base->memory) break;
        PyWeakReference *weak = (PyWeakReference *)base->weak;
        Py_ssize_t found[4] = {Py_REFCNT(node), Py_REFCNT(base), 0, Py_REFCNT(base->memory)};
        for (; weak; weak = weak->wr_next) found[2]++;
        for (int k = 0; k < 4; k++)
            PyList_SET_ITEM(counts, k * n + i, PyLong_FromSsize_t(found[k]));
        PyTuple_SET_ITEM(memories, i, Py_NewRef(base->memory));
    }
    if (counts && memories && i == n) both = PyTuple_Pack(2, counts, memories);
    Py_XDECREF(counts), Py_XDECREF(memories);
    return both || PyErr_Occurred() ? both : fail(PyExc_TypeError, "a tensor has no memory");
}
/* The nodes of a template (op, dtype, arg, shape, numbers of sources) over sources: the last. */
static PyObject *replay_step(PyObject *step, PyObject *const *made, Py_ssize_t count,
                             PyObject *origin) {
    PyObject *src = PyTuple_New(SIZE(step) - 4), *thing;
    for (Py_ssize_t i = 4; src && i < SIZE(step); i++) {
        size_t place = PyLong_AsSize_t(ITEM(step, i));
        if (place < (size_t)count) PyTuple_SET_ITEM(src, i - 4, Py_NewRef(made[place]));
        else Py_CLEAR(src);
    }
    if (!src) return PyErr_Occurred() ? NULL : fail(PyExc_IndexError, "a source is not there");
    thing = intern(ITEM(step, 0), ITEM(step, 1), src, ITEM(step, 2), Py_None);
    Node *node = (Node *)thing;
    if (node && node->op == given.DETACH) Py_XSETREF(node->watched, Py_NewRef(given.NOBODY));
    int failed = !node || derive(thing, ITEM(step, 3)) < 0;
    if (!failed && node->op != given.CONST) failed = note(node, origin) < 0;
    if (failed) Py_CLEAR(thing);
    Py_DECREF(src);
    return thing;
}
static PyObject *replayed(PyObject *steps, PyObject *const *sources, Py_ssize_t count) {
    Py_ssize_t most = count + SIZE(steps), there = count;
    PyObject *origin = m_capture(NULL, NULL), *last = NULL, *few[256], **made = few;
    if (most > 256 && !(made = PyMem_Malloc((size_t)most * sizeof *made))) PyErr_NoMemory();
    if (made) memcpy(made, sources, (size_t)count * sizeof *made);
    for (Py_ssize_t i = 0; made && origin && i < SIZE(steps); i++, there++)
        if (!(made[there] = replay_step(ITEM(steps, i), made, there, origin))) break;
    if (there == most && most) last = Py_NewRef(made[most - 1]);
    while (there > count) Py_DECREF(made[--there]);
    if (made != few) PyMem_Free(made);
    Py_XDECREF(origin);
    return last;
}
static PyObject *m_replay(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *nodes = count == 2 && PyTuple_Check(args[0]) ? PySequence_Tuple(args[1]) : NULL;
    PyObject *last = nodes && check_nodes(nodes)
        ? replayed(args[0], ((PyTupleObject *)nodes)->ob_item, SIZE(nodes)) : NULL;
    Py_XDECREF(nodes);
    return last || PyErr_Occurred() ? last : fail(PyExc_TypeError, "replay takes steps and nodes");
}
static int is_plain(PyObject *x) { return is_a(x, given.Tensor) || is_a(x, given.Parameter); }
/* The node (a new reference) that a plain tensor brings into an expression; NULL: for Python. */
static PyObject *operand(PyObject *thing) {
    Entry *entry = is_plain(thing) ? (Entry *)((Tensor *)thing)->entry : NULL;
    if (entry && !entry->node) Py_XDECREF(PyObject_GetAttr((PyObject *)entry, s_node)); /* fresh */
    PyObject *node = entry && is_a((PyObject *)entry, given.Entry) ? entry->node : NULL;
    if (!node || !is_a(node, given.Node) || !((Node *)node)->src) return NULL;
    Py_INCREF(node);
    PyObject *watched = get_watched((Node *)node, NULL), *answer = NULL;
    int plain = watched && PyAnySet_Check(watched) && !PySet_Size(watched);
    if (watched && !plain && given.is_recording) answer = PyObject_CallNoArgs(given.is_recording);
    if (!plain && answer == Py_False) Py_SETREF(node, call_given(given.detach, node));
    else if (!plain && answer != Py_True) Py_CLEAR(node);
    Py_XDECREF(answer), Py_XDECREF(watched);
    return node;
}
/* What a function may know of its operands: the key of a template; 0 and no error: for Python. */
#define MOST_PARTS 64
typedef struct { PyObject *part[MOST_PARTS], *nodes; Py_ssize_t parts; } Call;
static int put(Call *call, PyObject *part) { /* which it takes */
    if (part && call->parts < MOST_PARTS) return call->part[call->parts++] = part, 1;
    return Py_XDECREF(part), 0;
}
static int put_node(Call *call, Node *node) {
    Py_ssize_t i = 0, count = PyList_GET_SIZE(call->nodes);
    while (i < count && PyList_GET_ITEM(call->nodes, i) != (PyObject *)node) i++;
    if (i < count) return put(call, PyLong_FromSsize_t(i));
    PyObject *shape = get_shape(node, NULL), *device = shape ? get_device(node, NULL) : NULL;
    int fits = device && node->op != given.CONST && all_ints(shape)
        && put(call, Py_NewRef(node->dtype)) && put(call, Py_NewRef(shape))
        && put(call, Py_NewRef(device)) && PyList_Append(call->nodes, (PyObject *)node) >= 0;
    Py_XDECREF(shape), Py_XDECREF(device);
    return fits;
}
static int describe(Call *call, PyObject *x) {
    if (is_plain(x)) {
        PyObject *node = operand(x);
        int known = node && put_node(call, (Node *)node);
        Py_XDECREF(node);
        return known;
    }
    if (!put(call, Py_NewRef((PyObject *)Py_TYPE(x)))) return 0;
    if (PyLong_CheckExact(x) || PyBool_Check(x) || PyUnicode_CheckExact(x) || x == Py_None)
        return put(call, Py_NewRef(x));
    if (PyFloat_CheckExact(x)) return put(call, PyObject_CallMethod(x, "hex", NULL)); /* -0.0 */
    if (PySlice_Check(x)) {
        PySliceObject *cut = (PySliceObject *)x;
        return describe(call, cut->start) && describe(call, cut->stop) && describe(call, cut->step);
    }
    PyObject *parts = PyTuple_CheckExact(x) || PyList_CheckExact(x) ? PySequence_Tuple(x) : NULL;
    if (!parts || (SIZE(parts) && all_ints(parts))) return put(call, parts);
    int known = put(call, PyLong_FromSsize_t(SIZE(parts)));
    for (Py_ssize_t i = 0; known && i < SIZE(parts); i++) known = describe(call, ITEM(parts, i));
    Py_DECREF(parts);
    return known;
}
static PyObject *m_recall(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyDict_Check(args[0]) || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]))
        return fail(PyExc_TypeError, "recall takes templates, a mode and arguments");
    Call call = {.nodes = PyList_New(0)};
    PyObject *key = NULL, *steps = NULL, *node = NULL, *found = NULL, *name, *value;
    int known = call.nodes && put(&call, Py_NewRef(args[1]));
    if (known) known = put(&call, PyLong_FromSsize_t(SIZE(args[2])));
    for (Py_ssize_t i = 0; known && i < SIZE(args[2]);) known = describe(&call, ITEM(args[2], i++));
    for (Py_ssize_t i = 0; known && PyDict_Next(args[3], &i, &name, &value);)
        known = put(&call, Py_NewRef(name)) && describe(&call, value);
    if (known && (key = PyTuple_New(call.parts)))
        while (call.parts) call.parts--, PyTuple_SET_ITEM(key, call.parts, call.part[call.parts]);
    while (call.parts) Py_DECREF(call.part[--call.parts]);
    if (key) steps = PyDict_GetItemWithError(args[0], key);
    if (steps && PyTuple_Check(steps) && SIZE(steps))
        node = replayed(steps, ((PyListObject *)call.nodes)->ob_item, PyList_GET_SIZE(call.nodes));
    if (node) found = m_wrap(NULL, node);
    else if (!PyErr_Occurred()) found = key ? PyTuple_Pack(2, key, call.nodes) : Py_NewRef(Py_None);
    Py_XDECREF(key), Py_XDECREF(call.nodes), Py_XDECREF(node);
    return found;
}
static PyObject *brought(PyObject *x) { return is_number(x) ? Py_NewRef(x) : operand(x); }
static PyObject *tensor_of(PyObject *op, PyObject *x, PyObject *y) { /* NULL: for Python */
    PyObject *made = NULL, *both[2] = {brought(x), NULL};
    if (both[0]) both[1] = brought(y);
    if (both[1] && is_a(both[0], given.Node) && is_a(both[1], given.Node)) {
        PyObject *a = get_device((Node *)both[0], NULL), *b = get_device((Node *)both[1], NULL);
        if (!a || !b || PyObject_RichCompareBool(a, b, Py_EQ) <= 0) Py_CLEAR(both[1]);
        Py_XDECREF(a), Py_XDECREF(b);
    }
    PyObject *node = both[1] ? apply(op, both, 2) : NULL;
    if (node) made = m_wrap(NULL, node);
    Py_XDECREF(node), Py_XDECREF(both[0]), Py_XDECREF(both[1]);
    return made;
}
static PyObject *applied(PyObject *op, PyObject *x, PyObject *y, PyTypeObject *fields) {
    int second = !PyObject_TypeCheck(x, fields)
        || (Py_TYPE(x) != Py_TYPE(y) && PyType_IsSubtype(Py_TYPE(y), Py_TYPE(x)));
    PyObject *both = PyTuple_Pack(2, x, y), *of = second ? y : x, *made = NULL;
    if (both) made = PyObject_CallMethodObjArgs(of, s_apply, op, both, NULL);
    Py_XDECREF(both);
    return made;
}
static PyObject *tensor_binary(PyObject *op, PyObject *x, PyObject *y) {
    if (!op) return too_soon();
    PyObject *made = tensor_of(op, x, y);
    return made || PyErr_Occurred() ? made : applied(op, x, y, &TensorFields);
}
static PyObject *node_binary(PyObject *op, PyObject *x, PyObject *y) {
    if (!op) return too_soon();
    if (!is_a(x, given.Node) || !is_a(y, given.Node)) return applied(op, x, y, &NodeFields);
    return call_op(op, (PyObject *[]){x, y}, 2, Py_None);
}
#define BINARY(kind, op)                                                                           \
    static PyObject *kind##_##op(PyObject *x, PyObject *y) { return kind##_binary(given.op, x, y); }
BINARY(tensor, add) BINARY(tensor, sub) BINARY(tensor, mul) BINARY(tensor, div)
BINARY(node, add) BINARY(node, sub) BINARY(node, mul) BINARY(node, div)
#define NUMBER(kind)                                                                               \
    {.nb_add = kind##_add, .nb_subtract = kind##_sub, .nb_multiply = kind##_mul,                   \
     .nb_true_divide = kind##_div}
static PyNumberMethods tensor_number = NUMBER(tensor), node_number = NUMBER(node);
/* --- walks ------------------------------------------------------------------------------------ */
static unsigned long long walks;
/* The buffer that a node remembers, if it is alive (a new reference); NULL: none, or an error. */
static PyObject *realized_of(Node *node) {
    if (!node->realized || node->realized == Py_None) return NULL;
    if (!PyWeakref_Check(node->realized)) return fail(PyExc_TypeError, "not a weak reference");
    PyObject *found = PyObject_CallNoArgs(node->realized);
    if (found == Py_None || (found && !check_node(found))) Py_CLEAR(found);
    return found;
}
enum { ALL, UNKNOWN, KEYED }; /* below all nodes; not below known values; as a key reads them */
/* What a walk goes on with at a node (a new reference): its buffer, if its value is known. */
static PyObject *standing_for(PyObject *thing, int how, PyObject *now, PyObject *again) {
    Node *node = (Node *)thing;
    if (how == ALL || node->realized == Py_None || (how == KEYED && node->walk == walks))
        return Py_NewRef(thing);
    int listed = again ? PySet_Contains(again, thing) : 0;
    if (listed) return listed < 0 ? NULL : Py_NewRef(thing);
    PyObject *found = now ? PyDict_GetItemWithError(now, thing) : NULL;
    if (found || PyErr_Occurred()) return found ? Py_NewRef(found) : NULL;
    if (!(found = realized_of(node)) && !PyErr_Occurred()) found = Py_NewRef(thing);
    if (found && now && PyDict_SetItem(now, thing, found) < 0) Py_CLEAR(found);
    return found;
}
/* Every node under the roots, sources first, each once, in depth-first order. */
static PyObject *ordered(PyObject *roots, int how, PyObject *now, PyObject *again) {
    PyObject *first = PySequence_Tuple(roots), *order = PyList_New(0), *path = PyList_New(0);
    int failed = !first || !order || !path || !check_nodes(first), collects = PyGC_Disable();
    Py_ssize_t next = 0; /* of the roots; a node on the path has its own in `number` */
    for (walks++; !failed;) {
        Py_ssize_t depth = PyList_GET_SIZE(path);
        Node *top = depth ? (Node *)PyList_GET_ITEM(path, depth - 1) : NULL;
        PyObject *src = top ? top->src : first;
        Py_ssize_t *place = top ? &top->number : &next, end = SIZE(src);
        if (how == KEYED && top && top->op == given.OVERRIDE && end) end = 1;
        if (*place < end) {
            Node *node = (Node *)standing_for(ITEM(src, (*place)++), how, now, again);
            if (node && node->walk != walks) {
                node->walk = walks, node->number = how == KEYED && node->op == given.ASSIGN;
                failed = PyList_Append(path, (PyObject *)node) < 0;
            }
            failed |= !node;
            Py_XDECREF(node); /* the path and the tuples above hold it */
        } else if (!top) break;
        else failed = PyList_Append(order, (PyObject *)top) < 0
            || PyList_SetSlice(path, depth - 1, depth, NULL) < 0;
    }
    if (collects) PyGC_Enable();
    Py_XDECREF(first), Py_XDECREF(path);
    if (failed) Py_CLEAR(order);
    return order;
}
static PyObject *m_toposort(PyObject *self, PyObject *x) { return ordered(x, ALL, NULL, NULL); }
static PyObject *m_unknown_order(PyObject *m, PyObject *x) { return ordered(x, UNKNOWN, 0, 0); }
static PyObject *m_order_of(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int listed = count == 2 && PyAnySet_Check(args[1]);
    if (count != 1 && !listed) return fail(PyExc_TypeError, "order_of takes roots and a set");
    PyObject *now = PyDict_New();
    PyObject *order = now ? ordered(args[0], KEYED, now, listed ? args[1] : NULL) : NULL;
    PyObject *both = order ? PyTuple_Pack(2, order, now) : NULL;
    Py_XDECREF(order), Py_XDECREF(now);
    return both;
}
static int append_new(PyObject *list, Node *node) { /* unless this walk has met it */
    return node->walk == walks ? 0 : (node->walk = walks, PyList_Append(list, (PyObject *)node));
}
static int append_users(PyObject *list, Node *node) {
    for (Use *use = node->first_use; use; use = use->next)
        if (Py_REFCNT(use->user) && append_new(list, use->user) < 0) return -1;
    return 0;
}
static PyObject *m_parents_of(PyObject *self, PyObject *thing) {
    PyObject *found = check_node(thing) ? PyList_New(0) : NULL; /* which may collect: then marks */
    if (found && ++walks && append_users(found, (Node *)thing) < 0) Py_CLEAR(found);
    return found;
}
static PyObject *m_above(PyObject *self, PyObject *nodes) {
    PyObject *first = PySequence_Tuple(nodes), *order = NULL;
    if (first && check_nodes(first)) order = PyList_New(0), walks++;
    for (Py_ssize_t i = 0; order && i < SIZE(first); i++)
        if (append_new(order, (Node *)ITEM(first, i)) < 0) Py_CLEAR(order);
    for (Py_ssize_t i = 0; order && i < PyList_GET_SIZE(order); i++)
        if (append_users(order, (Node *)PyList_GET_ITEM(order, i)) < 0) Py_CLEAR(order);
    Py_XDECREF(first);
    return order;
}
/* --- the flat key ----------------------------------------------------------------------------- */
enum { ENTRIES, CONSTANTS, BUFFERS, NODES, ASSIGNED, CHOSEN, BOUND, LISTS };
typedef struct { PyObject *list[LISTS], *now; } Flat;
/* A source as its number; a constant is written out where it is used. */
static PyObject *use_of(Flat *flat, PyObject *thing) {
    PyObject *known = PyDict_GET_SIZE(flat->now) ? PyDict_GetItemWithError(flat->now, thing) : NULL;
    if (!known && PyErr_Occurred()) return NULL;
    Node *node = (Node *)(known ? known : thing);
    if (node->walk == walks) return PyLong_FromSsize_t(node->number);
    if (node->op != given.CONST || !PyTuple_Check(node->arg) || SIZE(node->arg) != 2)
        return fail(PyExc_TypeError, "a source is not in the order");
    if (PyList_Append(flat->list[CONSTANTS], ITEM(node->arg, 0)) < 0) return NULL;
    return PyTuple_Pack(2, node->dtype, ITEM(node->arg, 1));
}
static PyObject *buffer_entry(Flat *flat, Node *node) {
    PyObject *ident, *shape, *device;
    if (!PyArg_ParseTuple(node->arg, "OOO", &ident, &shape, &device)) return NULL;
    if (PyList_Append(flat->list[BUFFERS], (PyObject *)node) < 0) return NULL;
    return PyTuple_Pack(4, s_param, node->dtype, device, shape);
}
static PyObject *plain_entry(Flat *flat, Node *node) {
    Py_ssize_t count = SIZE(node->src);
    PyObject *entry = PyTuple_New(3 + count);
    if (!entry) return NULL;
    PyTuple_SET_ITEM(entry, 0, Py_NewRef(node->op));
    PyTuple_SET_ITEM(entry, 1, Py_NewRef(node->dtype));
    PyTuple_SET_ITEM(entry, 2, Py_NewRef(node->arg));
    for (Py_ssize_t i = 0; entry && i < count; i++) {
        PyObject *source = use_of(flat, ITEM(node->src, i));
        if (source) PyTuple_SET_ITEM(entry, 3 + i, source);
        else Py_CLEAR(entry);
    }
    if (entry && lean(node->arg)) PyObject_GC_UnTrack(entry); /* ops and dtypes are for ever */
    return entry;
}
static int flatten_node(Flat *flat, Node *node) { /* -1: an error */
    PyObject *op = node->op, *entry, *thing = (PyObject *)node;
    int second = op == given.ASSIGN, list = second ? ASSIGNED : op == given.BIND ? BOUND : -1;
    if (op == given.CONST) return 0; /* written where it is used */
    if (op == given.REDUCE || op == given.SCAN || op == given.SORT) list = CHOSEN;
    if (list >= 0 && PyList_Append(flat->list[list], thing) < 0) return -1;
    if (op == given.BUFFER) entry = buffer_entry(flat, node);
    else if (second || op == given.BIND || op == given.DETACH || op == given.OVERRIDE
             || op == given.UNWATCH || op == given.WATCH) { /* its value is a source's */
        if (SIZE(node->src) <= second) return fail(PyExc_TypeError, "no source") ? 0 : -1;
        PyObject *found = use_of(flat, ITEM(node->src, second));
        if (found && PyLong_Check(found)) {
            node->walk = walks, node->number = PyLong_AsSsize_t(found);
            Py_DECREF(found);
            return 0;
        }
        entry = found ? PyTuple_Pack(2, s_const, found) : NULL;
        Py_XDECREF(found);
    } else entry = plain_entry(flat, node);
    int failed = !entry || PyList_Append(flat->list[ENTRIES], entry) < 0;
    Py_XDECREF(entry);
    node->walk = walks, node->number = PyList_GET_SIZE(flat->list[NODES]);
    return failed || PyList_Append(flat->list[NODES], thing) < 0 ? -1 : 0;
}
static PyObject *m_flatten(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(args[1]) || !PyDict_Check(args[2]))
        return fail(PyExc_TypeError, "flatten takes roots, an order and known values");
    PyObject *order = PyList_AsTuple(args[1]), *roots = PySequence_Tuple(args[0]), *result = NULL;
    Flat flat = {{NULL}, args[2]};
    int failed = !order || !roots || !check_nodes(order) || !check_nodes(roots);
    for (int i = 0; i < LISTS; i++) failed |= !(flat.list[i] = PyList_New(0));
    for (Py_ssize_t i = 0; !failed && i < SIZE(order); i++) {
        Node *node = (Node *)ITEM(order, i);
        long facts = facts_of(node->op, given.facts);
        failed = facts < 0 || facts & CONTROL || (node->op == given.CONST && SIZE(node->src));
        if (facts > 0 && failed) /* bodies and constants of symbolic shapes are for Python */
            result = given.flatten ? PyObject_Vectorcall(given.flatten, args, 3, NULL) : NULL;
    }
    int collects = PyGC_Disable();
    walks++;
    for (Py_ssize_t i = 0; !failed && i < SIZE(order); i++)
        failed = flatten_node(&flat, (Node *)ITEM(order, i)) < 0;
    for (Py_ssize_t i = 0; !failed && i < SIZE(roots); i++) {
        PyObject *root = use_of(&flat, ITEM(roots, i));
        failed = !root || PyList_Append(flat.list[ENTRIES], root) < 0;
        Py_XDECREF(root);
    }
    if (collects) PyGC_Enable();
    if (!failed) result = PyTuple_New(LISTS);
    for (int i = 0; i < LISTS; i++) {
        PyObject *found = result && !failed ? PyList_AsTuple(flat.list[i]) : NULL;
        if (found) PyTuple_SET_ITEM(result, i, found);
        else if (!failed) Py_CLEAR(result);
        Py_XDECREF(flat.list[i]);
    }
    Py_XDECREF(order), Py_XDECREF(roots);
    return result;
}
/* --- the module ------------------------------------------------------------------------------- */
#define TYPE(Fields, Struct, kind, ...)                                                            \
    static PyTypeObject Fields = {                                                                 \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fulgurite.core._fast." #Fields,                  \
        .tp_basicsize = sizeof(Struct), .tp_new = PyType_GenericNew,                               \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,                 \
        .tp_dealloc = (destructor)kind##_dealloc, .tp_traverse = (traverseproc)kind##_traverse,    \
        .tp_members = kind##_members,                                                              \
        .tp_weaklistoffset = offsetof(Struct, weak), __VA_ARGS__                                   \
    };
TYPE(NodeFields, Node, node, .tp_getset = node_getset, .tp_as_number = &node_number)
TYPE(EntryFields, Entry, entry, .tp_doc = "What an entry is made of.")
TYPE(TensorFields, Tensor, tensor, .tp_clear = (inquiry)tensor_clear,
     .tp_as_number = &tensor_number)
#define FAST(name, flags) {#name, (PyCFunction)(void (*)(void))m_##name, flags, NULL}
static PyMethodDef methods[] = {
    FAST(adopt, METH_VARARGS), FAST(make, METH_FASTCALL), FAST(annotate, METH_VARARGS),
    FAST(live_nodes, METH_NOARGS), FAST(live_count, METH_NOARGS), FAST(enter, METH_O),
    FAST(admit, METH_FASTCALL), FAST(entries_of, METH_O), FAST(replay, METH_FASTCALL),
    FAST(recall, METH_FASTCALL), FAST(surround, METH_FASTCALL), FAST(enable_origins, METH_O),
    FAST(capture, METH_NOARGS), FAST(note, METH_FASTCALL), FAST(derived, METH_FASTCALL),
    FAST(apply, METH_FASTCALL), FAST(wrap, METH_O), FAST(toposort, METH_O), FAST(above, METH_O),
    FAST(unknown_order, METH_O), FAST(order_of, METH_FASTCALL), FAST(parents_of, METH_O),
    FAST(flatten, METH_FASTCALL), FAST(counted, METH_O), FAST(fresh_tensor, METH_FASTCALL), {NULL},
};
static PyMethodDef call_method = FAST(call, METH_FASTCALL | METH_KEYWORDS);
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = -1, .m_methods = methods,
};
#define WORD(name, text) (s_##name = PyUnicode_InternFromString(text))
PyMODINIT_FUNC PyInit__fast(void) {
    if (!WORD(dtype, "dtype") || !WORD(apply, "_apply") || !WORD(param, "param")
        || !WORD(const, "const") || !WORD(arg, "arg") || !WORD(node, "node")) return NULL;
    if (!(empty = PyTuple_New(0)) || (!table && grow())) return NULL;
    PyObject *module = PyModule_Create(&definition), *call = PyCFunction_New(&call_method, NULL);
    PyObject *method = call ? PyInstanceMethod_New(call) : NULL; /* so that an op binds it */
    if (!module || !method || PyModule_AddIntConstant(module, "SOURCE", SOURCE) < 0
        || PyModule_AddType(module, &NodeFields) < 0 || PyModule_AddType(module, &EntryFields) < 0
        || PyModule_AddType(module, &TensorFields) < 0
        || PyModule_AddObjectRef(module, "call", method) < 0) Py_CLEAR(module);
    Py_XDECREF(call), Py_XDECREF(method);
    return module;
}
