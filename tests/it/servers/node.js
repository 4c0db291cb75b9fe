// Node's own HTTP server. ENDS sets its reaction to SIGTERM: `close` stops accepting and waits for its connections, as
// in most apps; `drain` first asks its clients to leave, for two seconds; a number is the status of all responses from
// then on, as if the app had first closed its own dependencies.
const http = require('node:http');

let ending = false;
const server = http.createServer((request, response) => {
  setTimeout(() => {
    response.setHeader('x-pod', process.env.POD_NAME);
    if (ending && process.env.ENDS === 'drain') response.setHeader('connection', 'close');
    if (ending && Number(process.env.ENDS)) response.statusCode = Number(process.env.ENDS);
    response.end('from Node\n');
  }, 50);
});

server.listen(8080);
process.on('SIGTERM', () => {
  ending = true;
  const close = () => server.close(() => process.exit(0));
  setTimeout(close, process.env.ENDS === 'drain' ? 2000 : 0);
});
