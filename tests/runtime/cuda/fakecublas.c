/* A libcublasLt without a GPU, over the fake libcuda's streams.

   A product is work of a stream, computed in double from the layouts that were described, by
   columns; captured, it is done whenever its graph runs. What cannot be right is refused as the
   library would: layouts that do not fit, an algorithm of another version, addresses that are not
   aligned as the heuristic was told, a workspace that is too small. `cublas_fake_count(name)` says
   how often a function was called, `cublas_fake_version` and `cublas_fake_workspace` set what is
   told, `fake_fail` makes calls fail. */
#include "fakenccl.c"

struct layout { int type; uint64_t rows, columns; int64_t step; int batches; int64_t stride; };
struct matmul { int compute, scale, turned[2]; };
struct wish { uint64_t bytes; uint32_t mask, aligned[4]; };
struct algorithm { uint64_t data[8]; };
struct heuristic { struct algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };
struct product {
  struct layout a, b, d; int turned[2]; const char *left, *right; char *result, *workspace; size_t room;
};
static size_t blas_version = 130200, blas_workspace;
static uint64_t blas_mask;
void cublas_fake_version(size_t number) { blas_version = number; }
void cublas_fake_workspace(size_t bytes) { blas_workspace = bytes; }
int cublas_fake_count(const char *name) { return nccl_fake_count(name); }
int cublas_fake_mask(void) { return (int)blas_mask; }

static float half(uint16_t bits) {
  int exponent = bits >> 10 & 31; float sign = bits >> 15 ? -1.0f : 1.0f, m = bits & 1023;
  if (exponent == 31) { uint32_t all_ = (uint32_t)(bits >> 15) << 31 | 0x7f800000 | (uint32_t)m << 13; float f; memcpy(&f, &all_, 4); return f; }
  float scale = 1.0f;
  for (int i = exponent ? exponent : 1; i < 25; i++) scale /= 2;
  for (int i = 25; i < exponent; i++) scale *= 2;
  return sign * (exponent ? m + 1024 : m) * scale;
}
static uint16_t to_half(float f) { /* the nearest of all of them: slow, and surely right */
  if (f != f) return 0x7e00;
  uint16_t sign = f < 0 || (f == 0 && 1 / f < 0) ? 0x8000 : 0, low = 0, high = 0x7c00;
  float want = f < 0 ? -f : f;
  if (want >= 65520.0f) return sign | 0x7c00;
  while (high - low > 1) { uint16_t middle = (low + high) / 2; if (half(middle) <= want) low = middle; else high = middle; }
  float down = want - half(low), up = (high == 0x7c00 ? 65536.0f : half(high)) - want;
  return sign | (down < up || (down == up && !(low & 1)) ? low : high);
}
static float byte_number(uint8_t bits) { /* float8_e4m3fn: no infinity, a bias of 7 */
  float scale = 1.0f / 512, m = bits & 7; int exponent = bits >> 3 & 15;
  for (int i = 1; i < exponent; i++) scale *= 2;
  return (bits >> 7 ? -1 : 1) * (exponent ? m + 8 : m) * scale;
}
static int width_of(int type) { return type == 1 ? 8 : type == 0 ? 4 : type >= 28 ? 1 : 2; }
static double number_at(const char *at, int type, int64_t i) {
  if (type == 1) return ((const double *)at)[i];
  if (type == 0) return ((const float *)at)[i];
  if (type == 28) return byte_number(((const uint8_t *)at)[i]);
  return type == 14 ? wide(((const uint16_t *)at)[i]) : half(((const uint16_t *)at)[i]);
}
static void put_number(char *at, int type, int64_t i, double value) {
  if (type == 1) ((double *)at)[i] = value;
  else if (type == 0) ((float *)at)[i] = (float)value;
  else ((uint16_t *)at)[i] = type == 14 ? narrow((float)value) : to_half((float)value);
}
static void run_product(struct work *work) {
  struct product *p = work->product;
  uint64_t depth = p->turned[0] ? p->a.rows : p->a.columns;
  if (p->room) memset(p->workspace, 0x5a, p->room); /* whatever was there is gone */
  for (int batch = 0; batch < p->d.batches; batch++) {
    const char *a = p->left + batch * p->a.stride * width_of(p->a.type);
    const char *b = p->right + batch * p->b.stride * width_of(p->b.type);
    char *d = p->result + batch * p->d.stride * width_of(p->d.type);
    for (uint64_t j = 0; j < p->d.columns; j++)
      for (uint64_t i = 0; i < p->d.rows; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < depth; k++)
          sum += number_at(a, p->a.type, p->turned[0] ? k + i * p->a.step : i + k * p->a.step)
               * number_at(b, p->b.type, p->turned[1] ? j + k * p->b.step : k + j * p->b.step);
        put_number(d, p->d.type, i + j * p->d.step, sum);
      }
  }
}

