// An OpenAI-compatible chat server whose timings are known exactly: tokens are due at fixed instants, each is written
// within tens of microseconds of that, and the server keeps its own account of when it wrote what.
//
//   truthserver PORT TTFT_MS ITL_MS TOKENS
//
// One thread, epoll with nanosecond timeouts, a heap of what is due. Besides POST /v1/chat/completions:
// GET /v1/models; GET /reset forgets the account; GET /truth gives it as JSON; GET /arrivals gives the arrival of each
// request since the reset, in ns from the first, one a line. TTFT is from the arrival of the whole request to the
// write.
#define _GNU_SOURCE
#include "histogram.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FD = 65536, FIRES_A_TURN = 256, EVENTS = 512, ACCEPTS_A_TURN = 64, READ_SIZE = 16384 };

typedef struct {
  char *bytes;
  size_t start, end, size;
} buffer;

typedef struct {
  int fd, heap_at;  // heap_at: −1 when nothing is due
  int busy, stream, usage, waits_for_room;
  int tokens, sent, prompt_tokens;
  int64_t arrived, due, first, last;
  buffer in, out;
} connection;

static double ttft_ms, itl_ms;
static int default_tokens, poll_fd;
static connection *connections[MAX_FD];

static histogram late, ttft, itl, tpot;
static struct {
  uint64_t requests, done, chunks, aborted;
  int64_t since, first_arrival, last_done;
} account;
static int64_t *arrivals;
static size_t arrivals_count, arrivals_size;

// ---- what is due, soonest first

static connection **heap;
static int heap_count, heap_size;

static void place(int at, connection *c) { (heap[at] = c)->heap_at = at; }

static void sift(connection *c) {
  int at = c->heap_at;
  for (int up; at && heap[up = (at - 1) / 2]->due > c->due; at = up) place(at, heap[up]);
  for (int down; (down = 2 * at + 1) < heap_count; at = down) {
    if (down + 1 < heap_count && heap[down + 1]->due < heap[down]->due) down++;
    if (heap[down]->due >= c->due) break;
    place(at, heap[down]);
  }
  place(at, c);
}

static void schedule(connection *c) {
  if (heap_count == heap_size) heap = realloc(heap, (heap_size = heap_size ? 2 * heap_size : 1024) * sizeof *heap);
  place(heap_count++, c);
  sift(c);
}

static void unschedule(connection *c) {
  int at = c->heap_at;
  c->heap_at = -1;
  if (at < 0 || at == --heap_count) return;
  place(at, heap[heap_count]);
  sift(heap[at]);
}

// ---- connections

static char *room(buffer *b, size_t more) {
  if (b->end + more > b->size) {
    memmove(b->bytes, b->bytes + b->start, b->end -= b->start);
    b->start = 0;
    if (b->end + more > b->size) b->bytes = realloc(b->bytes, b->size = 2 * (b->end + more));
  }
  return b->bytes + b->end;
}

static void put(connection *c, const char *text, size_t length) {
  memcpy(room(&c->out, length), text, length);
  c->out.end += length;
}

static void drop(connection *c) {
  if (c->busy) account.aborted++;
  unschedule(c);
  close(c->fd);
  connections[c->fd] = NULL;
  free(c->in.bytes);
  free(c->out.bytes);
  free(c);
}

static void listen_for(connection *c, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = c->fd};
  epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

// The functions below return −1 when they dropped the connection.

static int flush(connection *c) {
  buffer *b = &c->out;
  while (b->start < b->end) {
    ssize_t count = send(c->fd, b->bytes + b->start, b->end - b->start, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      if (!c->waits_for_room) listen_for(c, EPOLLIN | EPOLLOUT);
      c->waits_for_room = 1;
      return 0;
    }
    if (count < 0) return drop(c), -1;
    b->start += count;
  }
  b->start = b->end = 0;
  if (c->waits_for_room) listen_for(c, EPOLLIN);
  c->waits_for_room = 0;
  return 0;
}

// ---- answers

#define EVENT                                                                                                          \
  "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"                 \
  "\"model\":\"truth\",\"system_fingerprint\":\"fp_0123456789abcdef\","
#define TOKEN                                                                                                          \
  EVENT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" time\"},\"logprobs\":null,\"finish_reason\":null}]}"
#define ROLE                                                                                                           \
  EVENT "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"             \
        "\"finish_reason\":null}]}"
#define FINISH EVENT "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}"

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                  "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char STREAM_END[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
static char token_chunk[1024];
static int token_length;

static int chunk(char *out, const char *json) {
  return sprintf(out, "%zx\r\ndata: %s\n\n\r\n", strlen(json) + 8, json);
}

static void put_event(connection *c, const char *json) { c->out.end += chunk(room(&c->out, strlen(json) + 32), json); }

