// Fastify with its defaults: while it closes, it responds with 503 itself, ahead of the app's own code. The app's own
// cleanup before that takes CLOSING milliseconds.
const app = require('fastify')();

app.addHook('preClose', () => new Promise((done) => setTimeout(done, Number(process.env.CLOSING))));
app.get('/', async (request, reply) => {
  reply.header('x-pod', process.env.POD_NAME);
  return 'from Fastify\n';
});

app.listen({ host: '0.0.0.0', port: 8080 });
process.on('SIGTERM', () => app.close().then(() => process.exit(0)));
