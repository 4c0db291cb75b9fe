// Streams from Node's own HTTP server: server-sent events, and LLM streams at /v1/chat/completions. ENDS sets the
// server's reaction to SIGTERM. It closes and finishes its streams (`close`), also asks its clients to leave (`drain`),
// exits with its streams open (`exit`), ends their responses early but properly (`end`), or aborts them with a finish
// reason and `[DONE]`, as vLLM does (`abort`).
//
// The file JOURNAL gets a JSON line at the end of each stream, with the fields of the sample server's log.
const fs = require('node:fs');
const http = require('node:http');

const open = new Set();
let draining = false;

class Stream {
  constructor(request, response) {
    this.id = request.headers['rolldrop-id'] ?? null;
    this.isChat = request.url.startsWith('/v1/');
    this.response = response;
    this.sent = 0;
    this.until = Date.now() + Math.min(-1500 * Math.log(1 - Math.random()), 6000);
    open.add(this);
    if (draining) response.setHeader('connection', 'close');
    response.writeHead(200, { 'content-type': 'text/event-stream', 'x-pod': process.env.POD_NAME });
    response.on('close', () => this.record('client_gone'));
    this.next();
  }

  next() {
    if (!open.has(this)) return;
    if (Date.now() >= this.until) return this.finish('complete', 'stop');
    this.sent += 1;
    this.write(this.isChat ? choice({ content: `${this.sent} ` }, null) : this.sent);
    setTimeout(() => this.next(), 50);
  }

  finish(end, reason) {
    if (this.isChat) this.write(choice({}, reason));
    this.write('[DONE]');
    this.response.end();
    this.record(end);
  }

  write(data) {
    this.response.write(`data: ${data}\n\n`);
  }

  record(end) {
    if (!open.delete(this)) return;
    const line = { event: 'stream_ended', id: this.id, events: this.sent, end, ended_ns: Date.now() * 1e6 };
    fs.appendFileSync(process.env.JOURNAL, `${JSON.stringify(line)}\n`);
  }
}

function choice(delta, finish_reason) {
  return JSON.stringify({ object: 'chat.completion.chunk', choices: [{ index: 0, delta, finish_reason }] });
}

const endings = {
  exit: () => {
    for (const stream of open) stream.record('cut_at_sigterm');
    process.exit(0);
  },
  end: (stream) => {
    stream.response.end();
    stream.record('ended_at_sigterm');
  },
  abort: (stream) => stream.finish('aborted', 'abort'),
};

const server = http.createServer((request, response) => {
  if (request.url !== '/') return new Stream(request, response);
  response.end('ready\n');
});

server.listen(8080);
process.on('SIGTERM', () => {
  draining = process.env.ENDS === 'drain';
  server.close(() => process.exit(0));
  const ending = endings[process.env.ENDS];
  if (ending) for (const stream of open) ending(stream);
});
