// Fastify as it comes: while it closes it answers 503 itself, ahead of the app's own code. What the app does first takes
// CLOSING milliseconds.
const app = require('fastify')();

app.addHook('preClose', () => new Promise((done) => setTimeout(done, Number(process.env.CLOSING))));
app.get('/', async (request, reply) => {
  reply.header('x-pod', process.env.POD_NAME);
  return 'from Fastify\n';
});

app.listen({ host: '0.0.0.0', port: 8080 });
process.on('SIGTERM', () => app.close().then(() => process.exit(0)));
