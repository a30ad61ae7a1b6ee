/* Stands for libcuda.so.1 under the real ctypes class: host memory registration, stream writes that
   take effect at once, and graphs of nodes and edges. FAKE_CUDA_FAIL names a function that fails.
   Structures are those of cuda.h, written down again so that a slip in either copy shows. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 4096, OK = 0, INVALID = 1, BATCH_MEM_OP = 12, WRITE_VALUE_32 = 2, MAPPED = 2 };

typedef struct {
    unsigned int operation;
    uint64_t address;
    union {
        uint32_t value;
        uint64_t value64;
    };
    unsigned int flags;
    uint64_t alias;
} Write;

typedef union {
    unsigned int operation;
    Write write;
    uint64_t pad[6];
} MemOp;

typedef struct {
    void *ctx;
    unsigned int count;
    MemOp *ops;
    unsigned int flags;
} Params;

typedef struct {
    int kind;
    MemOp op;
    void *ctx;
} Node;

typedef struct {
    Node *from, *to;
    uint64_t data;
} Edge;

typedef struct {
    Node *nodes[MAX_NODES];
    size_t node_count;
    Edge edges[2 * MAX_NODES];
    size_t edge_count;
} Graph;

/* The GPU's address differs from the host's, so that one taken for the other is seen. */
static const uint64_t DEVICE_OFFSET = 1ULL << 40;

static char *registered;
static size_t registered_size;
static void *context = (void *)0xC0FFEE;
static unsigned long writes;
static void *last_stream;
static unsigned long writes_at_sync;

static int fails(const char *name) {
    const char *failing = getenv("FAKE_CUDA_FAIL");
    return failing && !strcmp(failing, name);
}

/* --- the test's own side */

unsigned long fakeWrites(void) { return writes; }
void *fakeLastStream(void) { return last_stream; }
int fakeRegistered(void) { return registered != NULL; }
Graph *fakeGraph(void) { return calloc(1, sizeof(Graph)); }

Node *fakeNode(Graph *graph, int kind) {
    Node *node = calloc(1, sizeof(Node));
    node->kind = kind;
    graph->nodes[graph->node_count++] = node;
    return node;
}

void fakeEdge(Graph *graph, Node *from, Node *to, uint64_t data) {
    graph->edges[graph->edge_count++] = (Edge){from, to, data};
}

/* --- the driver's side */

int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN";
    return OK;
}

int cuCtxGetCurrent(void **current) {
    *current = fails("cuCtxGetCurrent") ? NULL : context;
    return OK;
}

int cuMemHostRegister_v2(void *address, size_t size, unsigned int flags) {
    if (fails("cuMemHostRegister") || (uintptr_t)address % 4096 || !(flags & MAPPED))
        return INVALID;
    registered = address;
    registered_size = size;
    return OK;
}

int cuCtxSynchronize(void) {
    writes_at_sync = writes;
    return OK;
}

/* On a GPU a write that is still in a stream would fault: every write must have been waited for. */
int cuMemHostUnregister(void *address) {
    if (address != registered || writes_at_sync != writes)
        return INVALID;
    registered = NULL;
    return OK;
}

int cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *address, unsigned int flags) {
    if (address != registered || flags)
        return INVALID;
    *pointer = (uint64_t)(uintptr_t)address + DEVICE_OFFSET;
    return OK;
}

int cuStreamWriteValue32_v2(void *stream, uint64_t pointer, uint32_t value, unsigned int flags) {
    char *at = (char *)(uintptr_t)(pointer - DEVICE_OFFSET);
    if (!registered || at < registered || at + 4 > registered + registered_size || flags)
        return INVALID;
    memcpy(at, &value, 4);
    writes++;
    last_stream = stream;
    return OK;
}

int cuGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
    for (size_t i = 0; nodes && i < *count; i++) /* the driver promises no order */
        nodes[i] = graph->nodes[graph->node_count - 1 - i];
    *count = graph->node_count;
    return OK;
}

int cuGraphGetEdges_v2(Graph *graph, Node **from, Node **to, uint64_t *data, size_t *count) {
    for (size_t i = 0; from && i < *count; i++) {
        from[i] = graph->edges[i].from;
        to[i] = graph->edges[i].to;
        data[i] = graph->edges[i].data;
    }
    *count = graph->edge_count;
    return OK;
}

int cuGraphNodeGetType(Node *node, int *kind) {
    *kind = node->kind;
    return OK;
}

int cuGraphAddBatchMemOpNode(
    Node **made, Graph *graph, Node **after, size_t count, const Params *params) {
    if (params->count != 1 || params->ops->operation != WRITE_VALUE_32 || params->ctx != context)
        return INVALID;
    Node *node = fakeNode(graph, BATCH_MEM_OP);
    node->op = *params->ops;
    node->ctx = params->ctx;
    *made = node;
    for (size_t i = 0; i < count; i++)
        fakeEdge(graph, after[i], node, 0);
    return OK;
}

int cuGraphBatchMemOpNodeGetParams(Node *node, Params *params) {
    params->ctx = node->ctx;
    params->count = 1;
    params->ops = &node->op;
    params->flags = 0;
    return OK;
}

int cuGraphAddDependencies_v2(
    Graph *graph, Node **from, Node **to, const uint64_t *data, size_t count) {
    for (size_t i = 0; i < count; i++)
        fakeEdge(graph, from[i], to[i], data[i]);
    return OK;
}

int cuGraphRemoveDependencies_v2(
    Graph *graph, Node **from, Node **to, const uint64_t *data, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < graph->edge_count &&
               !(graph->edges[k].from == from[i] && graph->edges[k].to == to[i] &&
                 graph->edges[k].data == data[i]))
            k++;
        if (k == graph->edge_count)
            return INVALID;
        graph->edges[k] = graph->edges[--graph->edge_count];
    }
    return OK;
}
