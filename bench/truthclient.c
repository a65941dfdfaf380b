// A chat client that does as little as can be done: one thread, epoll, one read an event, a stamp, a search for the
// token. What it costs and how late it is on a core is the limit that any client on that core has.
//
//   truthclient PORT stream|whole REQUESTS TOKENS CONCURRENCY        closed loop
//   truthclient PORT stream|whole REQUESTS TOKENS RATE/s             constant arrivals, a number ending in /s
#define _GNU_SOURCE
#include "histogram.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SPIN_NS = 80000, EVENTS = 512, READ_SIZE = 1 << 20, MOST_OPEN = 4096, LONGEST_EVENT = 1024 };

typedef struct {
  int fd, tokens, ended;
  int64_t sent, first, last;
  char rest[LONGEST_EVENT];  // the beginning of an event whose end has not come
  size_t rest_length;
} connection;

static connection *connections;
static int opened, poll_fd;
static struct sockaddr_in address;
static char request[2048];
static size_t request_length;
static long sent, done, chunks;
static histogram ttft, itl, tpot, behind;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static connection *open_one(void) {
  if (opened == MOST_OPEN) fail("truthclient: too many connections");
  connection *c = &connections[opened++];
  int one = 1;
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) fail("truthclient: connect");
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
  return c;
}

static void start(connection *c) {
  c->sent = now_ns();
  c->tokens = c->ended = 0;
  c->rest_length = 0;
  if (send(c->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length) fail("truthclient: send");
  sent++;
}

static void take_event(connection *c, const char *event, size_t length, int64_t stamp) {
  if (memmem(event, length, "\" time\"", 7)) {
    if (c->tokens++) note(&itl, stamp - c->last);
    else note(&ttft, (c->first = stamp) - c->sent);
    c->last = stamp;
    chunks++;
  } else if (memmem(event, length, "[DONE]", 6)) {
    if (c->tokens > 1) note(&tpot, (c->last - c->first) / (c->tokens - 1));
    c->ended = 1;
  }
}

static void take_stream(connection *c, const char *at, size_t length, int64_t stamp) {
  const char *end = at + length;
  if (c->rest_length) {
    size_t room = LONGEST_EVENT - c->rest_length, more = length < room ? length : room;
    memcpy(c->rest + c->rest_length, at, more);
    char *stop = memmem(c->rest, c->rest_length + more, "\n\n", 2);
    if (!stop) {
      c->rest_length += more;
      return;
    }
    take_event(c, c->rest, stop - c->rest, stamp);
    at += stop + 2 - c->rest - c->rest_length;
    c->rest_length = 0;
  }
  for (const char *stop; (stop = memmem(at, end - at, "\n\n", 2)); at = stop + 2) take_event(c, at, stop - at, stamp);
  c->rest_length = end - at < LONGEST_EVENT ? end - at : LONGEST_EVENT;
  memcpy(c->rest, at, c->rest_length);
}

int main(int count, char **arguments) {
  if (count != 6) {
    fprintf(stderr, "usage: truthclient PORT stream|whole REQUESTS TOKENS CONCURRENCY|RATE/s\n");
    return 2;
  }
  int stream = !strcmp(arguments[2], "stream"), tokens = atoi(arguments[4]);
  long requests = atol(arguments[3]);
  double number = atof(arguments[5]), rate = strstr(arguments[5], "/s") ? number : 0;
  address = (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  prctl(PR_SET_TIMERSLACK, 1);

  char body[512], *buffer = malloc(READ_SIZE);
  int length = sprintf(body,
                       "{\"model\":\"truth\",\"messages\":[{\"role\":\"user\",\"content\":\"hello there friend\"}],"
                       "\"max_tokens\":%d,\"stream\":%s}",
                       tokens, stream ? "true" : "false");
  request_length = sprintf(request,
                           "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                           "Content-Length: %d\r\n\r\n%s",
                           length, body);
  connections = calloc(MOST_OPEN, sizeof *connections);
  connection **free_ones = malloc(MOST_OPEN * sizeof *free_ones);
  int free_count = 0;
  poll_fd = epoll_create1(0);
  if (!rate)
    for (int i = 0; i < number; i++) open_one();
  int64_t begun = now_ns(), due = begun;
  if (!rate)
    for (int i = 0; i < number && sent < requests; i++) start(&connections[i]);

  while (done < requests) {
    int64_t wait = 100000000;
    for (; rate && sent < requests && due <= now_ns(); due += (int64_t)(1e9 / rate)) {
      note(&behind, now_ns() - due);
      start(free_count ? free_ones[--free_count] : open_one());
    }
    if (rate && sent < requests) wait = due - now_ns() - SPIN_NS;
    if (wait < 0) wait = 0;
    struct timespec timeout = {wait / 1000000000LL, wait % 1000000000LL};
    struct epoll_event events[EVENTS];
    int ready = epoll_pwait2(poll_fd, events, EVENTS, &timeout, NULL);
    for (int i = 0; i < ready; i++) {
      connection *c = events[i].data.ptr;
      ssize_t size = recv(c->fd, buffer, READ_SIZE, MSG_DONTWAIT);
      int64_t stamp = now_ns();
      if (size <= 0) fail("truthclient: recv");
      if (stream) take_stream(c, buffer, size, stamp);
      else c->ended = memmem(buffer, size, "\"usage\"", 7) != NULL;
      if (!c->ended) continue;
      done++;
      if (rate) free_ones[free_count++] = c;
      else if (sent < requests) start(c);
    }
  }
  double elapsed = (now_ns() - begun) / 1e9;
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  char json[2048];
  int n = sprintf(json, "{\"requests_per_s\":%.1f,\"chunks_per_s\":%.1f,\"cpu_s\":%.4f,\"rss_mb\":%.1f,",
                  done / elapsed, chunks / elapsed, cpu, used.ru_maxrss * 1024 / 1e6);
  n += histogram_json(json + n, "ttft_ms", &ttft);
  n += histogram_json(json + n, "itl_ms", &itl);
  n += histogram_json(json + n, "tpot_ms", &tpot);
  n += histogram_json(json + n, "behind_ms", &behind);
  json[n - 1] = '}';
  puts(json);
  return 0;
}
