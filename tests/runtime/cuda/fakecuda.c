/* A libcuda without a GPU: device memory is host memory, and any call can fail.

   `fake_fail(name, after, code)` makes a function report a code after so many good calls of it;
   `fake_count(what)` says how many launches, graph launches and handles there are. Work given to a
   stream is queued and done when somebody waits, or before memory is given back: that of one stream
   in order, of several in any order that events allow. A kernel does nothing, or what `fake_on_launch` was given: it is called with the module's image and the
   values of the arguments. An image begins with how many arguments its kernel has.
   `fake_cost` says what kernels and a library's products take by the clock of events.
   `fake_idle(1)` leaves out what graphs do: their launches are counted and cost next to nothing, so
   that the host's own time can be measured.
   `fake_hold(name)` lets no call of a function return until `fake_hold("")`; `fake_order` writes the
   names of the first calls, in order. FAKE_CUDA_SLEEPS ("cuInit=150000 ...") says how many
   microseconds calls take. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char fail_name[64];
static int fail_after, fail_code, launches, graph_launches, nodes, updates, waits, open_handles, calls, idle, maps, beside, version = 13000;

static char hold_name[64], order[8192];
static size_t order_length;
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER, hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_over = PTHREAD_COND_INITIALIZER;

void fake_hold(const char *name) {
  pthread_mutex_lock(&hold_lock);
  strncpy(hold_name, name, 63);
  pthread_cond_broadcast(&hold_over);
  pthread_mutex_unlock(&hold_lock);
}
void fake_order(char *out, size_t most) { /* and begin anew */
  pthread_mutex_lock(&order_lock);
  strncpy(out, order, most); order_length = 0; order[0] = 0;
  pthread_mutex_unlock(&order_lock);
}
static void take_time(const char *name) {
  size_t length = strlen(name);
  pthread_mutex_lock(&order_lock);
  if (order_length + length + 2 < sizeof order)
    order_length += sprintf(order + order_length, "%s ", name);
  pthread_mutex_unlock(&order_lock);
  pthread_mutex_lock(&hold_lock);
  while (!strcmp(name, hold_name)) pthread_cond_wait(&hold_over, &hold_lock);
  pthread_mutex_unlock(&hold_lock);
  const char *sleeps = getenv("FAKE_CUDA_SLEEPS"), *found = sleeps ? strstr(sleeps, name) : 0;
  if (found && found[length] == '=') usleep(atoi(found + length + 1));
}

static int failing(const char *name) {
  calls++; take_time(name);
  if (!fail_code || strcmp(name, fail_name)) return 0;
  return fail_after-- > 0 ? 0 : fail_code;
}
#define CHECK { int code_ = failing(__func__); if (code_) return code_; }
#define GIVE(out) { CHECK *(out) = malloc(16); open_handles++; return 0; }
#define TAKE(handle) { CHECK free(handle); open_handles--; return 0; }

void fake_fail(const char *name, int after, int code) {
  strncpy(fail_name, name, 63); fail_after = after; fail_code = code;
}
static double now, cost[2]; /* milliseconds: a kernel by params (a copy takes none), a library's product */
void fake_cost(double kernel, double product) { cost[0] = kernel; cost[1] = product; }
void fake_version(int number) { version = number; }
void fake_idle(int on) { idle = on; }
int fake_count(const char *what) {
  if (!strcmp(what, "launches")) return launches;
  if (!strcmp(what, "graphs")) return graph_launches;
  if (!strcmp(what, "nodes")) return nodes;
  if (!strcmp(what, "updates")) return updates;
  if (!strcmp(what, "waits")) return waits;
  if (!strcmp(what, "calls")) return calls;
  if (!strcmp(what, "maps")) return maps;
  if (!strcmp(what, "beside")) return beside;
  return open_handles;
}

typedef void (*Run)(const char *image, uint64_t *arguments);
static Run on_launch;
void fake_on_launch(Run run) { on_launch = run; }

