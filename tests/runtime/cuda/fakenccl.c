/* A libnccl without GPUs, over the fake libcuda's streams: ranks are threads of one process.

   A collective is work of a stream. It is ready when it has come to the head of its stream on every
   rank of its communicator; the last one folds, in the order of ranks, for all. Ranks whose calls
   do not fit each other get an asynchronous error, as a communicator of GPUs would. Sends are
   copied into a mailbox when they come to the head, receives wait for them. `nccl_fake_count(name)`
   says how often a function was called, `nccl_fake_version` and `nccl_fake_async` set what is told. */
#include "fakecuda.c"

enum { ALL_REDUCE = 1, ALL_GATHER, REDUCE_SCATTER, BROADCAST, POINTS };
#define RANKS 8
#define RING 64
#define CALLS 32
struct id { char bytes[128]; };
struct message { void *bytes; size_t size; struct message *next; };
struct op { int count, retired, done; struct exchange *of[RANKS]; };
struct shared {
  struct id id; int size, joined, async; void *contexts[RANKS];
  struct op ops[RING]; struct message *mail[RANKS][RANKS]; struct shared *next;
};
struct comm { struct shared *shared; int rank, number; };
struct point { int is_send, other; char *at; size_t size; };
struct exchange {
  int kind, type, fold, root; const char *source; char *result; size_t count; struct comm *comm;
  struct point points[CALLS]; int point_count;
};
static struct shared *all;
static int nccl_version = 22803, ids, nccl_async;
static struct { const char *name; int count; } called[32];
static char last_error[200];
static __thread struct exchange *group;
static __thread int depth;
static __thread void *group_stream;

static void note(const char *name) {
  for (int i = 0; i < 32; i++) {
    if (!called[i].name) called[i].name = name;
    if (!strcmp(called[i].name, name)) { called[i].count++; return; }
  }
}
int nccl_fake_count(const char *name) {
  for (int i = 0; i < 32; i++) if (called[i].name && !strcmp(called[i].name, name)) return called[i].count;
  return 0;
}
void nccl_fake_version(int number) { nccl_version = number; }
void nccl_fake_async(int code) { nccl_async = code; }
#define NOTE note(__func__); { int code_ = failing(__func__); if (code_) return code_; }

static const int SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
#define FOLD(T) for (size_t i = 0; i < n; i++) { \
    T *a = (T *)to + i, b = ((const T *)of)[i]; \
    *a = how == 0 ? *a + b : how == 1 ? *a * b : how == 2 ? (*a > b ? *a : b) : (*a < b ? *a : b); } break;