size_t cublasLtGetVersion(void) { return blas_version; }
const char *cublasLtGetStatusString(int code) { return code == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE"; }
int cublasLtCreate(void **out) { NOTE product_run = run_product; *out = malloc(1); return 0; }
int cublasLtDestroy(void *handle) { NOTE free(handle); return 0; }
#define MADE(kind, ...) { NOTE struct kind *made = malloc(sizeof *made); *made = (struct kind){__VA_ARGS__}; open_handles++; *out = made; return 0; }
int cublasLtMatmulDescCreate(void **out, int compute, int scale) MADE(matmul, compute, scale)
int cublasLtMatmulDescDestroy(void *desc) TAKE(desc)
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t step) MADE(layout, type, rows, columns, step, 1, 0)
int cublasLtMatrixLayoutDestroy(void *desc) TAKE(desc)
int cublasLtMatmulPreferenceCreate(void **out) MADE(wish, 0, 7, {256, 256, 256, 256})
int cublasLtMatmulPreferenceDestroy(void *desc) TAKE(desc)
int cublasLtMatmulDescSetAttribute(struct matmul *desc, int which, const int *value, size_t size) {
  NOTE if (size != 4 || which < 3 || which > 4) return 7;
  desc->turned[which - 3] = *value; return 0;
}
int cublasLtMatrixLayoutSetAttribute(struct layout *to, int which, const void *value, size_t size) {
  NOTE if (which == 5 && size == 4) to->batches = *(const int *)value;
  else if (which == 6 && size == 8) to->stride = *(const int64_t *)value;
  else return 7;
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(struct wish *to, int which, const void *value, size_t size) {
  NOTE if (which == 1 && size == 8) to->bytes = *(const uint64_t *)value;
  else if (which == 3 && size == 4) to->mask = *(const uint32_t *)value;
  else if (which >= 5 && which <= 8 && size == 4) to->aligned[which - 5] = *(const uint32_t *)value;
  else return 7;
  return 0;
}
static int misfit(struct matmul *m, struct layout *a, struct layout *b, struct layout *c, struct layout *d) {
  uint64_t rows = m->turned[0] ? a->columns : a->rows, depth = m->turned[0] ? a->rows : a->columns;
  uint64_t inner = m->turned[1] ? b->columns : b->rows, columns = m->turned[1] ? b->rows : b->columns;
  struct layout *all_[] = {a, b, c, d};
  for (int i = 0; i < 4; i++) if (all_[i]->step < (int64_t)all_[i]->rows || all_[i]->batches != d->batches) return 7;
  if (depth != inner || rows != d->rows || columns != d->columns || c->type != d->type) return 7;
  if (a->type != b->type || (m->compute == 70) != (a->type == 1)) return 15;
  if (m->scale != (m->compute == 70 ? 1 : 0)) return 15;
  if (a->type == 28) /* as Hopper has it: along K both, sizes of 16, rounded to 16 bits */
    return m->turned[0] && !m->turned[1] && !(rows % 16 || columns % 16 || depth % 16) && d->type == 14 ? 0 : 15;
  return d->type == a->type || d->type == 0 ? 0 : 15;
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, struct matmul *m, struct layout *a, struct layout *b, struct layout *c,
                                   struct layout *d, struct wish *wish, int count, struct heuristic *found, int *returned) {
  NOTE *returned = 0;
  int wrong = misfit(m, a, b, c, d);
  if (wrong) return wrong;
  if (blas_workspace > wish->bytes) return 15;
  blas_mask = wish->mask;
  uint64_t least = 256;
  for (int i = 0; i < 4; i++) if (wish->aligned[i] < least) least = wish->aligned[i];
  memset(found, 0, count * sizeof *found);
  for (int i = 0; i < count && i < 3; i++) {
    found[i].algorithm = (struct algorithm){{blas_version, least, blas_workspace, (uint64_t)i}};
    found[i].workspace = blas_workspace; ++*returned;
  }
  return 0;
}
int cublasLtMatmulAlgoCheck(void *handle, struct matmul *m, struct layout *a, struct layout *b, struct layout *c,
                            struct layout *d, struct algorithm *algorithm, struct heuristic *found) {
  NOTE int wrong = misfit(m, a, b, c, d);
  if (wrong) return wrong;
  if (algorithm->data[0] != blas_version) return 15;
  found->workspace = algorithm->data[2]; found->state = 0; return 0;
}
int cublasLtMatmul(void *handle, struct matmul *m, const void *alpha, const char *a, struct layout *la, const char *b,
                   struct layout *lb, const void *beta, const char *c, struct layout *lc, char *d, struct layout *ld,
                   struct algorithm *algorithm, char *workspace, size_t bytes, void *stream) {
  NOTE OF(stream)
  int wrong = misfit(m, la, lb, lc, ld);
  if (wrong) return wrong;
  if (algorithm->data[0] != blas_version || bytes < algorithm->data[2]) return 15;
  const char *all_[] = {a, b, c, d};
  for (int i = 0; i < 4; i++) if (!all_[i] || (uintptr_t)all_[i] % algorithm->data[1]) return 15;
  if (bytes && (!workspace || (uintptr_t)workspace % 256)) return 7;
  double one = m->scale == 1 ? *(const double *)alpha : *(const float *)alpha;
  double zero = m->scale == 1 ? *(const double *)beta : *(const float *)beta;
  if (one != 1 || zero != 0) return 15;
  struct product *made = malloc(sizeof *made); /* graphs run it again and again: it stays */
  *made = (struct product){*la, *lb, *ld, {m->turned[0], m->turned[1]}, a, b, d, workspace, algorithm->data[2]};
  return enqueue((struct work){.kind = 9, .product = made}, stream);
}