struct module { char image[112]; int count; };
struct event { int recorded, done; double at; };
struct exchange; struct product;
struct work {
  int kind; /* 1 copy, 2 fill, 3 kernel, 4 copy of bytes that are kept in `kept`, 5 record, 6 wait,
               7 exchange with other ranks (fakenccl.c), 8 free, 9 product of a library (fakecublas.c) */
  struct exchange *exchange; int arrived; struct product *product;
  void *to; const void *of; size_t bytes; unsigned char byte;
  struct module *module; uint64_t *arguments; void *kept; struct event *event; int ticket;
  struct work *next;
};
#define STREAMS 256
struct graph;
struct stream { void *context; struct work *first, *last; struct graph *capture; };
static int (*exchange_is_ready)(struct work *); /* set by fakenccl.c */
static void (*exchange_run)(struct work *);
static void (*product_run)(struct work *); /* set by fakecublas.c */
static int exchanges; /* under way: other threads may have to come first */
static void keep_work(struct graph *graph, struct work *given);
static struct stream default_stream, *streams[STREAMS] = {&default_stream};
static int stream_count = 1, tickets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, turn = PTHREAD_MUTEX_INITIALIZER;

static struct stream *of(void *stream) { return (uintptr_t)stream > 2 ? stream : &default_stream; }
static int enqueue(struct work given, void *stream) {
  struct work *one = malloc(sizeof *one);
  struct stream *to = of(stream);
  *one = given; one->next = 0;
  if (to->capture) { keep_work(to->capture, one); return 0; }
  pthread_mutex_lock(&lock);
  exchanges += given.kind == 7;
  if (to->last) to->last->next = one; else to->first = one;
  to->last = one;
  pthread_mutex_unlock(&lock);
  return 0;
}
static int enqueue_kernel(struct module *module, uint64_t *values, void *stream) {
  uint64_t *arguments = malloc(8 * (module->count + 1));
  memcpy(arguments, values, 8 * module->count);
  return enqueue((struct work){.kind = 3, .module = module, .arguments = arguments}, stream);
}
static struct work *next_work(void) { /* the first of some stream that waits for nothing */
  struct stream *chosen = 0;
  int ready = 0;
  for (int i = 0; i < stream_count; i++) {
    struct work *head = streams[i]->first;
    if (!head || (head->kind == 6 && head->event->done < head->ticket)) continue;
    if (head->kind == 7 && !exchange_is_ready(head)) continue;
    if (rand() % ++ready == 0) chosen = streams[i];
  }
  if (!chosen) return 0;
  struct work *one = chosen->first;
  chosen->first = one->next;
  if (!chosen->first) chosen->last = 0;
  return one;
}
/* work until a stream is idle, an event is reached, or (neither) all is done */
static void run_until_(struct stream *idle_stream, struct event *reached, int patient) {
  pthread_mutex_lock(&turn); /* one thread at a time does the work */
  for (int naps = 0;;) {
    if (idle_stream && !idle_stream->first) break;
    if (reached && reached->done >= reached->recorded) break;
    pthread_mutex_lock(&lock);
    struct work *one = next_work();
    pthread_mutex_unlock(&lock);
    if (!one && patient && exchanges && naps++ < 1200000) { /* another thread's work is missing */
      pthread_mutex_unlock(&turn); usleep(50); pthread_mutex_lock(&turn);
      continue;
    }
    if (!one) break;
    now += one->kind == 3 ? cost[0] * (one->module->count - 2) : one->kind == 9 ? cost[1] : 0;
    if (one->kind == 7) { pthread_mutex_lock(&lock); exchange_run(one); exchanges--; pthread_mutex_unlock(&lock); }
    else if (one->kind == 8) free(one->to);
    else if (one->kind == 1 || one->kind == 4) memmove(one->to, one->of, one->bytes);
    else if (one->kind == 2) memset(one->to, one->byte, one->bytes);
    else if (one->kind == 5) { one->event->at = now; if (one->event->done < one->ticket) one->event->done = one->ticket; }
    else if (one->kind == 9) product_run(one);
    else if (one->kind == 3 && on_launch) on_launch(one->module->image, one->arguments);
    free(one->arguments); free(one->kept); free(one);
  }
  pthread_mutex_unlock(&turn);
}
static void run_until(struct stream *idle_stream, struct event *reached) { run_until_(idle_stream, reached, 1); }
static void run_all(void) { run_until(0, 0); }
#define PINNED 64
static struct { char *start; size_t bytes; } pinned[PINNED]; /* copies read it when they are done */
static int is_pinned(const void *at) {
  for (int i = 0; i < PINNED; i++)
    if ((char *)at >= pinned[i].start && (char *)at < pinned[i].start + pinned[i].bytes) return 1;
  return 0;
}