static float wide(uint16_t bits) { uint32_t all_ = (uint32_t)bits << 16; float f; memcpy(&f, &all_, 4); return f; }
static uint16_t narrow(float f) {
  uint32_t bits; memcpy(&bits, &f, 4); return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static void fold(void *to, const void *of, size_t n, int type, int how) {
  switch (type) {
    case 0: FOLD(int8_t) case 1: FOLD(uint8_t) case 2: FOLD(int32_t) case 3: FOLD(uint32_t)
    case 4: FOLD(int64_t) case 5: FOLD(uint64_t) case 7: FOLD(float) case 8: FOLD(double)
    case 9: for (size_t i = 0; i < n; i++) {
      uint16_t *a = (uint16_t *)to + i; *a = narrow(wide(*a) + wide(((const uint16_t *)of)[i])); } break;
  }
}
static int fits(struct op *op, int size) {
  struct exchange *a = op->of[0];
  for (int r = 1; r < size; r++) {
    struct exchange *b = op->of[r];
    if (a->kind != b->kind || a->type != b->type || a->fold != b->fold || a->count != b->count || a->root != b->root) return 0;
  }
  return 1;
}
static void compute(struct shared *shared, struct op *op) {
  struct exchange *first_ = op->of[0];
  size_t n = first_->count, width = SIZES[first_->type], parts = first_->kind == REDUCE_SCATTER ? shared->size : 1;
  if (!fits(op, shared->size)) { shared->async = 5; snprintf(last_error, 200, "ranks call different collectives"); return; }
  if (first_->kind == ALL_REDUCE || first_->kind == REDUCE_SCATTER) {
    char *total = malloc(n * width * parts + 1);
    memcpy(total, first_->source, n * width * parts);
    for (int r = 1; r < shared->size; r++) fold(total, op->of[r]->source, n * parts, first_->type, first_->fold);
    for (int r = 0; r < shared->size; r++)
      memcpy(op->of[r]->result, total + (parts > 1 ? r * n * width : 0), n * width);
    free(total);
  } else if (first_->kind == ALL_GATHER) {
    char *total = malloc(n * width * shared->size + 1);
    for (int r = 0; r < shared->size; r++) memcpy(total + r * n * width, op->of[r]->source, n * width);
    for (int r = 0; r < shared->size; r++) memcpy(op->of[r]->result, total, n * width * shared->size);
    free(total);
  } else {
    char *total = malloc(n * width + 1);
    memcpy(total, op->of[first_->root]->source, n * width);
    for (int r = 0; r < shared->size; r++) memcpy(op->of[r]->result, total, n * width);
    free(total);
  }
}
static int points_are_ready(struct work *work) {
  struct exchange *e = work->exchange;
  struct shared *shared = e->comm->shared;
  int rank = e->comm->rank, wanted[RANKS] = {0};
  if (!work->arrived) {
    work->arrived = 1;
    for (int i = 0; i < e->point_count; i++) {
      struct point *p = &e->points[i];
      if (!p->is_send) continue;
      struct message *made = malloc(sizeof *made), **end = &shared->mail[rank][p->other];
      made->bytes = malloc(p->size + 1); made->size = p->size; made->next = 0;
      memcpy(made->bytes, p->at, p->size);
      while (*end) end = &(*end)->next;
      *end = made;
    }
  }
  for (int i = 0; i < e->point_count; i++) if (!e->points[i].is_send) wanted[e->points[i].other]++;
  for (int r = 0; r < RANKS; r++) {
    for (struct message *m = shared->mail[r][rank]; m && wanted[r]; m = m->next) wanted[r]--;
    if (wanted[r]) return 0;
  }
  return 1;
}
static int is_ready(struct work *work) {
  struct exchange *e = work->exchange;
  struct shared *shared = e->comm->shared;
  if (e->kind == POINTS) return points_are_ready(work);
  if (!work->arrived) {
    struct op *op = &shared->ops[e->comm->number % RING];
    if (op->of[e->comm->rank]) return 0; /* that place is not free yet */
    work->arrived = ++e->comm->number;
    op->of[e->comm->rank] = e;
    if (++op->count == shared->size) { compute(shared, op); op->done = 1; }
  }
  return shared->ops[(work->arrived - 1) % RING].done;
}
static void run_exchange(struct work *work) {
  struct exchange *e = work->exchange;
  struct shared *shared = e->comm->shared;
  if (e->kind == POINTS) {
    for (int i = 0; i < e->point_count; i++) {
      struct point *p = &e->points[i];
      if (p->is_send) continue;
      struct message *m = shared->mail[p->other][e->comm->rank];
      shared->mail[p->other][e->comm->rank] = m->next;
      if (m->size != p->size) { shared->async = 5; snprintf(last_error, 200, "a receive of another size than the send"); }
      else memcpy(p->at, m->bytes, p->size);
      free(m->bytes); free(m);
    }
    return;
  }
  struct op *op = &shared->ops[(work->arrived - 1) % RING];
  if (++op->retired == shared->size) memset(op, 0, sizeof *op);
}

int ncclGetVersion(int *out) { *out = nccl_version; return 0; }
const char *ncclGetErrorString(int code) {
  return code == 5 ? "invalid usage" : code == 6 ? "remote process exited or there was a network error" : "an error";
}
const char *ncclGetLastError(void *comm) { return last_error; }
int ncclGetUniqueId(struct id *out) {
  NOTE memset(out, 0, sizeof *out); snprintf(out->bytes, 128, "id %d", ++ids); return 0;
}
int ncclCommInitRank(struct comm **out, int size, struct id id, int rank) {
  NOTE if (size > RANKS || rank < 0 || rank >= size) return 4;
  exchange_is_ready = is_ready; exchange_run = run_exchange;
  pthread_mutex_lock(&lock);
  struct shared *found = all;
  while (found && memcmp(&found->id, &id, sizeof id)) found = found->next;
  if (!found) { found = calloc(1, sizeof *found); found->id = id; found->size = size; found->next = all; all = found; }
  found->contexts[rank] = current; found->joined++;
  pthread_mutex_unlock(&lock);
  for (int i = 0; found->joined < size && i < 600000; i++) usleep(100);
  if (found->joined < size) return 6;
  for (int r = 0; r < size; r++)
    if (r != rank && found->contexts[r] == current) {
      snprintf(last_error, 200, "Duplicate GPU detected : rank %d and rank %d", rank, r); return 5;
    }
  *out = calloc(1, sizeof **out); (*out)->shared = found; (*out)->rank = rank; return 0;
}
int ncclCommAbort(struct comm *comm) { NOTE return 0; }
int ncclCommGetAsyncError(struct comm *comm, int *out) { *out = nccl_async ? nccl_async : comm->shared->async; return 0; }
static int give(struct exchange given, void *stream) {
  struct exchange *made = malloc(sizeof *made); /* graphs run it again and again: it stays */
  *made = given;
  return enqueue((struct work){.kind = 7, .exchange = made}, stream);
}
int ncclAllReduce(const void *a, void *b, size_t n, int type, int how, struct comm *comm, void *stream) {
  NOTE OF(stream) return give((struct exchange){.kind = ALL_REDUCE, .source = a, .result = b, .count = n, .type = type, .fold = how, .comm = comm}, stream);
}
int ncclAllGather(const void *a, void *b, size_t n, int type, struct comm *comm, void *stream) {
  NOTE OF(stream) return give((struct exchange){.kind = ALL_GATHER, .source = a, .result = b, .count = n, .type = type, .comm = comm}, stream);
}
int ncclReduceScatter(const void *a, void *b, size_t n, int type, int how, struct comm *comm, void *stream) {
  NOTE OF(stream) return give((struct exchange){.kind = REDUCE_SCATTER, .source = a, .result = b, .count = n, .type = type, .fold = how, .comm = comm}, stream);
}
int ncclBroadcast(const void *a, void *b, size_t n, int type, int root, struct comm *comm, void *stream) {
  NOTE OF(stream) return give((struct exchange){.kind = BROADCAST, .source = a, .result = b, .count = n, .type = type, .root = root, .comm = comm}, stream);
}
int ncclGroupStart(void) { NOTE if (!depth++) group = calloc(1, sizeof *group); return 0; }
int ncclGroupEnd(void) {
  NOTE if (--depth) return 0;
  int code = 0;
  if (group->point_count) { group->kind = POINTS; code = give(*group, group_stream); }
  free(group); group = 0; return code;
}
static int point(int is_send, void *at, size_t n, int type, int other, struct comm *comm, void *stream) {
  int alone = !depth;
  if (alone) ncclGroupStart();
  if (group->point_count == CALLS || other < 0 || other >= comm->shared->size) return 4;
  group->comm = comm; group_stream = stream;
  group->points[group->point_count++] = (struct point){is_send, other, at, n * SIZES[type]};
  return alone ? ncclGroupEnd() : 0;
}
int ncclSend(void *a, size_t n, int type, int peer, struct comm *comm, void *stream) { NOTE OF(stream) return point(1, a, n, type, peer, comm, stream); }
int ncclRecv(void *a, size_t n, int type, int peer, struct comm *comm, void *stream) { NOTE OF(stream) return point(0, a, n, type, peer, comm, stream); }