static void put_reply(connection *c, const char *status, const char *type, const char *body, size_t length) {
  char head[256];
  put(c, head, sprintf(head, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, type, length));
  put(c, body, length);
}

static int usage_json(char *out, connection *c) {
  return sprintf(out, "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}",
                 c->prompt_tokens, c->tokens, c->prompt_tokens + c->tokens);
}

static void put_whole(connection *c) {
  char *body = malloc(512 + 5 * c->tokens);
  int n =
      sprintf(body, "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,"
                    "\"model\":\"truth\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"");
  for (int i = 0; i < c->tokens; i++) n += sprintf(body + n, " time");
  n += sprintf(body + n, "\"},\"logprobs\":null,\"finish_reason\":\"length\"}],");
  n += usage_json(body + n, c);
  put_reply(c, "200 OK", "application/json", body, n);
  free(body);
}

static int serve(connection *c);

// Write all that is due on a connection.
static int fire(connection *c) {
  int64_t now = now_ns();
  if (!c->stream) {
    note(&late, now - c->due);
    put_whole(c);
    c->sent = c->tokens;
  }
  for (; c->sent < c->tokens && c->due <= now; c->sent++) {
    note(&late, now - c->due);
    if (c->sent) {
      note(&itl, now - c->last);
    } else {
      put_event(c, ROLE);
      note(&ttft, now - c->arrived);
      c->first = now;
    }
    c->last = now;
    put(c, token_chunk, token_length);
    account.chunks++;
    c->due += (int64_t)(itl_ms * 1e6);
  }
  if (c->sent < c->tokens) {
    sift(c);
    return flush(c);
  }
  unschedule(c);
  if (c->stream) {
    put_event(c, FINISH);
    if (c->usage) {
      char json[512];
      usage_json(json + sprintf(json, EVENT "\"choices\":[],"), c);
      put_event(c, json);
    }
    put(c, STREAM_END, sizeof STREAM_END - 1);
    if (c->tokens > 1) note(&tpot, (c->last - c->first) / (c->tokens - 1));
  }
  c->busy = 0;
  account.done++;
  account.last_done = now;
  return flush(c) < 0 ? -1 : serve(c);
}

// ---- requests

static const char *value(const char *body, size_t length, const char *key) {
  const char *at = memmem(body, length, key, strlen(key));
  if (!at) return "";
  return at + strlen(key) + strspn(at + strlen(key), ": ");
}

static int begin(connection *c, const char *body, size_t length, int64_t now) {
  if (arrivals_count == arrivals_size)
    arrivals = realloc(arrivals, (arrivals_size = arrivals_size ? 2 * arrivals_size : 65536) * sizeof *arrivals);
  arrivals[arrivals_count++] = now;
  if (!account.requests++) account.first_arrival = now;
  int tokens = atoi(value(body, length, "\"max_tokens\""));
  c->tokens = tokens > 0 ? tokens : default_tokens;
  c->stream = !strncmp(value(body, length, "\"stream\""), "true", 4);
  c->usage = !strncmp(value(body, length, "\"include_usage\""), "true", 4);
  c->prompt_tokens = (int)(length / 5);
  c->sent = 0;
  c->busy = 1;
  c->arrived = now;
  c->due = now + (int64_t)(ttft_ms * 1e6) + (c->stream ? 0 : (int64_t)(itl_ms * 1e6) * (c->tokens - 1));
  if (c->stream) put(c, STREAM_HEAD, sizeof STREAM_HEAD - 1);
  schedule(c);
  if (c->due <= now) return fire(c);
  return flush(c);
}

static void forget(void) {
  memset(&late, 0, sizeof late);
  memset(&ttft, 0, sizeof ttft);
  memset(&itl, 0, sizeof itl);
  memset(&tpot, 0, sizeof tpot);
  memset(&account, 0, sizeof account);
  arrivals_count = 0;
  account.since = now_ns();
}

static void put_truth(connection *c) {
  char json[2048];
  double span_s = (account.last_done - account.first_arrival) / 1e9;
  int n = sprintf(
      json,
      "{\"requests\":%llu,\"done\":%llu,\"aborted\":%llu,\"chunks\":%llu,\"span_s\":%.6f,\"first_arrival_s\":%.6f,",
      (unsigned long long)account.requests, (unsigned long long)account.done, (unsigned long long)account.aborted,
      (unsigned long long)account.chunks, account.done ? span_s : 0,
      account.requests ? (account.first_arrival - account.since) / 1e9 : 0);
  n += histogram_json(json + n, "late_ms", &late);
  n += histogram_json(json + n, "ttft_ms", &ttft);
  n += histogram_json(json + n, "itl_ms", &itl);
  n += histogram_json(json + n, "tpot_ms", &tpot);
  json[n - 1] = '}';
  put_reply(c, "200 OK", "application/json", json, n);
}

static void put_arrivals(connection *c) {
  char *text = malloc(24 * arrivals_count + 1);
  size_t n = 0;
  for (size_t i = 0; i < arrivals_count; i++) n += sprintf(text + n, "%lld\n", (long long)(arrivals[i] - arrivals[0]));
  put_reply(c, "200 OK", "text/plain", text, n);
  free(text);
}

// Answer the requests that have come in whole, until one has to wait for its time.
static int serve(connection *c) {
  static const char MISSING[] = "{\"error\":{\"message\":\"no such path\"}}";
  static const char MODELS[] =
      // It says how it counts, so that no client has to ask it in requests that would stand in the account.
      "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"owned_by\":\"bench\","
      "\"tokenizer\":{\"kind\":\"bytes\"}}]}";
  while (!c->busy && c->in.end > c->in.start) {
    char *head = c->in.bytes + c->in.start, *end = memmem(head, c->in.end - c->in.start, "\r\n\r\n", 4);
    if (!end) return 0;
    char *field = strcasestr(head, "\r\ncontent-length:");
    size_t length = field && field < end ? strtoul(field + 17, NULL, 10) : 0, whole = end + 4 - head + length;
    if (c->in.end - c->in.start < whole) return 0;
    c->in.start += whole;
    int64_t now = now_ns();
    if (!strncmp(head, "POST /v1/chat/completions", 25)) {
      if (begin(c, end + 4, length, now) < 0) return -1;
      continue;
    }
    if (!strncmp(head, "GET /v1/models", 14)) {
      put_reply(c, "200 OK", "application/json", MODELS, sizeof MODELS - 1);
    } else if (!strncmp(head, "GET /truth", 10)) {
      put_truth(c);
    } else if (!strncmp(head, "GET /arrivals", 13)) {
      put_arrivals(c);
    } else if (!strncmp(head, "GET /reset", 10)) {
      forget();
      put_reply(c, "200 OK", "text/plain", "", 0);
    } else {
      put_reply(c, "404 Not Found", "application/json", MISSING, sizeof MISSING - 1);
    }
    if (flush(c) < 0) return -1;
  }
  if (c->in.start == c->in.end) c->in.start = c->in.end = 0;
  return 0;
}

static int take_in(connection *c) {
  char *at = room(&c->in, READ_SIZE + 1);
  ssize_t count = recv(c->fd, at, READ_SIZE, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (count <= 0) return drop(c), -1;
  c->in.end += count;
  at[count] = 0;  // the string functions above stop here
  return serve(c);
}

static void accept_all(int listener) {
  int one = 1;
  for (int i = 0; i < ACCEPTS_A_TURN; i++) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    if (fd >= MAX_FD) {
      close(fd);
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connection *c = connections[fd] = calloc(1, sizeof *c);
    c->fd = fd;
    c->heap_at = -1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
  }
}

int main(int count, char **arguments) {
  if (count != 5) {
    fprintf(stderr, "usage: truthserver PORT TTFT_MS ITL_MS TOKENS\n");
    return 2;
  }
  int port = atoi(arguments[1]), one = 1;
  ttft_ms = atof(arguments[2]);
  itl_ms = atof(arguments[3]);
  default_tokens = atoi(arguments[4]);
  token_length = chunk(token_chunk, TOKEN);
  forget();
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1);
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  if (bind(listener, (void *)&address, length) || listen(listener, 8192)) {
    perror("truthserver");
    return 1;
  }
  getsockname(listener, (void *)&address, &length);
  poll_fd = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
  printf("%d\n", ntohs(address.sin_port));
  fflush(stdout);

  for (;;) {
    int64_t now = now_ns();
    for (int i = 0; heap_count && heap[0]->due <= now && i < FIRES_A_TURN; i++) fire(heap[0]);
    // No spinning up to the instant: with many streams that would be all of the core, which Linux does not leave to
    // one process, whatever its priority.
    int64_t wait = heap_count ? heap[0]->due - now_ns() : 1000000000LL;
    if (wait < 0) wait = 0;
    struct timespec timeout = {wait / 1000000000LL, wait % 1000000000LL};
    int ready = epoll_pwait2(poll_fd, events, EVENTS, &timeout, NULL);
    for (int i = 0; i < ready; i++) {
      connection *c = connections[events[i].data.fd];
      if (events[i].data.fd == listener) {
        accept_all(listener);
      } else if (c && (!(events[i].events & EPOLLOUT) || flush(c) == 0)) {
        if (events[i].events & ~EPOLLOUT) take_in(c);
      }
    }
  }
}