int cuInit(unsigned flags) { CHECK return 0; }
int cuDriverGetVersion(int *out) { *out = version; return 0; }
int cuGetErrorName(int code, const char **out) {
  *out = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
       : code == 1 ? "CUDA_ERROR_INVALID_VALUE" : 0;
  return *out ? 0 : 1;
}
int cuGetErrorString(int code, const char **out) {
  *out = code == 2 ? "out of memory" : "something else"; return 0;
}
int cuDeviceGetCount(int *out) { *out = 2; return 0; }
int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return 0; }
int cuDeviceGetName(char *out, int n, int device) { strncpy(out, "fake", n); return 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { *out = (size_t)1 << 37; return 0; }
int cuDeviceGetAttribute(int *out, int which, int device) {
  *out = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : which == 97 ? 232448 : 52428800;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int device) GIVE(out)
int cuDevicePrimaryCtxRelease_v2(int device) { CHECK open_handles--; return 0; }
static __thread void *current; /* context of this thread */
#define OF(stream) { CHECK if ((uintptr_t)(stream) > 2 && *(void **)(stream) != current) return 400; }
#define HERE { CHECK if (!current) return 201; } /* CUDA_ERROR_INVALID_CONTEXT */
int cuCtxSetCurrent(void *context) { CHECK current = context; return 0; }
int cuCtxSynchronize(void) { CHECK run_all(); return 0; }
int cuModuleLoadData(void **out, const char *image) {
  HERE struct module *made = calloc(1, sizeof *made);
  strncpy(made->image, image, sizeof made->image - 1);
  made->count = atoi(image);
  open_handles++; *out = made; return 0;
}
int cuModuleUnload(void *module) TAKE(module)
int cuModuleGetFunction(void **out, void *module, const char *name) { HERE *out = module; return 0; }
int cuFuncSetAttribute(void *function, int which, int value) { CHECK return 0; }
int cuFuncGetAttribute(int *out, int which, void *function) { *out = 0; return 0; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) { *free_ = *total = (size_t)1 << 37; return 0; }
int cuMemPoolCreate(void **out, void *props) GIVE(out)
int cuMemPoolDestroy(void *pool) TAKE(pool)
int cuMemPoolSetAttribute(void *pool, int which, void *value) { CHECK return 0; }
int cuMemPoolGetAttribute(void *pool, int which, void *value) { *(uint64_t *)value = which; return 0; }
int cuMemPoolTrimTo(void *pool, size_t keep) { CHECK return 0; }
int cuMemAllocFromPoolAsync(uint64_t *out, size_t nbytes, void *pool, void *stream) {
  HERE *out = (uint64_t)aligned_alloc(256, (nbytes + 255) / 256 * 256); open_handles++;
  memset((void *)*out, 0xff, nbytes); return 0; /* NaN, until somebody writes it */
}
int cuMemFreeAsync(uint64_t address, void *stream) {
  CHECK open_handles--;
  if (exchanges) return enqueue((struct work){.kind = 8, .to = (void *)address}, stream);
  run_all(); free((void *)address); return 0;
}
int cuMemHostAlloc(void **out, size_t nbytes, unsigned flags) {
  HERE *out = malloc(nbytes); open_handles++;
  for (int i = 0; i < PINNED; i++)
    if (!pinned[i].start) { pinned[i].start = *out; pinned[i].bytes = nbytes; break; }
  return 0;
}
int cuMemFreeHost(void *address) {
  for (int i = 0; i < PINNED; i++) if (pinned[i].start == address) pinned[i].start = 0, pinned[i].bytes = 0;
  TAKE(address)
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *of_, size_t n, void *s) {
  OF(s) beside += of(s) != streams[1];
  if (is_pinned(of_)) return enqueue((struct work){.kind = 1, .to = (void *)to, .of = of_, .bytes = n}, s);
  void *kept = malloc(n); memcpy(kept, of_, n);
  return enqueue((struct work){.kind = 4, .of = kept, .kept = kept, .to = (void *)to, .bytes = n}, s);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *s) { OF(s) return enqueue((struct work){.kind = 1, .to = to, .of = (void *)from, .bytes = n}, s); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *s) { HERE return enqueue((struct work){.kind = 1, .to = (void *)to, .of = (void *)from, .bytes = n}, s); }
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t n, void *s) { HERE return enqueue((struct work){.kind = 2, .to = (void *)to, .byte = byte, .bytes = n}, s); }
int cuStreamCreate(void **out, unsigned flags) {
  HERE struct stream *made = calloc(1, sizeof *made);
  if (stream_count == STREAMS) return 1;
  made->context = current; streams[stream_count++] = made; *out = made; open_handles++; return 0;
}
int cuStreamDestroy_v2(void *stream) { /* its place among all streams is kept */
  CHECK run_until(of(stream), 0); open_handles--; return 0;
}
int cuStreamSynchronize(void *stream) { CHECK waits++; run_until(of(stream), 0); return 0; }
int cuStreamQuery(void *stream) { CHECK run_until_(of(stream), 0, 0); return of(stream)->first ? 600 : 0; }
int cuStreamWaitEvent(void *stream, struct event *event, unsigned flags) {
  CHECK return enqueue((struct work){.kind = 6, .event = event, .ticket = event->recorded}, stream);
}
int cuEventCreate(void **out, unsigned flags) { HERE *out = calloc(1, sizeof(struct event)); open_handles++; return 0; }
int cuEventDestroy_v2(void *event) { run_all(); TAKE(event) }
int cuEventRecord(struct event *event, void *stream) {
  HERE event->recorded = ++tickets;
  return enqueue((struct work){.kind = 5, .event = event, .ticket = event->recorded}, stream);
}
int cuEventQuery(struct event *event) {
  CHECK if (event->done >= event->recorded) return 0;
  if (rand() % 2) return 600;
  run_until(0, event); return 0;
}
int cuEventSynchronize(struct event *event) { CHECK run_until(0, event); return 0; }
int cuEventElapsedTime(float *out, struct event *first, struct event *last) {
  CHECK *out = cost[0] > 0 ? last->at - first->at : 1.0f; return 0;
}
static void values_of(struct module *module, void **params, uint64_t *out) {
  for (int i = 0; i < module->count; i++) out[i] = *(uint64_t *)params[i];
}
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
  OF(stream) if (!gx || !bx) return 1;
  uint64_t values[512];
  values_of(f, params, values); enqueue_kernel(f, values, stream); launches++; return 0;
}
struct node { void *function; unsigned grid[3], block[3], shared; void **params, **extra; void *kernel, *context; };
struct kept { /* a kernel, a piece of captured work or a graph */
  struct module *module; struct work *work; struct graph *child;
  uint64_t values[512]; struct kept *next, **after; size_t count; int done;
};
struct graph { struct kept *first, *last; int copies; };
static struct kept *grown(struct graph *graph) {
  struct kept *made = calloc(1, sizeof *made);
  if (graph->last) graph->last->next = made; else graph->first = made;
  graph->last = made; return made;
}
static void keep_work(struct graph *graph, struct work *given) { grown(graph)->work = given; }
static void keep(struct kept *to, struct node *node) {
  to->module = node->function; values_of(node->function, node->params, to->values);
}
int cuTensorMapEncodeTiled(uint64_t *out, int type, unsigned rank, uint64_t address, uint64_t *sizes,
                           uint64_t *strides, unsigned *box, unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  CHECK if ((uintptr_t)out % 64 || address % 16 || !address || rank > 5) return 1;
  for (unsigned i = 0; i + 1 < rank; i++) if (strides[i] % 16 || !strides[i]) return 1;
  for (unsigned i = 0; i < rank; i++) if (!sizes[i] || !box[i] || box[i] > 256 || steps[i] != 1) return 1;
  maps++; memset(out, 0, 128);
  out[0] = address; out[1] = sizes[0]; out[2] = strides[0]; out[3] = box[0]; out[4] = type; return 0;
}
int cuGraphCreate(void **out, unsigned flags) { CHECK *out = calloc(1, sizeof(struct graph)); open_handles++; return 0; }
static void let_go(struct graph *graph) { /* a child graph lives on in its parent */
  if (graph->copies-- > 0) return;
  for (struct kept *k = graph->first, *n; k; k = n) {
    n = k->next; if (k->child) let_go(k->child);
    if (k->work) free(k->work->arguments);
    free(k->work); free(k->after); free(k);
  }
  free(graph);
}
int cuGraphDestroy(void *graph) { CHECK let_go(graph); open_handles--; return 0; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  OF(stream) if (of(stream)->capture) return 1;
  of(stream)->capture = calloc(1, sizeof(struct graph)); open_handles++; return 0;
}
int cuStreamEndCapture(void *stream, void **out) {
  CHECK *out = of(stream)->capture; of(stream)->capture = 0; return *out ? 0 : 1;
}
int cuGraphAddChildGraphNode(void **out, struct graph *graph, void **after, size_t count, struct graph *child) {
  CHECK for (size_t i = 0; i < count; i++) if (!after[i]) return 1;
  struct kept *made = grown(graph);
  made->child = child; child->copies++;
  made->after = malloc(8 * (count + 1)); memcpy(made->after, after, 8 * count); made->count = count;
  nodes++; *out = made; return 0;
}
int cuGraphAddKernelNode_v2(void **out, struct graph *graph, void **after, size_t count, struct node *node) {
  CHECK if (!node->grid[0] || node->block[1] != 1) return 1;
  for (size_t i = 0; i < count; i++) if (!after[i]) return 1;
  struct kept *made = grown(graph);
  keep(made, node);
  made->after = malloc(8 * (count + 1)); memcpy(made->after, after, 8 * count); made->count = count;
  nodes++; *out = made; return 0;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, uint64_t flags) {
  HERE void **made = malloc(sizeof(void *)); *made = graph; open_handles++; *out = made; return 0;
}
int cuGraphExecKernelNodeSetParams_v2(void *exec, struct kept *node, struct node *params) {
  CHECK if (!params->grid[0] || params->function != node->module) return 1;
  updates++; keep(node, params); return 0;
}
static int length(struct graph *graph) { int n = 0; for (struct kept *k = graph->first; k; k = k->next) n++; return n; }
int cuGraphExecChildGraphNodeSetParams(void *exec, struct kept *node, struct graph *child) {
  CHECK if (!node->child || length(node->child) != length(child)) return 1;
  updates++; let_go(node->child); node->child = child; child->copies++; return 0;
}
int cuGraphExecDestroy(void *exec) TAKE(exec)
int cuGraphUpload(void *exec, void *stream) { CHECK return 0; }
int cuGraphLaunch(void *exec, void *stream) {
  OF(stream) graph_launches++;
  if (idle) return 0;
  struct kept *first_ = (*(struct graph **)exec)->first;
  for (;;) { /* any order that the edges allow */
    struct kept *chosen = 0;
    int ready = 0;
    for (struct kept *k = first_; k; k = k->next) {
      int waits_ = k->done == graph_launches;
      for (size_t i = 0; i < k->count; i++) waits_ |= k->after[i]->done != graph_launches;
      if (!waits_ && rand() % ++ready == 0) chosen = k;
    }
    if (!chosen) return 0;
    chosen->done = graph_launches;
    if (chosen->child) {
      for (struct kept *k = chosen->child->first; k; k = k->next) {
        if (k->work->kind == 3) enqueue_kernel(k->work->module, k->work->arguments, stream);
        else enqueue(*k->work, stream);
      }
    } else enqueue_kernel(chosen->module, chosen->values, stream);
  }
}
